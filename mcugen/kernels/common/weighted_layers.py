# SPDX-License-Identifier: Apache-2.0
"""Parts shared by kernels of layers with constant weights: weight packing, requantization, conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, cast

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType
from mcugen.kernels.common.specs import ConvSpec, WeightedSpec
from mcugen.lir.kernel import UPDATABLE, Kernel, Options, Params, Trained
from mcugen.lir.program import Wide
from mcugen.numerics.fixedpoint import Range
from mcugen.numerics.tflite_arithmetic import layer_requantizer, rounds_as_tflite

INTERLEAVED_ROWS = 4
"""Number of output channels that the portable inner loops compute together, and whose weight rows are interleaved."""


def interleave(weights: Array) -> Array:
    """Pack weights into a flat array for kernels that compute four output channels at a time.

    Each block of four rows is stored as [K][4], so that the weights of four channels for one input are adjacent; the
    remaining N % 4 rows follow one by one as [K].

    Args:
        weights: Weights, [N, K]: a row for each output channel.
    """
    whole = len(weights) // INTERLEAVED_ROWS * INTERLEAVED_ROWS
    blocks = weights[:whole].reshape(-1, INTERLEAVED_ROWS, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([blocks.reshape(-1), weights[whole:].reshape(-1)])


INT4_RANGE = (-8, 7)
"""Lowest and highest value of a 4-bit weight."""

INT2_RANGE = (-2, 1)
"""Lowest and highest value of a 2-bit weight."""


def nibbles(first: Array, second: Array) -> Array:
    """Pack two arrays of 4-bit weights into one uint8 array of the same shape, each weight plus 8 to make it positive.

    Args:
        first: Weights from −8 to 7, stored in the lower half of each byte.
        second: Weights from −8 to 7, stored in the upper half.
    """
    packed: Array = (first - INT4_RANGE[0] | (second - INT4_RANGE[0]) << 4).astype(np.uint8)
    return packed


def pack_adjacent_nibbles(rows: Array) -> Array:
    """Pack 4-bit weights [N, K] as bytes [N, ⌈K / 2⌉], two adjacent weights of a row per byte.

    Weights of even columns are in the lower halves, those of odd columns in the upper halves.
    """
    padded = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
    return nibbles(padded[:, 0::2], padded[:, 1::2])


def interleave_nibbles(weights: Array) -> Array:
    """Pack 4-bit weights into flat bytes for kernels that compute four output channels at a time, two rows per byte.

    Each weight is stored plus 8. Blocks of four rows are stored as [K][2], two bytes for the four weights of an input;
    the remaining rows follow in pairs, each pair as [K].

    Args:
        weights: Weights from −8 to 7, [N, K]: a row for each output channel.
    """
    rows = len(weights) + len(weights) % 2
    pairs = np.pad(weights, ((0, rows - len(weights)), (0, 0))).reshape(rows // 2, 2, -1)
    packed = nibbles(pairs[:, 0], pairs[:, 1])
    whole = len(weights) // INTERLEAVED_ROWS * 2
    blocks = packed[:whole].reshape(-1, 2, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([blocks.reshape(-1), packed[whole:].reshape(-1)])


CHANNELS_PER_NIBBLE_WORD = 8
"""Number of output channels whose 4-bit weights share a 32-bit word."""


def pack_nibble_words(weights: Array) -> Array:
    """Pack 4-bit weights into flat uint32 words, eight per word, each plus 8, from the lowest bits up.

    Blocks of eight rows (CHANNELS_PER_NIBBLE_WORD) are stored as [K] words, one weight of each row per word; the
    remaining rows follow one by one, eight weights of a row per word.

    Args:
        weights: Weights from −8 to 7, [N, K]: a row for each output channel.
    """
    whole = len(weights) // CHANNELS_PER_NIBBLE_WORD * CHANNELS_PER_NIBBLE_WORD
    blocks = weights[:whole].reshape(-1, CHANNELS_PER_NIBBLE_WORD, weights.shape[1]).transpose(0, 2, 1)
    tail_rows = np.pad(weights[whole:], ((0, 0), (0, -weights.shape[1] % CHANNELS_PER_NIBBLE_WORD)))
    eights = (
        np.concatenate(
            [blocks.reshape(-1, CHANNELS_PER_NIBBLE_WORD), tail_rows.reshape(-1, CHANNELS_PER_NIBBLE_WORD)]
        ).astype(np.int64)
        - INT4_RANGE[0]
    )
    packed: Array = (eights << 4 * np.arange(CHANNELS_PER_NIBBLE_WORD)).sum(1).astype(np.uint32)
    return packed


def interleave_quarters(weights: Array) -> Array:
    """Pack 2-bit weights into flat bytes, each weight plus 2, four rows per byte.

    For each block of four rows, K bytes are stored, each with the weights of the four rows for one input. Missing rows
    of the last block are zeros.

    Args:
        weights: Weights from −2 to 1, [N, K]: a row for each output channel.
    """
    rows = np.pad(weights, ((0, -len(weights) % INTERLEAVED_ROWS), (0, 0))).reshape(
        -1, INTERLEAVED_ROWS, weights.shape[1]
    )
    packed: Array = ((rows.astype(np.int64) - INT2_RANGE[0]) << 2 * np.arange(INTERLEAVED_ROWS)[:, None]).sum(1)
    return packed.astype(np.uint8).reshape(-1)


def clamp_of(node: Node) -> Range | None:
    """Return the limits, in real numbers, to which a node's operator clamps its results; None without a clamp."""
    return cast("_Clamped", node.op).clamp


