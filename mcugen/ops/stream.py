# SPDX-License-Identifier: Apache-2.0
"""Line-buffer fusion: layers are computed together row by row, with a window of rows of each tensor between them.

This is similar to line buffers of image processors, and to the patches of MCUNetV2 (Lin et al., 2021) without their
recomputation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, RowWindow, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.common.row_windows import (
    FILL_ROWS,
    SHIFT_ROWS,
    STREAM_GET,
    STREAM_PUT,
    FillParams,
    RowsParams,
    ShiftParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.copies import CopyRange
from mcugen.lir.kernel import Call, Kernel
from mcugen.lir.lower import lower_nodes
from mcugen.lir.overlap import min_lead_bytes
from mcugen.lir.program import Access, Buffer, Control, Overlap
from mcugen.numerics.window import pad


@dataclass(frozen=True)
class Layer:
    """One layer of a group of layers that are computed row by row together (line-buffer fusion).

    Attributes:
        body: Graph that computes the next `rows` output rows from the windows in `reads`.
        reads: Index of each tensor that is read row by row, with its window. The inputs of the group have the first
            indices, the outputs of the layers the next ones.
        adds: Whether the body adds rows to sums: its last input are the sums so far, its output the new ones.
        rows: Number of output rows per step.
        wholes: Indices, among the group's inputs that are read as a whole tensor instead of row by row, of those that
            the layer reads.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, RowWindow], ...]
    adds: bool = False
    rows: int = 1
    wholes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """The division of a tensor into rows, for row-by-row computation of several layers (line-buffer fusion).

    Attributes:
        height: Number of rows.
        axis: Axis that counts the rows.
        row: Type of one row.
        sides: Number of padding columns before and after each row in memory.
    """

    height: int
    axis: int
    row: TensorType
    sides: tuple[int, int] = (0, 0)

    @staticmethod
    def of(whole: TensorType, axis: int, sides: tuple[int, int] = (0, 0)) -> Rows:
        """Return the division of a tensor into rows along an axis.

        Args:
            whole: Type of the tensor.
            axis: Axis that counts the rows.
            sides: Number of padding columns before and after each row in memory.
        """
        return Rows(whole.shape[axis], axis, band_type(whole, axis, 1), sides)

    @property
    def nbytes(self) -> int:
        """Return the bytes of one row without padding columns."""
        return self.row.count * self.row.dtype.nbytes

    @property
    def in_memory(self) -> TensorType:
        """Return the type of a row with its padding columns."""
        return band_type(self.row, self.axis, 1, self.sides)

    @property
    def pitch(self) -> int:
        """Return the bytes of one row in memory, including its padding columns (the row stride)."""
        return self.in_memory.count * self.row.dtype.nbytes

    def margin(self, sides: tuple[int, int] = (0, 0)) -> int:
        """Return the bytes of padding columns that a reader must skip at the start of each row in memory.

        Args:
            sides: Number of padding columns before and after a row that the reader expects.
        """
        return (self.sides[0] - sides[0]) * self.column if any(self.sides) else 0

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements of a row are contiguous in the whole tensor."""
        return math.prod(self.row.shape[: self.axis]) == 1

    @property
    def column(self) -> int:
        """Return the bytes of one column of one row, for example the bytes of one pixel.

        The axis behind `axis` counts the columns.
        """
        return self.nbytes // self.row.shape[self.axis + 1]

    def padded(self, row: Array, fill: float) -> Array:
        """Return the elements of a row with its padding columns, which hold `fill`."""
        widths = [(0, 0)] * row.ndim
        if any(self.sides):
            widths[self.axis + 1] = self.sides
        return pad(row, widths, fill)


def band_type(whole: TensorType, axis: int, rows: int, sides: tuple[int, int] = (0, 0)) -> TensorType:
    """Return the type of several rows of a tensor together, with their padding columns.

    Args:
        whole: Type of the tensor.
        axis: Axis that counts the rows.
        rows: Number of rows.
        sides: Number of padding columns before and after each row.
    """
    shape = [*whole.shape[:axis], rows, *whole.shape[axis + 1 :]]
    if any(sides):
        shape[axis + 1] += sum(sides)
    return replace(whole, shape=tuple(shape))


class Event(NamedTuple):
    """One entry of the schedule of layers that are computed together row by row (line-buffer fusion).

    At each event, the next rows of one tensor are computed; after the tensor's last row, padding rows are filled
    instead.

    Attributes:
        tensor: Index of the tensor.
        is_row: Whether rows are computed; if False, rows outside the tensor are filled, or repeat the last row.
        lags: For each read of the tensor's layer, the distance in rows from the newest row back to the first row of the
            window.
    """

    tensor: int
    is_row: bool
    lags: tuple[int, ...] = ()


class RowDependencies(NamedTuple):
    """The facts about a layer that determine when its rows can be computed, in layers that are computed row by row.

    Attributes:
        reads: For each tensor that the layer reads row by row, its index among the tensors of the group of fused
            layers, and the window of its rows that a step needs.
        rows: Number of output rows that a step computes.
    """

    reads: tuple[tuple[int, RowWindow], ...]
    rows: int


class Schedule:
    """The order in which layers that are fused by line buffers compute their rows, each row as late as possible.

    Tensors are numbered: the first `sources` ones are inputs, the others are outputs of `layers`. All `results`
    (indices of the output tensors) advance at the same relative speed. `heights` are the numbers of rows of the
    tensors; `events` is the schedule: at each event, the next rows of one tensor are computed or filled.
    """

    def __init__(
        self, heights: Sequence[int], layers: Sequence[RowDependencies], sources: int, results: Sequence[int]
    ) -> None:
        self._heights = heights
        self._reads = [()] * sources + [layer.reads for layer in layers]
        self._steps = [1] * sources + [layer.rows for layer in layers]
        self._repeated = {t for layer in layers for t, w in layer.reads if w.repeats}
        self._made = [0] * len(heights)
        self.events: list[Event] = []
        self.windows = list(self._steps)
        """Rows of each tensor that must be kept."""
        while unfinished := [t for t in results if self._made[t] < heights[t]]:
            last = min(unfinished, key=lambda t: self._made[t] / heights[t])
            self._make(last)
        self._leave_out_unread()
        for event in self.cases:
            for (tensor, _), lag in zip(self.reads(event.tensor), event.lags, strict=False):
                self.windows[tensor] = max(self.windows[tensor], lag)
        self._progress: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def reads(self, tensor: int) -> tuple[tuple[int, RowWindow], ...]:
        """Return the tensors that the layer of output `tensor` reads row by row.

        Returns:
            For each tensor that is read, its index and the window of rows that a step reads.
        """
        return self._reads[tensor]

    def repeats(self, tensor: int) -> bool:
        """Return whether readers see a tensor's first or last row, not a fill value, beyond the tensor's ends."""
        return tensor in self._repeated

    def step(self, tensor: int) -> int:
        """Return the number of rows of a tensor that its layer computes at once; 1 for inputs."""
        return self._steps[tensor]

    def starts(self, event: Event) -> list[int]:
        """Return, for each tensor that an event's layer reads, the first row in the line buffer that the layer uses.

        A line buffer holds the newest rows of a tensor.
        """
        return [self.windows[t] - lag for (t, _), lag in zip(self.reads(event.tensor), event.lags, strict=True)]

    def progress(self, result: int, source: int) -> list[tuple[int, int]]:
        """Return how many rows of a result and of a source are finished at each event that computes rows of the result.

        Events after the last row of the source are left out.

        Args:
            result: Index of the output tensor.
            source: Index of the input tensor.

        Returns:
            Pairs (rows of the result, rows of the source).
        """
        if (result, source) not in self._progress:
            got, put, row_counts = 0, 0, []
            for tensor, is_row, _ in self.events:
                got += tensor == source and is_row
                if tensor == result:
                    put += is_row * self._steps[result]
                    if got < self._heights[source]:
                        row_counts.append((put, got))
            self._progress[result, source] = row_counts
        return self._progress[result, source]

    def _leave_out_unread(self) -> None:
        """Drop events for rows outside of tensors that no later event reads."""
        last = {t: i for i, event in enumerate(self.events) if event.is_row for t, _ in self._reads[event.tensor]}
        self.events = [e for i, e in enumerate(self.events) if e.is_row or i < last.get(e.tensor, -1)]

    @cached_property
    def read_before_made(self) -> frozenset[int]:
        """Return the tensors whose padding above the first row is read before that row is computed, by index.

        The line buffers of these tensors must hold the padding value from the start.
        """
        begun: set[int] = set()
        early_reads: set[int] = set()
        for event in self.events:
            if event.is_row:
                early_reads |= {tensor for tensor, _ in self._reads[event.tensor]} - begun
            begun.add(event.tensor)
        return frozenset(early_reads)

    @cached_property
    def cases(self) -> list[Event]:
        """Return the distinct events of the schedule (rows computed or filled), in order of first appearance.

        Each of them becomes a case of the `switch` statement in C that executes the schedule.
        """
        return list(dict.fromkeys(self.events))

    @cached_property
    def most_cases(self) -> int:
        """Return the largest number of C cases that any one layer needs for its different windows (see `cases`).

        A layer needs one case for each distance between its windows and the newest rows of its inputs.
        """
        return max(Counter(case.tensor for case in self.cases if case.is_row).values())

    def _make(self, tensor: int) -> None:
        """Schedule the next rows of a tensor, and before them the rows that they need.

        Behind the last row the schedule continues, to keep the order of reads.
        """
        scheduled_rows, reads = self._made, self._reads[tensor]
        step = scheduled_rows[tensor] // self._steps[tensor]
        for read, window in reads:
            needed = step * window.stride - window.before + window.span
            while scheduled_rows[read] < needed:
                self._make(read)
        is_row = scheduled_rows[tensor] < self._heights[tensor]
        lags = tuple([scheduled_rows[t] - step * w.stride + w.before for t, w in reads]) if is_row else ()
        self.events.append(Event(tensor, is_row, lags))
        if not scheduled_rows[tensor] and tensor in self._repeated:
            above = max(w.before for layer in self._reads for t, w in layer if t == tensor)
            self.events += [Event(tensor, False)] * above
        scheduled_rows[tensor] += self._steps[tensor]


_schedule = lru_cache(maxsize=4096)(Schedule)
"""Several ways to group a graph have many groups in common, and a schedule is most of the work of making one."""


class Streamed(Operator):
    """A group of layers that is computed row by row, with line buffers between the layers.

    Attributes:
        layers: The layers in order.
        tensors: The rows of each tensor: the inputs that are read row by row (sources), then each layer's output.
        results: Indices of the tensors that are outputs.
        outputs: Types of the whole outputs.
        from_caller: Whether the first input is an input of the model whose rows the caller hands over one by one.
        wholes: Positions, among all values that the layers read, of those read as a whole; these are the last inputs.
    """

    mnemonic: ClassVar[str] = "streamed"
    layers: tuple[Layer, ...] = field(repr=False)
    tensors: tuple[Rows, ...] = field(repr=False)
    results: tuple[int, ...] = field(repr=False)
    outputs: tuple[TensorType, ...] = field(repr=False)
    from_caller: bool = False
    wholes: tuple[int, ...] = ()

    def ordered(self, read: Sequence[Value]) -> list[Value]:
        """Return the values that the layers read from other nodes, in the order of the group's inputs.

        Args:
            read: The values in the order in which the layers read them.

        Returns:
            The values that are read row by row, then those that are read as a whole tensor.
        """
        rows = [value for i, value in enumerate(read) if i not in self.wholes]
        return [*rows, *(read[i] for i in self.wholes)]

    @property
    def sources(self) -> int:
        """Return the number of inputs that are read row by row."""
        return len(self.tensors) - len(self.layers)

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return, for each layer of the group, the graph that computes the layer's next rows."""
        return tuple(layer.body for layer in self.layers)

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return, for each layer of the group, how many times its graph runs in one inference."""
        rows = zip(self.tensors[self.sources :], self.layers, strict=True)
        return tuple(tensor.height // layer.rows for tensor, layer in rows)

    @property
    def adds(self) -> bool:
        """Return whether the last layer adds rows up to sums by channel, for a mean, instead of returning rows."""
        return self.layers[-1].adds

    @cached_property
    def schedule(self) -> Schedule:
        """Return the order in which the layers of the group read and compute rows."""
        paces = tuple(RowDependencies(layer.reads, layer.rows) for layer in self.layers)
        return _schedule(tuple(t.height for t in self.tensors), paces, self.sources, self.results)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the whole outputs."""
        for x, rows in zip(inputs, self.tensors, strict=False):
            same = x is not None and band_type(x, rows.axis, 1).shape == rows.row.shape
            if x is None or not same or x.shape[rows.axis] != rows.height:
                raise ModelError("streamed: inputs must have the rows that the layers expect", str(x), "repair it")
        return self.outputs

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of all layers of the group for all rows."""
        return sum(
            times * node.op.macs(node.sig)
            for times, body in zip(self.repeats, self.bodies, strict=True)
            for node in body.nodes
        )

    def fill(self, tensor: int) -> float:
        """Return the value of a tensor's padding: rows outside of the tensor, and padding columns."""
        return next((w.fill for layer in self.layers for t, w in layer.reads if t == tensor and w.leaves), 0)

    # -------------------------------------------------------------------------------------------- reference

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs row by row in the order of the schedule, with line buffers as in the generated code."""
        windows = [
            np.full(band_type(t.in_memory, t.axis, n).shape, self.fill(i), t.row.dtype.numpy)
            for i, (t, n) in enumerate(zip(self.tensors, self.schedule.windows, strict=True))
        ]
        sums = np.zeros(self.outputs[-1].shape, self.outputs[-1].dtype.numpy)
        computed_rows: list[list[Array]] = [[] for _ in self.tensors]
        for event in self.schedule.events:
            tensor, rows, step = event.tensor, self.tensors[event.tensor], self.schedule.step(event.tensor)
            new = np.full(band_type(rows.row, rows.axis, step).shape, self.fill(tensor), windows[tensor].dtype)
            if event.is_row and tensor < self.sources:
                new = arrays[tensor].take([len(computed_rows[tensor])], rows.axis)
            elif not event.is_row and self.schedule.repeats(tensor):
                new = windows[tensor].take([-1], rows.axis)
            elif event.is_row:
                layer, bands = self.layers[tensor - self.sources], self._bands(event, windows)
                bands += [arrays[self.sources + i] for i in layer.wholes]
                if layer.adds:
                    (sums,) = run(layer.body, [*bands, sums])
                    continue
                (new,) = run(layer.body, bands)
            newest = rows.padded(new, self.fill(tensor))
            windows[tensor] = np.concatenate([windows[tensor], newest], rows.axis).take(
                range(step, self.schedule.windows[tensor] + step), rows.axis
            )
            if event.is_row:
                computed_rows[tensor].append(new)
        return (
            (sums,)
            if self.adds
            else tuple(np.concatenate(computed_rows[t], self.tensors[t].axis) for t in self.results)
        )

    def _bands(self, event: Event, windows: Sequence[Array]) -> list[Array]:
        """Return the rows that a layer reads in this event."""
        bands = []
        for (tensor, window), start in zip(self.schedule.reads(event.tensor), self.schedule.starts(event), strict=True):
            band = windows[tensor].take(range(start, start + window.span), window.axis)
            rows = self.tensors[tensor]
            if rows.sides != window.sides:
                first = rows.sides[0] - window.sides[0]
                band = band.take(range(first, first + rows.row.shape[rows.axis + 1] + sum(window.sides)), rows.axis + 1)
            bands.append(band)
        return bands

    # --------------------------------------------------------------------------------------------- lowering

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the schedule: in each turn, the next rows of one tensor are computed or filled."""
        with builder.one_layer():
            _Lowering(self, node, builder).emit()

    def lead(self, result: int, source: int) -> int | None:
        """Return how many bytes an output must at least begin before an input with which it shares memory.

        Rows of the output then overwrite only rows of the input that are no longer needed.

        Args:
            result: Index of the output's tensor.
            source: Index of the input's tensor.

        Returns:
            The lead in bytes; None if both must not overlap.
        """
        first, last = self.tensors[source], self.tensors[result]
        if self.adds or not first.is_contiguous or (self.from_caller and source == 0):
            return None
        steps = [(put * last.nbytes, got * first.nbytes) for put, got in self.schedule.progress(result, source)]
        return min_lead_bytes(steps or [(0, 0)])


