# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), a file a family of its functions."""

from __future__ import annotations

from mcugen.lir.builder import Kernel
from mcugen.ops.kernels.cmsis import convolution, s16, s16_activations

CONV: tuple[Kernel, ...] = (*convolution.CONV, *s16.CONV)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = (*s16.DENSE,)
"""Of fully connected layers."""

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
