# SPDX-License-Identifier: Apache-2.0
"""Spectra, bands, logarithms and cosine transforms in fixed point, bit by bit as the C code of templates/pipeline.

A frame is scaled so that its largest sample takes 16 bits, and windowed to 29 bits. The Fourier transform takes N / 2
complex numbers, radix 2, and halves them at each step, so that nothing overflows; errors are in the last of 30 bits,
nearly 150 dB below a full-scale tone. Powers are exact 64-bit numbers, sums over bands have 96 bits, and logarithms
have 16 fraction bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mcugen.hir.types import Array

FIXED_POINT_ONE = 1 << 30
"""The integer that stands for 1 in the tables of windows, twiddle factors and cosines: 30 fraction bits."""

SPECTRUM_LOG_BITS = 16
"""Fraction bits of the base-2 logarithms of spectra."""

_SEGMENTS = 64
_PART = (1 << SPECTRUM_LOG_BITS) // _SEGMENTS

LOG_TABLE = np.rint(np.log2(1 + np.arange(_SEGMENTS + 1) / _SEGMENTS) * (1 << SPECTRUM_LOG_BITS)).astype(np.int64)
"""Table of log2(1 + i / 64) with SPECTRUM_LOG_BITS fraction bits; linear interpolation is at most 5e-5 off."""

LOGARITHMS = {"ln": math.log(2), "log2": 1.0, "log10": math.log10(2), "db": 10 * math.log10(2)}
"""Factor from a base-2 logarithm to each kind of logarithm, by name.

Decibels have this factor for powers, and twice this factor for magnitudes.
"""

BANDS = ("mel", "slaney", "bins")
"""Kinds of frequency bands.

