# SPDX-License-Identifier: Apache-2.0
"""Custom operators of TensorFlow Lite Micro on streams: its audio front end (Signal operators) and circular buffers.

What they keep from run to run becomes states, which begin with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.frontend.tflite.model import TfliteTensor
from mcugen.frontend.tflite.node import KeptState, TfliteNode, same_type, tflite_operator
from mcugen.frontend.tflite.schema import INT16, INT32, INT32_NUMBER
from mcugen.kernels.portable.signal import DOMAIN
from mcugen.ops.onnx_node import Refusal

_ATTRIBUTES = {
    "SignalWindow": ("shift",),
    "SignalFftAutoScale": (),
    "SignalEnergy": ("start_index", "end_index"),
    "SignalFilterBank": ("num_channels",),
    "SignalFilterBankSquareRoot": (),
    "SignalFilterBankLog": ("output_scale", "input_correction_bits"),
    "SignalPCAN": ("snr_shift",),
}
"""Options of the operators without a state, which are attributes of the ONNX operators of the same names."""
_NOISE_ATTRIBUTES = (
    "smoothing",
    "one_minus_smoothing",
    "alternate_smoothing",
    "alternate_one_minus_smoothing",
    "min_signal_remaining",
    "smoothing_bits",
    "spectral_subtraction_bits",
    "clamping",
)
_MAX_FRAMES = 1 << 10
"""Largest number of frames that one run reads."""
_ONE_CYCLE_SLOTS = (5, 13, 25)
"""Numbers of slots of a circular buffer without options that runs in each cycle, as TensorFlow Lite Micro has them."""


def _emit(node: TfliteNode, inputs: Sequence[str], outputs: Sequence[TfliteTensor], **attributes: object) -> list[str]:
    """Add the ONNX operator of the same name; return its results, whose shapes are declared."""
    results = node.emit_all(node.operator.kind, inputs, len(outputs), domain=DOMAIN, **attributes)
    for result, tensor in zip(results, outputs, strict=True):
        node.declare(result, tensor, is_stored=True)
    return results


@tflite_operator(*_ATTRIBUTES, becomes={kind: f"{kind} of `{DOMAIN}`" for kind in _ATTRIBUTES})
def _build_stateless(node: TfliteNode) -> None:
    attributes = {name: node.custom_integer(name) for name in _ATTRIBUTES[node.operator.kind]}
    inputs = [node.stored(n) for n in range(len(node.operator.inputs))]
    for index, result in enumerate(_emit(node, inputs, node.operator.outputs, **attributes)):
        node.finish_stored(result, index)


@tflite_operator(
    "SignalFilterBankSpectralSubtraction",
    becomes=f"SignalFilterBankSpectralSubtraction of `{DOMAIN}`",
    limits="the estimate of the noise becomes a state",
)
def _build_noise(node: TfliteNode) -> None:
    attributes = {name: node.custom_integer(name) for name in _NOISE_ATTRIBUTES}
    x, noise = node.input(0), node.output(1)
    state = node.keep_own_state("noise", noise, x.shape)
    results = _emit(node, [node.stored(0), state.value], node.operator.outputs, **attributes)
    state.value = results[1]
    node.finish_stored(results[0])
    node.finish_stored(node.emit("Identity", results[1]), 1)


@tflite_operator(
    "SignalRfft",
    "SignalIrfft",
    becomes={"SignalRfft": f"SignalRfft of `{DOMAIN}`, DFT", "SignalIrfft": f"SignalIrfft of `{DOMAIN}`, DFT"},
    limits="a power of 2 of points",
)
def _build_transform(node: TfliteNode) -> None:
    length, x = node.custom_integer("fft_length", low=2, high=1 << 18), node.input(0)
    node.require(len(x.shape) > 0 and x.count > 0, f"shape {list(x.shape)}")
    if not x.type.is_float:
        return node.finish_stored(_emit(node, [node.stored(0)], node.operator.outputs, fft_length=length)[0])
    is_inverse, rows = node.operator.kind == "SignalIrfft", math.prod(x.shape[:-1])
    parts = 2 if is_inverse else 1
    value = node.emit("Reshape", node.stored(0), node.constant([rows, x.shape[-1] // parts, parts], "parts"))
    sizes = [node.constant_scalar(n, what) for n, what in ((length, "length"), (1, "axis"))]
    value = node.emit("DFT", value, *sizes, onesided=1, inverse=int(is_inverse))
    return node.finish(value, is_reshaped=True)


# ---------------------------------------------------------------------------------------------------- frames


def _cut(node: TfliteNode, value: str, begin: int, end: int, axis: int = -1) -> str:
    """Return a part of a value along an axis."""
    bounds = [node.constant([n], what) for n, what in ((begin, "begin"), (end, "end"), (axis, "axis"))]
    return node.emit("Slice", value, *bounds)


def _counter(node: TfliteNode, what: str) -> KeptState:
    """Return a state that counts."""
    number = replace(node.input(0), shape=(1,), type_number=INT32_NUMBER, quantization=None)
    return node.keep_own_state(what, number, (1,))


def _whole(node: TfliteNode, value: int) -> str:
    return node.constant(np.asarray([value], np.int32), "number")


def _finish_flag(node: TfliteNode, value: str, index: int) -> None:
    """Make a vector of one truth value the value of an output."""
    node.finish_stored(node.emit("Reshape", value, node.shape_of(node.output(index))), index)


def _with_state(node: TfliteNode, what: str, rows: int, kept: int) -> str:
    """Return the samples of the last runs and of this one [rows, kept + samples]; keep the last ones.

    Args:
        node: The operator, whose first input has the samples of this run.
        what: Name of the state.
        rows: Number of streams.
        kept: Number of samples of a stream that are kept.
    """
    x = node.input(0)
    size = x.count // rows
    node.require(kept <= 1 << 20, f"{kept} samples that are kept")
    value = node.emit("Reshape", node.stored(0), node.constant([rows, size], "rows"))
    if not kept:
        return value
    state = node.keep_own_state(what, x, (rows, kept))
    value = node.emit("Concat", state.value, value, axis=1)
    state.value = _cut(node, value, size, size + kept)
    return value


@tflite_operator("SignalDelay", becomes="Concat, Slice", limits="the last samples become a state")
def _build_delay(node: TfliteNode) -> None:
    x, delay = node.input(0), node.custom_integer("delay_length", low=0)
    node.require(len(x.shape) > 0 and x.count > 0, f"shape {list(x.shape)}")
    value = _with_state(node, "delayed", x.count // x.shape[-1], delay)
    value = _cut(node, value, 0, x.shape[-1])
    node.finish_stored(node.emit("Reshape", value, node.shape_of(node.output())))


@tflite_operator("SignalFramer", becomes="Concat, Slice, Gather", limits="the last samples become a state")
def _build_framer(node: TfliteNode) -> None:
    x = node.input(0)
    size, step = node.custom_integer("frame_size", low=1), node.custom_integer("frame_step", low=1)
    node.require(len(x.shape) > 0 and x.count > 0 and x.shape[-1] % step == 0 and step <= size, "other steps")
    rows, frames = x.count // x.shape[-1], x.shape[-1] // step
    node.require(frames <= _MAX_FRAMES, f"{frames} frames")
    needed = -(-size // step)
    is_prefilled = bool(node.custom_integer("prefill", 0))
    value = _with_state(node, "samples", rows, (size if is_prefilled else needed * step) - step)
    places = step * np.arange(frames)[:, None] + np.arange(size)
    value = _cut(node, value, 0, size) if frames == 1 else node.emit("Gather", value, node.constant(places), axis=1)
    node.finish_stored(node.emit("Reshape", value, node.shape_of(node.output())))
    if is_prefilled or needed == 1:
        return node.finish_stored(node.constant(np.ones(node.output(1).shape, bool), "true"), 1)
    steps = _counter(node, "steps")
    is_valid = node.emit("GreaterOrEqual", steps.value, _whole(node, needed - 1))
    steps.value = node.emit("Min", node.emit("Add", steps.value, _whole(node, frames)), _whole(node, needed - 1))
    return _finish_flag(node, is_valid, 1)


@tflite_operator(
    "SignalStacker", becomes="Concat, Slice", limits="the last frames become a state; at most as many steps as frames"
)
def _build_stacker(node: TfliteNode) -> None:
    x, left, right = (
        node.input(0),
        *(node.custom_integer(f"stacker_{side}_context", low=0) for side in ("left", "right")),
    )
    channels, step = node.custom_integer("num_channels", low=1), node.custom_integer("stacker_step", low=1)
    frames = left + right + 1
    node.require(x.shape == (channels,) and frames <= _MAX_FRAMES, f"shape {list(x.shape)} of {channels} channels")
    if step > frames:
        raise Refusal("frames must not be left out between stacks", f"{step} steps of {frames} frames", "step less")
    counter = _counter(node, "frames")
    is_first = node.emit("Equal", counter.value, _whole(node, 0))
    count = node.emit("Where", is_first, _whole(node, left + 1), counter.value)
    is_valid = node.emit("GreaterOrEqual", count, _whole(node, frames))
    left_over = node.emit("Where", is_valid, node.emit("Sub", count, _whole(node, step)), count)
    counter.value = node.emit("Add", left_over, _whole(node, 1))
    value = node.emit("Reshape", node.stored(0), node.constant([1, channels], "frame"))
    if frames > 1:
        last = node.keep_own_state("stack", x, (frames - 1, channels))
        past = _chosen(node, is_first, value, last.value)
        value = node.emit("Concat", past, value, axis=0)
        last.value = _cut(node, value, 1, frames, axis=0)
    node.finish_stored(node.emit("Reshape", value, node.shape_of(node.output())))
    _finish_flag(node, is_valid, 1)


def _chosen(node: TfliteNode, condition: str, a: str, b: str) -> str:
    """Return one of two values of int16, for which ONNX Runtime has no Where."""
    wide = (node.emit("Cast", v, to=INT32.onnx) for v in (a, b))
    return node.emit("Cast", node.emit("Where", condition, *wide), to=INT16.onnx)


@tflite_operator("SignalOverlapAdd", becomes="Add, Clip, Slice, Concat", limits="the last sums become a state")
def _build_overlap_add(node: TfliteNode) -> None:
    x, step = node.input(0), node.custom_integer("frame_step", low=1)
    node.require(len(x.shape) > 1 and x.count > 0 and step <= x.shape[-1], f"shape {list(x.shape)}")
    frames, size = x.shape[-2:]
    rows = x.count // (frames * size)
    node.require(frames <= _MAX_FRAMES, f"{frames} frames")
    value = node.emit("Reshape", node.stored(0), node.constant([rows, frames, size], "frames"))
    pieces = [value] if frames == 1 else node.emit_all("Split", [value], frames, axis=1, num_outputs=frames)
    sums = node.keep_own_state("sums", x, (rows, 1, size - step)) if step < size else None
    total, results = sums.value if sums is not None else None, []
    for piece in pieces:
        if total is not None:
            zeros = node.constant(np.zeros((rows, 1, step), x.type.array), "zeros")
            piece = _saturated_sum(node, node.emit("Concat", total, zeros, axis=2), piece)
            total = _cut(node, piece, step, size)
        results.append(_cut(node, piece, 0, step) if total is not None else piece)
    if sums is not None and total is not None:
        sums.value = total
    value = node.emit("Concat", *results, axis=2) if frames > 1 else results[0]
    node.finish_stored(node.emit("Reshape", value, node.shape_of(node.output())))


def _saturated_sum(node: TfliteNode, a: str, b: str) -> str:
    """Return a sum; sums of int16 are saturated."""
    if node.input(0).type is not INT16:
        return node.emit("Add", a, b)
    total = node.emit("Add", *(node.emit("Cast", v, to=INT32.onnx) for v in (a, b)))
    bounds = [node.constant(np.asarray(v, np.int32), what) for v, what in ((-(2**15), "low"), (2**15 - 1, "high"))]
    return node.emit("Cast", node.emit("Clip", total, *bounds), to=INT16.onnx)


@tflite_operator(
    "CIRCULAR_BUFFER", becomes="Concat, Slice", limits="a buffer that runs in each cycle; its slots become a state"
)
def _build_circular_buffer(node: TfliteNode) -> None:
    x, y = node.input(0), node.output()
    node.require(len(y.shape) == 4 and same_type(x, y) and x.shape == (y.shape[0], 1, *y.shape[2:]), "other shapes")
    cycles = node.custom_integer("cycles_max", 0) or (1 if y.shape[1] in _ONE_CYCLE_SLOTS else 2)
    if cycles != 1:
        raise Refusal("a circular buffer must run in each cycle", f"{cycles} cycles", "call the rest by your own code")
    state = node.keep_own_state("slots", y, y.shape)
    value = node.emit("Concat", _cut(node, state.value, 1, y.shape[1], axis=1), node.stored(0), axis=1)
    state.value = value
    node.finish_stored(node.emit("Identity", value))
