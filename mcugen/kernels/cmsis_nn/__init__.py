# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), one module for each family of its functions; here by operator."""

from __future__ import annotations

from mcugen.kernels.cmsis_nn.convolution import CMSIS_CONV_S8
from mcugen.kernels.cmsis_nn.dense import CMSIS_DENSE_S8, CMSIS_ROW_S8
from mcugen.kernels.cmsis_nn.depthwise import CMSIS_DEPTHWISE_S8
from mcugen.kernels.cmsis_nn.elementwise import CMSIS_BINARY_S8
from mcugen.kernels.cmsis_nn.lstm import CMSIS_LSTM
from mcugen.kernels.cmsis_nn.matmul import CMSIS_MATMUL_S8
from mcugen.kernels.cmsis_nn.movement import CMSIS_CONCAT, CMSIS_PAD, CMSIS_TRANSPOSE
from mcugen.kernels.cmsis_nn.pooling import CMSIS_AVERAGE_POOL, CMSIS_MAX_POOL, CMSIS_MEAN
from mcugen.kernels.cmsis_nn.s16 import CMSIS_CONV_S16, CMSIS_DENSE_S16, CMSIS_MATMUL_S16
from mcugen.kernels.cmsis_nn.s16_activations import CMSIS_ACTIVATIONS_S16, CMSIS_BINARY_S16
from mcugen.kernels.cmsis_nn.softmax import CMSIS_SOFTMAX
from mcugen.kernels.cmsis_nn.transpose_conv import CMSIS_CONV_TRANSPOSE
from mcugen.lir.kernel import Kernel

CMSIS_CONV: tuple[Kernel, ...] = (*CMSIS_ROW_S8, *CMSIS_DEPTHWISE_S8, *CMSIS_CONV_S8, *CMSIS_CONV_S16)
"""Kernels of convolutions, in order of preference; a convolution of one pixel is a fully connected layer."""

CMSIS_DENSE: tuple[Kernel, ...] = (*CMSIS_DENSE_S8, *CMSIS_DENSE_S16)
"""Kernels of fully connected layers, in order of preference."""

CMSIS_MATMUL: tuple[Kernel, ...] = (*CMSIS_MATMUL_S8, *CMSIS_MATMUL_S16)
"""Kernels of products of two activations."""

CMSIS_BINARY: tuple[Kernel, ...] = (*CMSIS_BINARY_S8, *CMSIS_BINARY_S16)
"""Kernels of elementwise operators with two operands."""

__all__ = (
    "CMSIS_ACTIVATIONS_S16",
    "CMSIS_AVERAGE_POOL",
    "CMSIS_BINARY",
    "CMSIS_CONCAT",
    "CMSIS_CONV",
    "CMSIS_CONV_TRANSPOSE",
    "CMSIS_DENSE",
    "CMSIS_LSTM",
    "CMSIS_MATMUL",
    "CMSIS_MAX_POOL",
    "CMSIS_MEAN",
    "CMSIS_PAD",
    "CMSIS_SOFTMAX",
    "CMSIS_TRANSPOSE",
)
