# SPDX-License-Identifier: Apache-2.0
"""Convolutions and dense layers with the DSP extension (Armv7E-M, Armv8-M Mainline): two products an instruction.

The schemes of the inner loops stand in templates/kernels/dsp.j2; here is how weights are laid out for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.reading_order import in_turn, overlaps, windows
from mcugen.kernels.reading_order import rows as ring_rows
from mcugen.kernels.weighted import (
    bias_of,
    clamp_of,
    folded_bias_of,
    int8_tensors,
    int16_tensors,
    integer_store,
    largest_sums_of,
    store_of,
    weights_of,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.lir.traversal import Traversal
from mcugen.numerics.fixedpoint import clamp_range

GROUP = 4
"""Products that lie together in patches and streams."""

WIDENED = (0, 2, 1, 3)
"""The order of int8 activations in a group: SXTB16 takes bytes 0 and 2 of a word, then, of the word turned, 1 and 3."""

MOST_WRITTEN_OUT = 18
"""Groups of a kernel without an inner loop."""

_DSP = frozenset({"dsp"})


# ------------------------------------------------------------------------------------------------- streams


@dataclass(frozen=True)
class Sums:
    """What becomes of the accumulators: multipliers and folded biases by channel, and the loop's constants.

    `gain` is a left shift of weights and biases that brings the multipliers to their shift of 32.
    """

    bias: Array
    multiplier: Array
    gain: int
    params: dict[str, Param]
    is_clamped: bool


def sums_of(node: Node, packed: bool = False) -> Sums:
    """int8 tensors: the rounded high word of sum · multiplier + zero. int16 ones: (the high word + zero) >> second."""
    out, clamp = node.output.type, clamp_of(node)
    store = integer_store(node.sig, weights_of(node), bias_of(node), clamp)
    shift, (low, high) = _number(store.code["shift"]), (_number(store.params[key]) for key in ("low", "high"))
    is_clamped = (low, high) != out.dtype.limits
    most = out.dtype.limits[1] - out.dtype.limits[0]
    zero = out.q.zero_point - (low if is_clamped else 0)
    params: dict[str, Param] = {"zero": zero, "lift": most - (high - low), "drop": high - most}
    params["second"] = 256 * zero + 128 if packed else 0
    if shift > 32:
        params |= {"zero": (zero << (shift - 32)) + (1 << (shift - 33)), "second": shift - 32}
    return Sums(store.constants["bias"], store.constants["multiplier"], max(32 - shift, 0), params, is_clamped)


def stream(weights: Array, sums: Sums, channels: int, packed: bool) -> Array:
    """Weights [N, groups, 4] as int32 words in reading order: biases of `channels`, their groups, their multipliers.

    `packed` puts two int8 channels into 16 bits as 256 · odd + even.
    """
    missing = -len(weights) % channels
    blocks = len(weights) + missing
    w = np.pad(weights.astype(np.int64) << sums.gain, ((0, missing), (0, 0), (0, 0)))
    bias, multiplier = (np.pad(a.astype(np.int64), (0, missing)) for a in (sums.bias << sums.gain, sums.multiplier))
    if packed:
        w = w[0::2] + 256 * w[1::2]
        bias[1::2] = (256 * bias[1::2] + bias[0::2]).astype(np.int32)
    halves = w.reshape(blocks // channels, -1, *w.shape[1:]).transpose(0, 2, 1, 3).astype("<i2")
    words = np.ascontiguousarray(halves).view("<i4").reshape(len(halves), -1)
    heads, tails = (a.reshape(-1, channels) for a in (bias, multiplier))
    return np.concatenate([heads, words, tails], axis=1).astype(np.int32).reshape(-1)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


# ---------------------------------------------------------------------------------------------- conditions


def ungrouped(node: Node) -> bool:
    """one group"""
    return shape_of(node).groups == 1


def high_word(node: Node) -> bool:
    """codes by the high word of a 64-bit product"""
    return _has_codes(node, DType.INT8) and _short_sums(node) and _store_shift(node) == 32


def high_word_of_widened(node: Node) -> bool:
    """codes by the high word of a 64-bit product"""
    if not _has_codes(node, DType.INT8) or not _short_sums(node):
        return False
    gain = 32 - _store_shift(node)
    most = int(np.abs(weights_of(node).astype(np.int64)).max(initial=0))
    return 0 <= gain <= 8 and most << gain < 2**15 and _short_sums(node, gain)


def shifted_high_word(node: Node) -> bool:
    """32-bit sums, codes by the shifted high word of a 64-bit product"""
    return _has_codes(node, DType.INT8, DType.INT16) and _short_sums(node) and _store_shift(node) > 32


def pairs_of_weights(node: Node) -> bool:
    """sums of 24 bits: two int8 weights lie in 16"""
    weights = weights_of(node).reshape(len(weights_of(node)), -1).astype(np.int64)
    codes, odd = node.sig.input(0).dtype.limits, weights[1::2]
    products = np.stack([code * odd for code in codes])
    most, least = products.max(0).sum(1), products.min(0).sum(1)
    first = folded_bias_of(node)[1::2]
    fits = (np.abs(weights) < 128).all() and (first + least >= -(2**23)).all() and (first + most < 2**23).all()
    return bool(fits)


def _has_codes(node: Node, *dtypes: DType) -> bool:
    return node.output.type.quant is not None and node.output.type.dtype in dtypes


def _short_sums(node: Node, gain: int = 0) -> bool:
    return int(largest_sums_of(node).max(initial=0)) << gain < 2**31


def _store_shift(node: Node) -> int:
    return _number(store_of(node).code["shift"])


# --------------------------------------------------------------------------------------------- convolutions


@dataclass(frozen=True)
class Runs:
    """How the packer reads what lies under the kernel: `count` runs of `length` neighbouring elements.

    It takes `unit` elements at once. What a run has beyond `units` of them is either read with what follows (and
    multiplied by 0), or `gathered`: such elements of four runs share groups behind all others.
    """

    count: int
    length: int
    unit: int
    gathered: bool = False

    @property
    def rest(self) -> int:
        """Gathered elements of a run."""
        return self.length % self.unit if self.gathered else 0

    @property
    def units(self) -> int:
        """Of a run, as the packer takes them."""
        return (self.length - self.rest + self.unit - 1) // self.unit

    @property
    def groups(self) -> int:
        """Of a patch, four elements each."""
        return self.count * self.units * (self.unit // GROUP) + self.rest * -(-self.count // GROUP)

    def elements(self, slots: tuple[int, ...]) -> Array:
        """By group and place in it: the element of the kernel in natural order, or −1."""
        order = np.full((self.groups, GROUP), -1)
        per_run = self.units * (self.unit // GROUP)
        for run in range(self.count):
            for k in range(self.length - self.rest):
                order[run * per_run + k // GROUP, slots.index(k % GROUP)] = run * self.length + k
            for i in range(self.rest):
                group = self.count * per_run + i + self.rest * (run // GROUP)
                order[group, run % GROUP] = run * self.length + per_run * GROUP + i
        return order


def runs_of(shape: ConvShape, few: bool) -> Runs:
    """Whole kernel rows where their elements are neighbours, else taps."""
    joined = shape.dilation_w == 1 or shape.k_w == 1
    count, length = (shape.k_h, shape.k_w * shape.in_c) if joined else (shape.k_h * shape.k_w, shape.in_c)
    padded = Runs(count, length, 8 if shape.in_c % 8 == 0 else GROUP)
    gathered = replace(padded, gathered=True)
    return gathered if few and gathered.groups < padded.groups else padded


def few_elements(node: Node) -> bool:
    """a kernel of few elements, written out"""
    runs = runs_of(shape_of(node), few=True)
    return runs.groups <= MOST_WRITTEN_OUT


def plain_pixels(shape: ConvShape) -> ConvShape:
    """The same convolution; where output pixels are input pixels, with all of them in one row."""
    if not shape.reads_pixels or shape.stride_h != 1 or shape.stride_w != 1 or shape.in_c % GROUP:
        return shape
    pixels = shape.batch * shape.in_h * shape.in_w
    return replace(shape, batch=1, in_h=1, in_w=pixels, out_h=1, out_w=pixels)


@dataclass(frozen=True)
class Rows:
    """Where convolution rows are read: in x itself, or in a ring of padded copies; sizes in rows and elements."""

    is_padded: bool
    ring_h: int
    pitch: int
    margin: int
    """Elements of a row before those of x: at least the padding; a multiple of four, for whole words."""
    pair_h: int
    """Output rows that a pair of pixels takes: 2 for one above the other, where that leaves fewer single ones.

    An odd last row then has its pairs side by side.
    """

    @property
    def ring(self) -> int:
        """Elements of the ring."""
        return self.ring_h * self.pitch if self.is_padded else 0


def rows_of(shape: ConvShape) -> Rows:
    """Without copies where no window leaves x, nor reads words that x may not have."""
    pair_h = 2 if shape.out_h % 2 * shape.out_w < shape.out_w % 2 * shape.out_h else 1
    span_h = (shape.k_h - 1) * shape.dilation_h + 1
    right = shape.stride_w * (shape.out_w - 1) + (shape.k_w - 1) * shape.dilation_w + 1
    if shape.is_inside and shape.in_c % GROUP == 0:
        return Rows(False, shape.in_h, shape.in_w * shape.in_c, 0, pair_h)
    margin = -(-shape.pad_w * shape.in_c // GROUP) * GROUP
    extent = margin + (max(right - shape.pad_w, shape.in_w)) * shape.in_c
    pitch = -(-(extent + GROUP - 1) // GROUP) * GROUP
    return Rows(True, span_h + (pair_h - 1) * shape.stride_h, pitch, margin, pair_h)


def traversal_of(shape: ConvShape, rows: Rows) -> Traversal:
    """Pairs of pixels, whose windows are read where they lie, or rows by way of the ring."""
    if rows.is_padded:
        return ring_rows(shape, rows.pair_h)
    stacked = shape.out_h // 2 * 2 if rows.pair_h == 2 else 0
    pixels = np.arange(shape.out_h * shape.out_w).reshape(shape.out_h, shape.out_w)
    pairs = [pixels[oy : oy + 2].T for oy in range(0, stacked, 2)]
    pairs += [row[in_turn(shape.out_w, 2)] for row in pixels[stacked:]]
    return windows(shape, np.concatenate(pairs))


def in_patch_order(node: Node, runs: Runs, packed: bool) -> Array:
    """The weights as [N, groups, 4] like the activations in a patch; an even number of groups where steps take two."""
    order = runs.elements(WIDENED if node.input(0).type.dtype is DType.INT8 else tuple(range(GROUP)))
    if packed:
        order = np.pad(order, ((0, len(order) % 2), (0, 0)), constant_values=-1)
    flat = weights_of(node).reshape(len(weights_of(node)), -1)
    return np.where(order >= 0, flat[:, order], 0)


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights in the stream's order; a ring of rows where x must be padded, a patch of two pixels."""
    packed, few = pairs_of_weights in kernel.when, few_elements in kernel.when
    shape, sums, name = plain_pixels(shape_of(node)), sums_of(node, packed), node.output.name
    x, y = node.input(0), node.output
    runs, rows = runs_of(shape, few), rows_of(shape)
    laid = in_patch_order(node, runs, packed)
    depth, steps = laid[0].size, laid.shape[1] // (2 if packed else 1)
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(x)),
        ("w", Access.IN, builder.const(f"{name}.weights", stream(laid, sums, 2, packed))),
        ("y", Access.OUT, builder.buffer(y)),
        ("ring", Access.SCRATCH, builder.scratch(f"{name}.ring", x.type.dtype, rows.ring)),
        ("patch", Access.SCRATCH, builder.scratch(f"{name}.patch", DType.INT16, 2 * depth)),
        ("table", Access.SCRATCH, builder.scratch(f"{name}.table", DType.INT32, 2 * runs.count)),
    ]
    params = _conv_params(shape, runs, rows) | sums.params
    params |= {"x_zero": x.type.q.zero_point, "depth": 2 * depth, "steps": steps}
    written = {"runs": runs.count, "units": runs.units, "unit": runs.unit, "rest": runs.rest}
    code = {"x_t": x.type.dtype.c, "y_t": y.type.dtype.c, "clamp": sums.is_clamped}
    code |= {"few": written if few else None, "steps": steps if few else 0}
    free = overlaps(node, traversal_of(shape, rows))
    builder.emit(node, kernel, operands, params, code=code, overlaps=free, variant=_variant(sums, runs, few))


