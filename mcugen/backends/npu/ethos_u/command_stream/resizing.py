# SPDX-License-Identifier: Apache-2.0
"""Interpolation of feature maps by Ethos-U85."""

from __future__ import annotations

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array
from mcugen.backends.npu.ethos_u.command_stream.errors import UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.operations import ResizeMode, ResizeOperation

FRACTION_BITS = 16
"""Bits below the point of the accumulators of a resize: the shift of its scaling removes them."""


def resize(operation: ResizeOperation, ifm: Array) -> Array:
    """Return the accumulators of a resize, as TOSA defines the interpolation.

    Args:
        operation: The resize; bilinear interpolation leaves the product of both scales in its results.
        ifm: Input without its zero point.

    Raises:
        UndocumentedOperation: The mode is REPLICATE.
    """
    if operation.mode is ResizeMode.REPLICATE:
        raise UndocumentedOperation("the interpreter knows no resize of this mode", operation.mode.name)
    rows, row_weights = taps_along_axis(operation, axis=0, length=ifm.shape[0])
    columns, column_weights = taps_along_axis(operation, axis=1, length=ifm.shape[1])
    sums = np.zeros(operation.ofm.shape, dtype=np.int64)
    for y, y_weight in zip(rows, row_weights, strict=True):
        for x, x_weight in zip(columns, column_weights, strict=True):
            sums += ifm[y][:, x] * (y_weight[:, None, None] * x_weight[None, :, None])
    return sums << FRACTION_BITS


def taps_along_axis(operation: ResizeOperation, axis: int, length: int) -> tuple[list[Array], list[Array]]:
    """Return the input positions of each output position along an axis, and their weights.

    Args:
        operation: The resize.
        axis: 0 for rows, 1 for columns.
        length: Length of the input along the axis.
    """
    scale = operation.scale[axis]
    position = np.arange(operation.ofm.shape[axis]) * operation.step[axis] + operation.offset[axis]
    lower, fraction = position // scale, position % scale
    last = length - 1
    if operation.mode is ResizeMode.NEAREST:
        return [np.clip(lower + (2 * fraction >= scale), 0, last)], [np.ones_like(position)]
    return [np.clip(lower, 0, last), np.clip(lower + 1, 0, last)], [scale - fraction, fraction]