class _Lowering:
    """The instructions of one group."""

    def __init__(self, op: Streamed, node: Node, builder: Builder) -> None:
        self.op, self.node, self.builder = op, node, builder
        self.schedule = op.schedule
        self.name = node.outputs[0].name
        self.sources = [builder.buffer(node.input(i)) for i in range(op.sources)]
        self.results = {t: builder.buffer(v) for t, v in zip(op.results, node.outputs, strict=True)}
        read = {t for layer in op.layers for t, _ in layer.reads}
        self.windows = [
            self._scratch(f"rows{i}", t.in_memory, n) if i in read else None
            for i, (t, n) in enumerate(zip(op.tensors, self.schedule.windows, strict=True))
        ]
        counted = [*range(op.sources), *(() if op.adds else op.results)]
        self.next = {t: builder.scratch(f"{self.name}.next{t}", DType.INT32, 1) for t in counted}

    def emit(self) -> None:
        """Windows as they are at first, then the loop."""
        builder, cases = self.builder, self.schedule.cases
        for tensor, window in enumerate(self.windows):
            if window is not None and (not self._is_replaced(tensor) or tensor in self.schedule.read_before_made):
                self._fill(window, 0, self.schedule.windows[tensor], tensor)
        for counter in self.next.values():
            self._zero(counter)
        if self.op.adds:
            self._zero(self.results[self.op.results[0]])
        events = [cases.index(event) for event in self.schedule.events]
        ends, overlaps = self._ends()
        builder.mark(self.node, Control.STREAM, ends, events=events, overlaps=overlaps)
        for number, event in enumerate(cases):
            builder.mark(self.node, Control.CASE, case=number)
            if event.is_row:
                self._rows(event)
            else:
                self._outside(event.tensor)
            builder.mark(self.node, Control.END)
        builder.mark(self.node, Control.END)

    def _ends(self) -> tuple[list[tuple[str, Access, Buffer]], list[Overlap]]:
        """Return the operands of the marker instruction, and how results may overlap sources."""
        access = Access.INOUT if self.op.adds else Access.OUT
        x = {t: f"x{t or ''}" for t in range(self.op.from_caller, self.op.sources)}
        y = {t: f"y{i or ''}" for i, t in enumerate(self.op.results)}
        ends = [(role, Access.IN, self.sources[t]) for t, role in x.items()]
        ends += [(role, access, self.results[t]) for t, role in y.items()]
        leads = ((y[result], x[source], self.op.lead(result, source)) for result in y for source in x)
        return ends, [Overlap(out, into, lead) for out, into, lead in leads if lead is not None]

    def _rows(self, event: Event) -> None:
        if event.tensor >= self.op.sources:
            self._compute(event)
            return
        tensor = event.tensor
        self._shift(tensor)
        row, rows, counter = self._next(tensor), self.op.tensors[tensor], self.next[tensor]
        if self.op.from_caller and tensor == 0:
            self.builder.read_rows(self.node, self.node.input(0), counter, row, 1, rows.axis)
        else:
            self._copy(STREAM_GET, {"x": self.sources[tensor], "next": counter, "y": row}, rows)
        self._push(row, tensor)

    def _compute(self, event: Event) -> None:
        """Emit the next rows of a layer's output, or the sums with one more row."""
        builder, tensor = self.builder, event.tensor
        layer = self.op.layers[tensor - self.op.sources]
        is_read = self.windows[tensor] is not None
        builder.forget(v for node in layer.body.nodes for v in node.outputs)  # another case may have computed them
        if is_read:
            self._shift(tensor)
        for (read, rows), formal, start in zip(
            layer.reads, layer.body.inputs, self.schedule.starts(event), strict=False
        ):
            window, whole = self._window(read), self.op.tensors[read]
            builder.forget([formal])
            if window.count == formal.type.count:
                builder.bind(formal, window)
            else:
                at = start * whole.pitch + whole.margin(rows.sides)
                builder.move(self.node, window, builder.buffer(formal), "rows", part=CopyRange(at))
        for number, formal in zip(layer.wholes, layer.body.inputs[len(layer.reads) :], strict=False):
            builder.bind(formal, builder.buffer(self.node.input(self.op.sources + number)))
        (result,) = layer.body.outputs
        if layer.adds:
            builder.bind(layer.body.inputs[-1], self.results[tensor])
            builder.bind(result, self.results[tensor])
        elif is_read and self._is_replaced(tensor):
            builder.bind(result, self._window(tensor))
        lower_nodes(layer.body, builder)
        if layer.adds:
            return
        if is_read:
            self._push(builder.buffer(result), tensor)
        if tensor in self.results:
            ends = {"x": builder.buffer(result), "next": self.next[tensor], "y": self.results[tensor]}
            self._copy(STREAM_PUT, ends, self.op.tensors[tensor], layer.rows)

    def _copy(self, kernel: Kernel, operands: Mapping[str, Buffer], rows: Rows, count: int = 1) -> None:
        """Emit a copy of some rows."""
        params = RowsParams(rows=count, bytes=rows.nbytes)
        self.builder.call(self.node, Call(kernel, operands, [params], variant=rows.row.dtype.tag))

    # ------------------------------------------------------------------------------------------- windows

    def _scratch(self, role: str, row: TensorType, number: int) -> Buffer:
        return self.builder.scratch(f"{self.name}.{role}", row.dtype, row.count * number)

    def _window(self, tensor: int) -> Buffer:
        window = self.windows[tensor]
        assert window is not None
        return window

    def _is_replaced(self, tensor: int) -> bool:
        """Return whether each step overwrites the whole line buffer of a tensor."""
        return self.schedule.windows[tensor] == self.schedule.step(tensor) and not any(self.op.tensors[tensor].sides)

    def _next(self, tensor: int) -> Buffer:
        """Return the buffer that the next row of a source is read into: its row buffer if that holds one row."""
        if self._is_replaced(tensor):
            return self._window(tensor)
        return self._scratch(f"row{tensor}", self.op.tensors[tensor].row, 1)

    def _push(self, new_rows: Buffer, tensor: int) -> None:
        """Append rows to their row buffer, unless they were computed there."""
        if new_rows is self._window(tensor):
            return
        rows, step = self.op.tensors[tensor], self.schedule.step(tensor)
        first = self.schedule.windows[tensor] - step
        if not any(rows.sides):
            self.builder.move(self.node, new_rows, self._window(tensor), "row", part=CopyRange(0, first * rows.pitch))
            return
        for row in range(step):
            at = (first + row) * rows.pitch + rows.margin()
            part = CopyRange(row * rows.nbytes, at, rows.nbytes)
            self.builder.move(self.node, new_rows, self._window(tensor), "row", part=part)

    def _shift(self, tensor: int) -> None:
        """Drop the oldest rows."""
        if not self._is_replaced(tensor) and self.schedule.windows[tensor] > self.schedule.step(tensor):
            window = self._window(tensor)
            params = ShiftParams(
                total_bytes=window.nbytes, shift_bytes=self.op.tensors[tensor].pitch * self.schedule.step(tensor)
            )
            self.builder.call(self.node, Call(SHIFT_ROWS, {"x": window}, [params]))

    def _outside(self, tensor: int) -> None:
        """Append rows outside the tensor to its line buffer: filled rows, or the newest row once more.

        After the shift, the newest row still stands in the last place, so that it is repeated.
        """
        self._shift(tensor)
        if not self.schedule.repeats(tensor):
            step = self.schedule.step(tensor)
            self._fill(self._window(tensor), self.schedule.windows[tensor] - step, step, tensor)

    def _fill(self, window: Buffer, first: int, rows: int, tensor: int) -> None:
        """Fill `rows` rows of a line buffer from row `first` on with the padding value."""
        count, fill = self.op.tensors[tensor].in_memory.count, self.op.fill(tensor)
        value = float(fill) if self.op.tensors[tensor].row.dtype.is_float else int(fill)
        params = FillParams(first_element=first * count, count=rows * count, fill_value=value)
        access = Access.OUT if rows == self.schedule.windows[tensor] else Access.INOUT
        self._fill_with(window, params, access)

    def _zero(self, buffer: Buffer) -> None:
        self._fill_with(buffer, FillParams(first_element=0, count=buffer.count, fill_value=0), Access.OUT)

    def _fill_with(self, buffer: Buffer, params: FillParams, access: Access) -> None:
        call = Call(FILL_ROWS, {"y": buffer}, [params], access={"y": access}, variant=buffer.dtype.tag)
        self.builder.call(self.node, call)
