# SPDX-License-Identifier: Apache-2.0
"""Fully connected layers with group-quantized weights: 2, 4 or 8 bits, and a scale per group along the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.weighted_layers import FloatLimits
from mcugen.kernels.fpu.fpu_conv import ClampOptions, UpperLimit
from mcugen.lir.kernel import Kernel, Options, Params, Trained, reads, scratch, writes
from mcugen.numerics.fixedpoint import max_code_magnitude

WEIGHT_BITS = (2, 4, 8)
"""Possible numbers of bits of a packed weight."""


ROWS_PER_WEIGHT = 4
"""Number of rows of x that each unpacked weight is multiplied with."""

TILE_ROWS, TILE_CHANNELS = 32, 8
"""Size of a tile of weights that are unpacked to float once: the rows of x that they serve, and the output channels."""


@dataclass(frozen=True)
class PackedWeights:
    """Group-quantized weights as they are stored in flash: packed values, and zero points by group.

    A group is a number of successive weights of an output channel that share a scale.

    Attributes:
        bits: Number of bits of a weight: 2, 4 or 8.
        data: Packed weights, uint8: the first weight of a byte is in its lowest bits, and each group begins at a new
            byte.
        zeros: Zero points of the weights, uint8: a single one, or one for each channel and group.
    """

    bits: int
    data: Array
    zeros: Array

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights and zero points in flash."""
        return self.data.size + (self.zeros.size if self.has_zeros else 0)

    @property
    def has_zeros(self) -> bool:
        """Return whether zero points are stored in flash, because they differ between groups."""
        return self.zeros.size > 1

    @property
    def zero(self) -> int:
        """Return the common zero point of all groups; 0 if groups have different ones."""
        return 0 if self.has_zeros else int(self.zeros[0])

    @staticmethod
    def of(codes: Array, group: int) -> PackedWeights | None:
        """Pack integer weights with as few bits as possible, of 2, 4 or 8 bits per weight.

        A group is a number of successive weights of an output channel. All groups share one zero point if that needs no
        more bits than one zero point per group.

        Args:
            codes: Quantized weights, [out_channels, depth].
            group: Weights of a group, along the depth.

        Returns:
            The packed weights; None if they need more than 8 bits.
        """
        parts = [codes[:, start : start + group].astype(np.int64) for start in range(0, codes.shape[1], group)]
        lows = np.stack([np.minimum(part.min(1), 0) for part in parts], 1)
        highs = np.stack([np.maximum(part.max(1), 0) for part in parts], 1)
        apart, whole = _width(int((highs - lows).max())), _width(int(highs.max() - lows.min()))
        bits = apart if whole is None else min(whole, apart or whole)
        if bits is None:
            return None
        bases = np.full_like(lows, lows.min()) if bits == whole else lows
        if bits == whole and lows.min() >= -(1 << (bits - 1)) and highs.max() < 1 << (bits - 1):
            bases = np.full_like(lows, -(1 << (bits - 1)))  # One zero point for all layers: they share code.
        rows = [_bytes(part - base[:, None], bits) for part, base in zip(parts, bases.T, strict=True)]
        zeros = -bases if bits != whole else -bases[:1, :1]
        return PackedWeights(bits, np.concatenate(rows, 1).reshape(-1), zeros.astype(np.uint8).reshape(-1))


def _width(span: int) -> int | None:
    """Return the narrowest of WIDTHS for numbers from 0 to `span`, or None."""
    return next((bits for bits in WEIGHT_BITS if span < 1 << bits), None)


def _bytes(codes: Array, bits: int) -> Array:
    """Pack [N, k] numbers of `bits` bits as [N, bytes]."""
    codes_per_byte = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % codes_per_byte))).reshape(len(codes), -1, codes_per_byte)
    shifted: Array = (padded << np.arange(0, 8, bits)).sum(2).astype(np.uint8)
    return shifted