mel: triangles on HTK's mel scale, peak 1; slaney: triangles on Slaney's mel scale, area 1; bins: equal frequency
ranges, averaged.
"""

_WINDOW_TERMS = {"hann": (0.5, 0.5), "hamming": (0.54, 0.46), "rectangle": (1.0, 0.0)}
WINDOWS = tuple(_WINDOW_TERMS)
"""Names of the window functions, all periodic: w(n) = a - b · cos(2π·n / length)."""


def half_window_function(name: str, length: int) -> Array:
    """Return the first half of a window function with its middle, int64 [length / 2 + 1].

    Args:
        name: One of WINDOWS.
        length: Number of samples of the whole window.

    Returns:
        The values in units of 1/FIXED_POINT_ONE.
    """
    a, b = _WINDOW_TERMS[name]
    n = np.arange(length // 2 + 1)
    return _fixed((a - b * np.cos(2 * np.pi * n / length)) * FIXED_POINT_ONE)


def _fixed(real: Array) -> Array:
    return np.asarray(np.rint(real).astype(np.int64))


def twiddle_factors(points: int) -> Array:
    """Return the factors of a Fourier transform of `points` complex numbers in units of 1/FIXED_POINT_ONE.

    They are cos(π·k / points) and −sin(π·k / points) for k < points, int64 [points, 2].
    """
    angles = np.pi * np.arange(points) / points
    return _fixed(np.stack([np.cos(angles), -np.sin(angles)], -1) * FIXED_POINT_ONE)


def normalize_frames(frames: Array) -> tuple[Array, Array]:
    """Scale int16 frames [.., n] up by a power of two until the largest magnitude is above 2^14.

    Returns:
        The scaled frames, and the number of bits that each frame was shifted left by [..].
    """
    wide = frames.astype(np.int64)
    peak = np.abs(wide).max(axis=-1)
    shift = np.zeros(peak.shape, np.int64)
    for bits in range(1, 16):
        shift = np.where(peak << bits <= 32768, bits, shift)
    return wide << shift[..., None], shift


def power_spectra(frames: Array, half_window: Array, fft: int) -> tuple[Array, Array]:
    """Return the power spectrum of frames.

    It is P · 2^(58 + 2 shift) / points² with P = |Σ sample / 2^15 · window · exp(−2πi·j·k / fft)|² and points = fft /
    2.

    Args:
        frames: int16 [.., n], n <= fft.
        half_window: The window function (`half_window_function`).
        fft: Number of points of the transform.

    Returns:
        The spectrum, uint64 [.., fft / 2 + 1], and the shift of each frame [..] (`normalize_frames`).
    """
    scaled, shift = normalize_frames(frames)
    length, points = frames.shape[-1], fft // 2
    n = np.arange(length)
    weights = half_window[np.minimum(n, length - n)]
    real = np.zeros((*frames.shape[:-1], fft), np.int64)
    real[..., :length] = (scaled * weights + (1 << 16)) >> 17
    turn = twiddle_factors(points)
    re, im = _transformed(real[..., 0::2], real[..., 1::2], turn)
    return _squares(re, im, turn), shift


def _transformed(re: Array, im: Array, turn: Array) -> tuple[Array, Array]:
    """Return the Fourier transform of complex numbers, divided by their count."""
    points = re.shape[-1]
    order = _reversed_bits(points)
    re, im = re[..., order], im[..., order]
    half = 1
    while half < points:
        w = turn[:: points // half][:half]
        a, b = ((part.reshape(*part.shape[:-1], -1, 2, half)) for part in (re, im))
        r, i = _rotated(a[..., 1, :], b[..., 1, :], w)
        re = np.stack([(a[..., 0, :] + r + 1) >> 1, (a[..., 0, :] - r + 1) >> 1], -2).reshape(re.shape)
        im = np.stack([(b[..., 0, :] + i + 1) >> 1, (b[..., 0, :] - i + 1) >> 1], -2).reshape(im.shape)
        half *= 2
    return re, im


def _rotated(re: Array, im: Array, turn: Array) -> tuple[Array, Array]:
    """Multiply by complex numbers in 1/FIXED_POINT_ONE, with one rounding."""
    c, s = turn[..., 0], turn[..., 1]
    return (re * c - im * s + FIXED_POINT_ONE // 2) >> 30, (re * s + im * c + FIXED_POINT_ONE // 2) >> 30


def _reversed_bits(count: int) -> Array:
    bits = count.bit_length() - 1
    return np.array([int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(count)])


def _squares(re: Array, im: Array, turn: Array) -> Array:
    """Return the power spectrum of reals, which has twice as many bins as the transform of their pairs.

    Bins k and points - k come from the same two numbers, and the odd samples' part is rounded once for both.
    """
    points = re.shape[-1]
    k = np.arange(points // 2 + 1)
    mirror = -k % points
    even_re, even_im = re[..., k] + re[..., mirror], im[..., k] - im[..., mirror]
    odd_re, odd_im = re[..., k] - re[..., mirror], im[..., k] + im[..., mirror]
    r, i = _rotated(odd_im, -odd_re, turn[k])  # times -i: a quarter of a turn
    power = np.empty((*re.shape[:-1], points + 1), np.uint64)
    power[..., k] = (even_re + r) ** 2 + (even_im + i) ** 2
    power[..., points - k] = (even_re - r) ** 2 + (even_im - i) ** 2
    return power


def integer_square_roots(squares: Array) -> Array:
    """Return the square roots of uint64 numbers, each rounded down to an integer."""
    root = np.sqrt(squares.astype(np.float64)).astype(np.uint64)
    root -= root * root > squares
    return root + ((root + np.uint64(1)) ** 2 <= squares)


@dataclass(frozen=True)
class Bands:
    """Frequency bands whose powers are summed.

    Attributes:
        kind: One of BANDS.
        count: Number of bands.
        low: Lower end of the frequency range in Hz.
        high: Upper end of the frequency range in Hz.
    """

    kind: str
    count: int
    low: float
    high: float

    def filters(self, rate: int, fft: int) -> Filters:
        """Return the weight of each bin of a spectrum in each band.

        Args:
            rate: Sampling rate in Hz.
            fft: Number of points of the Fourier transform.
        """
        frequencies = np.arange(fft // 2 + 1) * rate / fft
        edges = _equal(self) if self.kind == "bins" else _mel_edges(self)
        real = np.zeros((self.count, len(frequencies)))
        for row, (low, middle, high) in zip(real, edges, strict=True):
            if self.kind == "bins":
                inside = (frequencies >= low) & (frequencies < high)
                row[inside] = 1 / max(1, inside.sum())
            else:
                rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
                row[:] = np.maximum(0, np.minimum(rising, falling))
                row *= 2 / (high - low) if self.kind == "slaney" else 1
        return Filters(real)


def _equal(bands: Bands) -> list[tuple[float, float, float]]:
    ends = np.linspace(bands.low, bands.high, bands.count + 1)
    return [(float(low), 0.0, float(high)) for low, high in pairwise(ends)]


def _mel_edges(bands: Bands) -> list[tuple[float, float, float]]:
    """Low end, peak and high end of each triangle, Hz."""
    to_mel, to_hz = (_slaney, _from_slaney) if bands.kind == "slaney" else (_htk, _from_htk)
    points = [to_hz(m) for m in np.linspace(to_mel(bands.low), to_mel(bands.high), bands.count + 2)]
    return list(zip(points[:-2], points[1:-1], points[2:], strict=True))


def _htk(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def _from_htk(mel: float) -> float:
    return 700 * (10 ** (mel / 2595) - 1)


_KNEE_HZ, _KNEE_MEL, _STEP = 1000.0, 15.0, math.log(6.4) / 27


def _slaney(hertz: float) -> float:
    """Linear up to 1 kHz, logarithmic above."""
    return hertz * _KNEE_MEL / _KNEE_HZ if hertz < _KNEE_HZ else _KNEE_MEL + math.log(hertz / _KNEE_HZ) / _STEP


def _from_slaney(mel: float) -> float:
    return mel * _KNEE_HZ / _KNEE_MEL if mel < _KNEE_MEL else _KNEE_HZ * math.exp((mel - _KNEE_MEL) * _STEP)


@dataclass(frozen=True)
class Filters:
    """The weight of each bin of a spectrum in each frequency band.

    C code uses 16-bit weights relative to the largest weight of the band. `offsets` correct the logarithms of the
    bands.

    Attributes:
        real: The weights as real numbers, [bands, bins].
    """

    real: Array

    @cached_property
    def weights(self) -> Array:
        """Return the weights as integers, int64 [bands, bins]; 65535 stands for the largest weight of the band."""
        return _fixed(self.real / np.maximum(self._largest, 1e-300)[:, None] * 65535)

    @property
    def _largest(self) -> Array:
        return np.asarray(self.real.max(axis=1))

    @cached_property
    def offsets(self) -> Array:
        """Return log2(largest weight / 65535) of each band, int64 [bands] in units of 2^-SPECTRUM_LOG_BITS.

        Integer weights are scaled so that the largest weight of each band is 65535. Adding the offsets to the base-2
        logarithms of the bands' sums undoes this scaling.
        """
        largest = np.where(self._largest > 0, self._largest, 1.0)
        return _fixed(np.log2(largest / 65535) * (1 << SPECTRUM_LOG_BITS))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Return the first bin and the number of bins of each band."""
        bins = [np.flatnonzero(row) for row in self.weights]
        return [(int(at[0]), int(at[-1] - at[0] + 1)) if len(at) else (0, 0) for at in bins]

    def sums(self, values: Array) -> tuple[Array, Array]:
        """Return the weighted sum of a spectrum for each band, in two parts.

        Args:
            values: The spectrum, uint64 [.., bins].

        Returns:
            The upper and lower parts of the sums, uint64 [.., bands] each: sum = high · 2^32 + low.
        """
        weights = self.weights.astype(np.uint64).T
        return (values >> np.uint64(32)) @ weights, (values & np.uint64(0xFFFFFFFF)) @ weights


