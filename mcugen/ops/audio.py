# SPDX-License-Identifier: Apache-2.0
"""Audio front ends: discrete Fourier transforms, whole or frame by frame, windows and mel filters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, contiguous, replaced, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, RowForm, RowWindow, Signature
from mcugen.hir.traits import Croppable, Rowwise, Simplifiable
from mcugen.hir.types import Array, TensorType
from mcugen.kernels.portable.audio import DFT, DftOptions, DftParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import Buffer, real_param
from mcugen.lir.traversal import Traversal, overlap
from mcugen.ops.movement import Reshape, Transpose, inverse, normalize_axis, reshaped
from mcugen.ops.onnx_node import FLOATS, KNOWN_AT_COMPILE_TIME_TEXT, OnnxNode, Refusal, onnx_operator

MAX_LENGTH = 1 << 18
"""Largest number of points of a DFT: beyond it, the table of twiddle factors fits no microcontroller."""


POWERS = ("power", "magnitude")
"""Forms of a Fourier transform whose results are |z|² or |z| of the complex numbers z of half of a spectrum."""


class Dft(Croppable, Rowwise, Simplifiable, Operator):
    """y[b, f, k] = Σ_j window[j] · x[b, f · step − before + j] · exp(∓2πijk / length): transforms of frames.

    x is [batch, samples, 1] if real, or [batch, samples, 2] with real and imaginary parts; samples beyond its ends are
    0, or reflected. The window is an optional second input; a shorter one than `length` means that further samples of a
    frame are 0. The filters, an optional third input [bands, bins], are constant: y then has Σ_k filters[m, k] · y[k].

    Attributes:
        length: Number of points of the transform.
        frames: Number of frames.
        step: Number of samples from the start of a frame to that of the next.
        inverse: Whether the exponent is positive, and the sums are divided by `length`.
        form: Shape of y. "full" is [batch, frames, length, 2]; "half" has only the first length / 2 + 1 bins (x is
            real); "real" is [batch, frames, length, 1], and x holds the first length / 2 + 1 bins of a
            conjugate-symmetric spectrum; "power" and "magnitude" are [batch, frames, length / 2 + 1 or bands, 1].
        before: Number of samples of the first frame that lie in front of the signal.
        reflects: Whether the signal is mirrored at its ends; else it is 0 beyond them.
    """

    mnemonic: ClassVar[str] = "dft"
    length: int = 1
    frames: int = 1
    step: int = 0
    inverse: bool = False
    form: str = "full"
    before: int = 0
    reflects: bool = False

    @property
    def bins(self) -> int:
        """Return the number of bins of a spectrum that the transform computes."""
        return self.length if self.form in ("full", "real") else self.length // 2 + 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [batch, frames] of the Dft, followed by the two axes that `form` defines."""
        x, window, filters = (*inputs, None, None)[:3]
        assert x is not None
        fits = window is None or (window.rank == 1 and 0 < window.count <= self.length)
        fits = fits and (filters is None or (self.form in POWERS and filters.shape[1:] == (self.bins,)))
        if x.rank != 3 or x.shape[2] not in (1, 2) or not fits:
            shapes = f"{x.shape}" + (f", window {window.shape}" if window else "")
            raise ModelError("dft: the input must be [batch, samples, 1 or 2], the window a frame", shapes, "repair it")
        last = 1 if self.form in ("real", *POWERS) else 2
        columns = self.bins if filters is None else filters.shape[0]
        return (TensorType((x.shape[0], self.frames, columns, last), x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute each frame by numpy's FFT in float64."""
        frames = self._framed(sig, arrays[0].astype(np.float64))
        constants = iter(arrays[1:])  # Arrays of absent inputs are left out.
        window, filters = (next(constants) if t is not None else None for t in (*sig.inputs[1:], None, None)[:2])
        frames = frames if window is None else frames * window
        if self.form == "real":
            return (np.fft.irfft(frames, self.length)[..., None].astype(arrays[0].dtype),)
        y = (np.fft.ifft if self.inverse else np.fft.fft)(frames, self.length)[..., : self.bins]
        if self.form in POWERS:
            y = np.abs(y) ** (2 if self.form == "power" else 1)
            return ((y if filters is None else y @ filters.T)[..., None].astype(arrays[0].dtype),)
        return (np.stack([y.real, y.imag], -1).astype(arrays[0].dtype),)

    def _framed(self, sig: Signature, x: Array) -> Array:
        """Return the samples of each frame, [batch, frames, samples]."""
        signal, read, samples = x[..., 0] + (1j * x[..., 1] if x.shape[2] == 2 else 0), self._read(sig), x.shape[1]
        behind = max((self.frames - 1) * self.step + read - self.before - samples, 0)
        widths = ((0, 0), (self.before, behind))
        padded = np.pad(signal, widths, mode="reflect") if self.reflects else np.pad(signal, widths)
        return np.asarray(padded[:, np.arange(self.frames)[:, None] * self.step + np.arange(read)])

    def macs(self, sig: Signature) -> int:
        """Return the real multiplications by twiddle factors in all frames."""
        _, points, odd = self._plan(sig.input(0))
        return 2 * sig.input(0).shape[0] * self.frames * points * (odd - 1 + (points // odd).bit_length() - 1)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input of a transform of one complex number, which TensorFlow Lite writes; else None."""
        is_plain = self.length == 1 and self.frames == 1 and self.form == "full" and len(node.inputs) == 1
        if not is_plain or node.input(0).type.shape[1:] != (1, 2):
            return None
        return graph.add(Reshape(node.output.type.shape), [node.input(0)], node.origin, before=node).output

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to transform one frame after the other (line-buffer fusion); None for several or mirrored signals.

        A row of the input is a sample, a row of the output is a frame.
        """
        if sig.input(0).shape[0] != 1 or self.reflects or not self.step:
            return None
        window = RowWindow(span=self._read(sig), stride=self.step, before=self.before)
        rows = replace(self, frames=1, before=0)
        return RowForm(rows, (window, *(None,) * (len(sig.inputs) - 1)))

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the transforms of some frames; None if frames beyond the ends of the signal are among them."""
        x, frames = node.input(0).type, contiguous(region[1])
        first = frames.start * self.step - self.before
        end = first + (len(frames) - 1) * self.step + self._read(node.sig)
        if not self.step or first < 0 or end > x.shape[1]:
            return None
        box, is_all = whole(node.output.type.shape), len(frames) == self.frames
        reads = whole(x.shape) if is_all else replaced(whole(x.shape), {1: range(first, end)})
        constants = tuple(None if v is None else whole(v.type.shape) for v in node.inputs[1:])
        op = self if is_all else replace(self, frames=len(frames), before=0, reflects=False)
        return Crop(op, replaced(box, {1: frames}), (reads, *constants))

    def _read(self, sig: Signature) -> int:
        """Return the number of samples that one frame reads."""
        if self.form == "real":
            return self.length // 2 + 1
        window = (*sig.inputs, None)[1]
        return self.length if window is None else window.count

    def _plan(self, x: TensorType) -> tuple[bool, int, int]:
        """Return how the transform is computed.

        Returns:
            Whether pairs of reals make one complex number, which halves the work; the number of complex points; the odd
            factor of that number.
        """
        packed = self.length % 2 == 0 and (x.shape[2] == 1 or self.form == "real")
        points = self.length // 2 if packed else self.length
        return packed, points, points // (points & -points)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that transforms one frame after the other.

        Each frame uses its part of y as working memory, or a buffer for one spectrum if y has powers.
        """
        x, has_window = node.input(0).type, len(node.inputs) > 1 and node.inputs[1] is not None
        packed, points, odd = self._plan(x)
        filters = None if len(node.inputs) < 3 else node.input(2).data
        params = DftParams(
            batch=x.shape[0],
            frames=self.frames,
            samples=x.shape[1],
            frame_step=self.step,
            dft_length=self.length,
            complex_points=points,
            odd_factor=odd,
            taps=self._read(node.sig) if self._is_short(node.sig) else None,
            before=self.before or None,
            bands=None if filters is None else len(filters),
            scale=real_param(1.0 / self.length, x.dtype) if self.inverse else None,
        )
        factors = self._factors(self.length if odd > 1 else max(self.length // 2, 1))
        operands = {
            "x": builder.buffer(node.input(0)),
            **({"window": builder.buffer(node.input(1))} if has_window else {}),
            "factors": builder.const("dft.factors", factors.astype(x.dtype.numpy)),
            **({} if filters is None else _bands(builder, filters)),
            "y": builder.buffer(node.output),
        }
        if self.form in POWERS:
            operands["spectrum"] = builder.scratch(f"{node.output.name}.spectrum", x.dtype, 2 * (points + packed))
        call = Call(
            DFT,
            operands,
            [params],
            [self._options(node.sig)],
            overlaps=overlap(x, node.output.type, self._traversal(node.sig)) if self.form in POWERS else (),
            variant=f"{self.form}_{x.dtype.tag}",
        )
        builder.call(node, call)

    def _traversal(self, sig: Signature) -> Traversal:
        """Return the order in which powers are computed: a frame is written when all of its samples are read."""
        batch, samples, _ = sig.input(0).shape
        start = np.arange(self.frames) * self.step - self.before
        mirrored = 2 * (samples - 1) - (start + self._read(sig) - 1)
        first = np.clip(np.minimum(start, mirrored) if self.reflects else start, 0, samples)
        return Traversal.runs(np.arange(batch)[:, None] * samples + first, sig.output.shape[2])

    def _is_short(self, sig: Signature) -> bool:
        """Return whether frames have fewer samples than the transform."""
        return self.form != "real" and self._read(sig) < self.length

    def _options(self, sig: Signature) -> DftOptions:
        """Return the options of the kernel's template."""
        x, (packed, points, odd) = sig.input(0), self._plan(sig.input(0))
        return DftOptions(
            t=x.dtype.c,
            parts=x.shape[2],
            form=self.form,
            packed=packed,
            direct=odd > 1,
            window=len(sig.inputs) > 1 and sig.inputs[1] is not None,
            scaled=self.inverse,
            whole=not self.before and (self.frames - 1) * self.step + self._read(sig) <= x.shape[1],
            padding="reflect" if self.reflects else "zeros" if self.before else "",
            short=self._is_short(sig),
            banded=len(sig.inputs) > 2,
            first_pass=_first_radix(points // odd),
        )

    def _factors(self, count: int) -> Array:
        """Return exp(∓2πik / length) for k < count, as real and imaginary parts."""
        angles = (2.0 if self.inverse else -2.0) * np.pi * np.arange(count) / self.length
        return np.stack([np.cos(angles), np.sin(angles)], -1)


def _first_radix(points: int) -> int:
    """Return the radix of the first step of a transform of a power of two: then, the others have radix 4."""
    return 1 if points == 1 else 4 if points.bit_length() % 2 else 2


def spans_of(filters: Array) -> Array:
    """Return the first bin and the number of bins of each filter [bands, bins], up to its last weight: [bands, 2]."""
    bins = [np.flatnonzero(row) for row in filters]
    return np.array([(b[0], b[-1] - b[0] + 1) if len(b) else (0, 0) for b in bins], np.int32).reshape(-1, 2)


def _bands(builder: Builder, filters: Array) -> dict[str, Buffer]:
    """Return the constants that hold the filters without the zeros around their weights."""
    spans = spans_of(filters)
    weights = [row[first : first + count] for row, (first, count) in zip(filters, spans, strict=True)]
    packed = np.concatenate([*weights, np.zeros(int(not spans[:, 1].any()), filters.dtype)])
    return {"spans": builder.const("dft.spans", spans), "weights": builder.const("dft.weights", packed)}


# --------------------------------------------------------------------------------------------------- import


def _whole(node: OnnxNode, name: str, index: int, default: int) -> int:
    """Return a parameter that must be a single number."""
    values = node.ints(name, index)
    node.require(values is None or len(values) == 1, f"{name} must be one number", f"{values}")
    return default if values is None else values[0]


def _check_length(node: OnnxNode, length: int) -> None:
    if not 1 <= length <= MAX_LENGTH:
        rule = f"{node.op_type}: the transform must have 1 to {MAX_LENGTH:,} points"
        raise Refusal(rule, f"{length}", "choose another length")


@onnx_operator("DFT", types=FLOATS, kernels=("dft",), limits="constant length")
def _import_dft(node: OnnxNode) -> list[Value]:
    """Import DFT: move the axis to the end (before the complex parts), transform it, and move it back."""
    x, one_sided, inverted = node.input(0), bool(node.attr("onesided", 0)), bool(node.attr("inverse", 0))
    shape = x.type.shape
    axis = normalize_axis(node, _whole(node, "axis", 2, 1 if node.opset < 20 else -2), x.type.rank)
    if axis == x.type.rank - 1 or shape[-1] != 1 + (inverted if one_sided else shape[-1] == 2):
        rule = "DFT: the last axis must hold one or two parts of a number, one or two as the operator needs"
        raise Refusal(rule, f"shape {shape}, axis {axis}, onesided={int(one_sided)}", "repair the model")
    form = ("real" if inverted else "half") if one_sided else "full"
    length = _dft_length(node, axis, form)
    _check_length(node, length)
    last = x.type.rank - 2
    perm = (*(a for a in range(last + 1) if a != axis), axis, last + 1)
    moved = node.emit(Transpose(perm), x, suffix="last") if axis != last else x
    batch = moved.type.shape[:last]
    rows = reshaped(node, moved, (math.prod(batch), shape[axis], shape[-1]), "rows")
    y = node.emit(Dft(length, inverse=inverted, form=form), rows, suffix="transformed")
    result = node.emit(Reshape((*batch, *y.type.shape[2:])), y, suffix="" if axis == last else "turned")
    return [result if axis == last else node.emit(Transpose(inverse(perm)), result)]


def _dft_length(node: OnnxNode, axis: int, form: str) -> int:
    """Return the transform length: as given, else from the output's declared shape, else from the input."""
    size, declared = node.input(0).type.shape[axis], node.declared[0] if node.declared else None
    if node.has(1) and not node.input(1).is_constant and declared is not None and form != "half":
        return declared.shape[axis]
    return _whole(node, "dft_length", 1, 2 * (size - 1) if form == "real" else size)


@onnx_operator("STFT", types=FLOATS, kernels=("dft",), limits="constant frames")
def _import_stft(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    one_sided = bool(node.attr("onesided", 1))
    if x.type.rank != 3 or x.type.shape[2] not in ((1,) if one_sided else (1, 2)):
        rule = "STFT: the signal must be [batch, samples, 1], or with onesided=0 [batch, samples, 2]"
        raise Refusal(rule, f"shape {x.type.shape}", "repair the model")
    window = node.optional(2)
    samples = x.type.shape[1]
    length = _whole(node, "frame_length", 3, samples if window is None else window.type.count)
    step = _whole(node, "frame_step", 1, 0)
    _check_length(node, length)
    if window is not None and window.type.shape != (length,):
        fault = f"window {window.type.shape} for frames of {length}"
        raise Refusal("STFT: the window must have the length of a frame", fault, "repair the model")
    if step < 1 or length > samples:
        framing = f"frames of {length} every {step} of {samples} samples"
        raise Refusal("STFT: at least one frame must fit, and frames must advance", framing, "repair the model")
    op = Dft(length, (samples - length) // step + 1, step, form="half" if one_sided else "full")
    return [node.emit(op, x, *([] if window is None else [window]))]


@onnx_operator(
    "HannWindow",
    "HammingWindow",
    "BlackmanWindow",
    "MelWeightMatrix",
    kernels=(KNOWN_AT_COMPILE_TIME_TEXT,),
    limits="constant inputs",
)
def _import_table(node: OnnxNode) -> list[Value]:
    """Tables, which the importer has folded already where their sizes are known."""
    for index in range(len(node.inputs)):
        node.const(index, "the size" if len(node.inputs) == 1 else f"input {index}")
    raise Refusal(f"{node.op_type}: sizes must make sense", "others", "repair the model")
