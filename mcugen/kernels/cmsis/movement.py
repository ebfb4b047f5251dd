# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's movements of int8 elements: arm_pad_s8, arm_transpose_s8, arm_concatenation_s8_y.

They are called where our own lowering would copy elements with strides. What it moves as one run mostly vanishes: the
planner lets both sides lie in one place, and a call would take time and memory instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, cast

from mcugen.hir.graph import Node
from mcugen.hir.operator import Permutation
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis.common import call, emit_call
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param

AXES = "nhwc"
"""The library's names of axes, outermost first."""

MOST_SIZE = 2**16 - 1
"""Of an axis, as functions take it or count along it."""

MOST_COLUMNS = MOST_SIZE // 7
"""Of matrices that are transposed: with Helium, offsets of eight rows have 16 bits."""


class _Pad(Protocol):
    @property
    def before(self) -> tuple[int, ...]: ...
    @property
    def after(self) -> tuple[int, ...]: ...
    def stored(self, x: TensorType) -> Array: ...


class _Transpose(Protocol):
    @property
    def perm(self) -> Permutation: ...


class _Concat(Protocol):
    @property
    def axis(self) -> int: ...


def is_int8(node: Node) -> bool:
    """int8 elements"""
    return node.output.type.dtype is DType.INT8


# ---------------------------------------------------------------------------------------------------- padding


@dataclass(frozen=True)
class _Padded:
    """Elements along an axis, and those that are added."""

    size: int
    before: int
    after: int

    @property
    def grows(self) -> bool:
        return self.before + self.after > 0

    def of_runs(self, length: int) -> _Padded:
        """The axis, if each of its elements is a run of elements."""
        return _Padded(length * self.size, length * self.before, length * self.after)


def _padded(node: Node) -> list[_Padded]:
    """Of an axis without padding, all elements are one run of the axis before it."""
    op, merged = cast("_Pad", node.op), list[_Padded]()
    for axis in map(_Padded, node.input(0).type.shape, op.before, op.after):
        if merged and not axis.grows:
            merged.append(merged.pop().of_runs(axis.size))
        elif axis.grows or axis.size > 1:
            merged.append(axis)
    return merged


def pads_runs(node: Node) -> bool:
    """not in one run, along four axes at most"""
    return 1 < len(_padded(node)) <= len(AXES)


def emit_pad(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Axis by axis, with the fewest axes."""
    axes = _padded(node)
    params: dict[str, Param] = {"value": int(cast("_Pad", node.op).stored(node.input(0).type)[0])}
    for name, axis in zip(AXES, [_Padded(1, 0, 0)] * (len(AXES) - len(axes)) + axes, strict=True):
        params |= {name: axis.size, f"before_{name}": axis.before, f"after_{name}": axis.after}
    _emit(node, builder, kernel, params)


# ----------------------------------------------------------------------------------------------- transposition


def _turned(node: Node) -> tuple[list[int], list[int]]:
    """Sizes of the input's axes and the permutation; axes that stay side by side are merged."""
    shape = node.input(0).type.shape
    moved = [axis for axis in cast("_Transpose", node.op).perm if shape[axis] != 1]
    places = [sorted(moved).index(axis) for axis in moved]
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(places), 1) if b != a + 1)]
    groups = [moved[start:end] for start, end in zip(starts, [*starts[1:], len(moved)], strict=True)]
    order = sorted(groups)
    return [math.prod(shape[axis] for axis in group) for group in order], [order.index(group) for group in groups]


def turns_axes(node: Node) -> bool:
    """two to four axes change places"""
    sizes, _ = _turned(node)
    return 1 < len(sizes) <= len(AXES) and max(sizes) <= MOST_SIZE and sizes[-1] <= MOST_COLUMNS


def rows(node: Node) -> int:
    """Of the input."""
    return node.input(0).type.count // _turned(node)[0][-1]


def emit_transpose(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Matrices have a way of their own, in which the library knows two axes."""
    sizes, perm = _turned(node)
    if len(sizes) > 2:
        missing = len(AXES) - len(sizes)
        sizes, perm = [1] * missing + sizes, [*range(missing), *(axis + missing for axis in perm)]
    params: dict[str, Param] = dict(zip(AXES, sizes, strict=False))
    order = "".join(AXES[axis] for axis in perm)
    _emit(node, builder, kernel, params, code={"perm": perm}, variant=order)


# ----------------------------------------------------------------------------------------------- concatenation


def joins_rows(node: Node) -> bool:
    """parts that lie in several runs"""
    op, y = cast("_Concat", node.op), node.output.type.shape
    sizes = (math.prod(y[: op.axis]), y[op.axis], math.prod(y[op.axis + 1 :]))
    return sizes[0] > 1 and all(0 < size <= MOST_SIZE for size in sizes)


def emit_concat(node: Node, builder: Builder, kernel: Kernel) -> None:
    """A call for each part."""
    op, y = cast("_Concat", node.op), node.output.type.shape
    params: dict[str, Param] = {"outer": math.prod(y[: op.axis]), "y_depth": y[op.axis]}
    params["inner"] = math.prod(y[op.axis + 1 :])
    offset = 0
    for index in range(len(node.inputs)):
        depth = node.input(index).type.shape[op.axis]
        operands = [
            ("x", Access.IN, builder.buffer(node.input(index))),
            ("y", Access.INOUT if index else Access.OUT, builder.buffer(node.output)),
        ]
        emit_call(node, builder, kernel, operands, params | {"depth": depth, "offset": offset})
        offset += depth


def _emit(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    params: Mapping[str, Param],
    code: Mapping[str, object] | None = None,
    variant: str = "",
) -> None:
    operands = [("x", Access.IN, builder.buffer(node.input(0))), ("y", Access.OUT, builder.buffer(node.output))]
    emit_call(node, builder, kernel, operands, params, code=code, variant=variant)


PAD: tuple[Kernel, ...] = (call("cmsis_pad_s8", (is_int8, pads_runs), emit_pad),)
TRANSPOSE: tuple[Kernel, ...] = (call("cmsis_transpose_s8", (is_int8, turns_axes), emit_transpose, extra=rows),)
CONCAT: tuple[Kernel, ...] = (call("cmsis_concatenation_s8", (is_int8, joins_rows), emit_concat),)
