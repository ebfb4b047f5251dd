# SPDX-License-Identifier: Apache-2.0
"""Pooling over one or two spatial dimensions: maximum and average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.types import Array, DType, Layout, Shape, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Buffer, Param
from mcugen.ops.fixedpoint import Requantizer
from mcugen.ops.movement import inverse, to_channels_last
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator
from mcugen.ops.reduce import emit_reduce
from mcugen.ops.spatial import Spatial, Window

_MAX_TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class Pool(Spatial):
    """A function of the elements under a sliding window, channel by channel; padding is never an element.

    Every window meets the input.
    """

    kernel: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Output size by the window; element type and quantization of the input."""
        (x,) = inputs
        assert x is not None
        batch, *space, channels = self._last(x)
        if len(space) != len(self.kernel):
            raise ModelError(
                f"{self.name}: the kernel must match the input", f"{self.kernel} on {x.shape}", "repair it"
            )
        out = self.window.output(tuple(space), self.kernel)
        if min(out) < 1:
            raise ModelError(f"{self.name}: the kernel must fit the input", f"{self.kernel} on {space}", "repair it")
        shape = (batch, *out, channels) if self.is_channels_last else (batch, channels, *out)
        layout = Layout.CHANNELS_LAST if self.is_channels_last else Layout.CHANNELS_FIRST
        return (replace(x, shape=shape, layout=layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """On channels-last arrays."""
        (x,) = arrays
        if self.is_channels_last:
            return (self._pool(sig, x),)
        perm = to_channels_last(x.ndim)
        return (self._pool(sig, x.transpose(perm)).transpose(inverse(perm)),)

    def _pool(self, sig: Signature, x: Array) -> Array:
        """The numpy reference on [N, *space, C]."""
        raise NotImplementedError

    def _taps(self, space: Shape, before: Shape, after: Shape) -> list[Array]:
        """Per axis and output position, how many taps lie in the input widened by `before` and `after`."""
        w, counts = self.window, []
        out = w.output(space, self.kernel)
        for axis, (size, k) in enumerate(zip(space, self.kernel, strict=True)):
            start = np.arange(out[axis]) * w.strides[axis] - w.before[axis]
            at = start[:, None] + np.arange(k) * w.dilations[axis]
            counts.append(((at >= -before[axis]) & (at < size + after[axis])).sum(1))
        return counts

    def _geometry(self, sig: Signature) -> dict[str, Param]:
        """Sizes for a kernel with two spatial axes; a one-dimensional pool has height 1."""
        x, y = sig.input(0).shape, sig.output.shape
        w = self.window
        rows: dict[str, tuple[Sequence[int], int]] = {
            "in": (x[1:-1], 1),
            "out": (y[1:-1], 1),
            "k": (self.kernel, 1),
            "stride": (w.strides, 1),
            "pad": (w.before, 0),
        }
        if self._is_dilated:
            rows["dilation"] = (w.dilations, 1)
        params: dict[str, Param] = {"batch": x[0], "channels": x[-1]}
        for name, (values, missing) in rows.items():
            vertical, horizontal = values if len(values) == 2 else (missing, values[0])
            params |= {f"{name}_h": vertical, f"{name}_w": horizontal}
        return params

    @property
    def _is_dilated(self) -> bool:
        return max(self.window.dilations) > 1


@dataclass(frozen=True)
class MaxPool(Pool):
    """y = largest element under the window, which needs no arithmetic: any order-preserving element type."""

    mnemonic: ClassVar[str] = "max_pool"
    moves_data: ClassVar[bool] = True

    def _pool(self, sig: Signature, x: Array) -> Array:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        patches = self.window.patches(x, self.kernel, lowest)
        result: Array = patches.max(tuple(range(x.ndim, patches.ndim)))
        return result

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """The same on int8, where the scale stays."""
        return (self, inputs) if sig.input(0).quant == sig.output.quant else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Four channels at a time."""
        dtype = node.output.type.dtype
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("y", Access.OUT, builder.buffer(node.output)),
        ]
        code = {"dilated": self._is_dilated, "x_t": dtype.c}
        variant = "dilated" if self._is_dilated else ""
        kernel = "max_pool_f32" if dtype.is_float else f"max_pool_{dtype.tag}"
        builder.emit(node, kernel, operands, self._geometry(node.sig), code=code, variant=variant)


@dataclass(frozen=True)
class AveragePool(Pool):
    """y = sum of the elements under the window ÷ number of taps in the input and the padding that counts."""

    mnemonic: ClassVar[str] = "average_pool"
    counted_before: Shape = ()
    counted_after: Shape = ()
    """Padding per spatial axis whose taps are counted (as zeros); less than the window's under ceil_mode."""

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The arithmetic mean has a scale of its own."""
        (out,) = super().infer(*inputs)
        return (out.with_quant(None),)

    def _counts(self, sig: Signature) -> list[Array]:
        """Divisors: per spatial axis, one factor an output position."""
        return self._taps(self._last(sig.input(0))[1:-1], self.counted_before, self.counted_after)

    def _requantizer(self, sig: Signature) -> Requantizer:
        """Its multiplier's entry n − 1 divides by n, for the largest number of taps down to 1."""
        counts = self._counts(sig)
        divisors = np.arange(1, math.prod(int(c.max()) for c in counts) + 1)
        if math.prod(int(c.min()) for c in counts) == len(divisors):
            divisors = divisors[-1:]
        ratio = sig.input(0).q.scale[0] / sig.output.q.scale[0]
        return Requantizer.of(ratio / divisors, sig.output.q.zero_point, ties_to_even=True)

    def _pool(self, sig: Signature, x: Array) -> Array:
        quant = sig.input(0).quant if sig.output.quant is not None else None
        x = x if quant is None else x.astype(np.int64) - quant.zero_point
        patches = self.window.patches(x, self.kernel, 0)
        total: Array = patches.sum(tuple(range(x.ndim, patches.ndim)))
        count: Array = self._counts(sig)[0]
        for factor in self._counts(sig)[1:]:
            count = count[:, None] * factor
        count = count[..., None]
        if quant is None:
            return (total / count.astype(np.float32)).astype(np.float32)
        requantize = self._requantizer(sig)
        by_count = requantize.multiplier if len(requantize.multiplier) == 1 else requantize.multiplier[count - 1]
        return replace(requantize, multiplier=by_count)(total).astype(np.int8)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 with an exact int32 sum."""
        x = sig.input(0)
        int8 = x.dtype is DType.INT8 and sig.output.dtype is DType.INT8 and x.quant is not None
        return (self, inputs) if int8 and math.prod(self.kernel) < 2**23 else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Four channels at a time; the divisor is constant or follows from the taps."""
        sig, params = node.sig, self._geometry(node.sig)
        counts = self._counts(sig)
        fixed = all((c == c[0]).all() for c in counts)
        divisor = "fixed" if fixed else "padded" if any(self.counted_before + self.counted_after) else "inside"
        if divisor == "padded":
            rows = zip(self._last(sig.input(0))[1:-1], self.counted_before, self.counted_after, strict=True)
            sizes = [1] * (2 - len(counts)) + [n + b + a for n, b, a in rows]
            params |= {"counted_h": sizes[0], "counted_w": sizes[1]}
        operands: list[tuple[str, Access, Buffer]] = [("x", Access.IN, builder.buffer(node.input(0)))]
        code: dict[str, object] = {"dilated": self._is_dilated, "divisor": divisor}
        if sig.output.quant is not None:
            requantize = self._requantizer(sig).for_high_word()
            params |= {"x_zero": sig.input(0).q.zero_point, "y_zero": sig.output.q.zero_point}
            params["offset"] = requantize.offset
            code["shift"] = requantize.shift
            if fixed:
                params["multiplier"] = int(requantize.multiplier[0])
            else:
                table = builder.const(f"{node.output.name}.multiplier", requantize.multiplier.astype(np.int32))
                operands.append(("multiplier", Access.IN, table))
        elif fixed:
            params["scale"] = 1.0 / math.prod(int(c[0]) for c in counts)
        operands.append(("y", Access.OUT, builder.buffer(node.output)))
        variant = "_".join(["dilated"] * self._is_dilated + [divisor] * (not fixed))
        kernel = f"average_pool_{sig.input(0).dtype.tag}"
        builder.emit(node, kernel, operands, params, code=code, variant=variant)


# --------------------------------------------------------------------------------------------------- import


def _window(node: OnnxNode, space: Shape, kernel: Shape) -> tuple[Window, Shape]:
    """The window, and the padding after each axis that the model declares.

    ceil_mode is more padding at the end: enough for the last window that starts in the input or before it.
    """
    window = Window.of(node, space, kernel)
    declared = window.after
    if not node.attr("ceil_mode", 0):
        return window, declared
    after = []
    for n, k, s, b, a, d in zip(space, kernel, window.strides, window.before, declared, window.dilations, strict=True):
        extent = d * (k - 1) + 1
        last = -(-(n + b + a - extent) // s)
        last -= last * s >= n + b
        after.append(max(a, last * s + extent - n - b))
    return replace(window, after=tuple(after)), declared


def _geometry(node: OnnxNode) -> tuple[Shape, Shape, Window, Shape]:
    """Space, kernel, window, declared padding at the end."""
    x = node.input(0).type
    kernel = tuple(node.attr("kernel_shape", ()))
    if x.rank not in (3, 4):
        raise Refusal(f"{node.op_type}: one or two spatial axes are supported", f"{x.rank - 2}", "split it")
    space = x.shape[2:]
    if len(kernel) != len(space) or min(kernel) < 1:
        raise ModelError(f"{node.op_type}: kernel_shape must have one entry an axis", f"{kernel}", "repair the model")
    window, declared = _window(node, space, kernel)
    pool = Pool(window, kernel=kernel)
    if min(window.output(space, kernel)) < 1 or min(window.before + window.after) < 0:
        raise ModelError(f"{node.op_type}: the kernel must fit the input", f"{kernel} on {space}", "repair the model")
    none = (0,) * len(kernel)
    if min(int(c.min()) for c in pool._taps(space, none, none)) < 1:
        found = f"kernel {kernel}, padding {window.before} and {window.after}"
        raise Refusal(f"{node.op_type}: every window must meet the input", found, "use less padding")
    return space, kernel, window, declared


@onnx_operator("MaxPool")
def _import_max_pool(node: OnnxNode) -> list[Value]:
    if len(node.outputs) > 1 and node.outputs[1]:
        raise Refusal("MaxPool: only the values are computed", "the output of indices is used", "avoid MaxUnpool")
    node.require_dtype(node.input(0), *_MAX_TYPES)
    _, kernel, window, _ = _geometry(node)
    return [node.emit(MaxPool(window, kernel=kernel), node.input(0))]


@onnx_operator("AveragePool")
def _import_average_pool(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32)
    space, kernel, window, declared = _geometry(node)
    if kernel == space and not any(window.before + window.after) and max(window.dilations) == 1:
        return [emit_reduce(node, node.input(0), "mean", range(2, node.input(0).type.rank))]
    none = (0,) * len(kernel)
    counted = (window.before, declared) if node.attr("count_include_pad", 0) else (none, none)
    return [node.emit(AveragePool(window, False, kernel, *counted), node.input(0))]


@onnx_operator("GlobalAveragePool", "GlobalMaxPool")
def _import_global_pool(node: OnnxNode) -> list[Value]:
    """A reduction of all spatial axes."""
    x = node.input(0)
    if x.type.rank < 3:
        raise ModelError(f"{node.op_type}: the input must have spatial axes", f"rank {x.type.rank}", "repair the model")
    function = "mean" if node.op_type == "GlobalAveragePool" else "max"
    return [emit_reduce(node, x, function, range(2, x.type.rank))]
