# SPDX-License-Identifier: Apache-2.0
"""Conversion of estimators and pipelines of scikit-learn, XGBoost and LightGBM to ONNX."""
