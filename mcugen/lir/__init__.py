# SPDX-License-Identifier: Apache-2.0
"""The low-level IR: instructions over buffers, their memory plan and its check. It has never heard of ONNX."""
