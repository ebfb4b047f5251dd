# SPDX-License-Identifier: Apache-2.0
"""Profile-guided quantization: turn a float model and calibration samples into an integer model (QDQ ONNX)."""
