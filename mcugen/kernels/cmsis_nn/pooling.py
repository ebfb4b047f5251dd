# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's pools: arm_max_pool_s8 and _s16, arm_avgpool_s8 and _s16.

The largest codes are ours. Averages are those of codes, of which ties go away from 0 whatever the zero point; ours go
to the even distance from it. The library has no other scale for them, and counts no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.cmsis_nn.common import SCRATCH, Scratch, by_variant, library_kernel
from mcugen.kernels.portable.pool import AverageSpec, PoolSpec, WindowGeometry
from mcugen.lir.kernel import Call, Kernel, Role, Site, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import is_quantized, same_codes


def int8_pool(pool: PoolSpec | None) -> bool:
    """Require int8 tensors."""
    return pool is not None and pool.x.dtype is pool.y.dtype is DType.INT8


def int16_pool(pool: PoolSpec | None) -> bool:
    """Require int16 tensors."""
    return pool is not None and pool.x.dtype is pool.y.dtype is DType.INT16


def gapless(pool: PoolSpec) -> bool:
    """Require windows without gaps, of all channels."""
    return pool.is_channels_last and not pool.is_dilated and pool.whole is None


def keeps_codes(pool: PoolSpec) -> bool:
    """Require input and output of one scale."""
    return is_quantized(pool.x) and same_codes(pool.x, pool.y)


def counts_elements(pool: AverageSpec) -> bool:
    """Require that padding does not count."""
    return not pool.counts_padding


def of_images(pool: AverageSpec | None) -> bool:
    """Require the mean of whole images."""
    return pool is not None


def average(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the library's averages under a window."""
    pool: PoolSpec = spec_of(node)
    x = arrays[0].reshape(pool.x.shape)
    taps = tuple(range(x.ndim, 2 * x.ndim - 2))
    sums, counts = (
        pool.window.patches(a, pool.kernel, 0).sum(taps) for a in (x.astype(np.int64), np.ones(x.shape, np.int64))
    )
    return (_rounded(sums, counts).reshape(node.output.type.shape),)


def _rounded(sums: Array, counts: Array) -> Array:
    """Quotients, ties away from 0."""
    quotients: Array = np.sign(sums) * ((np.abs(sums) + counts // 2) // counts)
    return quotients


def emit_max_pool(pool: PoolSpec, site: Site) -> Call:
    """Emit a maximum pool without a clamp."""
    return site.call({"x": site.x, "y": site.y}, [pool.geometry])


def emit_average(pool: AverageSpec, site: Site) -> Call:
    """Emit an average pool. With DSP, the library needs a 32-bit sum for each channel."""
    size = by_variant(site.features, 0, 4 * pool.x.shape[-1], 0)
    operands = {"x": site.x, "y": site.y, "scratch": site.scratch("scratch", DType.INT8, size)}
    return site.call(operands, [pool.geometry, Scratch(scratch_bytes=size)])


def _operands(dtype: DType) -> tuple[Role, ...]:
    return reads("x", "input, channels last", dtype), writes("y", "output, channels last", dtype)


_TYPES = ((DType.INT8, int8_pool), (DType.INT16, int16_pool))

CMSIS_MAX_POOL: tuple[Kernel, ...] = tuple(
    library_kernel(
        f"cmsis_max_pool_{dtype.tag}",
        what=f"the largest code under each window: arm_max_pool_{dtype.tag}",
        operands=_operands(dtype),
        params=(WindowGeometry,),
        when=(of_type, gapless),
        emit=emit_max_pool,
    )
    for dtype, of_type in _TYPES
)

CMSIS_AVERAGE_POOL, CMSIS_MEAN = (
    tuple(
        library_kernel(
            f"cmsis_avgpool_{dtype.tag}",
            what=f"the mean of the codes under each window, ties away from 0: arm_avgpool_{dtype.tag}",
            operands=(*_operands(dtype), SCRATCH),
            params=(WindowGeometry, Scratch),
            when=(of_type, *conditions, keeps_codes),
            emit=emit_average,
            evaluate=average,
        )
        for dtype, of_type in _TYPES
    )
    for conditions in ((gapless, counts_elements), (of_images,))
)
"""The library's average pooling, for pooling layers and for reductions to the mean of whole images."""
