# SPDX-License-Identifier: Apache-2.0
"""Kernels of the integer audio front end of TensorFlow Lite Micro (its Signal operators) and of object detection."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, Real, reads, scratch, writes

DOMAIN = "mcugen.signal"
"""Domain of the ONNX operators that these kernels compute."""


def _example(inputs: str, outputs: str, call: str) -> str:
    """Return a model of one operator, for tests."""
    opsets = f'["": 21, "{DOMAIN}": 1]'
    return f"<ir_version: 10, opset_import: {opsets}>\nnet ({inputs}) => ({outputs}) {{ {call} }}"


class WindowParams(Params):
    """Kernel parameters of a window on frames of samples."""

    rows: Annotated[int, "frames"]
    length: Annotated[int, "samples of a frame"]
    shift: Annotated[int, "bits that products are shifted to the right by"]


SIGNAL_WINDOW = Kernel(
    "signal_window",
    what="frames of samples times a window, saturated to 16 bits",
    operands=(
        reads("x", "frames", DType.INT16),
        reads("window", "factor of each sample of a frame", DType.INT16),
        writes("y", "frames, which may be x", DType.INT16),
    ),
    params=(WindowParams,),
    example=_example("int16[2, 3] x, int16[3] w", "int16[2, 3] y", f"y = {DOMAIN}.SignalWindow <shift = 2> (x, w)"),
)
"""Kernel of SignalWindow."""


class CountParams(Params):
    """Kernel parameter of operators on a vector: its length."""

    count: Annotated[int, "elements of x"]


SIGNAL_FFT_SCALE = Kernel(
    "signal_fft_scale",
    what="samples shifted to the left as far as the largest of them allows",
    operands=(
        reads("x", "samples", DType.INT16),
        writes("y", "shifted samples", DType.INT16),
        writes("bits", "bits that they are shifted by", DType.INT32),
    ),
    params=(CountParams,),
    example=_example("int16[4] x", "int16[4] y, int32 bits", f"y, bits = {DOMAIN}.SignalFftAutoScale (x)"),
)
"""Kernel of SignalFftAutoScale."""


class FixedFftParams(Params):
    """Kernel parameters of a Fourier transform of real numbers in fixed point."""

    rows: Annotated[int, "frames"]
    length: Annotated[int, "samples of a frame that are stored; others are 0"]
    points: Annotated[int, "complex points: half of the length of the transform"]


class FixedFftOptions(Options):
    """Template options of a Fourier transform in fixed point: element type and direction."""

    t: Annotated[str, "C type of the elements"]
    wide: Annotated[str, "C type of products"]
    bits: Annotated[int, "fractional bits of an element"]
    inverse: Annotated[bool, "whether spectra become samples"]


_FIXED = (DType.INT16, DType.INT32)

SIGNAL_FFT = Kernel(
    "signal_fft",
    what="Fourier transforms of real numbers in fixed point, radix 4 and 2, halved at each step of radix 2",
    operands=(
        reads("x", "samples, or spectra", *_FIXED),
        reads("factors", "exp(-+2 pi i k / points), then exp(-+pi i ((k + 1) / points + 1/2))", *_FIXED),
        writes("y", "spectra, or samples", *_FIXED),
    ),
    params=(FixedFftParams,),
    options=(FixedFftOptions,),
    example=_example("int16[2, 16] x", "int16[2, 18] y", f"y = {DOMAIN}.SignalRfft <fft_length = 16> (x)"),
)
"""Kernel of SignalRfft and SignalIrfft on integers."""


class EnergyParams(Params):
    """Kernel parameters of the energy of a spectrum."""

    bins: Annotated[int, "complex numbers of the spectrum"]
    first: Annotated[int, "first bin whose energy is computed; that of others is 0"]
    end: Annotated[int, "bin behind the last one"]


SIGNAL_ENERGY = Kernel(
    "signal_energy",
    what="squared magnitudes of a spectrum",
    operands=(
        reads("x", "real and imaginary parts", DType.INT16),
        writes("y", "energies", DType.UINT32),
    ),
    params=(EnergyParams,),
    example=_example(
        "int16[8] x",
        "uint32[4] y",
        f"y = {DOMAIN}.SignalEnergy <start_index = 1, end_index = 3> (x)",
    ),
)
"""Kernel of SignalEnergy."""


class FilterBankParams(Params):
    """Kernel parameter of a filter bank: the number of filters."""

    channels: Annotated[int, "filters"]


SIGNAL_FILTER_BANK = Kernel(
    "signal_filter_bank",
    what="weighted sums of energies; each energy counts in two adjacent filters",
    operands=(
        reads("x", "energies", DType.UINT32),
        reads("weights", "weights in a filter", DType.INT16),
        reads("unweights", "weights in the next filter", DType.INT16),
        reads("starts", "first energy of each group", DType.INT16),
        reads("weight_starts", "first weight of each group", DType.INT16),
        reads("widths", "energies of each group", DType.INT16),
        writes("y", "sums of the filters", DType.UINT64),
    ),
    params=(FilterBankParams,),
    example=f"""<ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 1]>
