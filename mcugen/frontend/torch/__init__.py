# SPDX-License-Identifier: Apache-2.0
"""Conversion of PyTorch modules, exported programs and .pt2 files to ONNX."""
