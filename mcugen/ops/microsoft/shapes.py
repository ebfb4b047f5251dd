# SPDX-License-Identifier: Apache-2.0
"""Importers of com.microsoft operators that nearly equal ONNX operators, and of distances and inverses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.inverse import Inverse
from mcugen.ops.microsoft.common import axes, composed, shaped
from mcugen.ops.movement import normalize_axis
from mcugen.ops.onnx_node import BUILT_IN, FLOATS, MICROSOFT, OnnxNode, Refusal, as_standard, onnx_operator


def _same(op_type: str) -> Callable[[OnnxNode], Sequence[Value | None]]:
    return lambda node: as_standard(node, op_type, *node.inputs, **node.attributes_of(op_type))


for _name, _kernel in (("GridSample", "grid_sample"), ("Trilu", "trilu")):
    onnx_operator(_name, domain=MICROSOFT, kernels=(_kernel,))(_same(_name))


onnx_operator("GatherND", domain=MICROSOFT, kernels=("gather",))(axes("... _", "... _")(_same("GatherND")))


@composed("Range", types=())
def _import_range(node: OnnxNode) -> Sequence[Value | None]:
    """Import Range; the step is 1 unless given."""
    ends = [node.call("Reshape", node.input(i), np.zeros(0, np.int64)) for i in range(3) if i < 2 or node.has(i)]
    step = [] if node.has(2) else [np.ones((), ends[0].type.dtype.numpy)]
    return [node.call("Range", *ends, *step)]


@composed("Pad", types=())
def _import_pad(node: OnnxNode) -> Sequence[Value | None]:
    """Import Pad; pads may be a matrix of one row, the value a vector of one element."""
    pads = node.call("Reshape", node.input(1), np.array([-1], np.int64))
    value = node.call("Reshape", node.input(2), np.zeros(0, np.int64)) if node.has(2) else None
    return [node.call("Pad", node.input(0), pads, value, mode=str(node.attr("mode", "constant")))]


@composed("ExpandDims", types=(), limits="constant axis")
def _import_expand_dims(node: OnnxNode) -> list[Value]:
    axis = node.const(1, "the axis").reshape(-1)[:1].astype(np.int64)
    return [node.call("Unsqueeze", node.input(0), axis)]


@composed("SampleOp", types=())
def _import_sample(node: OnnxNode) -> list[Value]:
    return [node.call("Identity", node.input(0))]


@onnx_operator("Unique", domain=MICROSOFT, kernels=("unique",))
def _import_unique(node: OnnxNode) -> list[Value | None]:
    """Import Unique, in order of appearance, without ONNX's output of first positions."""
    plain = _named(node, (node.outputs[0], f"{node.outputs[0]}.first", *node.outputs[1:]))
    values, _, *remaining_results = BUILT_IN.importers["", "Unique"](plain)
    return [values, *remaining_results]


def _named(node: OnnxNode, outputs: tuple[str, ...]) -> OnnxNode:
    attributes = {**node.attributes, "sorted": 0}
    return OnnxNode(node.graph, "", "Unique", node.name, node.inputs, outputs, attributes, node.opset)


@composed("UnfoldTensor", types=())
def _import_unfold(node: OnnxNode) -> list[Value]:
    """Windows along an axis, whose elements lie along a new last one."""
    x, size, step = node.input(0), int(node.attr("size", 0)), int(node.attr("step", 1))
    axis = normalize_axis(node, int(node.attr("dim", -1)), x.type.rank)
    if not 0 < size <= x.type.shape[axis] or step < 1:
        window_text = f"{size} of {x.type.shape[axis]} by steps of {step}"
        raise Refusal("UnfoldTensor: windows must lie in the tensor", window_text, "repair the model")
    starts = np.arange(0, x.type.shape[axis] - size + 1, step)
    windows = node.call("Gather", x, (starts[:, None] + np.arange(size)).astype(np.int64), axis=axis)
    order = [*range(axis + 1), *range(axis + 2, x.type.rank + 1), axis + 1]
    return [node.call("Transpose", windows, perm=order)]


@composed("CDist", types=FLOATS, limits="euclidean and sqeuclidean")
@axes("M N", "K N")
def _import_cdist(node: OnnxNode) -> list[Value]:
    """√Σ (a − b)² of each pair of rows, or its square."""
    a, b = node.input(0), node.input(1)
    metric = str(node.attr("metric", "sqeuclidean"))
    if metric not in ("euclidean", "sqeuclidean"):
        raise Refusal("CDist: the metric must be euclidean or its square", f"'{metric}'", "spell it out")
    apart = node.call("Sub", shaped(node, a, a.type.shape[0], 1, a.type.shape[1]), shaped(node, b, 1, *b.type.shape))
    total = node.call("ReduceSum", node.call("Mul", apart, apart), np.array([2], np.int64), keepdims=0)
    return [node.call("Sqrt", total) if metric == "euclidean" else total]


@onnx_operator("Inverse", domain=MICROSOFT, kernels=("inverse",))
def _import_inverse(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), *FLOATS)
    return [node.emit(Inverse(), node.input(0))]
