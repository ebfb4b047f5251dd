# SPDX-License-Identifier: Apache-2.0
"""Layers computed together, row by row: of the tensors between them only a window of rows is ever in memory.

As in line buffers of image processors, or the patches of MCUNetV2 (Lin et al., 2021) without their recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, RowWindow, Signature
from mcugen.hir.types import Array, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.lower import lower_nodes
from mcugen.lir.overlap import least_lead
from mcugen.lir.program import Access, Buffer, Control, DType, Overlap, Param, Space


@dataclass(frozen=True)
class Layer:
    """One layer of a group. Tensor 0 is the group's input, tensor i the output of layer i − 1.

    `body` computes one output row of the windows that it `reads`; a layer that `adds` has sums as its second input,
    and gives the new ones.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, RowWindow], ...]
    adds: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor: their number, the axis that counts them, the type of one."""

    height: int
    axis: int
    row: TensorType

    @staticmethod
    def of(whole: TensorType, axis: int) -> Rows:
        """Those of a whole tensor."""
        return Rows(whole.shape[axis], axis, band_type(whole, axis, 1))

    @property
    def nbytes(self) -> int:
        """Of one row."""
        return self.row.count * self.row.dtype.nbytes


def band_type(whole: TensorType, axis: int, rows: int) -> TensorType:
    """The type of some rows of a tensor."""
    return replace(whole, shape=(*whole.shape[:axis], rows, *whole.shape[axis + 1 :]))


Event = tuple[int, bool]
"""The next row of a tensor, and whether it is one; if not, it lies outside of the tensor."""


class Schedule:
    """When which row of which tensor is made: each as soon as all that it reads is there.

    So rows of all tensors come at a fixed pace, and what a row reads lies at a fixed place in the windows.
    """

    def __init__(self, heights: Sequence[int], layers: Sequence[Layer]) -> None:
        self.heights = heights
        self._layers = layers
        self._needed = self._needed_rows()
        self._made = [0] * len(heights)
        self.events: list[Event] = []
        self.lags: dict[tuple[int, int], int] = {}
        """By layer and read: how many rows back, from the newest one, the first row lies that it reads."""
        self.is_regular = True
        for _ in range(self._needed[0]):
            self._make(0)
        self.windows = [1] * len(heights)
        """Rows of each tensor that must be kept."""
        for (layer, read), lag in self.lags.items():
            tensor = layers[layer].reads[read][0]
            self.windows[tensor] = max(self.windows[tensor], lag)

    def starts(self, layer: int) -> list[int]:
        """By read of a layer: the row of the tensor's window where it begins."""
        return [self.windows[t] - self.lags[layer, i] for i, (t, _) in enumerate(self._layers[layer].reads)]

    @property
    def cases(self) -> list[Event]:
        """The different events, in order of first appearance."""
        return list(dict.fromkeys(self.events))

    def _needed_rows(self) -> list[int]:
        """How many rows of each tensor are made, those below its last one included."""
        needed = [0] * len(self.heights)
        needed[-1] = self.heights[-1]
        for number, layer in reversed(list(enumerate(self._layers))):
            rows = self.heights[number + 1] if layer.adds else needed[number + 1]
            for tensor, window in layer.reads:
                needed[tensor] = max(needed[tensor], (rows - 1) * window.stride - window.before + window.span)
        return needed

    def _make(self, tensor: int) -> None:
        """A row, and all that it makes possible."""
        self.events.append((tensor, self._made[tensor] < self.heights[tensor]))
        self._made[tensor] += 1
        for number, layer in enumerate(self._layers):
            if any(t == tensor for t, _ in layer.reads):
                while self._made[number + 1] < self._needed[number + 1] and self._is_ready(number):
                    self._look(number)
                    self._make(number + 1)

    def _first_row(self, number: int, window: RowWindow) -> int:
        return self._made[number + 1] * window.stride - window.before

    def _is_ready(self, number: int) -> bool:
        return all(self._first_row(number, w) + w.span <= self._made[t] for t, w in self._layers[number].reads)

    def _look(self, number: int) -> None:
        if self._made[number + 1] >= self.heights[number + 1]:
            return
        for read, (tensor, window) in enumerate(self._layers[number].reads):
            lag = self._made[tensor] - self._first_row(number, window)
            self.is_regular &= self.lags.setdefault((number, read), lag) == lag


