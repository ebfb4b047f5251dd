# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of PyTorch modules with the integer arithmetic of the generated C code."""
