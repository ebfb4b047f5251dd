# SPDX-License-Identifier: Apache-2.0
"""Operator families. Importing this package registers every operator; a new family adds one line here."""

from mcugen.ops import conv, elementwise, matmul, movement, norm, quantization

__all__ = ["conv", "elementwise", "matmul", "movement", "norm", "quantization"]
