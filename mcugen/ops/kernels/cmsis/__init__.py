# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), a file a family of its functions."""

from __future__ import annotations

from mcugen.lir.builder import Kernel
from mcugen.ops.kernels.cmsis import convolution, dense, depthwise, s16, s16_activations, transpose_conv

CONV: tuple[Kernel, ...] = (*dense.ROW, *depthwise.DEPTHWISE, *convolution.CONV, *s16.CONV)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = (*dense.DENSE, *s16.DENSE)
"""Of fully connected layers."""

CONV_TRANSPOSE: tuple[Kernel, ...] = transpose_conv.CONV_TRANSPOSE
"""Of transposed convolutions of codes."""

MATMUL: tuple[Kernel, ...] = (*s16.MATMUL,)
"""Of products of two activations."""

MAX_POOL: tuple[Kernel, ...] = (*s16_activations.MAX_POOL,)
"""Of maxima under a window."""

AVERAGE_POOL: tuple[Kernel, ...] = (*s16_activations.AVERAGE_POOL,)
"""Of means under a window."""

MEAN: tuple[Kernel, ...] = (*s16_activations.MEAN,)
"""Of means over axes."""

BINARY: tuple[Kernel, ...] = (*s16_activations.BINARY,)
"""Of two operands."""

CURVE: tuple[Kernel, ...] = (*s16_activations.CURVE,)
"""Of functions of one int16 tensor."""
