# SPDX-License-Identifier: Apache-2.0
"""Audio front ends: discrete Fourier transforms, whole or frame by frame, windows and mel filters."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, TensorType
from mcugen.kernels.portable.audio import DFT, DftOptions, DftParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import real_param
from mcugen.ops.movement import Reshape, Transpose, inverse, normalize_axis, reshaped
from mcugen.ops.onnx_node import FLOATS, KNOWN_AT_COMPILE_TIME_TEXT, OnnxNode, Refusal, onnx_operator

MAX_LENGTH = 1 << 18
"""Largest number of points of a DFT: beyond it, the table of twiddle factors fits no microcontroller."""


class Dft(Operator):
    """y[b, f, k] = Σ_j window[j] · x[b, f · step + j] · exp(∓2πijk / length): Fourier transforms of successive frames.

    x is [batch, samples, 1] if real, or [batch, samples, 2] with real and imaginary parts; samples beyond its end are
    0. The window is an optional second input.

    Attributes:
        length: Number of points of the transform.
        frames: Number of frames.
        step: Number of samples from the start of a frame to that of the next.
        inverse: Whether the exponent is positive, and the sums are divided by `length`.
        form: Shape of y. "full" is [batch, frames, length, 2]; "half" has only the first length / 2 + 1 bins (x is
            real); "real" is [batch, frames, length, 1], and x holds the first length / 2 + 1 bins of a
            conjugate-symmetric spectrum.
    """

    mnemonic: ClassVar[str] = "dft"
    length: int = 1
    frames: int = 1
    step: int = 0
    inverse: bool = False
    form: str = "full"

    @property
    def _bins(self) -> int:
        return self.length // 2 + 1 if self.form == "half" else self.length

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [batch, frames] of the Dft, followed by the two axes that `form` defines."""
        x, window = (*inputs, None)[:2]
        assert x is not None
        if x.rank != 3 or x.shape[2] not in (1, 2) or (window is not None and window.shape != (self.length,)):
            shapes = f"{x.shape}" + (f", window {window.shape}" if window else "")
            raise ModelError("dft: the input must be [batch, samples, 1 or 2], the window a frame", shapes, "repair it")
        return (TensorType((x.shape[0], self.frames, self._bins, 1 if self.form == "real" else 2), x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute each frame by numpy's FFT in float64."""
        x = arrays[0].astype(np.float64)
        signal = x[..., 0] + (1j * x[..., 1] if x.shape[2] == 2 else 0)
        padded = np.pad(signal, ((0, 0), (0, self._read)))
        starts = np.minimum(np.arange(self.frames) * self.step, x.shape[1])
        frames = padded[:, starts[:, None] + np.arange(self._read)]
        frames = frames * arrays[1] if len(arrays) > 1 else frames
        if self.form == "real":
            return (np.fft.irfft(frames, self.length)[..., None].astype(arrays[0].dtype),)
        y = (np.fft.ifft if self.inverse else np.fft.fft)(frames)[..., : self._bins]
        return (np.stack([y.real, y.imag], -1).astype(arrays[0].dtype),)

    def macs(self, sig: Signature) -> int:
        """Return the real multiplications by twiddle factors in all frames."""
        _, points, odd = self._plan(sig.input(0))
        return 2 * sig.input(0).shape[0] * self.frames * points * (odd - 1 + (points // odd).bit_length() - 1)

    @property
    def _read(self) -> int:
        """Return the number of samples that one frame reads."""
        return self.length // 2 + 1 if self.form == "real" else self.length

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
        """Lower to a kernel that transforms one frame after the other; each uses its part of y as working memory."""
        x, has_window = node.input(0).type, len(node.inputs) > 1 and node.inputs[1] is not None
        packed, points, odd = self._plan(x)
        params = DftParams(
            batch=x.shape[0],
            frames=self.frames,
            samples=x.shape[1],
            frame_step=self.step,
            dft_length=self.length,
            complex_points=points,
            odd_factor=odd,
            scale=real_param(1.0 / self.length, x.dtype) if self.inverse else None,
        )
        options = DftOptions(
            t=x.dtype.c,
            parts=x.shape[2],
            form=self.form,
            packed=packed,
            direct=odd > 1,
            window=has_window,
            scaled=self.inverse,
            whole=(self.frames - 1) * self.step + self._read <= x.shape[1],
        )
        factors = self._factors(self.length if odd > 1 else max(self.length // 2, 1))
        operands = {
            "x": builder.buffer(node.input(0)),
            **({"window": builder.buffer(node.input(1))} if has_window else {}),
            "factors": builder.const("dft.factors", factors.astype(x.dtype.numpy)),
            "y": builder.buffer(node.output),
        }
        builder.call(node, Call(DFT, operands, [params], [options], variant=f"{self.form}_{x.dtype.tag}"))

    def _factors(self, count: int) -> Array:
        """Return exp(∓2πik / length) for k < count, as real and imaginary parts."""
        angles = (2.0 if self.inverse else -2.0) * np.pi * np.arange(count) / self.length
        return np.stack([np.cos(angles), np.sin(angles)], -1)


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
