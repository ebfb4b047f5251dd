# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), a file a family of its functions."""

from __future__ import annotations

from mcugen.lir.builder import Kernel
from mcugen.ops.kernels.cmsis import (
    convolution,
    dense,
    depthwise,
    elementwise,
    movement,
    pooling,
    softmax,
    transpose_conv,
)

CONV: tuple[Kernel, ...] = (*dense.ROW, *depthwise.DEPTHWISE, *convolution.CONV)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = dense.DENSE
"""Of fully connected layers."""

CONV_TRANSPOSE: tuple[Kernel, ...] = transpose_conv.CONV_TRANSPOSE
"""Of transposed convolutions of codes."""

BINARY: tuple[Kernel, ...] = (*elementwise.BINARY,)
"""Of elementwise operators with two operands."""

MAX_POOL: tuple[Kernel, ...] = (*pooling.MAX_POOL,)
AVERAGE_POOL: tuple[Kernel, ...] = (*pooling.AVERAGE_POOL,)

REDUCE: tuple[Kernel, ...] = (*pooling.REDUCE,)
"""Of reductions along axes."""

SOFTMAX: tuple[Kernel, ...] = (*softmax.SOFTMAX,)

PAD: tuple[Kernel, ...] = (*movement.PAD,)
"""Of padding with a constant."""

TRANSPOSE: tuple[Kernel, ...] = (*movement.TRANSPOSE,)
CONCAT: tuple[Kernel, ...] = (*movement.CONCAT,)