@dataclass(frozen=True)
class Streamed(Operator):
    """A group of layers with one input and one output, computed row by row. `tensors` are the input and each output."""

    mnemonic: ClassVar[str] = "streamed"
    layers: tuple[Layer, ...] = field(repr=False)
    tensors: tuple[Rows, ...] = field(repr=False)
    output: TensorType = field(repr=False)

    def attributes(self) -> str:
        """What is computed."""
        return ", ".join(node.op.name for layer in self.layers for node in layer.body.nodes)

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """One a layer."""
        return tuple(layer.body for layer in self.layers)

    @property
    def repeats(self) -> tuple[int, ...]:
        """The rows."""
        return tuple(tensor.height for tensor in self.tensors[1:])

    @cached_property
    def schedule(self) -> Schedule:
        """What happens in which order."""
        return Schedule([t.height for t in self.tensors], self.layers)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """As the layers one by one."""
        (x,) = inputs
        first = self.tensors[0]
        if x is None or band_type(x, first.axis, 1).shape != first.row.shape or x.shape[first.axis] != first.height:
            raise ModelError("streamed: the input must have the rows that the layers expect", str(x), "repair it")
        return (self.output,)

    def macs(self, sig: Signature) -> int:
        """Those of all rows."""
        return sum(
            times * node.op.macs(node.sig)
            for times, body in zip(self.repeats, self.bodies, strict=True)
            for node in body.nodes
        )

    def fill(self, tensor: int) -> float:
        """What rows outside of a tensor hold."""
        return next((w.fill for layer in self.layers for t, w in layer.reads if t == tensor and _leaves(w)), 0)

    # -------------------------------------------------------------------------------------------- reference

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """By the schedule, in windows as the generated code has them."""
        (x,) = arrays
        windows = [
            np.full(band_type(t.row, t.axis, n).shape, self.fill(i), t.row.dtype.numpy)
            for i, (t, n) in enumerate(zip(self.tensors, self.schedule.windows, strict=True))
        ]
        sums = np.zeros(self.output.shape, self.output.dtype.numpy)
        made: list[Array] = []
        taken = count()
        for tensor, is_row in self.schedule.events:
            axis = self.tensors[tensor].axis
            row = np.full(self.tensors[tensor].row.shape, self.fill(tensor), windows[tensor].dtype)
            if is_row and tensor == 0:
                row = x.take([next(taken)], axis)
            elif is_row:
                bands = self._bands(tensor - 1, windows)
                if self.layers[tensor - 1].adds:
                    (sums,) = run(self.layers[tensor - 1].body, [*bands, sums])
                    continue
                (row,) = run(self.layers[tensor - 1].body, bands)
            windows[tensor] = np.concatenate([windows[tensor], row], axis).take(
                range(1, self.schedule.windows[tensor] + 1), axis
            )
            if tensor == len(self.layers):
                made.append(row)
        return (np.concatenate(made, self.tensors[-1].axis) if made else sums,)

    def _bands(self, number: int, windows: Sequence[Array]) -> list[Array]:
        """What a layer reads now."""
        layer = self.layers[number]
        return [
            windows[tensor].take(range(start, start + window.span), window.axis)
            for (tensor, window), start in zip(layer.reads, self.schedule.starts(number), strict=True)
        ]

    # --------------------------------------------------------------------------------------------- lowering

    def lower(self, node: Node, builder: Builder) -> None:
        """A loop over the schedule's events."""
        with builder.one_layer():
            _Lowering(self, node, builder).emit()

    @property
    def lead(self) -> int:
        """How far the whole output may lie over the whole input, in bytes: see Overlap."""
        got, put, steps = 0, 0, []
        first, last = self.tensors[0], self.tensors[-1]
        for tensor, is_row in self.schedule.events:
            got += tensor == 0 and is_row
            put += tensor == len(self.layers)
            if tensor == len(self.layers) and got < first.height:
                steps.append((put * last.nbytes, got * first.nbytes))
        return least_lead(steps or [(0, 0)])


def _leaves(window: RowWindow) -> bool:
    """Whether a window may reach outside of the tensor."""
    return window.span > 1 or window.before > 0


