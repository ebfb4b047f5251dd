# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's pools: arm_max_pool_s8 and _s16, arm_avgpool_s8 and _s16.

Maxima are identical to mcugen's. The library averages quantized values and rounds ties away from 0 whatever the zero
point; mcugen rounds ties to an even distance from the zero point. The library cannot change the scale, and does not
count padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.cmsis_nn.common import SCRATCH, Scratch, library_kernel, select_by_variant
from mcugen.kernels.portable.pool import AverageSpec, PoolSpec, WindowGeometry
from mcugen.lir.kernel import Call, Kernel, Role, Site, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import has_same_quantization, is_quantized


def is_int8_pool(pool: PoolSpec | None) -> bool:
    """Require a pool of int8 tensors.

    Return whether the layer meets this condition of a kernel; False for None, which stands for a reduction that is no
    pool.
    """
    return pool is not None and pool.x.dtype is pool.y.dtype is DType.INT8


def is_int16_pool(pool: PoolSpec | None) -> bool:
    """Require a pool of int16 tensors.

    Return whether the layer meets this condition of a kernel; False for None, which stands for a reduction that is no
    pool.
    """
    return pool is not None and pool.x.dtype is pool.y.dtype is DType.INT16


def is_undilated_pool(pool: PoolSpec) -> bool:
    """Require tensors with channels last, all channels of each pixel, and no dilation.

    Return whether the pool meets this condition of a kernel: it does not read some channels of a larger tensor.
    """
    return pool.is_channels_last and not pool.is_dilated and pool.whole is None


def has_equal_scales(pool: PoolSpec) -> bool:
    """Require quantized tensors with the same scale and zero point for input and output.

    Return whether the pool meets this condition of a kernel.
    """
    return is_quantized(pool.x) and has_same_quantization(pool.x, pool.y)


def ignores_padding(pool: AverageSpec) -> bool:
    """Require averages that do not count padding.

    Return whether the pool meets this condition of a kernel: sums are divided by the number of taps inside the input.
    """
    return not pool.counts_padding


def is_image_mean(pool: AverageSpec | None) -> bool:
    """Require a mean over whole images.

    Return whether a reduction meets this condition of a kernel: its spec is then an average pool, not None.
    """
    return pool is not None


def evaluate_average(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the average of each window of a pool, bit by bit as CMSIS-NN computes it."""
    pool: PoolSpec = spec_of(node)
    x = arrays[0].reshape(pool.x.shape)
    taps = tuple(range(x.ndim, 2 * x.ndim - 2))
    sums, counts = (
        pool.window.patches(a, pool.kernel, 0).sum(taps) for a in (x.astype(np.int64), np.ones(x.shape, np.int64))
    )
    return (_rounded(sums, counts).reshape(node.output.type.shape),)


def _rounded(sums: Array, counts: Array) -> Array:
    """Return rounded quotients, ties away from 0."""
    quotients: Array = np.sign(sums) * ((np.abs(sums) + counts // 2) // counts)
    return quotients


def emit_max_pool(pool: PoolSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's maximum pool.

    Its output limits are those of the element type, so that nothing is clamped.
    """
    return site.call({"x": site.x, "y": site.y}, [pool.geometry])


def emit_average(pool: AverageSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's average pool.

    With the DSP extension, its scratch memory holds a 32-bit sum for each channel.
    """
    size = select_by_variant(site.features, 0, 4 * pool.x.shape[-1], 0)
    operands = {"x": site.x, "y": site.y, "scratch": site.scratch("scratch", DType.INT8, size)}
    return site.call(operands, [pool.geometry, Scratch(scratch_bytes=size)])


def _operands(dtype: DType) -> tuple[Role, ...]:
    return reads("x", "input, channels last", dtype), writes("y", "output, channels last", dtype)


_TYPES = ((DType.INT8, is_int8_pool), (DType.INT16, is_int16_pool))

CMSIS_MAX_POOL: tuple[Kernel, ...] = tuple(
    library_kernel(
        f"cmsis_max_pool_{dtype.tag}",
        what=f"the largest value under each window: arm_max_pool_{dtype.tag}",
        operands=_operands(dtype),
        params=(WindowGeometry,),
        when=(of_type, is_undilated_pool),
        emit=emit_max_pool,
    )
    for dtype, of_type in _TYPES
)
"""CMSIS-NN's kernels of maximum pooling."""

CMSIS_AVERAGE_POOL, CMSIS_MEAN = (
    tuple(
        library_kernel(
            f"cmsis_avgpool_{dtype.tag}",
            what=f"the mean of the values under each window, ties away from 0: arm_avgpool_{dtype.tag}",
            operands=(*_operands(dtype), SCRATCH),
            params=(WindowGeometry, Scratch),
            when=(of_type, *conditions, has_equal_scales),
            emit=emit_average,
            evaluate=evaluate_average,
        )
        for dtype, of_type in _TYPES
    )
    for conditions in ((is_undilated_pool, ignores_padding), (is_image_mean,))
)
"""CMSIS-NN's kernels of average pooling, and of reductions to the mean of whole images."""
