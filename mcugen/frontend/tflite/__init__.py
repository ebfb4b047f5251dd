# SPDX-License-Identifier: Apache-2.0
"""Reading of .tflite files as ONNX models, which take the way of all models."""