class _Lowering:
    """The instructions of one group."""

    def __init__(self, op: Streamed, node: Node, builder: Builder) -> None:
        self.op, self.node, self.builder = op, node, builder
        self.schedule = op.schedule
        self.name = node.output.name
        self.x, self.y = builder.buffer(node.input(0)), builder.buffer(node.output)
        last = len(op.layers)
        self.adds = op.layers[-1].adds
        self.windows = [
            self._scratch(f"rows{i}", t, n) if i < last else None
            for i, (t, n) in enumerate(zip(op.tensors, self.schedule.windows, strict=True))
        ]
        self.got = builder.scratch(f"{self.name}.got", DType.INT32, 1)
        self.put = builder.scratch(f"{self.name}.put", DType.INT32, 1)

    def emit(self) -> None:
        """Windows as they are at first, then the loop."""
        builder, cases = self.builder, self.schedule.cases
        for tensor, window in enumerate(self.windows):
            if window is not None and self.schedule.windows[tensor] > 1:
                self._fill(window, 0, self.schedule.windows[tensor], tensor)
        if self.x.space is not Space.STREAM:
            self._zero(self.got)
        self._zero(self.y if self.adds else self.put)
        events = [cases.index(event) for event in self.schedule.events]
        ends: list[tuple[str, Access, Buffer]] = [("x", Access.IN, self.x), ("y", Access.OUT, self.y)]
        overlaps = [Overlap("y", "x", self.op.lead)]
        if self.adds:
            ends[1], overlaps = ("y", Access.INOUT, self.y), []
        builder.mark(self.node, Control.STREAM, ends, code={"events": events}, overlaps=overlaps)
        for number, (tensor, is_row) in enumerate(cases):
            builder.mark(self.node, Control.CASE, params={"case": number})
            if is_row:
                self._row(tensor)
            else:
                self._shift(tensor)
                self._fill(self._window(tensor), self.schedule.windows[tensor] - 1, 1, tensor)
            builder.mark(self.node, Control.END)
        builder.mark(self.node, Control.END)

    def _row(self, tensor: int) -> None:
        if tensor:
            self._compute(tensor - 1)
            return
        self._shift(0)
        row, rows = self._next(0), self.op.tensors[0]
        params: dict[str, Param] = {"rows": 1, "bytes": rows.nbytes}
        if self.x.space is Space.STREAM:
            operands = [("next", Access.INOUT, self.got), ("y", Access.OUT, row)]
            self.builder.emit(self.node, "read_rows", operands, params)
        else:
            operands = [("x", Access.IN, self.x), ("next", Access.INOUT, self.got), ("y", Access.OUT, row)]
            self.builder.emit(self.node, "stream_get", operands, params, variant=rows.row.dtype.tag)
        self._push(row, 0)

    def _compute(self, number: int) -> None:
        """One row of a layer's output, or the sums with one row more."""
        layer, builder, tensor = self.op.layers[number], self.builder, number + 1
        is_last = tensor == len(self.op.layers)
        if not is_last:
            self._shift(tensor)
        for (read, _), formal, start in zip(
            layer.reads, layer.body.inputs, self.schedule.starts(number), strict=False
        ):
            window, size = self._window(read), self.op.tensors[read].nbytes
            band = builder.buffer(formal) if window.count != formal.type.count else window
            builder.bind(formal, band)
            if band is not window:
                builder.move(self.node, window, band, "rows", x_at=start * size)
        (result,) = layer.body.outputs
        if layer.adds:
            builder.bind(layer.body.inputs[-1], self.y)
            builder.bind(result, self.y)
        elif not is_last and self.schedule.windows[tensor] == 1:
            builder.bind(result, self._window(tensor))
        lower_nodes(layer.body, builder)
        if is_last and not layer.adds:
            rows = self.op.tensors[tensor]
            operands = [
                ("x", Access.IN, builder.buffer(result)),
                ("next", Access.INOUT, self.put),
                ("y", Access.OUT, self.y),
            ]
            params: dict[str, Param] = {"rows": 1, "bytes": rows.nbytes}
            builder.emit(self.node, "stream_put", operands, params, variant=rows.row.dtype.tag)
        elif not is_last:
            self._push(builder.buffer(result), tensor)

    # ------------------------------------------------------------------------------------------- windows

    def _scratch(self, role: str, rows: Rows, number: int) -> Buffer:
        return self.builder.scratch(f"{self.name}.{role}", rows.row.dtype, rows.row.count * number)

    def _window(self, tensor: int) -> Buffer:
        window = self.windows[tensor]
        assert window is not None
        return window

    def _next(self, tensor: int) -> Buffer:
        """Where the next row of a tensor is made: its window, if that is one row."""
        if self.schedule.windows[tensor] == 1:
            return self._window(tensor)
        return self._scratch(f"row{tensor}", self.op.tensors[tensor], 1)

    def _push(self, row: Buffer, tensor: int) -> None:
        """The row becomes the last of its window, in which it has best been made."""
        if row is not self._window(tensor):
            size = self.op.tensors[tensor].nbytes
            at = (self.schedule.windows[tensor] - 1) * size
            self.builder.move(self.node, row, self._window(tensor), "row", y_at=at)

    def _shift(self, tensor: int) -> None:
        """The oldest row goes."""
        if self.schedule.windows[tensor] > 1:
            window, size = self._window(tensor), self.op.tensors[tensor].nbytes
            params: dict[str, Param] = {"nbytes": window.nbytes, "by": size}
            self.builder.emit(self.node, "shift_rows", [("x", Access.INOUT, window)], params)

    def _fill(self, window: Buffer, first: int, rows: int, tensor: int) -> None:
        count = self.op.tensors[tensor].row.count
        params: dict[str, Param] = {"first": first * count, "count": rows * count, "value": self._value(tensor)}
        access = Access.OUT if rows == self.schedule.windows[tensor] else Access.INOUT
        self.builder.emit(self.node, "fill_rows", [("y", access, window)], params, variant=window.dtype.tag)

    def _value(self, tensor: int) -> Param:
        value = self.op.fill(tensor)
        return float(value) if self.op.tensors[tensor].row.dtype.is_float else int(value)

    def _zero(self, buffer: Buffer) -> None:
        params: dict[str, Param] = {"first": 0, "count": buffer.count, "value": 0}
        self.builder.emit(self.node, "fill_rows", [("y", Access.OUT, buffer)], params, variant=buffer.dtype.tag)