@dataclass(frozen=True)
class GroupRequantizer:
    """Requantization of a layer with group-quantized weights, in 64 bits with one rounding, half up.

    y[n] = (Σ_g sum[n, g] · multiplier[n, g] + bias[n]) >> shift, for output channel n and group g, where sum[n, g] is
    the sum of products of the group.

    Attributes:
        multiplier: Integer multiplier of each output channel and group, int64 [N, G].
        bias: Biases at the scale of products, with the zero point and the rounding term, int64 [N].
        shift: Right shift of the scaled and added sums, in bits.
    """

    multiplier: Array
    bias: Array
    shift: int

    @staticmethod
    def of(factors: Array, bias: Array, zero_point: int, sums: Array) -> GroupRequantizer:
        """Return the requantization with the largest shift that causes no overflow, for group-quantized weights.

        A group is successive weights of an output channel that share a scale. With the shift, all multipliers must fit
        31 bits, and all totals 62 bits.

        Args:
            factors: Real factor from the sum of a group to y, in quantization steps: scale of x · scale of the group /
                scale of y, [N, G].
            bias: Bias in quantization steps of y, [N].
            zero_point: Zero point of the output.
            sums: Largest magnitudes of the sums of groups, [N, G].
        """
        max_total = max(float((factors * sums).sum(1).max() + np.abs(bias).max()) + abs(zero_point) + 1, 1.0)
        shift = 46
        while shift > 1 and (np.rint(factors.max() * 2.0**shift) >= 2**31 or max_total * 2.0**shift >= 2**62):
            shift -= 1
        multiplier = np.rint(np.minimum(factors * 2.0**shift, 2**31 - 1)).astype(np.int64)
        start = np.rint(np.clip(bias, -(2.0**15), 2.0**15) * 2.0**shift).astype(np.int64)
        return GroupRequantizer(multiplier, start + (zero_point << shift) + (1 << (shift - 1)), shift)

    def __call__(self, sums: Array) -> Array:
        """Return the quantized values [..., N], before the clamp, for group sums [..., N, G]."""
        codes: Array = ((sums.astype(np.int64) * self.multiplier).sum(-1) + self.bias) >> self.shift
        return codes


class GroupedRows(Params):
    """Kernel parameters with the sizes of a fully connected layer with group-quantized weights.

    Groups are successive weights of an output channel that share a scale.
    """

    rows: Annotated[int, "rows of x and y"]
    depth: Annotated[int, "elements of a row of x"]
    out_channels: Annotated[int, "elements of a row of y"]
    group_size: Annotated[int, "weights that share a scale"]


class GroupedReals(Params):
    """Kernel parameters with the limits of float results of a layer with group-quantized weights.

    Groups are successive weights of an output channel that share a scale.
    """

    low: Annotated[float, "lowest result"]
    high: Annotated[float, "highest result"]


class GroupedCodes(Params):
    """Kernel parameters with the limits of quantized results of a layer with group-quantized weights.

    Groups are successive weights of an output channel that share a scale.
    """

    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


class GroupedZero(Params):
    """Kernel parameter with the zero point of the quantized input of a layer with group-quantized weights.

    Groups are successive weights of an output channel that share a scale.
    """

    x_zero_point: Annotated[Trained, "zero point of x"]


class PackedOptions(Options):
    """Template options of fully connected layers with group-quantized weights: storage of weights and results.

    Groups are successive weights of an output channel that share a scale, and perhaps a zero point.
    """

    x_t: Annotated[str, "C type of the input"]
    y_t: Annotated[str, "C type of the output"]
    bits: Annotated[int, "bits of a weight"]
    zero: Annotated[int, "zero point of weights, if there is a single one"]
    zeros: Annotated[bool, "whether each group has its own zero point"]
    bias: Annotated[bool, "whether sums begin with a bias"]
    clamp: Annotated[bool, "whether float results are limited"]
    has_row_blocks: Annotated[bool, "whether x has four rows or more"]
    shift: Annotated[int, "right shift of requantized totals; 0: results are floats"]