def base2_logarithms(high: Array, low: Array, silent: int) -> Array:
    """Return log2(high · 2^32 + low) in units of 2^-SPECTRUM_LOG_BITS, as int64.

    Args:
        high: Upper part of each number, uint64.
        low: Lower 32 bits of each number, uint64.
        silent: The result for the number 0, whose logarithm is infinite.
    """
    high, low = high + (low >> np.uint64(32)), low & np.uint64(0xFFFFFFFF)
    is_large = high >> np.uint64(32) > 0
    value = np.where(is_large, high, (high << np.uint64(32)) | low)
    exponent = np.full(value.shape, 63, np.int64) + 32 * is_large
    for bits in (32, 16, 8, 4, 2, 1):
        small = (value >> np.uint64(64 - bits)) == 0
        value = np.where(small, value << np.uint64(bits), value)
        exponent -= bits * small
    part = ((value >> np.uint64(63 - SPECTRUM_LOG_BITS)) & np.uint64((1 << SPECTRUM_LOG_BITS) - 1)).astype(np.int64)
    index, fraction = part // _PART, part % _PART
    between = (LOG_TABLE[index + 1] - LOG_TABLE[index]) * fraction
    logarithm = (exponent << SPECTRUM_LOG_BITS) + LOG_TABLE[index] + ((between + _PART // 2) >> (SPECTRUM_LOG_BITS - 6))
    return np.where(value == 0, silent, logarithm)


def dct_matrix(bands: int, count: int) -> Array:
    """Return the first `count` rows of the orthonormal DCT-II matrix for `bands` inputs.

    The matrix is int64 [count, bands] in units of 1/FIXED_POINT_ONE.
    """
    k, n = np.arange(count)[:, None], np.arange(bands)
    rows = np.cos(np.pi * k * (2 * n + 1) / (2 * bands)) * math.sqrt(2 / bands)
    rows[0] /= math.sqrt(2)
    return _fixed(rows * FIXED_POINT_ONE)


def apply_dct(values: Array, table: Array) -> Array:
    """Return the DCT coefficients of the last axis, int64 [.., count], rounded once, half up.

    Args:
        values: The inputs, [.., bands].
        table: The matrix that `dct_matrix` returns.
    """
    return np.asarray((values @ table.T + FIXED_POINT_ONE // 2) >> 30)
