# SPDX-License-Identifier: Apache-2.0
"""The kernel of Fourier transforms."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, Real, reads, writes

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class DftParams(Params):
    """Kernel parameters of a Fourier transform of the frames (overlapping parts) of signals: sizes and factors.

    The number of complex points is a power of two times an odd factor. Transforms of `odd_factor` points are computed
    by their definition, and combined by radix-2 steps.
    """

    batch: Annotated[int, "signals"]
    frames: Annotated[int, "frames of a signal"]
    samples: Annotated[int, "samples of a signal"]
    frame_step: Annotated[int, "samples from frame to frame"]
    dft_length: Annotated[int, "points of the transform"]
    complex_points: Annotated[int, "complex points that are transformed: half of dft_length if two reals form a point"]
    odd_factor: Annotated[int, "points that are transformed directly; the other factors are radix 2"]
    scale: Annotated[Real | None, "1 / dft_length of an inverse transform"] = None


class DftOptions(Options):
    """Template options of a Fourier transform: element type, form of input and output, window, and algorithm.

    The kernel transforms the frames (overlapping parts) of a signal. Frames of real numbers may be packed: pairs of
    real numbers are transformed as complex numbers. If the length has an odd factor, transforms of this length are
    computed by their definition (`direct`), and combined by radix-2 steps.
    """

    t: Annotated[str, "C type of the elements"]
    parts: Annotated[int, "numbers of a sample: 1 if real, 2 if complex"]
    form: Annotated[str, "full; half: y is the first half of a spectrum; real: x is such a half, and y is real"]
    packed: Annotated[bool, "whether pairs of reals are transformed as complex numbers"]
    direct: Annotated[bool, "whether the length has an odd factor"]
    window: Annotated[bool, "whether samples are weighted"]
    scaled: Annotated[bool, "whether the transform is the inverse one"]
    whole: Annotated[bool, "whether no frame extends beyond the signal"]


DFT = Kernel(
    "dft",
    what="discrete Fourier transforms, frame by frame: radix 2 around a direct transform of the odd factor",
    operands=(
        reads("x", "signals", *_FLOATS),
        reads("window", "weights of a frame's samples", *_FLOATS, optional=True),
        reads("factors", "exp(-2 pi i k / length), or its conjugate", *_FLOATS),
        writes("y", "spectra, or signals", *_FLOATS),
    ),
    params=(DftParams,),
    options=(DftOptions,),
)
"""Kernel that computes the ONNX operators DFT and STFT."""
