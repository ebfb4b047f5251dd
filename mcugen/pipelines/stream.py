# SPDX-License-Identifier: Apache-2.0
"""Stream pipelines (sound, vibration): frames of samples, features of each frame, and windows of frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mcugen.codegen.lines import filled_rows
from mcugen.codegen.literals import c_rows
from mcugen.core.errors import UsageError
from mcugen.hir.types import Array
from mcugen.pipelines.spectrum import (
    LOG_TABLE,
    LOGARITHMS,
    SPECTRUM_LOG_BITS,
    Bands,
    Filters,
    apply_dct,
    base2_logarithms,
    dct_matrix,
    half_window_function,
    integer_square_roots,
    power_spectra,
    twiddle_factors,
)
from mcugen.pipelines.statistics import STATISTICS, statistics


@dataclass(frozen=True)
class StreamStages:
    """A stream pipeline: int16 samples are divided into frames, each frame gives features, and frames are stacked.

    The features of an axis are statistics, followed by logarithms of the bands of its spectrum or by DCT coefficients
    of these. The model's input is (feature · scale − mean) / std.

    Attributes:
        source: Sampling rate in Hz and, optionally, number of axes that are sampled together.
        frame: Number of samples of a frame, and number of samples from the start of a frame to that of the next.
        window: Name of the window function.
        fft: Number of points of the Fourier transform; 0: the smallest power of two that is not below the frame's
            length.
        spectrum: "power" or "magnitude".
        bands: Frequency bands; None: no spectrum.
        log: Kind of logarithm (mcugen.pipelines.spectrum.LOGARITHMS).
        floor: Lower bound of band values before the logarithm.
        dct: Number of DCT coefficients; 0: no DCT.
        stats: Names of statistics (mcugen.pipelines.statistics.STATISTICS).
        stack: Number of frames in a window of frames and, optionally, number of frames from window to window.
        features_first: Whether the input is [features, frames] instead of [frames, features].
        scale: Factor of features.
        mean: Number that is subtracted from scaled features: one for all features, or one for each.
        std: Number by which the differences are divided: one for all features, or one for each.
    """

    source: tuple[int, ...]
    frame: tuple[int, ...] = ()
    window: str = "hann"
    fft: int = 0
    spectrum: str = "power"
    bands: Bands | None = None
    log: str = "ln"
    floor: float = 1e-10
    dct: int = 0
    stats: tuple[str, ...] = ()
    stack: tuple[int, ...] = (1,)
    features_first: bool = False
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    raw_dtype = np.dtype(np.int16)
    template = "pipeline/stream.c.j2"

    def __post_init__(self) -> None:
        rule = "--input-pipeline: "
        if not self.frame:
            raise UsageError(f"{rule}a stream must be cut into frames", "no frame", "e.g. frame=640/320")
        if self.bands is None and not self.stats:
            raise UsageError(
                f"{rule}frames must become features", "neither", "e.g. mel=40:20:4000, or stats=rms;kurtosis"
            )
        if self.bands is None and self.dct:
            raise UsageError(f"{rule}dct must be of bands", "no bands", "e.g. mel=40:20:4000")
        if self.bands is not None and self.bands.high > self.rate / 2:
            raise UsageError(
                f"{rule}bands must end at half of the rate", f"{self.bands.high:g} Hz", f"{self.rate / 2:g} Hz"
            )
        if self.bands is not None and (
            self.complex_points < 2 or self.fft_points & (self.fft_points - 1) or self.fft_points < self.frame_length
        ):
            fault = f"{self.fft_points} for frames of {self.frame_length}"
            raise UsageError(f"{rule}fft must be a power of two of at least 4, not below the frame", fault)
        if self.bands is not None and self.dct > self.bands.count:
            raise UsageError(f"{rule}dct must not exceed the bands", f"{self.dct} of {self.bands.count}")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.features):
                fault = f"{len(values)} for {self.features}"
                raise UsageError(f"{rule}{key} must have one number, or one a feature", fault)

    @property
    def rate(self) -> int:
        """Return the sampling rate in Hz."""
        return self.source[0]

    @property
    def axes(self) -> int:
        """Return the number of axes: signals that are sampled together."""
        return self.source[1] if len(self.source) > 1 else 1

    @property
    def frame_length(self) -> int:
        """Return the number of samples of a frame."""
        return self.frame[0]

    @property
    def frame_step(self) -> int:
        """Return the number of samples from the start of a frame to the start of the next frame."""
        return self.frame[1]

    @property
    def fft_points(self) -> int:
        """Return the number of points of the Fourier transform."""
        return self.fft or 1 << (self.frame_length - 1).bit_length()

    @property
    def complex_points(self) -> int:
        """Return the number of complex points of the Fourier transform, half of `fft_points`; 0 without a spectrum."""
        return self.fft_points // 2 if self.bands else 0

    @property
    def _spectral(self) -> int:
        return (self.dct or self.bands.count) if self.bands else 0

    @property
    def features(self) -> int:
        """Return the number of features, such as band powers and statistics, of one frame, over all axes."""
        return self.axes * (len(self.stats) + self._spectral)

    @property
    def frames(self) -> int:
        """Return the number of frames (groups of successive samples) whose features form one input of the model."""
        return self.stack[0]

    @property
    def window_step(self) -> int:
        """Return the number of frames between the starts of two successive inputs of the model (windows of frames)."""
        return self.stack[1] if len(self.stack) > 1 else self.frames

    def require(self, shape: Sequence[int]) -> None:
        """Check that the pipeline computes as many elements as an input of this shape has.

        Raises:
            UsageError: The numbers differ, or some frequency band contains no bin of the spectrum.
        """
        if math.prod(shape) != self.frames * self.features:
            fault = f"{self.frames} frames of {self.features} features for an input of {tuple(shape)}"
            raise UsageError(
                "a pipeline must give as many numbers as the model's input has", fault, "see stack, and its features"
            )
        if self.bands is not None and not self.filters.weights.any():
            raise UsageError("bands must hold bins of the spectrum", "none does", "give a larger fft, or fewer bands")

    @cached_property
    def filters(self) -> Filters:
        """Return the weights of the spectrum's bins in each band."""
        assert self.bands is not None
        return self.bands.filters(self.rate, self.fft_points)

    @cached_property
    def half_window(self) -> Array:
        """Return the first half of the window function with its middle, in units of 1/FIXED_POINT_ONE."""
        return half_window_function(self.window, self.frame_length)

    @property
    def min_log(self) -> int:
        """Return the smallest base-2 logarithm that a spectral feature can have, in units of 2^-SPECTRUM_LOG_BITS.

        It is the logarithm of the attribute `floor`.
        """
        return round(math.log2(self.floor) * (1 << SPECTRUM_LOG_BITS))

    @property
    def log_offset(self) -> int:
        """Return the term that turns base-2 logarithms of the integer spectrum into those of the real spectrum.

        The integer spectrum (that of `power_spectra`, or its square root) is the spectrum of samples from −1 to 1,
        times a power of two. The offset is the negative exponent of that power. The additional left shift of each frame
        is undone separately (`log_per_shift`).
        """
        bits = self.complex_points.bit_length() - 1
        return bits - 29 if self.spectrum == "magnitude" else 2 * bits - 58

    @property
    def log_per_shift(self) -> int:
        """Return by how much the base-2 logarithm of the spectrum increases for each bit that a frame is shifted left.

        Quiet frames are shifted left before the transform, to use all bits. The result is 2 for a power spectrum, and 1
        for a magnitude spectrum.
        """
        return 1 if self.spectrum == "magnitude" else 2

    def _units(self) -> Array:
        """Return the value of 1 in each feature, before scale, mean and std."""
        of_log = LOGARITHMS[self.log] * (2 if self.log == "db" and self.spectrum == "magnitude" else 1)
        axis = [STATISTICS[name].unit for name in self.stats] + [of_log / (1 << SPECTRUM_LOG_BITS)] * self._spectral
        return np.array(axis * self.axes) * self.scale

    def scales(self) -> tuple[Array, Array]:
        """Return the zero point (int64) and the scale (float32) of each feature, both [features].

        The model's input is (feature − zero point) · scale.
        """
        units = self._units()
        zeros = np.clip(np.rint(np.broadcast_to(self.mean, units.shape) / units), -(2**31) + 1, 2**31 - 1)
        return zeros.astype(np.int64), (units / np.broadcast_to(self.std, units.shape)).astype(np.float32)

    def reals(self, place: str, raw: Array, shape: Sequence[int]) -> Array:
        """Return the last complete window of frames of a recording as the model's float32 input.

        A window is the group of successive frames whose features form one input.

        Args:
            place: Name of the sample for messages.
            raw: The samples, int16 [n] or [n, axes].
            shape: Shape of the input.

        Raises:
            UsageError: There are too few samples for one input.
        """
        zeros, scales = self.scales()
        last_window = self.window_of(self.features_of(self.samples(place, raw)))
        real: Array = np.clip(last_window - zeros, -(2**31), 2**31 - 1).astype(np.float32) * scales
        return (real.T if self.features_first else real).reshape(tuple(shape))

    def samples(self, place: str, raw: Array) -> Array:
        """Return raw samples as int16 [n, axes].

        Args:
            place: Name of the samples for messages.
            raw: The samples, int16 [n] or [n, axes].

        Raises:
            UsageError: The samples have another type or shape, or are too few for one input of the model.
        """
        flat = raw.reshape(-1, self.axes) if raw.ndim == 1 and raw.size % self.axes == 0 else raw
        min_samples = self.frame_length + (self.frames - 1) * self.frame_step
        if flat.dtype != np.int16 or flat.ndim != 2 or flat.shape[1] != self.axes or len(flat) < min_samples:
            remedy = f"int16 of [{min_samples:,} or more{f', {self.axes}' if self.axes > 1 else ''}]"
            raise UsageError(f"{place} must be raw samples of a window at least", f"{raw.dtype} of {raw.shape}", remedy)
        return flat

    def stored(self, raw: Array) -> Array:
        """Return raw samples as the array that the generated C code takes: int16 [n, axes]."""
        return np.ascontiguousarray(self.samples("", raw))

    def min_raw_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape, [samples, axes], of the fewest raw samples from which the model's input can be computed.

        `shape`, the shape of the model's input, has no influence.
        """
        return self.frame_length + (self.frames - 1) * self.frame_step, self.axes

    def features_of(self, samples: Array) -> Array:
        """Return the features of all frames in samples (int16 [n, axes]) as int64 [frames, features]."""
        starts = range(0, len(samples) - self.frame_length + 1, self.frame_step)
        frames = np.stack([samples[start : start + self.frame_length].T for start in starts])
        parts: list[Array] = []
        if self.stats:
            parts.append(np.array([[statistics(axis, self.stats) for axis in frame] for frame in frames], np.int64))
        if self.bands:
            parts.append(self.spectra(frames))
        return np.concatenate(parts, axis=-1).reshape(len(frames), -1)

    def spectra(self, frames: Array) -> Array:
        """Return the spectral features of frames: logarithms of band powers, or their DCT coefficients.

        Args:
            frames: The frames, int16 [.., samples of a frame].

        Returns:
            The features, int64 [.., features].
        """
        squares, shift = power_spectra(frames, self.half_window, self.fft_points)
        values = integer_square_roots(squares) if self.spectrum == "magnitude" else squares
        lifted = self.filters.offsets + ((self.log_offset - self.log_per_shift * shift[..., None]) << SPECTRUM_LOG_BITS)
        high, low = self.filters.sums(values)
        logs = np.maximum(base2_logarithms(high, low, _NOTHING) + lifted, self.min_log)
        return apply_dct(logs, dct_matrix(logs.shape[-1], self.dct)) if self.dct else logs

    def window_of(self, features: Array) -> Array:
        """Return the last complete window: the features of successive frames that form one input of the model.

        Windows begin at multiples of `window_step` frames. The result is [frames of a window, features].

        Args:
            features: The features of all frames, [frames, features].
        """
        begin = (len(features) - self.frames) // self.window_step * self.window_step
        return features[begin : begin + self.frames]

    def context(self, shape: Sequence[int]) -> dict[str, object]:
        """Return the variables of the pipeline's C template, by name, for a model input of this shape."""
        tables = self.tables()
        needs_magnitude = self.spectrum == "magnitude" and self.bands is not None
        return {
            "frame": self.frame_length,
            "step": self.frame_step,
            "axes": self.axes,
            "features": self.features,
            "frames": self.frames,
            "every": self.window_step,
            "features_first": self.features_first,
            "stats": self.stats,
            "needs_total": not {"mean", "std", "skewness", "kurtosis"}.isdisjoint(self.stats),
            "needs_extremes": not {"peak", "range", "crest", "skewness", "kurtosis"}.isdisjoint(self.stats),
            "needs_squares": not {"rms", "std", "crest"}.isdisjoint(self.stats),
            "needs_moments": not {"skewness", "kurtosis"}.isdisjoint(self.stats),
            "needs_root": needs_magnitude or not {"rms", "std", "crest", "skewness"}.isdisjoint(self.stats),
            "needs_magnitude": needs_magnitude,
            "zeros": list(c_rows(tables["feature_zeros"])),
            "scales": list(c_rows(tables["feature_scales"])),
            **(self._spectral_context(tables) if self.bands else {"bands": (), "points": 0, "dct": 0}),
        }

    def _spectral_context(self, tables: Mapping[str, Array]) -> dict[str, object]:
        return {
            "points": self.complex_points,
            "dct": self.dct,
            "exponent": self.log_offset,
            "of_shift": self.log_per_shift,
            "silent": self.min_log,
            "half_window": list(c_rows(tables["window_half"])),
            "turns": filled_rows([f"{{{c}, {s}}}" for c, s in tables["turns"]]),
            "bands": filled_rows([f"{{{a}, {n}, {o}}}" for a, n, o in tables["bands"]]),
            "bands_count": len(tables["bands"]),
            "weights": list(c_rows(tables["weights"])),
            "weights_count": len(tables["weights"]),
            "log_table": list(c_rows(tables["logarithms"])),
            "cosines": [list(c_rows(row)) for row in tables.get("cosines", ())],
        }

    def tables(self) -> dict[str, Array]:
        """Return the constant tables of the generated C code, by name: windows, twiddle factors, filters, cosines."""
        zeros, scales = self.scales()
        arrays = {"feature_zeros": zeros.astype(np.int32), "feature_scales": scales}
        if self.bands is None:
            return arrays
        spans, offsets = self.filters.spans, self.filters.offsets
        bands = [(a, n, o) for (a, n), o in zip(spans, offsets, strict=True)]
        weights = np.concatenate([row[a : a + n] for row, (a, n) in zip(self.filters.weights, spans, strict=True)])
        arrays |= {
            "window_half": self.half_window.astype(np.int32),
            "turns": np.asarray(twiddle_factors(self.complex_points)).astype(np.int32),
            "bands": np.array(bands, [("first", np.int16), ("count", np.int16), ("offset", np.int32)]),
            "weights": weights.astype(np.uint16),
            "logarithms": LOG_TABLE.astype(np.int32),
        }
        return {**arrays, "cosines": dct_matrix(len(spans), self.dct).astype(np.int32)} if self.dct else arrays

    def table_bytes_of(self, element: int) -> int:
        """Return the bytes of the constant tables in flash, for input elements of `element` bytes."""
        return sum(table.nbytes for table in self.tables().values())

    def state_bytes_of(self, element: int) -> int:
        """Return the bytes of RAM that the pipeline keeps between calls, for input elements of `element` bytes."""
        features = self.frames * self.features * element
        spectrum = 8 * (self.complex_points + 1) if self.bands else 0
        return _aligned(spectrum + 16 + _aligned(features, 2) + 2 * self.frame_length * self.axes, 4)


_NOTHING = -(1 << 30)
"""The logarithm of 0: below all others."""


def _aligned(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