net (uint32[4] x, int16[4] w, int16[4] u) => (uint64[1] y)
<int16[2] starts = {{0, 2}}, int16[2] weight_starts = {{0, 2}}, int16[2] widths = {{2, 2}}> {{
  y = {DOMAIN}.SignalFilterBank <num_channels = 1> (x, w, u, starts, weight_starts, widths)
}}""",
)
"""Kernel of SignalFilterBank."""

SIGNAL_SQUARE_ROOT = Kernel(
    "signal_square_root",
    what="rounded square roots, shifted to the right",
    varies="the number of steps depends on the size of a number",
    operands=(
        reads("x", "numbers", DType.UINT64),
        reads("bits", "bits that roots are shifted by", DType.INT32),
        writes("y", "shifted roots", DType.UINT32),
    ),
    params=(CountParams,),
    example=_example("uint64[4] x, int32 bits", "uint32[4] y", f"y = {DOMAIN}.SignalFilterBankSquareRoot (x, bits)"),
)
"""Kernel of SignalFilterBankSquareRoot."""


class NoiseParams(Params):
    """Kernel parameters of spectral subtraction: factors of the running average, as integers."""

    count: Annotated[int, "channels"]
    smoothing: Annotated[int, "weight of new values in channels of even number"]
    one_minus_smoothing: Annotated[int, "weight of the estimate there"]
    odd_smoothing: Annotated[int, "weight of new values in channels of odd number"]
    odd_one_minus_smoothing: Annotated[int, "weight of the estimate there"]
    min_remaining: Annotated[int, "least share of a value that remains"]
    value_bits: Annotated[int, "further fractional bits of the estimate"]
    weight_bits: Annotated[int, "fractional bits of the weights"]
    clamps: Annotated[int, "1 if the estimate is at most the value, else 0"]


SIGNAL_NOISE = Kernel(
    "signal_noise",
    what="values less a running estimate of their noise",
    operands=(
        reads("x", "values of the channels", DType.UINT32),
        reads("state", "estimate of the noise", DType.UINT32),
        writes("y", "values without noise", DType.UINT32),
        writes("noise", "next estimate, which may be the last one", DType.UINT32),
    ),
    params=(NoiseParams,),
    example=_example(
        "uint32[4] x, uint32[4] state",
        "uint32[4] y, uint32[4] noise",
        f"y, noise = {DOMAIN}.SignalFilterBankSpectralSubtraction <smoothing = 650, one_minus_smoothing = 15734,"
        " alternate_smoothing = 300, alternate_one_minus_smoothing = 16084, min_signal_remaining = 819,"
        " smoothing_bits = 5, spectral_subtraction_bits = 14, clamping = 1> (x, state)",
    ),
)
"""Kernel of SignalFilterBankSpectralSubtraction."""


class GainParams(Params):
    """Kernel parameters of the automatic gain control (PCAN)."""

    count: Annotated[int, "channels"]
    shift: Annotated[int, "bits that amplified values are shifted to the right by"]


SIGNAL_GAIN = Kernel(
    "signal_gain",
    what="values times a gain that a table gives for their noise, then compressed",
    varies="small values and small estimates take other branches",
    operands=(
        reads("x", "values of the channels", DType.UINT32),
        reads("noise", "estimates of the noise", DType.UINT32),
        reads("table", "coefficients of the gain: four for each power of 2", DType.INT16),
        writes("y", "compressed values, which may be x", DType.UINT32),
    ),
    params=(GainParams,),
    example=_example(
        "uint32[4] x, uint32[4] noise, int16[125] table",
        "uint32[4] y",
        f"y = {DOMAIN}.SignalPCAN <snr_shift = 6> (x, noise, table)",
    ),
)
"""Kernel of SignalPCAN."""


class LogParams(Params):
    """Kernel parameters of the logarithm of energies."""

    count: Annotated[int, "channels"]
    scale: Annotated[int, "factor of the logarithm"]
    shift: Annotated[int, "bits that values are shifted to the left by"]


SIGNAL_LOG = Kernel(
    "signal_log",
    what="scaled logarithms by a table, saturated to 16 bits",
    varies="small values take another branch",
    operands=(
        reads("x", "values of the channels", DType.UINT32),
        reads("table", "65536 (log2(1 + k / 128) - k / 128)", DType.INT16),
        writes("y", "logarithms", DType.INT16),
    ),
    params=(LogParams,),
    example=_example(
        "uint32[4] x",
        "int16[4] y",
        f"y = {DOMAIN}.SignalFilterBankLog <output_scale = 1600, input_correction_bits = 3> (x)",
    ),
)
"""Kernel of SignalFilterBankLog."""


class DetectionParams(Params):
    """Kernel parameters of the choice of detections."""

    boxes: Annotated[int, "boxes"]
    columns: Annotated[int, "scores of a box, that of the background included"]
    background: Annotated[int, "1 if the first score is that of the background, else 0"]
    max_detections: Annotated[int, "detections that y has"]
    max_of_class: Annotated[int, "most detections of a class"]
    min_score: Annotated[Real, "least score of a detection"]
    max_overlap: Annotated[Real, "largest intersection over union with a better detection"]


class DetectionOptions(Options):
    """Template option of the choice of detections: whether boxes compete within their class only."""

    regular: Annotated[bool, "whether boxes compete within each class; else by their best class"]


DETECTION = Kernel(
    "detection",
    what="the boxes of the best scores that do not overlap much with better ones",
    varies="the number of detections depends on the scores",
    operands=(
        reads("boxes", "top, left, bottom and right of each box", DType.FLOAT32),
        reads("scores", "scores of each box", DType.FLOAT32),
        writes("y", "boxes of the detections", DType.FLOAT32),
        writes("classes", "classes of the detections", DType.FLOAT32),
        writes("values", "scores of the detections", DType.FLOAT32),
        writes("count", "number of detections", DType.FLOAT32),
        scratch("is_left", "whether a box may still be chosen", DType.UINT8),
    ),
    params=(DetectionParams,),
    options=(DetectionOptions,),
    example=_example(
        "float[6, 4] boxes, float[6, 3] scores",
        "float[2, 4] y, float[2] classes, float[2] values, float[1] count",
        f"y, classes, values, count = {DOMAIN}.Detection <max_detections = 2, num_classes = 2> (boxes, scores)",
    ),
)
"""Kernel of TFLite_Detection_PostProcess, behind the decoding of the boxes."""