def conv_steps(node: Node, few: bool = False) -> int:
    """Of the inner loop: groups of four products of two pixels and two channels."""
    shape = plain_pixels(shape_of(node))
    pixels = shape.batch * -(-shape.out_h * shape.out_w // 2)
    return pixels * -(-shape.out_c // 2) * runs_of(shape, few).groups


def few_steps(node: Node) -> int:
    """The same of kernels that are written out."""
    return conv_steps(node, few=True)


def _conv_params(shape: ConvShape, runs: Runs, rows: Rows) -> dict[str, Param]:
    """What the driver walks with."""
    names = ("batch", "in_c", "out_c", "in_h", "in_w", "out_h", "out_w", "k_h", "stride_h", "dilation_h", "pad_h")
    return {name: getattr(shape, name) for name in names} | {
        "runs_w": runs.count // shape.k_h,
        "run_step": shape.dilation_w * shape.in_c,
        "units": runs.units,
        "unit": runs.unit,
        "is_padded": int(rows.is_padded),
        "ring_h": rows.ring_h,
        "pitch": rows.pitch,
        "margin": rows.margin,
        "before": rows.margin - shape.pad_w * shape.in_c if rows.is_padded else 0,
        "pair_h": rows.pair_h,
        "right": shape.stride_w * shape.in_c,
    }


def _variant(sums: Sums, runs: Runs, few: bool) -> str:
    size = f"{runs.count}x{runs.length}" if few else ""
    return "_".join(part for part in (size, "clamped" if sums.is_clamped else "") if part)


# -------------------------------------------------------------------------------------------------- dense


def one_row(node: Node) -> bool:
    """one row of outputs, each of all inputs"""
    shape = shape_of(node)
    return shape.groups == 1 and shape.reads_pixels and node.output.type.count == shape.out_c


def whole_steps(node: Node) -> bool:
    """inputs in groups of eight"""
    return weights_of(node).size // len(weights_of(node)) % 8 == 0


def several_rows(node: Node) -> bool:
    """several rows, as pixels"""
    return not one_row(node)


def emit_dense(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights in the stream's order, four channels at a time; the inputs padded to steps of eight, or as they lie."""
    packed, is_direct, name = pairs_of_weights in kernel.when, whole_steps in kernel.when, node.output.name
    sums = sums_of(node, packed)
    x, y = node.input(0), node.output
    flat = weights_of(node).reshape(y.type.count, -1)
    depth = flat.shape[1]
    padded = -(-depth // 8) * 8
    laid = np.pad(flat, ((0, 0), (0, padded - depth))).reshape(len(flat), -1, GROUP)
    if x.type.dtype is DType.INT8:
        laid = laid[:, :, WIDENED]
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(x)),
        ("w", Access.IN, builder.const(f"{name}.weights", stream(laid, sums, 4, packed))),
        ("y", Access.OUT, builder.buffer(y)),
    ]
    if not is_direct:
        patch = builder.scratch(f"{name}.patch", DType.INT16, -(-depth // 16) * 16)
        operands.append(("patch", Access.SCRATCH, patch))
    params: dict[str, Param] = {"depth": depth, "padded": padded, "channels": len(flat)}
    code = {"x_t": x.type.dtype.c, "y_t": y.type.dtype.c, "clamp": sums.is_clamped}
    variant = "clamped" if sums.is_clamped else ""
    params |= sums.params
    last = (len(flat) % GROUP or GROUP) if is_direct else 0
    overlap = overlaps(node, windows(shape_of(node), in_turn(1, 1), last))
    builder.emit(node, kernel, operands, params, code=code, overlaps=overlap, variant=variant)


def dense_steps(node: Node) -> int:
    """Of the inner loop: four channels by eight inputs."""
    channels = len(weights_of(node))
    return -(-channels // 4) * -(-weights_of(node).size // channels // 8)


# ---------------------------------------------------------------------------------------------- pointwise

STRIP = 256
"""int16 activations that pass by the weights of a channel."""


def four_or_eight_channels(node: Node) -> bool:
    """pixels of four or eight channels"""
    shape = plain_pixels(shape_of(node))
    return shape.out_h == 1 and shape.reads_pixels and shape.stride_w == 1 and shape.in_c in (4, 8)


def saturated(node: Node) -> bool:
    """clamped by its type alone; up to 255 output channels"""
    low, high = clamp_range(clamp_of(node), node.output.type.q, node.output.type.dtype)
    return (low, high) == node.output.type.dtype.limits and shape_of(node).out_c < 256


def emit_pointwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights by channel, each with its bias and multiplier; a strip of widened pixels."""
    shape, sums, name = plain_pixels(shape_of(node)), sums_of(node), node.output.name
    strip = min(STRIP // shape.in_c, shape.out_w)
    laid = weights_of(node).reshape(shape.out_c, -1, GROUP)[:, :, WIDENED]
    words = stream(laid, sums, 1, packed=False).reshape(shape.out_c, -1)
    words = np.hstack([words[:, 1:-1], words[:, :1], words[:, -1:]])  # the bias behind the weights
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", words)),
        ("y", Access.OUT, builder.buffer(node.output)),
        ("patch", Access.SCRATCH, builder.scratch(f"{name}.patch", DType.INT16, -(-strip * shape.in_c // 16) * 16)),
    ]
    params: dict[str, Param] = {"pixels": shape.out_w, "strip": strip, "out_c": shape.out_c}
    code = {"in_c": shape.in_c}
    size = f"{shape.in_c}x{shape.out_c}"
    params["zero"] = sums.params["zero"]
    free = overlaps(node, windows(shape, in_turn(shape.out_w, strip)))
    builder.emit(node, kernel, operands, params, baked=("out_c",), code=code, overlaps=free, variant=size)


_CODES8 = (int8_tensors, high_word)
_CODES8_WIDENED = (int8_tensors, high_word_of_widened)
_CODES16 = (int16_tensors, shifted_high_word)

ROW: tuple[Kernel, ...] = (
    Kernel("dense_s8_dsp", _DSP, (one_row, *_CODES8, pairs_of_weights), emit_dense, dense_steps),
    Kernel("dense_s8_dsp_direct", _DSP, (one_row, *_CODES8, pairs_of_weights, whole_steps), emit_dense, dense_steps),
    Kernel("dense_s8_dsp16", _DSP, (one_row, *_CODES8_WIDENED), emit_dense, dense_steps),
    Kernel("dense_s16_dsp", _DSP, (one_row, *_CODES16), emit_dense, dense_steps),
)
"""Of layers with one row of outputs."""

PIXELS: tuple[Kernel, ...] = (
    Kernel("conv2d_s8_dsp", _DSP, (several_rows, ungrouped, *_CODES8, pairs_of_weights), emit_conv, conv_steps),
    Kernel("conv2d_s8_dsp16", _DSP, (several_rows, ungrouped, *_CODES8_WIDENED), emit_conv, conv_steps),
    Kernel("conv2d_s8_dsp_few", _DSP, (several_rows, ungrouped, *_CODES8_WIDENED, few_elements), emit_conv, few_steps),
    Kernel(
        "pointwise_s8_dsp",
        _DSP,
        (several_rows, ungrouped, *_CODES8_WIDENED, four_or_eight_channels, saturated),
        emit_pointwise,
    ),
    Kernel("conv2d_s16_dsp", _DSP, (several_rows, ungrouped, *_CODES16), emit_conv, conv_steps),
)
"""Of layers with several rows, or pixels."""

CONV = DENSE = (*ROW, *PIXELS)
"""Both are convolutions: a dense layer is one of single pixels."""
