# SPDX-License-Identifier: Apache-2.0
"""Layers computed together, row by row: of the tensors between them only a window of rows is ever in memory.

As in line buffers of image processors, or the patches of MCUNetV2 (Lin et al., 2021) without their recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, RowWindow, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.stream import (
    FILL_ROWS,
    SHIFT_ROWS,
    STREAM_GET,
    STREAM_PUT,
    FillParams,
    RowsParams,
    ShiftParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel
from mcugen.lir.lower import lower_nodes
from mcugen.lir.overlap import least_lead
from mcugen.lir.program import Access, Buffer, Control, Overlap


@dataclass(frozen=True)
class Layer:
    """One layer of a group. Tensor 0 is the group's input, tensor i the output of layer i − 1.

    `body` computes one output row of the windows that it `reads`; a layer that `adds` has sums as its last input, and
    gives the new ones.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, RowWindow], ...]
    adds: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor: their number, the axis that counts them, the type of one.

    In memory, columns are added to each row at both `sides`.
    """

    height: int
    axis: int
    row: TensorType
    sides: tuple[int, int] = (0, 0)

    @staticmethod
    def of(whole: TensorType, axis: int, sides: tuple[int, int] = (0, 0)) -> Rows:
        """Those of a whole tensor."""
        return Rows(whole.shape[axis], axis, band_type(whole, axis, 1), sides)

    @property
    def nbytes(self) -> int:
        """Of one row."""
        return self.row.count * self.row.dtype.nbytes

    @property
    def in_memory(self) -> TensorType:
        """A row with its sides."""
        return band_type(self.row, self.axis, 1, self.sides)

    @property
    def pitch(self) -> int:
        """Bytes of a row with its sides."""
        return self.in_memory.count * self.row.dtype.nbytes

    def margin(self, sides: tuple[int, int] = (0, 0)) -> int:
        """Bytes of a row with its sides before those of one with fewer."""
        return (self.sides[0] - sides[0]) * self.column if any(self.sides) else 0

    @property
    def column(self) -> int:
        """Bytes of one column."""
        return self.nbytes // self.row.shape[self.axis + 1]

    def padded(self, row: Array, fill: float) -> Array:
        """A row with its sides."""
        widths = [(0, 0)] * row.ndim
        if any(self.sides):
            widths[self.axis + 1] = self.sides
        return np.pad(row, widths, constant_values=fill)


def band_type(whole: TensorType, axis: int, rows: int, sides: tuple[int, int] = (0, 0)) -> TensorType:
    """The type of some rows of a tensor, with columns at both sides."""
    shape = [*whole.shape[:axis], rows, *whole.shape[axis + 1 :]]
    if any(sides):
        shape[axis + 1] += sum(sides)
    return replace(whole, shape=tuple(shape))


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
    """A group of layers with one input and one output, computed row by row. `tensors` are the input and each output.

    `from_caller`: the input is one of the model, and the caller hands over its rows; it takes no memory.
    """

    mnemonic: ClassVar[str] = "streamed"
    layers: tuple[Layer, ...] = field(repr=False)
    tensors: tuple[Rows, ...] = field(repr=False)
    output: TensorType = field(repr=False)
    from_caller: bool = False

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
        return next((w.fill for layer in self.layers for t, w in layer.reads if t == tensor and w.leaves), 0)

    # -------------------------------------------------------------------------------------------- reference

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """By the schedule, in windows as the generated code has them."""
        (x,) = arrays
        windows = [
            np.full(band_type(t.in_memory, t.axis, n).shape, self.fill(i), t.row.dtype.numpy)
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
            newest = self.tensors[tensor].padded(row, self.fill(tensor))
            windows[tensor] = np.concatenate([windows[tensor], newest], axis).take(
                range(1, self.schedule.windows[tensor] + 1), axis
            )
            if tensor == len(self.layers):
                made.append(row)
        return (np.concatenate(made, self.tensors[-1].axis) if made else sums,)

    def _bands(self, number: int, windows: Sequence[Array]) -> list[Array]:
        """What a layer reads now."""
        layer, bands = self.layers[number], []
        for (tensor, window), start in zip(layer.reads, self.schedule.starts(number), strict=True):
            band = windows[tensor].take(range(start, start + window.span), window.axis)
            rows = self.tensors[tensor]
            if rows.sides != window.sides:
                first = rows.sides[0] - window.sides[0]
                band = band.take(range(first, first + rows.row.shape[rows.axis + 1] + sum(window.sides)), rows.axis + 1)
            bands.append(band)
        return bands

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
            self._scratch(f"rows{i}", t.in_memory, n) if i < last else None
            for i, (t, n) in enumerate(zip(op.tensors, self.schedule.windows, strict=True))
        ]
        self.got = builder.scratch(f"{self.name}.got", DType.INT32, 1)
        self.put = builder.scratch(f"{self.name}.put", DType.INT32, 1)

    def emit(self) -> None:
        """Windows as they are at first, then the loop."""
        builder, cases = self.builder, self.schedule.cases
        for tensor, window in enumerate(self.windows):
            if window is not None and not self._is_one_row(tensor):
                self._fill(window, 0, self.schedule.windows[tensor], tensor)
        self._zero(self.got)
        self._zero(self.y if self.adds else self.put)
        events = [cases.index(event) for event in self.schedule.events]
        ends = [("x", Access.IN, self.x), ("y", Access.INOUT if self.adds else Access.OUT, self.y)]
        overlaps = [] if self.adds or self.op.from_caller else [Overlap("y", "x", self.op.lead)]
        if self.op.from_caller:
            del ends[0]
        builder.mark(self.node, Control.STREAM, ends, events=events, overlaps=overlaps)
        for number, (tensor, is_row) in enumerate(cases):
            builder.mark(self.node, Control.CASE, case=number)
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
            return None
        self._shift(0)
        row, rows = self._next(0), self.op.tensors[0]
        if self.op.from_caller:
            self.builder.read_rows(self.node, self.node.input(0), self.got, row, 1, rows.axis)
        else:
            self._copy(STREAM_GET, {"x": self.x, "next": self.got, "y": row}, rows)
        self._push(row, 0)

    def _compute(self, number: int) -> None:
        """One row of a layer's output, or the sums with one row more."""
        layer, builder, tensor = self.op.layers[number], self.builder, number + 1
        is_last = tensor == len(self.op.layers)
        if not is_last:
            self._shift(tensor)
        starts = self.schedule.starts(number)
        for (read, rows), formal, start in zip(layer.reads, layer.body.inputs, starts, strict=False):
            window, whole = self._window(read), self.op.tensors[read]
            if window.count == formal.type.count:
                builder.bind(formal, window)
            else:
                at = start * whole.pitch + whole.margin(rows.sides)
                builder.move(self.node, window, builder.buffer(formal), "rows", x_at=at)
        (result,) = layer.body.outputs
        if layer.adds:
            builder.bind(layer.body.inputs[-1], self.y)
            builder.bind(result, self.y)
        elif not is_last and self._is_one_row(tensor):
            builder.bind(result, self._window(tensor))
        lower_nodes(layer.body, builder)
        if is_last and not layer.adds:
            ends = {"x": builder.buffer(result), "next": self.put, "y": self.y}
            self._copy(STREAM_PUT, ends, self.op.tensors[tensor])
        elif not is_last:
            self._push(builder.buffer(result), tensor)

    def _copy(self, kernel: Kernel, operands: Mapping[str, Buffer], rows: Rows) -> None:
        """One row."""
        params = RowsParams(rows=1, bytes=rows.nbytes)
        self.builder.call(self.node, Call(kernel, operands, [params], variant=rows.row.dtype.tag))

    # ------------------------------------------------------------------------------------------- windows

    def _scratch(self, role: str, row: TensorType, number: int) -> Buffer:
        return self.builder.scratch(f"{self.name}.{role}", row.dtype, row.count * number)

    def _window(self, tensor: int) -> Buffer:
        window = self.windows[tensor]
        assert window is not None
        return window

    def _is_one_row(self, tensor: int) -> bool:
        return self.schedule.windows[tensor] == 1 and not any(self.op.tensors[tensor].sides)

    def _next(self, tensor: int) -> Buffer:
        """Where the next row of a tensor is made: its window, if that is one row."""
        if self._is_one_row(tensor):
            return self._window(tensor)
        return self._scratch(f"row{tensor}", self.op.tensors[tensor].row, 1)

    def _push(self, row: Buffer, tensor: int) -> None:
        """The row becomes the last of its window, in which it has best been made."""
        if row is not self._window(tensor):
            rows = self.op.tensors[tensor]
            at = (self.schedule.windows[tensor] - 1) * rows.pitch + rows.margin()
            self.builder.move(self.node, row, self._window(tensor), "row", y_at=at)

    def _shift(self, tensor: int) -> None:
        """The oldest row goes."""
        if self.schedule.windows[tensor] > 1:
            window = self._window(tensor)
            params = ShiftParams(nbytes=window.nbytes, by=self.op.tensors[tensor].pitch)
            self.builder.call(self.node, Call(SHIFT_ROWS, {"x": window}, [params]))

    def _fill(self, window: Buffer, first: int, rows: int, tensor: int) -> None:
        """Rows of padding."""
        count, fill = self.op.tensors[tensor].in_memory.count, self.op.fill(tensor)
        value = float(fill) if self.op.tensors[tensor].row.dtype.is_float else int(fill)
        params = FillParams(first=first * count, count=rows * count, value=value)
        access = Access.OUT if rows == self.schedule.windows[tensor] else Access.INOUT
        self._fill_with(window, params, access)

    def _zero(self, buffer: Buffer) -> None:
        self._fill_with(buffer, FillParams(first=0, count=buffer.count, value=0), Access.OUT)

    def _fill_with(self, buffer: Buffer, params: FillParams, access: Access) -> None:
        call = Call(FILL_ROWS, {"y": buffer}, [params], access={"y": access}, variant=buffer.dtype.tag)
        self.builder.call(self.node, call)