class _Clamped(Protocol):
    clamp: Range | None


class Requantization(Params):
    """Kernel parameters of the requantization of integer accumulators to the quantized output.

    If the output is the accumulators themselves, only those parameters that the accumulation needs are set.
    """

    x_zero_point: Annotated[Trained | None, "zero point of x, the value of padding; 0 for int16"] = None
    max_int32_products: Annotated[
        int | None, "largest number of products whose sum fits an int32, if sums have 64 bits"
    ] = None
    low: Annotated[Trained | None, "lowest quantized value of y"] = None
    high: Annotated[Trained | None, "highest quantized value of y"] = None
    requantize_offset: Annotated[
        Wide | None, "zero point of y plus one half, at the scale of products before the right shift"
    ] = None
    y_zero_point: Annotated[Trained | None, "zero point of y, if sums are rounded as TensorFlow Lite does"] = None


class CodeLimits(Params):
    """Kernel parameters with the limits that quantized results are clamped to."""

    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]

    @staticmethod
    def of(limits: tuple[int, int]) -> CodeLimits:
        """Return the parameters for (lowest, highest) quantized values of y."""
        low, high = limits
        return CodeLimits(low=low, high=high)


class CodeStore(Params):
    """Kernel parameters that requantize accumulators to quantized values of y."""

    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    requantize_offset: Annotated[Wide, "zero point of y plus one half, at the scale of products before the right shift"]

    @classmethod
    def of(cls, spec: WeightedSpec) -> CodeStore:
        """Return the parameters that requantize the accumulators of a layer: zero points, limits and rounding term.

        Args:
            spec: The layer; its output must be requantized (WeightedSpec.is_requantized).
        """
        low, high = spec.limits
        return cls(x_zero_point=spec.x.q.zero_point, low=low, high=high, requantize_offset=Wide(spec.high_word.offset))


class FloatLimits(Params):
    """Kernel parameters that limit float results.

    The lower limit is −∞ without activation, so that such layers share the code with ReLU.
    """

    low: Annotated[float, "lowest result"]
    high: Annotated[float | None, "highest result, if there is an upper limit"] = None


class ElementTypes(Options):
    """Template options with the C element types of tensors and weights."""

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]


class IntegerStore(Options):
    """Template options of how integer accumulators become results: requantized, or stored as they are."""

    store: Annotated[str, "requantize, or plain: accumulators are the result"]
    acc_t: Annotated[str, "C type of the sums"]
    shift: Annotated[int, "right shift of products with the multiplier; 0 if plain or rounded twice"] = 0
    rounds_twice: Annotated[bool, "whether sums are rounded as TensorFlow Lite does, by shifts behind multipliers"] = (
        False
    )


class DoubleRounding(Options):
    """Template option: whether results are rounded twice, as in TensorFlow Lite's kernels.

    The constants of each block of channels then have right shifts behind the multipliers.
    """

    rounds_twice: Annotated[bool, "whether results are rounded as TensorFlow Lite does"]


class FloatStore(Options):
    """Template options of how float accumulators become results: they are clamped, with or without an upper limit.

    Layers without activation have the lower limit −∞.
    """

    store: Annotated[str, "clamp, or scale: sums are multiplied by the channel's scale before the bias is added"]
    high: Annotated[bool, "whether there is an upper limit"]


@dataclass(frozen=True)
class SumStore:
    """The way in which a kernel turns accumulators into stored results: constants, parameters and options.

    Attributes:
        constants: Constant operands by role: the bias, with which accumulators start, and the multiplier if results are
            requantized, or the scale if weights of float layers are int8.
        params: Kernel parameters of the requantization (integers) or the clamp (floats).
        options: Template options of how accumulators are requantized or clamped, and stored.
        variant: Part of the C function's name: "long" for 64-bit accumulators, "" for others.
    """

    constants: Mapping[str, Array]
    params: Requantization | FloatLimits
    options: IntegerStore | FloatStore
    variant: str = ""