def group_of(nodes: Sequence[Node]) -> Iterator[Streamed]:
    """The group of nodes that follow one another, with one input and one output: one, or none if it cannot be.

    All tensors must come in rows at a fixed pace, and what lies outside of one must be the same for all who read it.
    """
    numbers = {nodes[0].input(0): 0}
    tensors: list[Rows] = []
    layers: list[Layer] = []
    output = nodes[-1].output.type
    for node in nodes:
        form = node.op.by_rows(node.sig)
        if form is None or len(node.outputs) != 1 or (form.finish and node is not nodes[-1]):
            return
        body = Graph(node.output.name)
        reads, inputs = [], []
        for value, window in zip(node.inputs, form.windows, strict=True):
            if value is None or value.is_constant:
                inputs.append(value)
                continue
            if window is None or value not in numbers:
                return
            if not tensors:
                tensors.append(Rows.of(value.type, window.axis))
            elif tensors[numbers[value]].axis != window.axis:
                return
            reads.append((numbers[value], window))
            inputs.append(body.add_input(value.name, band_type(value.type, window.axis, window.span)))
        kept = [v if v is None or v.data is None else body.constant(v.name, v.data, v.type.quant, v.type.dtype) for v in inputs]
        types = [band_type(node.output.type, form.axis, 1)]
        if form.finish:
            (output,) = form.op.infer(*(v.type if v else None for v in kept), None)
            kept.append(body.add_input(f"{node.output.name}.sums", output))
            types = [output]
        made = body.add(form.op, kept, node.origin, names=[node.output.name], types=types)
        body.add_output(node.output.name, made.output)
        layers.append(Layer(body, tuple(reads), form.finish is not None))
        numbers[node.output] = len(tensors)
        whole = tensors[layers[-1].reads[0][0]] if form.finish else None
        tensors.append(Rows(whole.height, 0, output) if whole else Rows.of(node.output.type, form.axis))
    op = Streamed(tuple(layers), tuple(tensors), output)
    if op.schedule.is_regular and all(_agree(op, tensor) for tensor in range(len(tensors))):
        yield op


def _agree(op: Streamed, tensor: int) -> bool:
    fills = {w.fill for layer in op.layers for t, w in layer.reads if t == tensor and _leaves(w)}
    return len(fills) < 2
