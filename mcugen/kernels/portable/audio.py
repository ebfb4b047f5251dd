# SPDX-License-Identifier: Apache-2.0
"""The kernel of Fourier transforms."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, Real, reads, scratch, writes

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class DftParams(Params):
    """Kernel parameters of a Fourier transform of the frames (overlapping parts) of signals: sizes and factors.

    The number of complex points is a power of two times an odd factor. Transforms of `odd_factor` points are computed
    by their definition, and combined by steps of radix 2 and 4.
    """

    batch: Annotated[int, "signals"]
    frames: Annotated[int, "frames of a signal"]
    samples: Annotated[int, "samples of a signal"]
    frame_step: Annotated[int, "samples from frame to frame"]
    dft_length: Annotated[int, "points of the transform"]
    complex_points: Annotated[int, "complex points that are transformed: half of dft_length if two reals form a point"]
    odd_factor: Annotated[int, "points that are transformed directly; the other factors are radix 2 and 4"]
    taps: Annotated[int | None, "samples of a frame; further ones, up to dft_length, are 0"] = None
    before: Annotated[int | None, "samples of padding in front of the signal"] = None
    bands: Annotated[int | None, "frequency bands of y"] = None
    scale: Annotated[Real | None, "1 / dft_length of an inverse transform"] = None


class DftOptions(Options):
    """Template options of a Fourier transform: element type, form of input and output, window, and algorithm.

    The kernel transforms the frames (overlapping parts) of a signal. Frames of real numbers may be packed: pairs of
    real numbers are transformed as complex numbers. If the length has an odd factor, transforms of this length are
    computed by their definition (`direct`), and combined by steps of radix 2 and 4.
    """

    t: Annotated[str, "C type of the elements"]
    parts: Annotated[int, "numbers of a sample: 1 if real, 2 if complex"]
    form: Annotated[
        str,
        "full; half: y is the first half of a spectrum; real: x is such a half, and y is real; power, magnitude: y is"
        " |z|^2 or |z| of the numbers z of a half",
    ]
    packed: Annotated[bool, "whether pairs of reals are transformed as complex numbers"]
    direct: Annotated[bool, "whether the length has an odd factor"]
    window: Annotated[bool, "whether samples are weighted"]
    scaled: Annotated[bool, "whether the transform is the inverse one"]
    whole: Annotated[bool, "whether no frame extends beyond the signal"]
    padding: Annotated[str, "what lies around the signal: empty if nothing in front of it, else zeros or reflect"]
    short: Annotated[bool, "whether a frame has fewer samples than the transform"]
    banded: Annotated[bool, "whether y has weighted sums over frequency bands"]
    first_pass: Annotated[int, "radix of the first step: 4, 2 if the number of factors 2 is odd, 1 if there are none"]


DFT = Kernel(
    "dft",
    what="discrete Fourier transforms, frame by frame: radix 4 and 2 around a direct transform of the odd factor",
    operands=(
        reads("x", "signals", *_FLOATS),
        reads("window", "weights of a frame's samples", *_FLOATS, optional=True),
        reads("factors", "exp(-2 pi i k / length), or its conjugate", *_FLOATS),
        reads("spans", "first bin and number of bins of each frequency band", DType.INT32, optional=True),
        reads("weights", "weights of the bins of each frequency band, one after the other", *_FLOATS, optional=True),
        writes("y", "spectra, signals, or sums over frequency bands", *_FLOATS),
        scratch("spectrum", "spectrum of one frame", *_FLOATS, optional=True),
    ),
    params=(DftParams,),
    options=(DftOptions,),
)
"""Kernel that computes the ONNX operators DFT and STFT, power spectra, and sums over mel bands."""