def store_of(spec: WeightedSpec) -> SumStore:
    """Return how a kernel turns a layer's accumulators into results: floats are clamped, integers are requantized."""
    return float_store(spec) if spec.x.quant is None else integer_store(spec)


def integer_store(spec: WeightedSpec) -> SumStore:
    """Return how a kernel turns a layer's integer accumulators into results.

    Accumulators start with the bias, into which the zero point of x is folded, and have 64 bits if 32 are too few. They
    are requantized unless the output is int32.
    """
    acc = spec.acc
    bias = {"bias": spec.folded_bias.astype(acc.numpy)}
    max_product = -spec.x.dtype.limits[0] * max(int(np.abs(spec.weights.astype(np.int64)).max(initial=0)), 1)
    zero = spec.x.q.zero_point if spec.x.dtype is DType.INT8 else None
    sums = Requantization(
        x_zero_point=zero, max_int32_products=(2**31 - 1) // max_product if acc is DType.INT64 else None
    )
    if not spec.is_requantized:
        return SumStore(bias, sums, IntegerStore(store="plain", acc_t=acc.c))
    low, high = spec.limits
    if rounds_as_tflite(spec.y):
        table = layer_requantizer(spec.sig).table(spec.channels)
        params = replace(sums, low=low, high=high, y_zero_point=spec.y.q.zero_point)
        options = IntegerStore(store="requantize", acc_t=acc.c, rounds_twice=True)
        return SumStore(bias | {"multiplier": table}, params, options, "tflite")
    requantize = spec.high_word
    params = replace(sums, low=low, high=high, requantize_offset=Wide(requantize.offset))
    options = IntegerStore(store="requantize", acc_t=acc.c, shift=requantize.shift)
    variant = "long" if acc is DType.INT64 else ""
    return SumStore(bias | {"multiplier": spec.multipliers}, params, options, variant)


def float_store(spec: WeightedSpec) -> SumStore:
    """Return how a kernel turns a layer's float accumulators, which start with the bias, into results: by a clamp."""
    high = not math.isinf(spec.float_limits[1])
    return SumStore({"bias": spec.float_bias}, float_limits(spec), FloatStore(store="clamp", high=high))


def scaled_store(spec: WeightedSpec) -> SumStore:
    """Return how a float kernel with int8 weights turns accumulators into results: scale, bias, clamp."""
    assert spec.scaled_int8_rows is not None
    store = float_store(spec)
    constants = {**store.constants, "scale": spec.scaled_int8_rows[1]}
    assert isinstance(store.options, FloatStore)
    return replace(store, constants=constants, options=replace(store.options, store="scale"))


def float_limits(spec: WeightedSpec) -> FloatLimits:
    """Return the kernel parameters with the limits that the results of a float layer are clamped to."""
    low, high = spec.float_limits
    return FloatLimits(low=low, high=None if math.isinf(high) else high)


def element_types(spec: WeightedSpec, weights: Array) -> ElementTypes:
    """Return the C element types of a layer's input, weights and output as template options.

    Args:
        spec: The layer.
        weights: The weights as they are stored, perhaps packed into elements of another type.
    """
    return ElementTypes(x_t=spec.x.dtype.c, w_t=DType.of(weights).c, y_t=spec.y.dtype.c)


# ------------------------------------------------------------------------------- conditions of kernels


class HasSignature(Protocol):
    """Protocol of a layer whose types a kernel's condition checks: a node, or the layer's specification for kernels."""

    @property
    def sig(self) -> Signature:
        """Return the types of inputs and outputs of the layer."""


def float_tensors(layer: HasSignature) -> bool:
    """Require a float32 input.

    Return whether the first input of the layer is float32, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(0).dtype is DType.FLOAT32


def double_tensors(layer: HasSignature) -> bool:
    """Require a float64 input.

    Return whether the first input of the layer is float64, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(0).dtype is DType.FLOAT64


def plain_integers(layer: HasSignature) -> bool:
    """Require an integer input without a quantization scale, whose arithmetic wraps around.

    Return whether the first input of the layer has an integer type and no scale, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(0).dtype.is_integer and layer.sig.input(0).quant is None


def int8_tensors(layer: HasSignature) -> bool:
    """Require an int8 input.

    Return whether the first input of the layer is int8, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(0).dtype is DType.INT8


