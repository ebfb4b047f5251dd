# SPDX-License-Identifier: Apache-2.0
"""Kernels that call CMSIS-NN (version 7), one file for each family of its functions.

mcugen.kernels.families imports this package where `--kernels` asks for it.
"""

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
from mcugen.kernels.common.lstm_loop import LstmLoopSpec
from mcugen.kernels.common.movement_specs import ConcatSpec, PadSpec
from mcugen.kernels.common.specs import ConvSpec, MatMulSpec
from mcugen.kernels.families import LibraryLayer
from mcugen.kernels.portable.activations import BinarySpec, CurveSpec
from mcugen.kernels.portable.movement import TransposeSpec
from mcugen.kernels.portable.pool import AverageSpec, PoolSpec
from mcugen.kernels.portable.softmax import SoftmaxSpec

LAYERS = (
    LibraryLayer(
        ("conv",),
        ConvSpec,
        (*dense.CMSIS_ROW_S8, *depthwise.CMSIS_DEPTHWISE_S8, *convolution.CMSIS_CONV_S8, *s16.CMSIS_CONV_S16),
    ),
    LibraryLayer(("conv_transpose",), ConvSpec, transpose_conv.CMSIS_CONV_TRANSPOSE),
    LibraryLayer(("dense",), ConvSpec, (*dense.CMSIS_DENSE_S8, *s16.CMSIS_DENSE_S16)),
    LibraryLayer(("matmul",), MatMulSpec, (*matmul.CMSIS_MATMUL_S8, *s16.CMSIS_MATMUL_S16)),
    LibraryLayer(("add", "sub"), BinarySpec, (*elementwise.CMSIS_SUM_S8, *s16_activations.CMSIS_SUM_S16)),
    LibraryLayer(("mul",), BinarySpec, (*elementwise.CMSIS_PRODUCT_S8, *s16_activations.CMSIS_PRODUCT_S16)),
    LibraryLayer(("max",), BinarySpec, elementwise.CMSIS_MAXIMUM_S8),
    LibraryLayer(("min",), BinarySpec, elementwise.CMSIS_MINIMUM_S8),
    LibraryLayer(("interpolate",), CurveSpec, s16_activations.CMSIS_ACTIVATIONS_S16),
    LibraryLayer(("max_pool",), PoolSpec, pooling.CMSIS_MAX_POOL),
    LibraryLayer(("average_pool",), AverageSpec, pooling.CMSIS_AVERAGE_POOL),
    LibraryLayer(("reduce_mean",), AverageSpec, pooling.CMSIS_MEAN),
    LibraryLayer(("softmax",), SoftmaxSpec, softmax.CMSIS_SOFTMAX),
    LibraryLayer(("pad",), PadSpec, movement.CMSIS_PAD),
    LibraryLayer(("transpose",), TransposeSpec, movement.CMSIS_TRANSPOSE),
    LibraryLayer(("concat",), ConcatSpec, movement.CMSIS_CONCAT),
    LibraryLayer(("repeat",), LstmLoopSpec, lstm.CMSIS_LSTM),
)
"""The layers that the library computes, as mcugen.kernels.families reads them."""
