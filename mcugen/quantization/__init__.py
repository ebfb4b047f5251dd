# SPDX-License-Identifier: Apache-2.0
"""Profile-guided quantization: a float model and samples in, the same model in integers (QDQ ONNX) out."""