def int8_weights(layer: HasSignature) -> bool:
    """Require int8 weights.

    Return whether the weights (input 1) of the layer are int8, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(1).dtype is DType.INT8


def uint8_example(channels: int, results: int, group: int = 1) -> str:
    """Return an example model in ONNX's text form: a 3×3 convolution whose uint8 weights have the zero point 100.

    Tests of kernels use it. The last weight does not fit int8 after the zero point is subtracted.

    Args:
        channels: Channels of x.
        results: Channels of y.
        group: Groups of channels.
    """
    shape = (results, channels // group, 3, 3)
    codes = ", ".join([*(str(37 * n % 227) for n in range(math.prod(shape) - 1)), "255"])
    return f"""<ir_version: 10, opset_import: ["": 21]>
    net (int8[1, {channels}, 10, 11] a) => (int8[1, {results}, 10, 11] y)
    <float s = {{0.0625}}, int8 z = {{0}}, uint8 m = {{100}}, uint8[{", ".join(map(str, shape))}] c = {{{codes}}}> {{
      x = DequantizeLinear(a, s, z)
      w = DequantizeLinear(c, s, m)
      sums = Conv<group = {group}, pads = [1, 1, 1, 1]>(x, w)
      y = QuantizeLinear(sums, s, z)
    }}"""


def has_int8_output(spec: WeightedSpec) -> bool:
    """Require int8 results.

    Return whether the output of the layer is int8, a condition of kernels (Kernel.when).
    """
    return spec.y.dtype is DType.INT8


def has_one_group(spec: ConvSpec) -> bool:
    """Require one group of channels.

    Return whether the convolution has one group of channels, a condition of kernels (Kernel.when).
    """
    return spec.shape.groups == 1


def nine_bits(spec: WeightedSpec) -> bool:
    """Require int8 inputs, and weights that are int8 after an offset of their channel is subtracted.

    Return whether the layer is requantized, has int8 inputs and int16 weights, and accumulators that fit 32 bits. In
    each output channel, the largest and the smallest weight must differ by less than 256, as unsigned 8-bit weights
    less a zero point (nine bits) do.
    """
    if (spec.x.dtype, spec.w.dtype) != (DType.INT8, DType.INT16) or not spec.is_requantized:
        return False
    wide = (spec.depth << 15) + int(np.abs(spec.folded_bias).max(initial=0)) >= 2**31
    return not wide and int(np.ptp(spec.rows, axis=1).max(initial=0)) < 256


def four_bits(spec: WeightedSpec) -> bool:
    """Require weights from −8 to 7 (4 bits).

    Return whether all weights of the layer are from −8 to 7, a condition of kernels (Kernel.when).
    """
    return bool(spec.weights.min(initial=0) >= INT4_RANGE[0] and spec.weights.max(initial=0) <= INT4_RANGE[1])


def two_bits(spec: WeightedSpec) -> bool:
    """Require weights from −2 to 1 (2 bits).

    Return whether all weights of the layer are from −2 to 1, a condition of kernels (Kernel.when).
    """
    return bool(spec.weights.min(initial=0) >= INT2_RANGE[0] and spec.weights.max(initial=0) <= INT2_RANGE[1])


def of_four_bits(kernel: Kernel, *when: Callable[[Any], bool], **changes: Any) -> Kernel:
    """Return the 4-bit variant of an int8 kernel, which stores two weights per byte and unpacks them in registers.

    Its name has `s4` instead of `s8`.

    Args:
        kernel: A kernel of int8 weights, with `s8` in its name.
        when: Conditions on the layer, in addition to those of `kernel` and to weights from −8 to 7.
        changes: Other fields of the kernel to replace.
    """
    return replace(
        kernel,
        name=kernel.name.replace("s8", "s4"),
        what=f"{kernel.what}, two weights per byte",
        lacks=kernel.lacks | {UPDATABLE},  # Updated weights may need more bits.
        as_tflite=False,
        when=(*kernel.when, four_bits, *when),
        **changes,
    )


def half_weights(spec: WeightedSpec) -> bool:
    """Require float weights that float16 represents exactly.

    Return whether float16 represents every weight of the layer exactly, a condition of kernels (Kernel.when).
    """
    return spec.has_half_weights


def scaled_int8_weights(spec: WeightedSpec) -> bool:
    """Require float weights that are products of int8 values and a scale per output channel.

    Return whether the weights of the layer are such products but for float32 rounding, a condition of kernels
    (Kernel.when).
    """
    return spec.scaled_int8_rows is not None


def int16_tensors(layer: HasSignature) -> bool:
    """Require an int16 input.

    Return whether the first input of the layer is int16, a condition of kernels (Kernel.when).
    """
    return layer.sig.input(0).dtype is DType.INT16


def int16_operands(layer: HasSignature) -> bool:
    """Require that at least one of the two inputs is int16.

    Return whether one of the layer's first two inputs is int16, or both, a condition of kernels (Kernel.when).
    """
    return DType.INT16 in (layer.sig.input(0).dtype, layer.sig.input(1).dtype)
