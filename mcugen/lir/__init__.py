# SPDX-License-Identifier: Apache-2.0
"""The low-level IR: instructions over buffers, independent of ONNX."""
