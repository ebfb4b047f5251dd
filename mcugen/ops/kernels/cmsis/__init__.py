# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), a file a family of its functions."""

from __future__ import annotations

from mcugen.lir.builder import Kernel
from mcugen.ops.kernels.cmsis import convolution, dense, depthwise, lstm, matmul, transpose_conv

CONV: tuple[Kernel, ...] = (*dense.ROW, *depthwise.DEPTHWISE, *convolution.CONV)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = dense.DENSE
"""Of fully connected layers."""

CONV_TRANSPOSE: tuple[Kernel, ...] = transpose_conv.CONV_TRANSPOSE
"""Of transposed convolutions of codes."""

MATMUL: tuple[Kernel, ...] = matmul.MATMUL
"""Of products of two activations."""

REPEAT: tuple[Kernel, ...] = lstm.REPEAT
"""Of loops."""
