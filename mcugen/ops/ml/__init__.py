# SPDX-License-Identifier: Apache-2.0
"""Operators of domain ai.onnx.ml: trees, linear models, support vector machines, preprocessing."""

from mcugen.ops.ml import forest, linear, preprocessing, scores, svm, trees