def _example(rows: int) -> str:
    """Return a model in ONNX's text form with layers whose weights have 4 and 8 bits in groups of 16."""
    depth, channels, group, parts = 36, 24, 16, []
    for name, largest in (("a", 7), ("b", 127)):
        codes = ", ".join(str((37 * n) % (2 * largest) - largest) for n in range(depth * channels))
        scales = ", ".join(f"{0.01 + 0.001 * (n % 9):.3f}" for n in range(-(-depth // group) * channels))
        parts.append(f"int8[{depth}, {channels}] {name}w = {{{codes}}}, float[3, {channels}] {name}s = {{{scales}}}")
    nodes = (
        f"{y}r = DequantizeLinear <axis: int = 0, block_size: int = {group}> ({y}w, {y}s) {y} = MatMul(x, {y}r)"
        for y in "ab"
    )
    results = ", ".join(f"float[{rows}, {channels}] {y}" for y in "ab")
    head = f'<ir_version: 10, opset_import: ["": 21]> net (float[{rows}, {depth}] x) => ({results})'
    return f"{head} <{', '.join(parts)}> {{ {' '.join(nodes)} }}"


DENSE_PACKED = Kernel(
    "dense_packed",
    what="four rows by a channel; weights of 2, 4 or 8 bits in groups with one scale each, unpacked as they are read",
    operands=(
        reads("x", "input", DType.FLOAT32, DType.INT8, DType.INT16),
        reads(
            "w", "weights, the first of a byte in its lowest bits; each group begins a byte", DType.UINT8, holds=(1,)
        ),
        reads("scale", "scale or multiplier by channel and group", DType.FLOAT32, DType.INT32, holds=(2,)),
        reads("zeros", "zero point by channel and group", DType.UINT8, optional=True),
        reads("bias", "bias by channel", DType.FLOAT32, DType.INT64, optional=True, holds=(3,)),
        writes("y", "output", DType.FLOAT32, DType.INT8, DType.INT16),
    ),
    params=(GroupedRows, GroupedReals, GroupedCodes, GroupedZero),
    optional=(GroupedReals, GroupedCodes, GroupedZero),
    options=(PackedOptions,),
    example=_example(2),
)
"""Kernel of fully connected layers with group-quantized weights, on any CPU."""


class TileOptions(Options):
    """Template options of layers that unpack tiles of group-quantized weights to floats: packing, and rows per tile.

    Groups are successive weights of an output channel that share a scale. A tile is the weights of a few output
    channels, which are unpacked to a scratch buffer once, and multiplied with several rows of x.
    """

    bits: Annotated[int, "bits of a weight"]
    zero: Annotated[int, "zero point of weights, if there is a single one"]
    zeros: Annotated[bool, "whether each group has its own zero point"]
    bias: Annotated[bool, "whether sums begin with a bias"]
    rows: Annotated[int, "rows of x for which a weight is unpacked to float once"]


DENSE_PACKED_TILE = Kernel(
    "dense_packed_tile",
    what="four rows by four channels in registers or vectors; weights of 2, 4 or 8 bits in groups with one scale each, "
    "unpacked to float by tiles of eight channels, once for 32 rows",
    operands=(
        reads("x", "input", DType.FLOAT32),
        reads(
            "w", "weights, the first of a byte in its lowest bits; each group begins a byte", DType.UINT8, holds=(1,)
        ),
        reads("scale", "scale by channel and group", DType.FLOAT32, holds=(2,)),
        reads("zeros", "zero point by channel and group", DType.UINT8, optional=True),
        reads("bias", "bias by channel", DType.FLOAT32, optional=True, holds=(3,)),
        writes("y", "output", DType.FLOAT32),
        scratch("patch", "rows of x, interleaved by four", DType.FLOAT32),
        scratch("tile", "for each four channels, their biases, then their weights", DType.FLOAT32),
    ),
    params=(GroupedRows, FloatLimits),
    options=(TileOptions, ClampOptions, UpperLimit, FloatLoops),
    needs=frozenset({"fpu"}),
    example=_example(TILE_ROWS + 3),
)
"""Kernel of float fully connected layers with group-quantized weights and several rows, on CPUs with an FPU."""


def tile_sizes(rows: int, depth: int) -> tuple[int, int]:
    """Return the sizes, in floats, of the scratch buffers of the kernel that unpacks tiles of weights.

    A tile is the weights of eight output channels, which are unpacked once and multiplied with up to 32 rows of x.

    Args:
        rows: Rows of x.
        depth: Elements of a row of x.

    Returns:
        The sizes of the buffer of interleaved rows of x, and of the buffer of an unpacked tile.
    """
    held = min(-(-rows // ROWS_PER_WEIGHT) * ROWS_PER_WEIGHT, TILE_ROWS)
    return held * depth, TILE_CHANNELS * (depth + 1)


def largest_group_sums(codes: Array, group: int, x: DType) -> Array:
    """Return an upper bound of the magnitude of each group's sum of products of inputs and quantized weights.

    A group is a number of successive weights of an output channel that share a scale.

    Args:
        codes: Quantized weights, [N, K]: a row for each output channel.
        group: Number of weights of a group, along K.
        x: Element type of the input.

    Returns:
        int64 [N, groups].
    """
    starts = np.arange(0, codes.shape[1], group)
    sums: Array = np.add.reduceat(np.abs(codes.astype(np.int64)), starts, 1) * max_code_magnitude(x)
    return sums
