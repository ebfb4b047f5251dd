# SPDX-License-Identifier: Apache-2.0
"""The integer audio front end of TensorFlow Lite Micro: windows, Fourier transforms, filters, noise, gain, logarithms.

The ONNX operators of domain `mcugen.signal` have the names, inputs and attributes of TensorFlow Lite Micro's custom
operators, and the same results to the last bit. Operators with a state take and return it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.signal import (
    DOMAIN,
    SIGNAL_ENERGY,
    SIGNAL_FFT,
    SIGNAL_FFT_SCALE,
    SIGNAL_FILTER_BANK,
    SIGNAL_GAIN,
    SIGNAL_LOG,
    SIGNAL_NOISE,
    SIGNAL_SQUARE_ROOT,
    SIGNAL_WINDOW,
    CountParams,
    EnergyParams,
    FilterBankParams,
    FixedFftOptions,
    FixedFftParams,
    GainParams,
    LogParams,
    NoiseParams,
    WindowParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.onnx_node import OnnxNode, onnx_operator

_MAX_POINTS = 1 << 15
"""Largest length of a Fourier transform: beyond it, the table of factors fits no microcontroller."""
_GAIN_ENTRIES = 125
"""Number of entries of a gain table: four for each power of 2 up to 2^31, less those of 0, 1 and 2."""
_LOG_SEGMENTS = 128
"""Number of straight lines by which a logarithm between powers of 2 is approximated."""
_LN_2 = 45426
"""The natural logarithm of 2 with 16 fractional bits."""


# ------------------------------------------------------------------------------------------- samples and spectra


class SignalWindow(Operator):
    """y[r, j] = saturate((x[r, j] · window[j]) >> shift), with frames x of int16.

    Attributes:
        shift: Bits that products are shifted to the right by.
    """

    mnemonic: ClassVar[str] = "signal_window"
    shift: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return a type like that of x."""
        return (TensorType(required(inputs)[0].shape, DType.INT16),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy."""
        x, window = (a.astype(np.int32) for a in arrays)
        frames = x.reshape(-1, window.size) * window >> self.shift
        return (np.clip(frames, -(2**15), 2**15 - 1).astype(np.int16).reshape(x.shape),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call; the output may take the place of x."""
        x, length = node.input(0).type, node.input(1).type.count
        params = WindowParams(rows=x.count // length, length=length, shift=self.shift)
        operands = builder.operands(node, "x", "window")
        builder.call(node, Call(SIGNAL_WINDOW, operands, [params], inplace=[("y", "x")]))


class SignalFftScale(Operator):
    """y = x << bits with the largest shift that keeps 16 bits; the second output is the shift."""

    mnemonic: ClassVar[str] = "signal_fft_scale"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the samples and of the shift."""
        return TensorType(required(inputs)[0].shape, DType.INT16), TensorType((), DType.INT32)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy; the magnitude of -32768 wraps to a negative number, as in 16 bits."""
        magnitude = 0
        for value in arrays[0].reshape(-1).tolist():
            magnitude = value if value > magnitude else _signed(-value, 16) if -value > magnitude else magnitude
        bits = max(15 - magnitude.bit_length(), 0) if magnitude > 0 else 0
        return (arrays[0].astype(np.int32) << bits).astype(np.int16), np.asarray(bits, np.int32)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call; the samples may stay in place."""
        params = CountParams(count=node.input(0).type.count)
        operands = builder.operands(node, "x", outputs=("y", "bits"))
        builder.call(node, Call(SIGNAL_FFT_SCALE, operands, [params], inplace=[("y", "x")]))


class FixedFft(Operator):
    """Fourier transforms of real samples in fixed point along the last axis, or their inverse.

    Spectra have length / 2 + 1 complex numbers, whose parts alternate. The results are 1 / length of the transform's,
    in both directions, as the operands of each butterfly are divided first (KISS FFT's scheme).

    Attributes:
        length: Number of samples of a frame, a power of 2; further samples of x are 0.
        inverse: Whether spectra become samples.
    """

    mnemonic: ClassVar[str] = "fixed_fft"
    length: int = 4
    inverse: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the spectra, or of the samples."""
        (x,) = required(inputs)
        return (TensorType((*x.shape[:-1], self.length + (0 if self.inverse else 2)), x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, butterfly by butterfly."""
        arithmetic = _Fixed(sig.input(0).dtype)
        rows = arrays[0].reshape(-1, arrays[0].shape[-1]).astype(np.int64)
        if self.inverse:
            y = arithmetic.transform(self._joined(arithmetic, rows.reshape(len(rows), -1, 2)), self._turns, sign=1)
        else:
            rows = np.pad(rows, ((0, 0), (0, self.length - rows.shape[1])))
            y = arithmetic.transform(rows.reshape(len(rows), -1, 2), self._turns, sign=-1)
            y = self._separated(arithmetic, y)
        return (y.reshape(sig.output.shape).astype(sig.output.dtype.numpy),)

    def _separated(self, fixed: _Fixed, z: Array) -> Array:
        """Return the spectra of real samples from those of pairs of samples as complex numbers."""
        half = self.length // 2
        y = np.zeros((len(z), half + 1, 2), np.int64)
        first = fixed.divided(z[:, 0], 2)
        y[:, 0, 0], y[:, half, 0] = fixed.wrap(first.sum(1)), fixed.wrap(first[:, 0] - first[:, 1])
        k = np.arange(1, half // 2 + 1)
        a, b = fixed.divided(z[:, k], 2), fixed.divided(fixed.conjugate(z[:, half - k]), 2)
        even, odd = fixed.wrap(a + b), fixed.product(fixed.wrap(a - b), self._half_turns(fixed.dtype))
        y[:, k] = fixed.halved(even + odd)
        y[:, half - k] = fixed.halved((even - odd) * np.array([1, -1]))
        return y

    def _joined(self, fixed: _Fixed, x: Array) -> Array:
        """Return the complex numbers whose transform has the real samples in pairs."""
        half = self.length // 2
        z = np.zeros((len(x), half, 2), np.int64)
        ends = np.stack([x[:, 0, 0] + x[:, half, 0], x[:, 0, 0] - x[:, half, 0]], -1)
        z[:, 0] = fixed.divided(fixed.wrap(ends), 2)
        k = np.arange(1, half // 2 + 1)
        a, b = fixed.divided(x[:, k], 2), fixed.divided(fixed.conjugate(x[:, half - k]), 2)
        even, odd = fixed.wrap(a + b), fixed.product(fixed.wrap(a - b), self._half_turns(fixed.dtype))
        z[:, k] = fixed.wrap(even + odd)
        z[:, half - k] = fixed.conjugate(fixed.wrap(even - odd))
        return z

    def _turns(self, dtype: DType) -> Array:
        """Return exp(∓2πik / points) as integers, for all points."""
        points = self.length // 2
        return _unit_circle((2 if self.inverse else -2) * np.pi * np.arange(points) / points, dtype)

    def _half_turns(self, dtype: DType) -> Array:
        """Return exp(∓πi ((k + 1) / points + 1 / 2)) as integers, which separate even from odd samples."""
        points = self.length // 2
        angle = np.pi * (np.arange(1, points // 2 + 1) / points + 0.5)
        return _unit_circle(angle if self.inverse else -angle, dtype)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call, which needs no working memory."""
        x = node.input(0).type
        length = x.shape[-1]
        params = FixedFftParams(rows=x.count // length, length=length, points=self.length // 2)
        is_wide = x.dtype is DType.INT32
        options = FixedFftOptions(
            t=x.dtype.c,
            wide="int64_t" if is_wide else "int32_t",
            bits=31 if is_wide else 15,
            inverse=self.inverse,
        )
        factors = np.concatenate([self._turns(x.dtype), self._half_turns(x.dtype)])
        operands = {
            "x": builder.buffer(node.input(0)),
            "factors": builder.const("fft.factors", factors.astype(x.dtype.numpy)),
            "y": builder.buffer(node.output),
        }
        variant = f"{'inverse_' if self.inverse else ''}{x.dtype.tag}"
        builder.call(node, Call(SIGNAL_FFT, operands, [params], [options], variant=variant))

    def macs(self, sig: Signature) -> int:
        """Return the multiplications by factors of all frames."""
        points = self.length // 2
        return sig.input(0).count // sig.input(0).shape[-1] * 4 * points * max(points.bit_length() - 1, 1)


def _unit_circle(angles: Array, dtype: DType) -> Array:
    """Return cos and sin of angles as integers of a type."""
    largest = float(dtype.limits[1])
    return np.floor(0.5 + largest * np.stack([np.cos(angles), np.sin(angles)], -1)).astype(np.int64)


class _Fixed:
    """Fixed-point arithmetic on complex numbers [..., 2] of 16 or 32 bits, held in int64."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.bits = 8 * dtype.nbytes - 1
        self.most = 2**self.bits - 1

    def wrap(self, values: Array) -> Array:
        return values.astype(self.dtype.numpy).astype(np.int64)

    def rounded(self, products: Array) -> Array:
        return self.wrap((products + (1 << (self.bits - 1))) >> self.bits)

    def divided(self, z: Array, by: int) -> Array:
        return self.rounded(z * (self.most // by))

    def product(self, a: Array, b: Array) -> Array:
        real = self.rounded(a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1])
        return np.stack([real, self.rounded(a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0])], -1)

    def conjugate(self, z: Array) -> Array:
        return self.wrap(z * np.array([1, -1]))

    def halved(self, sums: Array) -> Array:
        """Return sums, which have at most 32 bits, divided by 2."""
        return self.wrap(sums.astype(np.int32).astype(np.int64) >> 1)

    def transform(self, z: Array, turns: Callable[[DType], Array], sign: int) -> Array:
        """Return the transforms of rows of complex numbers.

        Args:
            z: The numbers [rows, points, 2].
            turns: Returns the factors of a type.
            sign: Sign of the exponent.
        """
        rows, points = z.shape[:2]
        factors = turns(self.dtype)
        radices = [4] * ((points.bit_length() - 1) // 2) + [2] * ((points.bit_length() - 1) % 2)
        z = z.reshape(rows, *reversed(radices), 2)
        z = z.transpose(0, *range(len(radices), 0, -1), len(radices) + 1).reshape(rows, points, 2)
        size = 1
        for radix in reversed(radices):
            stride = points // (size * radix)
            parts = self.divided(z.reshape(rows, stride, radix, size, 2), radix)
            steps = np.outer(np.arange(radix), np.arange(size)) * stride
            first, turned_parts = parts[:, :, 0], self.product(parts[:, :, 1:], factors[steps[1:]])
            z = self._butterfly(first, turned_parts, sign).reshape(rows, points, 2)
            size *= radix
        return z

    def _butterfly(self, first: Array, turned_parts: Array, sign: int) -> Array:
        """Return [rows, groups, radix, size, 2] of a butterfly of radix 2 or 4."""
        if turned_parts.shape[2] == 1:
            return np.stack([self.wrap(first + turned_parts[:, :, 0]), self.wrap(first - turned_parts[:, :, 0])], 2)
        f, g, h = (turned_parts[:, :, n] for n in range(3))
        even, odd = self.wrap(first + g), self.wrap(first - g)
        total, difference = self.wrap(f + h), self.wrap(f - h)
        turned = sign * np.stack([-difference[..., 1], difference[..., 0]], -1)
        return self.wrap(np.stack([even + total, odd + turned, even - total, odd - turned], 2))


class SignalEnergy(Operator):
    """y[k] = re² + im² of the bins first ≤ k < end of a spectrum of int16, else 0.

    Attributes:
        first: The first bin.
        end: The bin behind the last one.
    """

    mnemonic: ClassVar[str] = "signal_energy"
    first: int = 0
    end: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the energies."""
        return (TensorType((required(inputs)[0].count // 2,), DType.UINT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy."""
        energies = (arrays[0].astype(np.int64).reshape(-1, 2) ** 2).sum(1)
        k = np.arange(len(energies))
        return (np.where((k >= self.first) & (k < self.end), energies, 0).astype(np.uint32),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call."""
        params = EnergyParams(bins=node.output.type.count, first=self.first, end=self.end)
        builder.call(node, Call(SIGNAL_ENERGY, builder.operands(node, "x"), [params]))


# ------------------------------------------------------------------------------------------------ filter channels


class SignalFilterBank(Operator):
    """Sums of weighted energies: y[c] = Σ weights · x over group c + 1, plus Σ unweights · x over group c.

    The inputs are energies (uint32), weights, unweights, and of each group its first energy, its first weight and its
    number of energies (int16).

    Attributes:
        channels: Number of filters; there is one more group.
    """

    mnemonic: ClassVar[str] = "signal_filter_bank"
    channels: int = 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the sums."""
        return (TensorType((self.channels,), DType.UINT64),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, modulo 2^64."""
        x, weights, unweights = arrays[0].astype(np.uint64), *(a.astype(np.int64).view(np.uint64) for a in arrays[1:3])
        sums = np.zeros((self.channels + 1, 2), np.uint64)
        for c, (start, at, width) in enumerate(zip(*(a.tolist() for a in arrays[3:6]), strict=True)):
            width = max(width, 0)
            values = x[start : start + width]
            sums[c] = [(w[at : at + width] * values).sum(dtype=np.uint64) for w in (weights, unweights)]
        return (sums[1:, 0] + sums[:-1, 1],)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call."""
        operands = builder.operands(node, "x", "weights", "unweights", "starts", "weight_starts", "widths")
        builder.call(node, Call(SIGNAL_FILTER_BANK, operands, [FilterBankParams(channels=self.channels)]))

    def macs(self, sig: Signature) -> int:
        """Return the products of energies with both weights."""
        return 2 * sig.input(1).count


class SignalSquareRoot(Operator):
    """y = round(√x) >> bits; x is uint64, bits a number of int32.

    Roots of numbers of 32 bits are at most 65535, those of larger ones at most 2^32 - 1.
    """

    mnemonic: ClassVar[str] = "signal_square_root"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the roots."""
        return (TensorType(inputs[0].shape if inputs[0] else (), DType.UINT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by whole-number roots."""
        bits = int(arrays[1].reshape(()))
        roots = [self._root(int(v)) for v in arrays[0].reshape(-1)]
        shifted = [root >> bits if 0 <= bits < 32 else 0 for root in roots]
        return (np.array(shifted, np.uint32).reshape(sig.output.shape),)

    @staticmethod
    def _root(value: int) -> int:
        root = math.isqrt(value)
        limit = 0xFFFFFFFF if value >> 32 else 0xFFFF
        return root + 1 if value - root * root > root and root != limit else root

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call."""
        params = CountParams(count=node.output.type.count)
        builder.call(node, Call(SIGNAL_SQUARE_ROOT, builder.operands(node, "x", "bits"), [params]))


class SignalNoise(Operator):
    """Values less an estimate of their noise, which is a running mean; the outputs are both.

    noise = (s · (x << value_bits) + t · state) >> weight_bits; y = max(x - noise, least share of x), in uint32. The
    weights s and t of channels of odd number differ from those of even number.

    Attributes:
        smoothing: Weights s of channels of even and of odd number.
        one_minus_smoothing: Weights t of these.
        min_remaining: Least share of a value that remains, with `weight_bits` fractional bits.
        value_bits: Further fractional bits of the estimate.
        weight_bits: Fractional bits of the weights.
        clamps: Whether the estimate is at most the value.
    """

    mnemonic: ClassVar[str] = "signal_noise"
    smoothing: tuple[int, int] = (0, 0)
    one_minus_smoothing: tuple[int, int] = (0, 0)
    min_remaining: int = 0
    value_bits: int = 0
    weight_bits: int = 0
    clamps: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the values and of the estimate."""
        x = required(inputs)[0]
        return TensorType(x.shape, DType.UINT32), TensorType(x.shape, DType.UINT32)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, modulo 2^64 and 2^32."""
        x, state = (a.astype(np.uint64) for a in arrays)
        odd = np.arange(x.size).reshape(x.shape) % 2
        weight, old = (
            np.take(np.array(pair, np.int64), odd).astype(np.uint32).astype(np.uint64) for pair in self._pairs
        )
        bits, low = np.uint64(self.weight_bits), np.uint64(2**32 - 1)
        scaled = (x << np.uint64(self.value_bits)) & low
        mean = ((scaled * weight + state * old) >> bits) & low
        floor = ((x * np.uint64(self.min_remaining % 2**32)) >> bits) & low
        estimate = np.minimum(mean, scaled)
        y = np.maximum((scaled - estimate) >> np.uint64(self.value_bits), floor)
        return y.astype(np.uint32), (estimate if self.clamps else mean).astype(np.uint32)

    @property
    def _pairs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.smoothing, self.one_minus_smoothing

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call; the estimate may take the place of the last one."""
        params = NoiseParams(
            count=node.input(0).type.count,
            smoothing=self.smoothing[0],
            one_minus_smoothing=self.one_minus_smoothing[0],
            odd_smoothing=self.smoothing[1],
            odd_one_minus_smoothing=self.one_minus_smoothing[1],
            min_remaining=self.min_remaining,
            value_bits=self.value_bits,
            weight_bits=self.weight_bits,
            clamps=int(self.clamps),
        )
        operands = builder.operands(node, "x", "state", outputs=("y", "noise"))
        builder.call(node, Call(SIGNAL_NOISE, operands, [params], inplace=[("y", "x"), ("noise", "state")]))


class SignalGain(Operator):
    """Automatic gain control: y = shrink((x · gain(noise)) >> shift) in uint32.

    The gain of each power of 2 is a polynomial with coefficients in the third input (int16). shrink(v) is v² / 4 below
    2 and v - 1 above, with 12 fractional bits before and 6 behind it.

    Attributes:
        shift: Bits that products are shifted to the right by.
    """

    mnemonic: ClassVar[str] = "signal_gain"
    shift: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the values."""
        return (TensorType(required(inputs)[0].shape, DType.UINT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output number by number."""
        x, noise, table = arrays
        coefficients = table.tolist()
        pairs = zip(x.reshape(-1).tolist(), noise.reshape(-1).tolist(), strict=True)
        values = [self._value(v, level, coefficients) for v, level in pairs]
        return (np.array(values, np.uint32).reshape(x.shape),)

    def _value(self, value: int, level: int, table: list[int]) -> int:
        product = value * (_gain(level, table) % 2**32) % 2**64
        ratio = (product >> self.shift) % 2**32
        return ratio * ratio >> 20 if ratio < 2 << 12 else (ratio >> 6) - 64

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call; the output may take the place of x."""
        params = GainParams(count=node.input(0).type.count, shift=self.shift)
        operands = builder.operands(node, "x", "noise", "table")
        builder.call(node, Call(SIGNAL_GAIN, operands, [params], inplace=[("y", "x")]))


def _signed(value: int, bits: int) -> int:
    """Return a number modulo 2^bits, from -2^(bits - 1)."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _gain(level: int, table: list[int]) -> int:
    """Return the gain of a noise level, which is interpolated between powers of 2."""
    if level <= 2:
        return table[level]
    bits = level.bit_length()
    w = table[4 * bits - 6 : 4 * bits - 3]
    part = (level << (11 - bits) if bits < 11 else level >> (bits - 11)) & 0x3FF
    total = _signed(((w[2] * part >> 5) + w[1] * 32) * part + (1 << 14), 32)
    return _signed((total >> 15) + w[0], 16)


class SignalLog(Operator):
    """y = saturate(scale · ln(x << shift) / 65536), by straight lines, of values of uint32 above 1; else 0.

    The second input is the table of the lines.

    Attributes:
        scale: Factor of the logarithm.
        shift: Bits that values are shifted to the left by.
    """

    mnemonic: ClassVar[str] = "signal_log"
    scale: int = 1
    shift: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the type of the logarithms."""
        return (TensorType(required(inputs)[0].shape, DType.INT16),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output number by number."""
        table = arrays[1].tolist()
        values = [self._value((v << self.shift) % 2**32, table) for v in arrays[0].reshape(-1).tolist()]
        return (np.array(values, np.int16).reshape(sig.output.shape),)

    def _value(self, value: int, table: list[int]) -> int:
        if value <= 1:
            return 0
        power = value.bit_length() - 1
        remainder = value - (1 << power)
        part = remainder << (16 - power) if power < 16 else remainder >> (power - 16)
        at = part >> 9
        log2 = (power << 16) + part + table[at] + ((table[at + 1] - table[at]) * (part - 512 * at) >> 16)
        natural = (_LN_2 * log2 + (1 << 15)) >> 16
        result = ((self.scale * natural + (1 << 15)) % 2**32) >> 16
        return min(result, 2**15 - 1)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one call."""
        params = LogParams(count=node.output.type.count, scale=self.scale, shift=self.shift)
        builder.call(node, Call(SIGNAL_LOG, builder.operands(node, "x", "table"), [params]))


# --------------------------------------------------------------------------------------------------------- import


def _typed(node: OnnxNode, *dtypes: DType) -> list[Value]:
    """Return the inputs, which must be of the given types."""
    node.require(len(node.inputs) == len(dtypes), f"there must be {len(dtypes)} inputs", f"{len(node.inputs)}")
    values = [node.input(n) for n in range(len(dtypes))]
    for value, dtype in zip(values, dtypes, strict=True):
        node.require_dtype(value, dtype)
    return values


def _vector(node: OnnxNode, value: Value) -> None:
    """Refuse an input that is no vector."""
    node.require(value.type.rank == 1 and value.type.count > 0, "inputs must be vectors", f"shape {value.type.shape}")


def _bounded(node: OnnxNode, key: str, low: int = 0, high: int = 31, default: int = 0) -> int:
    """Return an attribute that is a whole number within bounds."""
    value = int(node.attr(key, default))
    node.require(low <= value <= high, f"{key} must be from {low} to {high}", f"{value}")
    return value


@onnx_operator("SignalWindow", domain=DOMAIN, types=(DType.INT16,), kernels=(SIGNAL_WINDOW.name,))
def _import_window(node: OnnxNode) -> list[Value]:
    x, window = _typed(node, DType.INT16, DType.INT16)
    _vector(node, window)
    sizes = f"{x.type.shape} and {window.type.shape}"
    node.require(x.type.count % window.type.count == 0, "x must hold whole windows", sizes)
    return [node.emit(SignalWindow(_bounded(node, "shift")), x, window)]


@onnx_operator("SignalFftAutoScale", domain=DOMAIN, types=(DType.INT16,), kernels=(SIGNAL_FFT_SCALE.name,))
def _import_scale(node: OnnxNode) -> list[Value]:
    (x,) = _typed(node, DType.INT16)
    return list(node.emit_all(SignalFftScale(), [x], _names(node)))


def _names(node: OnnxNode) -> list[str]:
    """Return the names of two outputs, of which one may be unused."""
    names = [*node.outputs, "", ""][:2]
    return [name or f"{node.outputs[0] or node.name}.{n}" for n, name in enumerate(names)]


@onnx_operator("SignalRfft", "SignalIrfft", domain=DOMAIN, types=(DType.INT16, DType.INT32), kernels=(SIGNAL_FFT.name,))
def _import_fft(node: OnnxNode) -> list[Value]:
    x, inverse = node.input(0), node.op_type == "SignalIrfft"
    node.require_dtype(x, DType.INT16, DType.INT32)
    length = int(node.attr("fft_length", 0))
    is_power = 4 <= length <= _MAX_POINTS and length & (length - 1) == 0
    node.require(is_power, f"fft_length must be a power of 2 from 4 to {_MAX_POINTS}", f"{length}")
    size = x.type.shape[-1] if x.type.rank else 0
    fits = size == length + 2 if inverse else 0 < size <= length
    node.require(fits and x.type.count > 0, "the last axis must fit fft_length", f"{x.type.shape}, {length}")
    return [node.emit(FixedFft(length, inverse), x)]


@onnx_operator("SignalEnergy", domain=DOMAIN, types=(DType.INT16,), kernels=(SIGNAL_ENERGY.name,))
def _import_energy(node: OnnxNode) -> list[Value]:
    (x,) = _typed(node, DType.INT16)
    _vector(node, x)
    bins = x.type.count // 2
    first, end = (_bounded(node, key, 0, bins) for key in ("start_index", "end_index"))
    return [node.emit(SignalEnergy(first, end), x)]


@onnx_operator(
    "SignalFilterBank",
    domain=DOMAIN,
    types=(DType.UINT32,),
    kernels=(SIGNAL_FILTER_BANK.name,),
    limits="constant starts and widths",
)
def _import_filter_bank(node: OnnxNode) -> list[Value]:
    values = _typed(node, DType.UINT32, *[DType.INT16] * 5)
    for value in values:
        _vector(node, value)
    energies, *weights = (value.type.count for value in values[:3])
    channels = _bounded(node, "num_channels", 1, 2**15)
    starts, weight_starts, widths = (node.const(n, "a group").astype(np.int64) for n in (3, 4, 5))
    counts = f"{[len(a) for a in (starts, weight_starts, widths)]} of {channels} channels"
    node.require({len(starts), len(weight_starts), len(widths)} == {channels + 1}, "each group needs its place", counts)
    ends = np.maximum(widths, 0)
    fits = (starts >= 0).all() and (starts + ends <= energies).all() and (weight_starts >= 0).all()
    fits = fits and (weight_starts + ends <= min(weights)).all()
    node.require(fits, "groups must lie within the energies and weights", "another place")
    return [node.emit(SignalFilterBank(channels), *values)]


@onnx_operator("SignalFilterBankSquareRoot", domain=DOMAIN, types=(DType.UINT64,), kernels=(SIGNAL_SQUARE_ROOT.name,))
def _import_square_root(node: OnnxNode) -> list[Value]:
    x, bits = _typed(node, DType.UINT64, DType.INT32)
    node.require(bits.type.count == 1, "the shift must be one number", f"shape {bits.type.shape}")
    return [node.emit(SignalSquareRoot(), x, bits)]


@onnx_operator(
    "SignalFilterBankSpectralSubtraction", domain=DOMAIN, types=(DType.UINT32,), kernels=(SIGNAL_NOISE.name,)
)
def _import_noise(node: OnnxNode) -> list[Value]:
    x, state = _typed(node, DType.UINT32, DType.UINT32)
    node.require(x.type.shape == state.type.shape, "the state must have the shape of x", f"{state.type.shape}")
    limit = 2**31 - 1

    def pair(key: str) -> tuple[int, int]:
        return _bounded(node, key, -limit, limit), _bounded(node, f"alternate_{key}", -limit, limit)

    op = SignalNoise(
        pair("smoothing"),
        pair("one_minus_smoothing"),
        _bounded(node, "min_signal_remaining", -limit, limit),
        _bounded(node, "smoothing_bits"),
        _bounded(node, "spectral_subtraction_bits"),
        bool(node.attr("clamping", 0)),
    )
    return list(node.emit_all(op, [x, state], _names(node)))


@onnx_operator("SignalPCAN", domain=DOMAIN, types=(DType.UINT32,), kernels=(SIGNAL_GAIN.name,))
def _import_gain(node: OnnxNode) -> list[Value]:
    x, noise, table = _typed(node, DType.UINT32, DType.UINT32, DType.INT16)
    node.require(x.type.shape == noise.type.shape, "each value needs its noise", f"{noise.type.shape}")
    fault = f"shape {table.type.shape}"
    node.require(table.type.count >= _GAIN_ENTRIES, f"the table must have {_GAIN_ENTRIES} entries", fault)
    return [node.emit(SignalGain(_bounded(node, "snr_shift")), x, noise, table)]


@onnx_operator("SignalFilterBankLog", domain=DOMAIN, types=(DType.UINT32,), kernels=(SIGNAL_LOG.name,))
def _import_log(node: OnnxNode) -> list[Value]:
    (x,) = _typed(node, DType.UINT32)
    share = np.arange(_LOG_SEGMENTS + 1) / _LOG_SEGMENTS
    entries = np.rint(65536 * (np.log2(1 + share) - share)).astype(np.int16)
    table = node.constant("table", np.append(entries, np.int16(0)))
    op = SignalLog(_bounded(node, "output_scale", 0, 2**31 - 1), _bounded(node, "input_correction_bits"))
    return [node.emit(op, x, table)]
