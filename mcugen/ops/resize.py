# SPDX-License-Identifier: Apache-2.0
"""Resize along any axes: nearest neighbour, linear, and other interpolations by tables of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mcugen.hir.crop import Box, Crop, hull_of
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, RowForm, RowWindow, Signature
from mcugen.hir.traits import Croppable, Interpolating, Permutable, Quantizable, Rowwise, Simplifiable
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk, dense_strides, numbered
from mcugen.kernels.portable.resize import (
    MAX_LANE_FRACTION_BITS,
    RESAMPLE,
    RESIZE_LINEAR,
    RESIZE_LINEAR_LANES,
    RESIZE_NEAREST,
    CodesOptions,
    LinearLaneOptions,
    LinearOptions,
    LinearWalk,
    NearestAxes,
    NearestOptions,
    NearestRun,
    ResampleOptions,
    ResampleParams,
    Rescaling,
    ResizedRowOptions,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import Buffer
from mcugen.lir.traversal import Traversal, nested_positions, overlap
from mcugen.numerics.fixedpoint import Requantizer, has_same_quantization, is_quantized
from mcugen.ops.conversion import Cast
from mcugen.ops.movement import Movement, Pad, Permuted, normalize_axis, to_channels_last
from mcugen.ops.onnx_node import OnnxNode, onnx_operator
from mcugen.ops.pointwise import Unary


def _changes_space(rank: int, changed: Sequence[int]) -> bool:
    """Return whether axes behind the first two of a tensor with space change, and only those."""
    return rank in (3, 4) and min(changed, default=0) > 1


def _index_table(entries: Sequence[int]) -> Array:
    """Return indices in the smallest type that holds them."""
    return np.asarray(entries, np.min_scalar_type(max(entries)))


# -------------------------------------------------------------------------------------------------- nearest


class ResizeNearest(Permutable, Croppable, Rowwise, Simplifiable, Movement):
    """y[i0, i1, …] = x[indices[0][i0], indices[1][i1], …]: a resize to nearest neighbours.

    Attributes:
        indices: For each axis, the input position of each output position; None for an axis that stays.
        is_channels_last: Whether the last axis of an image counts channels; else the second axis does.
    """

    mnemonic: ClassVar[str] = "resize_nearest"
    indices: tuple[tuple[int, ...] | None, ...] = ()
    is_channels_last: bool = False

    @property
    def wants_channels_last(self) -> bool:
        """Return whether the operator is channels first and resizes spatial axes: a channels-last form is then faster.

        The channels-last form copies whole pixels.
        """
        changed = [axis for axis, row in enumerate(self.indices) if row is not None]
        return not self.is_channels_last and _changes_space(len(self.indices), changed)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: each resized axis is as long as its list of indices."""
        (x,) = required(inputs)
        shape = tuple(n if row is None else len(row) for n, row in zip(x.shape, self.indices, strict=True))
        return (x.with_shape(shape, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by indexing x along each axis that changes."""
        shape = arrays[0].shape
        return (arrays[0][np.ix_(*(range(n) if r is None else r for n, r in zip(shape, self.indices, strict=True)))],)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input if the resize changes no axis; else None."""
        return node.input(0) if all(row is None for row in self.indices) else None

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the resize to some elements, which reads the smallest progression with their sources."""
        reads, indices = list(region), list(self.indices)
        for axis, row in enumerate(self.indices):
            if row is not None:
                sources = [row[index] for index in region[axis]]
                reads[axis] = hull_of(sources)
                indices[axis] = tuple(map(reads[axis].index, sources))
        return Crop(replace(self, indices=tuple(indices)), region, (tuple(reads),))

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the resize that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the lists of indices are permuted like the axes.
        """
        turned = self.is_channels_last or perm == to_channels_last(len(perm))
        return ResizeNearest(tuple(self.indices[a] for a in perm), turned), (perm,)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to resize one image row by row (for line-buffer fusion); None if impossible.

        Either all rows are repeated equally often, or the output consists of every n-th row.
        """
        if len(self.indices) < 3 or sig.output.shape[0] != 1 or sig.input(0).shape[0] != 1:
            return None
        height, source_rows = sig.input(0).shape[1], self.indices[1] or range(sig.input(0).shape[1])
        times = len(source_rows) // height
        if times and tuple(source_rows) == tuple(np.repeat(range(height), times)):
            window, rows = RowWindow(), times
        else:
            window, rows = (
                RowWindow(
                    stride=max(source_rows[-1] - source_rows[0], 1) // max(len(source_rows) - 1, 1),
                    before=-source_rows[0],
                ),
                1,
            )
            if tuple(source_rows) != tuple(source_rows[0] + window.stride * i for i in range(len(source_rows))):
                return None
        op = replace(self, indices=(None, (0,) * rows if rows > 1 else None, *self.indices[2:]))
        return RowForm(op, (window,), rows=rows)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one loop for each axis.

        Adjacent axes that are not resized share a loop; if they are the innermost ones, one copy replaces the loop.
        """
        x = node.input(0).type
        walks: list[tuple[int, int, tuple[int, ...] | None]] = []
        for n, stride, row in zip(x.shape, dense_strides(x.shape), self.indices, strict=True):
            if row is None and n == 1:
                continue
            if walks and row is None and walks[-1][2] is None:
                n *= walks.pop()[0]
            walks.append((n if row is None else len(row), stride, row))
        run = walks.pop()[0] if walks[-1][2] is None else None
        tables = ["" if row is None else f"index{number}" for number, (_, _, row) in enumerate(walks)]
        consts = {
            role: builder.const(f"{node.output.name}.{role}", _index_table(row))
            for role, (_, _, row) in zip(tables, walks, strict=True)
            if row is not None
        }
        axes = NearestAxes(
            count=numbered("count", [n for n, _, _ in walks]),
            stride=numbered("stride", [s for _, s, _ in walks]),
            places={f"places{number}": max(row) + 1 for number, (_, _, row) in enumerate(walks) if row is not None},
        )
        rows = nested_positions(
            *(np.asarray(range(size) if row is None else row) * stride for size, stride, row in walks)
        )
        order = Traversal.runs(rows, 1) if run is None else Traversal.rereading(rows, run)
        call = Call(
            RESIZE_NEAREST,
            {"x": builder.buffer(node.input(0)), **consts, "y": builder.buffer(node.output)},
            [NearestRun(run_size=run), axes],
            [NearestOptions(x_t=x.dtype.c, axes=tables, depth=len(tables), run=run is not None)],
            overlaps=overlap(x, node.output.type, order),
            variant=x.dtype.tag,
        )
        builder.call(node, call)


# --------------------------------------------------------------------------------------------------- linear


@dataclass(frozen=True)
class Taps:
    """The neighbours and weights of linear interpolation along one axis.

    y[i] = x[low[i]] · (1 − weight[i]) + x[low[i] + 1] · weight[i]. If the input has a single element, it is both
    neighbours.

    Attributes:
        low: Index of the lower neighbour of each output.
        weight: Weight of the upper neighbour of each output, 0 to 1.
    """

    low: tuple[int, ...]
    weight: tuple[float, ...]

    @staticmethod
    def at(positions: Array, size: int) -> Taps:
        """Return the taps that interpolate at real input positions, which are clamped to an axis of `size` elements."""
        inside = np.clip(positions, 0, size - 1).astype(np.float32)
        low = np.clip(np.floor(inside), 0, max(size - 2, 0)).astype(np.int64)
        return Taps(tuple(low.tolist()), tuple((inside - low.astype(np.float32)).tolist()))

    def fixed(self, bits: int) -> Array:
        """Return the weights as fixed-point numbers with this many fraction bits."""
        weights: Array = np.rint(np.asarray(self.weight) * 2**bits).astype(np.uint16 if bits < 16 else np.int32)
        return weights


_BITS = 23
"""Fraction bits of the weight of a neighbour: |Σ weight · x| ≤ 2^23 · 128 leaves an int32 its sign."""

_DROPPED = {DType.INT8: 0, DType.INT16: 8}
"""Fraction bits of Σ weight · x that are cut off, so that it does so for int16 too."""


_LANE_BITS = 15
"""Fraction bits of weights of int8 tensors."""

CODES_PER_WORD = 4
"""Number of int8 values in a 32-bit word."""

MAX_GATHERED_CHANNELS = 4
"""Largest number of channels for which Helium gathers neighbours pixel by pixel, by estimate of cycles."""


def _element_by_element(walk: LinearWalk) -> LinearWalk:
    """Return the traversal with single elements as the entries of the last axis."""
    inner = walk.inner_size
    return replace(
        walk, inner_size=1, last_out_size=walk.last_out_size * inner, last_positions=walk.last_positions * inner
    )


def _suffix(form: ResizedRowOptions) -> str:
    """Return the suffix of a kernel function's name."""
    words = f"_{form.narrow_channels}" if form.narrow_channels else "_rest" * form.has_tail_channels
    return "_gathered" if form.gathers else f"_words{words}" if form.words else ""


def _reread(order: Traversal) -> Traversal:
    """Return the traversal in which each step reads once more after it has written."""
    return Traversal(order.reads.repeat(2), order.writes.repeat(2))


def _fewest_bits(taps: Taps) -> int:
    """Return the smallest number of fraction bits that represents all weights of int8 tensors exactly."""
    every = int(np.bitwise_or.reduce(taps.fixed(_LANE_BITS).astype(np.int64)))
    return next(bits for bits in range(_LANE_BITS + 1) if every % (1 << (_LANE_BITS - bits)) == 0)


def _weight_bits(sig: Signature) -> int:
    """Return the number of fraction bits of weights in tables."""
    return _LANE_BITS if sig.input(0).dtype is sig.output.dtype is DType.INT8 else _BITS


def _steps(taps: Taps, size: int, bits: int) -> tuple[RowWindow, Taps] | None:
    """Return the rows that each step reads and their weights, if all steps are alike; else None.

    Weights have `bits` fractional bits. Positions outside count as the end.
    """
    out = len(taps.low)
    rows, stride = out // size or 1, size // out or 1
    if out * stride != size * rows:
        return None
    at = (np.asarray(taps.low) << bits) + taps.fixed(bits)
    steps = at.reshape(-1, rows)
    starts = np.arange(len(steps))[:, None] * stride << bits
    offsets = (steps - starts)[len(steps) // 2]
    inside = np.clip(starts + offsets, 0, size - 1 << bits)
    if not np.array_equal(inside, steps):
        return None
    first, last = int(offsets.min() >> bits), int(-(-offsets.max() >> bits))
    low = np.minimum((offsets >> bits) - first, max(last - first - 1, 0))
    weight = (offsets - ((low + first) << bits)) / 2**bits
    leaves = not np.array_equal(inside, starts + offsets)
    window = RowWindow(span=last - first + 1, stride=stride, before=-first, repeats=leaves)
    return window, Taps(tuple(low.tolist()), tuple(weight.tolist()))


class ResizeLinear(Quantizable, Interpolating, Permutable, Rowwise, Operator):
    """Linear interpolation along one or two axes.

    Attributes:
        taps: For each axis, the neighbours and weights of each output position; None for an axis that stays.
        is_channels_last: Whether the last axis of an image counts channels; else the second axis does.
    """

    mnemonic: ClassVar[str] = "resize_linear"
    taps: tuple[Taps | None, ...] = ()
    is_channels_last: bool = False

    @property
    def _axes(self) -> list[int]:
        return [axis for axis, taps in enumerate(self.taps) if taps is not None]

    @property
    def wants_channels_last(self) -> bool:
        """Return whether the operator is channels first and resizes spatial axes: a channels-last form is then faster.

        The channels-last form computes neighbours and weights once per pixel instead of once per element.
        """
        return not self.is_channels_last and _changes_space(len(self.taps), self._axes)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: each resized axis is as long as its list of taps."""
        (x,) = required(inputs)
        shape = tuple(n if taps is None else len(taps.low) for n, taps in zip(x.shape, self.taps, strict=True))
        return (TensorType(shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, axis by axis in float32, or in fixed point with all neighbours at once."""
        (x,) = arrays
        if sig.output.quant is not None:
            return (self._evaluate_fixed(sig, x.astype(np.int64)),)
        for axis in self._axes:
            low, high, weight = self._neighbours(x, axis)
            x = low * (1 - weight) + high * weight
        return (x,)

    def _neighbours(self, x: Array, axis: int, bits: int = 0) -> tuple[Array, Array, Array]:
        """Elements below and above each position of an axis, and the weight of those above (of `bits`: fixed point)."""
        taps = self.taps[axis]
        assert taps is not None
        low = np.asarray(taps.low)
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        weight = taps.fixed(bits).astype(np.int64) if bits else np.asarray(taps.weight, np.float32)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        return np.take(x, low, axis), np.take(x, high, axis), weight.reshape(shape)

    def _evaluate_fixed(self, sig: Signature, x: Array) -> Array:
        one, last, bits = 1 << _BITS, self._axes[-1], _weight_bits(sig)
        more, less = 1 << (_BITS - bits), 2 * bits - _BITS
        v0, v1, wb = self._neighbours(x, last, bits)
        if len(self._axes) == 1:
            acc = v0 * (one - wb * more) + v1 * (wb * more)
        else:
            v00, v10, wa = self._neighbours(v0, self._axes[0], bits)
            v01, v11, _ = self._neighbours(v1, self._axes[0], bits)
            w11 = (wa * wb + (1 << (less - 1))) >> less
            w10, w01 = wa * more - w11, wb * more - w11
            acc = v00 * (one - w10 - w01 - w11) + v01 * w01 + v10 * w10 + v11 * w11
        centered = (acc - (sig.input(0).q.zero_point << _BITS)) >> _DROPPED[sig.input(0).dtype]
        return self._requantizer(sig)(centered, *sig.output.dtype.limits).astype(sig.output.dtype.numpy)

    def _requantizer(self, sig: Signature) -> Requantizer:
        """Return the requantizer from the sum's unit (about the input's scale · 2^−23) to the output."""
        unit = Requantizer.of(sig.input(0).q.scale[0] / sig.output.q.scale[0], sig.output.q.zero_point)
        return Requantizer(unit.multiplier, unit.shift + _BITS - _DROPPED[sig.input(0).dtype], unit.zero_point)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return this operator with its inputs for quantized tensors, which it interpolates in fixed point.

        Each result is rounded once. Return None if a tensor is not quantized, or if the output's scale is so much finer
        than the input's that the requantization shift would be 32 or less.
        """
        fits = is_quantized(sig.input(0)) and is_quantized(sig.output)
        return (self, inputs) if fits and self._requantizer(sig).shift > 32 else None

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the resize that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the taps are permuted like the axes.
        """
        turned = self.is_channels_last or perm == to_channels_last(len(perm))
        return ResizeLinear(tuple(self.taps[a] for a in perm), turned), (perm,)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to resize one image row by row (for line-buffer fusion); None if impossible.

        If the height changes, the image must be quantized, and the factor an integer. Rows beyond the ends repeat the
        first or last row; since fixed-point weights add up to exactly one, these rows keep their values.
        """
        if len(self.taps) < 3 or sig.output.shape[0] != 1 or sig.input(0).shape[0] != 1:
            return None
        if self.taps[1] is None:
            return RowForm(self, (RowWindow(),))
        steps = _steps(self.taps[1], sig.input(0).shape[1], _weight_bits(sig)) if sig.output.quant else None
        if steps is None:
            return None
        window, taps = replace(steps[0], fill=sig.input(0).q.zero_point), steps[1]
        return RowForm(replace(self, taps=(None, taps, *self.taps[2:])), (window,), rows=len(taps.low))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to nested loops over the interpolated axes, and over the merged axes before, between and after them."""
        x, y, axes = node.input(0).type, node.output.type, self._axes
        walk = self._walk(x.shape, y.shape)
        pair = len(axes) == 2
        if self._by_lanes(node.sig, walk, builder.features):
            self._lower_lanes(node, builder, walk)
            return
        form = self._row_options(node.sig, walk, builder.features)
        run = walk.inner_size if form.gathers else int(form.words)
        operands = {"x": builder.buffer(node.input(0))}
        for letter, axis in zip("ab"[-len(axes) :], axes, strict=True):
            operands |= self._tables(node, builder, letter, axis, run if letter == "b" else 0)
        operands["y"] = builder.buffer(node.output)
        codes = x.quant is not None and y.quant is not None
        orders = [self._order(walk)]
        if form.words:  # which are read once more for their odd bytes, after even ones are written
            orders.append(_reread(self._order(walk, CODES_PER_WORD)))
        walk = _element_by_element(walk) if form.gathers else walk
        call = Call(
            RESIZE_LINEAR[x.dtype],
            operands,
            [walk, self._rescaling(node.sig)] if codes else [walk],
            [self._codes_options(node.sig), form] if codes else [LinearOptions(pair=pair)],
            overlaps=overlap(x, y, *orders),
            variant=("2d" if pair else "1d") + _suffix(form) + f"_to_{y.dtype.tag}" * (x.dtype is not y.dtype),
        )
        builder.call(node, call)

    def _row_options(self, sig: Signature, walk: LinearWalk, features: frozenset[str]) -> ResizedRowOptions:
        """Return the template options for rows.

        Helium gathers elements of a row one by one; with few channels, the work per pixel would outweigh that.
        """
        inner, both = walk.inner_size, sig.input(0).dtype is sig.output.dtype is DType.INT8
        if "mve" in features:
            return ResizedRowOptions(
                gathers=both and inner <= MAX_GATHERED_CHANNELS and walk.last_positions * inner <= 1 << 16
            )
        words = both and "dsp" in features and walk.last_positions <= 1 << 16
        if words and inner < CODES_PER_WORD:
            return ResizedRowOptions(words=True, narrow_channels=inner)
        return ResizedRowOptions(words=words, has_tail_channels=words and inner % CODES_PER_WORD > 0)

    def _by_lanes(self, sig: Signature, walk: LinearWalk, features: frozenset[str]) -> bool:
        """Return whether to compute several channels of a word at once: few-bit weights, and channels that fill words.

        It is not used where Helium needs a product to requantize, nor on Thumb-1, which loads words of bytes one by
        one.
        """
        x, y = sig.input(0), sig.output
        bits = sum(_fewest_bits(taps) for taps in self.taps if taps is not None)
        fits = (
            x.dtype is y.dtype is DType.INT8
            and walk.inner_size % CODES_PER_WORD == 0
            and bits <= MAX_LANE_FRACTION_BITS
        )
        return fits and "thumb1" not in features and (has_same_quantization(x, y) or "mve" not in features)

    def _lower_lanes(self, node: Node, builder: Builder, walk: LinearWalk) -> None:
        """Lower to the kernel with few-bit weights; the sum has at least one fractional bit, for rounding."""
        x, y, axes, name = node.input(0).type, node.output.type, self._axes, node.output.name
        bits = [_fewest_bits(taps) for taps in self.taps if taps is not None]
        a_bits, b_bits = [0, *bits][-2:]
        b_bits = max(b_bits, int(not a_bits))
        operands = {"x": builder.buffer(node.input(0))}
        for letter, axis, count in zip("ab"[-len(axes) :], axes, (a_bits, b_bits)[-len(axes) :], strict=True):
            taps = self.taps[axis]
            assert taps is not None
            operands[f"{letter}_low"] = builder.const(f"{name}.{letter}_low", _index_table(taps.low))
            weights = (taps.fixed(_LANE_BITS) >> (_LANE_BITS - count)).astype(np.uint16)
            operands[f"{letter}_weight"] = builder.const(f"{name}.{letter}_weight", weights)
        operands["y"] = builder.buffer(node.output)
        same = has_same_quantization(x, y)
        params = [walk] if same else [walk, self._rescaling(node.sig)]
        options = LinearLaneOptions(pair=len(axes) == 2, a_bits=a_bits, b_bits=b_bits, same=same)
        free = overlap(x, y, *(self._order(walk, block) for block in (CODES_PER_WORD, 2 * CODES_PER_WORD)))
        variant = f"{len(axes)}d_{a_bits}_{b_bits}" + "_same" * same
        builder.call(node, Call(RESIZE_LINEAR_LANES, operands, params, [options], overlaps=free, variant=variant))

    def _walk(self, x: Shape, y: Shape) -> LinearWalk:
        """Return the sizes and strides of the loops over one or two interpolated axes."""
        first, last, strides = self._axes[0], self._axes[-1], dense_strides(x)
        walk = LinearWalk(
            outer_size=math.prod(x[:first]),
            x_block_size=x[first] * strides[first],
            inner_size=strides[last],
            last_out_size=y[last],
            last_step=strides[last] if x[last] > 1 else 0,
            last_positions=max(x[last] - 1, 1),
        )
        if first == last:
            return walk
        return replace(
            walk,
            first_out_size=y[first],
            first_stride=strides[first],
            first_step=strides[first] if x[first] > 1 else 0,
            first_positions=max(x[first] - 1, 1),
            middle_size=math.prod(x[first + 1 : last]),
            middle_stride=x[last] * strides[last],
        )

    def _rescaling(self, sig: Signature) -> Rescaling:
        """Return the requantization as parameters: its offset has no bits below the upper word of a product."""
        requantize = self._requantizer(sig)
        zero_point, has_zero = sig.input(0).q.zero_point, sig.input(0).dtype is DType.INT8
        return Rescaling(
            multiplier=int(requantize.multiplier[0]),
            requantize_offset=requantize.offset >> 32,
            upper_word_fraction_bits=requantize.shift - 32,
            x_zero_point=zero_point << _BITS if has_zero else None,
        )

    def _codes_options(self, sig: Signature) -> CodesOptions:
        low, high = sig.output.dtype.limits
        fine = _weight_bits(sig) == _BITS
        return CodesOptions(pair=len(self._axes) == 2, y_t=sig.output.dtype.c, low=low, high=high, fine=fine)

    def _order(self, walk: LinearWalk, block: int = 1) -> Traversal:
        """Return the order in which x is read and y is written: position by position, `block` elements at a time."""
        low = [np.asarray(taps.low) for taps in self.taps if taps is not None]
        walks = [np.arange(walk.outer_size) * walk.x_block_size]
        if walk.first_stride is not None and walk.middle_size is not None and walk.middle_stride is not None:
            walks += [low[0] * walk.first_stride, np.arange(walk.middle_size) * walk.middle_stride]
        return Traversal.pixels(nested_positions(*walks, low[-1] * walk.inner_size), walk.inner_size, block)

    def _tables(self, node: Node, builder: Builder, letter: str, axis: int, run: int) -> dict[str, Buffer]:
        """Add the tables of positions and weights of an axis.

        With `run`, both have 16 bits and `run` entries for each position.
        """
        taps, name = self.taps[axis], node.output.name
        assert taps is not None
        is_float = node.input(0).type.dtype.is_float
        weight = np.asarray(taps.weight, np.float32) if is_float else taps.fixed(_weight_bits(node.sig))
        low = _index_table(taps.low)
        if run:
            low = np.add.outer(np.asarray(taps.low) * run, np.arange(run)).reshape(-1).astype(np.uint16)
            weight = weight.repeat(run)
        return {
            f"{letter}_low": builder.const(f"{name}.{letter}_low", low),
            f"{letter}_weight": builder.const(f"{name}.{letter}_weight", weight),
        }


# -------------------------------------------------------------------------------------------------- weights


class Resample(Permutable, Operator):
    """Any interpolation along one axis: y[j] = Σ_k weights[j][k] · x[start[j] + k].

    Attributes:
        axis: The axis that is resampled.
        start: First input element that each output reads.
        weights: Interpolation weights of each output.
    """

    mnemonic: ClassVar[str] = "resample"
    axis: int = 0
    start: tuple[int, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input with as many elements along the axis as `start` has."""
        (x,) = required(inputs)
        shape = (*x.shape[: self.axis], len(self.start), *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.dtype, layout=x.layout),)

    def _table(self, dtype: DType) -> Array:
        return np.asarray(self.weights, dtype.numpy)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, as a product with a banded matrix of weights."""
        x, table = arrays[0], self._table(sig.output.dtype)
        matrix = np.zeros((len(self.start), x.shape[self.axis]), table.dtype)
        at = np.asarray(self.start)[:, None] + np.arange(table.shape[1])
        np.put_along_axis(matrix, at, table, 1)
        return (np.moveaxis(np.tensordot(matrix, x, (1, self.axis)), 0, self.axis),)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the operator that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the axis moves with the transposition.
        """
        return replace(self, axis=perm.index(self.axis)), (perm,)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: outputs · taps."""
        return sig.output.count * len(self.weights[0])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to loops over the axes before `axis` (merged), `axis`, and the axes after it (merged)."""
        x, y = node.input(0).type, node.output.type
        walk, name = AxisWalk.of(x.shape, self.axis), node.output.name
        operands = {
            "x": builder.buffer(node.input(0)),
            "start": builder.const(f"{name}.start", _index_table(self.start)),
            "w": builder.const(f"{name}.weights", self._table(y.dtype).reshape(-1)),
            "y": builder.buffer(node.output),
        }
        taps = len(self.weights[0])
        starts = nested_positions(
            np.arange(walk.outer_size) * walk.axis_size * walk.inner_size, np.asarray(self.start) * walk.inner_size
        )
        call = Call(
            RESAMPLE,
            operands,
            [walk, ResampleParams(out_size=len(self.start), taps=taps, num_starts=walk.axis_size - taps + 1)],
            [ResampleOptions(t=y.dtype.c)],
            overlaps=overlap(x, y, Traversal.pixels(starts, walk.inner_size)),
            variant=y.dtype.tag,
        )
        builder.call(node, call)


def _triangle(distance: Array) -> Array:
    """Linear interpolation."""
    weights: Array = np.maximum(1 - np.abs(distance), 0)
    return weights


def _keys(a: float) -> Callable[[Array], Array]:
    """Cubic convolution (Keys) with the slope `a` at distance 1."""

    def weight(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return weight


def resampled_axis(
    axis: int, positions: Array, size: int, weight: Callable[[Array], Array], reach: int, shrink: float, inside: bool
) -> Resample:
    """Return the operator that resamples one axis by an interpolation kernel; the ends of the input are repeated.

    Args:
        axis: Index of the axis.
        positions: Input position of each output.
        size: Number of input elements.
        weight: Interpolation kernel: weight by signed distance, 0 from `reach` on.
        reach: Largest distance with a weight.
        shrink: Scale of the distance; below 1 it widens the kernel (antialiasing).
        inside: Whether elements outside the input get weight 0.
    """
    radius = int(np.ceil(reach / shrink))
    at = np.floor(positions).astype(np.int64)[:, None] + np.arange(1 - radius, radius + 1)
    table = weight((at - positions[:, None]) * shrink)
    if inside:
        table = np.where((at >= 0) & (at < size), table, 0.0)
    if inside or shrink < 1:
        total = table.sum(1, keepdims=True)
        table = table / np.where(total == 0, 1.0, total)
    at = np.clip(at, 0, size - 1)
    taps = int((at.max(1) - at.min(1)).max()) + 1
    start = np.minimum(at.min(1), size - taps)
    packed = np.zeros((len(at), taps))
    np.add.at(packed, (np.arange(len(at))[:, None], at - start[:, None]), table)
    return Resample(axis, tuple(start.tolist()), tuple(map(tuple, packed.tolist())))


# --------------------------------------------------------------------------------------------------- import

_LARGEST = 2**22
"""Elements of an axis beyond which a resized tensor is refused."""


@dataclass(frozen=True)
class ResizedAxis:
    """An axis that is resized. Its methods return the input position of each output, by ONNX's coordinate modes.

    Positions are rounded as in ONNX Runtime, because at halves and integers that decides which neighbour is
    nearest.

    Attributes:
        size: Number of input elements.
        out: Number of output elements.
        scale: Ratio of output to input, as the model gives it.
        roi: Region of interest as start and end, relative to the axis (for tf_crop_and_resize).
    """

    size: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)

    def half_pixel(self) -> Array:
        """Return the input position (i + ½) / scale − ½ of each output i in float32 (mode half_pixel)."""
        half = np.float32(0.5)
        return (np.arange(self.out, dtype=np.float32) + half) / np.float32(self.scale) - half

    def tf_half_pixel_for_nn(self) -> Array:
        """Return the input position (i + ½) / scale of each output i in float32 (mode tf_half_pixel_for_nn)."""
        return (np.arange(self.out, dtype=np.float32) + np.float32(0.5)) / np.float32(self.scale)

    def pytorch_half_pixel(self) -> Array:
        """Return the input position of each output (mode pytorch_half_pixel).

        It is (i + ½) / scale − ½ for output i, or 0 for a single output.
        """
        return self.half_pixel() if self.out > 1 else np.zeros(1, np.float32)

    def align_corners(self) -> Array:
        """Return the input position of each output (mode align_corners): first and last elements coincide.

        Output i reads position i · (input length − 1) / (output length − 1), where the output length is scale · input
        length, which may be fractional.
        """
        length = self.size * self.scale
        steps = (self.out if abs(length - self.out) < 1e-3 else length) - 1
        at = np.arange(self.out, dtype=np.float32) * np.float32(self.size - 1)
        return at / np.float32(steps) if self.out > 1 else at

    def asymmetric(self) -> Array:
        """Return the input position i / scale of each output i in float32 (mode asymmetric)."""
        return np.arange(self.out, dtype=np.float32) / np.float32(self.scale)

    def half_pixel_symmetric(self) -> Array:
        """Return the input position of each output (mode half_pixel_symmetric).

        Positions are (i + ½) / scale − ½, moved so that they are symmetric around the middle of the input even if the
        number of outputs was rounded.
        """
        scale, one = np.float32(self.scale), np.float32(1)
        adjustment = np.float32(self.out) / (scale * np.float32(self.size))
        offset = np.float32(self.size) / np.float32(2) * (one - adjustment)
        return (float(offset) + (np.arange(self.out) + 0.5) / float(scale) - 0.5).astype(np.float32)

    def tf_crop_and_resize(self) -> Array:
        """Return the input position of each output (mode tf_crop_and_resize): evenly spaced in the region of interest.

        A single output reads the middle of the region.
        """
        (start, end), span = map(np.float32, self.roi), np.float32(self.size - 1)
        if self.out == 1:
            return np.float32(0.5) * (start + end) * np.full(1, span)
        return start * span + np.arange(self.out, dtype=np.float32) * ((end - start) * span / np.float32(self.out - 1))


_COORDINATES: dict[str, Callable[[ResizedAxis], Array]] = {
    "half_pixel": ResizedAxis.half_pixel,
    "tf_half_pixel_for_nn": ResizedAxis.tf_half_pixel_for_nn,
    "pytorch_half_pixel": ResizedAxis.pytorch_half_pixel,
    "align_corners": ResizedAxis.align_corners,
    "asymmetric": ResizedAxis.asymmetric,
    "half_pixel_symmetric": ResizedAxis.half_pixel_symmetric,
    "tf_crop_and_resize": ResizedAxis.tf_crop_and_resize,
}

_HALF = 0.5 + 1e-6
"""Fraction above which positions round up, as in ONNX Runtime: float32 positions that should be ties must be ties."""

_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - _HALF),
    "round_prefer_ceil": lambda at: np.floor(at + _HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _resized_axes(node: OnnxNode) -> dict[int, ResizedAxis]:
    """Return the axes that the model resizes, with sizes or scales."""
    shape = node.input(0).type.shape
    axes = [normalize_axis(node, a, len(shape)) for a in node.attr("axes", None) or range(len(shape))]
    resized = _by_sizes(node, axes) if node.op_type == "Resize" else None
    if resized is None:
        scales = node.param("scales", 1 if node.op_type == "Upsample" or node.opset < 11 else 2)
        node.require(scales is not None, "scales or sizes must be given", "neither")
        assert scales is not None
        factors = [np.float32(s) for s in scales.reshape(-1)]
        has_valid_scales = len(factors) == len(axes) and all(np.isfinite(s) and s > 0 for s in factors)
        node.require(has_valid_scales, "scales must be positive numbers, one for each axis", f"{factors[:8]}")
        rows = zip(axes, factors, strict=True)
        resized = {a: ResizedAxis(shape[a], int(s * np.float32(shape[a])), float(s)) for a, s in rows}
    sizes = [axis.out for axis in resized.values()]
    fits = min(sizes) > 0 and math.prod(sizes) <= _LARGEST
    node.require(fits, "sizes must be positive, with a product of at most 2^22", f"{sizes}")
    if node.attr("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return resized
    roi = [float(v) for v in node.const(1, "the region of interest").reshape(-1)]
    count = len(axes)
    node.require(len(roi) == 2 * count and bool(np.isfinite(roi).all()), "roi must bound each axis", f"{roi}")
    return {a: replace(resized[a], roi=(roi[i], roi[count + i])) for i, a in enumerate(axes)}


def _by_sizes(node: OnnxNode, axes: Sequence[int]) -> dict[int, ResizedAxis] | None:
    """Return sizes that are an input, or that follow from the declared shape of the result."""
    if not node.has(3):
        return None
    shape, policy = node.input(0).type.shape, node.attr("keep_aspect_ratio_policy", "stretch")
    declared = node.declared[0] if node.declared else None
    if declared is not None and node.input(3).data is None and policy == "stretch":
        sizes = [declared.shape[a] for a in axes]
    else:
        sizes = [int(n) for n in node.const(3, "sizes").reshape(-1)]
    if not sizes:
        return None
    node.require(len(sizes) == len(axes), "sizes must be as many as axes", f"{len(sizes)} for {len(axes)}")
    node.require(all(shape[a] for a in axes), "there must be something to resize", f"shape {shape}")
    ratios = {a: n / shape[a] for a, n in zip(axes, sizes, strict=True)}
    if policy == "stretch":
        return {a: ResizedAxis(shape[a], n, ratios[a]) for a, n in zip(axes, sizes, strict=True)}
    node.require(policy in _POLICIES, "keep_aspect_ratio_policy must be known", str(policy))
    scale = _POLICIES[policy](ratios.values())
    return {a: ResizedAxis(shape[a], int(scale * shape[a] + 0.5), scale) for a in axes}


_POLICIES: dict[str, Callable[[Iterable[float]], float]] = {"not_larger": min, "not_smaller": max}


def _choice(node: OnnxNode, key: str, default: str, choices: Iterable[str]) -> str:
    choice = str(node.attr(key, default))
    node.require(choice in choices, f"{key} must be one of {', '.join(choices)}", f"'{choice}'")
    return choice


@onnx_operator(
    "Resize",
    "Upsample",
    kernels=(
        "resize_nearest",
        "resize_linear_f32",
        "resize_linear_s8",
        "resize_linear_s8_lanes",
        "resize_linear_s16",
        "resample",
    ),
    limits="constant scales and roi; computed sizes need a declared output shape",
)
def _import_resize(node: OnnxNode) -> list[Value]:
    old = node.op_type == "Upsample" or node.opset < 11
    x = node.input(0)
    mode = _choice(node, "mode", "nearest", ("nearest", "linear", "cubic"))
    transform = _choice(node, "coordinate_transformation_mode", "asymmetric" if old else "half_pixel", _COORDINATES)
    rounding = _choice(node, "nearest_mode", "floor" if old else "round_prefer_floor", _ROUNDING)
    axes = _resized_axes(node)
    positions = {number: _COORDINATES[transform](axis) for number, axis in axes.items()}
    before, after = [0] * x.type.rank, [0] * x.type.rank
    value = float(node.attr("extrapolation_value", 0.0))
    if transform == "tf_crop_and_resize":
        for number, at in positions.items():
            inside = np.flatnonzero((at >= 0) & (at <= axes[number].size - 1))
            if not inside.size:
                shape = tuple(axes[a].out if a in axes else n for a, n in enumerate(x.type.shape))
                return [node.constant("outside", np.full(shape, value).astype(x.type.dtype.numpy))]
            before[number], after[number] = int(inside[0]), len(at) - 1 - int(inside[-1])
            positions[number] = at[inside[0] : inside[-1] + 1]
    padded = any(before + after)
    result = _interpolated(node, mode, axes, positions, _ROUNDING[rounding], "inside" if padded else "")
    return [node.emit(Pad(tuple(before), tuple(after), value), result) if padded else result]


def _interpolated(
    node: OnnxNode,
    mode: str,
    axes: dict[int, ResizedAxis],
    positions: dict[int, Array],
    rounding: Callable[[Array], Array],
    suffix: str,
) -> Value:
    """Integers are interpolated as floats and rounded."""
    x = node.input(0)
    if mode == "nearest":
        return _emit_nearest(node, positions, rounding, suffix)
    if x.type.dtype.is_integer:
        real = _interpolated_reals(node, node.emit(Cast(DType.FLOAT32), x, suffix="real"), mode, axes, positions, "sum")
        rounded = node.emit(Unary("Round"), real, suffix="rounded")
        return node.emit(Cast(x.type.dtype), rounded, suffix=suffix)
    node.require_dtype(x, DType.FLOAT32, DType.FLOAT64)
    return _interpolated_reals(node, x, mode, axes, positions, suffix)


def _interpolated_reals(
    node: OnnxNode, x: Value, mode: str, axes: dict[int, ResizedAxis], positions: dict[int, Array], suffix: str
) -> Value:
    antialias, inside = bool(node.attr("antialias", 0)), bool(node.attr("exclude_outside", 0))
    if mode == "linear" and not antialias and x.type.dtype is DType.FLOAT32:
        return _emit_linear(node, x, positions, suffix)
    weight, reach = (_triangle, 1) if mode == "linear" else (_keys(float(node.attr("cubic_coeff_a", -0.75))), 2)
    steps = []
    for number, at in positions.items():
        size = axes[number].size
        if np.array_equal(at, np.arange(size)):
            continue
        shrink = min(axes[number].scale, 1.0) if antialias else 1.0
        steps.append(resampled_axis(number, at.astype(np.float64), size, weight, reach, shrink, inside))
    # what shrinks comes first: less is left for the others
    steps.sort(key=lambda op: len(op.start) / axes[op.axis].size)
    for index, op in enumerate(steps):
        x = node.emit(op, x, suffix=suffix if index == len(steps) - 1 else f"axis{op.axis}")
    return x


def _emit_nearest(
    node: OnnxNode, positions: dict[int, Array], rounding: Callable[[Array], Array], suffix: str
) -> Value:
    x = node.input(0)
    indices: list[tuple[int, ...] | None] = [None] * x.type.rank
    for axis, at in positions.items():
        size = x.type.shape[axis]
        row = tuple(int(i) for i in np.clip(rounding(at.astype(np.float64)), 0, size - 1))
        indices[axis] = None if row == tuple(range(size)) else row
    return node.emit(ResizeNearest(tuple(indices)), x, suffix=suffix)


def _emit_linear(node: OnnxNode, x: Value, positions: dict[int, Array], suffix: str) -> Value:
    """Two axes an operator."""
    changed = {a: Taps.at(at, x.type.shape[a]) for a, at in positions.items()}
    changed = {a: taps for a, taps in changed.items() if not _is_identity(taps, x.type.shape[a])}
    order = sorted(changed)
    for start in range(0, len(order), 2):
        pair = order[start : start + 2]
        taps = tuple(changed[a] if a in pair else None for a in range(x.type.rank))
        x = node.emit(ResizeLinear(taps), x, suffix=suffix if start + 2 >= len(order) else f"axes{start}")
    return x


def _is_identity(taps: Taps, size: int) -> bool:
    positions = [low + weight for low, weight in zip(taps.low, taps.weight, strict=True)]
    return positions == list(range(size))
