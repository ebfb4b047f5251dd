# SPDX-License-Identifier: Apache-2.0
"""Conversion of Keras models and .keras files to ONNX."""
