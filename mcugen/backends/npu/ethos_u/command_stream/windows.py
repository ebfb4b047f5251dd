# SPDX-License-Identifier: Apache-2.0
"""Accumulators of convolutions and poolings: what the units of multiplication compute before scaling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array
from mcugen.backends.npu.ethos_u.command_stream.errors import UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.operations import KernelWindow, PoolingMode, PoolingOperation, Upscale


def enlarge(ifm: Array, upscale: Upscale, kernel: KernelWindow, output: tuple[int, int, int]) -> Array:
    """Return the input, enlarged to twice its height and width if the operation says so.

    Args:
        ifm: Input, as height, width, depth.
        upscale: Enlargement: each element four times, or zeros in between.
        kernel: The window, which does not reach beyond what the output covers.
        output: Shape of the output.
    """
    if upscale is Upscale.NONE:
        return ifm
    if upscale is Upscale.NEAREST:
        larger = ifm.repeat(2, axis=0).repeat(2, axis=1)
    else:
        larger = np.zeros((2 * ifm.shape[0], 2 * ifm.shape[1], ifm.shape[2]), dtype=ifm.dtype)
        larger[::2, ::2] = ifm
    covered_h = (output[0] - 1) * kernel.stride_y + (kernel.height - 1) * kernel.dilation_y + 1
    covered_w = (output[1] - 1) * kernel.stride_x + (kernel.width - 1) * kernel.dilation_x + 1
    height, width = covered_h - kernel.pad_top - kernel.pad_bottom, covered_w - kernel.pad_left - kernel.pad_right
    return larger[:height, :width]


def pad(ifm: Array, kernel: KernelWindow, value: int) -> Array:
    """Return the input with its padding."""
    widths = ((kernel.pad_top, kernel.pad_bottom), (kernel.pad_left, kernel.pad_right), (0, 0))
    return np.pad(ifm, widths, constant_values=value)


def taps(padded: Array, kernel: KernelWindow, output: tuple[int, int, int]) -> Iterator[tuple[int, int, Array]]:
    """Yield each tap's row and column, and the inputs under it for all positions of the window."""
    for y in range(kernel.height):
        for x in range(kernel.width):
            top, left = y * kernel.dilation_y, x * kernel.dilation_x
            bottom = top + (output[0] - 1) * kernel.stride_y + 1
            right = left + (output[1] - 1) * kernel.stride_x + 1
            yield y, x, padded[top : bottom : kernel.stride_y, left : right : kernel.stride_x]


def convolve(padded: Array, weights: Array, kernel: KernelWindow, output: tuple[int, int, int]) -> Array:
    """Return the sums of products of a convolution.

    The products are summed as float64, which is exact for operands of 8 and 16 bits and fewer than 2^22 products.

    Args:
        padded: Input without its zero point, with padding.
        weights: Weights in the order OHWI.
        kernel: The window.
        output: Shape of the output.
    """
    sums = np.zeros(output, dtype=np.float64)
    values = padded.astype(np.float64)
    for y, x, window in taps(values, kernel, output):
        sums += window @ weights[:, y, x, :].T.astype(np.float64)
    return sums.astype(np.int64)


def convolve_depthwise(padded: Array, weights: Array, kernel: KernelWindow, output: tuple[int, int, int]) -> Array:
    """Return the sums of products of a depthwise convolution; the last axis of the weights has length 1."""
    sums = np.zeros(output, dtype=np.int64)
    for y, x, window in taps(padded, kernel, output):
        sums += window * weights[:, y, x, 0]
    return sums


def pool(operation: PoolingOperation, ifm: Array, ifm2: Array | None) -> Array:
    """Return the results of a pooling before scaling.

    Args:
        operation: The pooling.
        ifm: Input without its zero point.
        ifm2: Second input without its zero point, for the mode NONE.

    Raises:
        UndocumentedOperation: The mode is one whose result no public document defines.
    """
    kernel, output = operation.kernel, operation.ofm.shape
    if operation.mode is PoolingMode.NONE and ifm2 is not None:
        return ifm2
    if operation.mode is PoolingMode.REDUCE_SUM:
        return np.asarray(ifm.sum(axis=2, keepdims=True))
    if operation.mode in (PoolingMode.MAX, PoolingMode.MIN):
        is_max = operation.mode is PoolingMode.MAX
        outside = np.iinfo(np.int64).min if is_max else np.iinfo(np.int64).max
        choose = np.maximum if is_max else np.minimum
        windows = [window for _, _, window in taps(pad(ifm, kernel, outside), kernel, output)]
        return np.asarray(choose.reduce(windows))
    if operation.mode in (PoolingMode.AVERAGE, PoolingMode.SUM):
        padded = pad(ifm, kernel, 0)
        windows = [window for _, _, window in taps(padded, kernel, output)]
        return np.asarray(np.sum(windows, axis=0, dtype=np.int64))
    raise UndocumentedOperation("the interpreter knows no pooling of this mode", operation.mode.name)


def count_inside(operation: PoolingOperation, height: int, width: int) -> Array:
    """Return, for each position of the window, how many of its elements lie inside of the input."""
    ones = np.ones((height, width, 1), dtype=np.int64)
    output = (*operation.ofm.shape[:2], 1)
    windows = [window for _, _, window in taps(pad(ones, operation.kernel, 0), operation.kernel, output)]
    return np.asarray(np.sum(windows, axis=0, dtype=np.int64))
