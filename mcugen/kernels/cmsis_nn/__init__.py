# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), a file a family of its functions; here by the operators they compute."""

from __future__ import annotations

from mcugen.kernels.cmsis_nn import (
    convolution,
    dense,
    depthwise,
    elementwise,
    lstm,
    matmul,
    movement,
    pooling,
    s16,
    s16_activations,
    softmax,
    transpose_conv,
)
from mcugen.lir.kernel import Kernel

CONV: tuple[Kernel, ...] = (*dense.ROW, *depthwise.DEPTHWISE, *convolution.CONV, *s16.CONV)
CONV_TRANSPOSE: tuple[Kernel, ...] = transpose_conv.CONV_TRANSPOSE
DENSE: tuple[Kernel, ...] = (*dense.DENSE, *s16.DENSE)
MATMUL: tuple[Kernel, ...] = (*matmul.MATMUL, *s16.MATMUL)
"""Kernels of products of two activations."""

BINARY: tuple[Kernel, ...] = (*elementwise.BINARY, *s16_activations.BINARY)
"""Kernels of elementwise operators with two operands."""

CURVE: tuple[Kernel, ...] = s16_activations.CURVE
"""Kernels of functions of one int16 tensor."""

MAX_POOL: tuple[Kernel, ...] = pooling.MAX_POOL
AVERAGE_POOL: tuple[Kernel, ...] = pooling.AVERAGE_POOL
REDUCE: tuple[Kernel, ...] = pooling.REDUCE
"""Kernels of reductions along axes."""

SOFTMAX: tuple[Kernel, ...] = softmax.SOFTMAX
PAD: tuple[Kernel, ...] = movement.PAD
TRANSPOSE: tuple[Kernel, ...] = movement.TRANSPOSE
CONCAT: tuple[Kernel, ...] = movement.CONCAT

REPEAT: tuple[Kernel, ...] = lstm.REPEAT
"""Kernels of loops."""
