# SPDX-License-Identifier: Apache-2.0
"""Selection of layers that are computed row by row as one group, with line buffers between them (mcugen.ops.stream)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import RowForm, RowWindow
from mcugen.hir.traits import row_form
from mcugen.hir.types import TensorType
from mcugen.ops.stream import Layer, Rows, Streamed, band_type


@dataclass(frozen=True, eq=False)
class _Unit:
    """Nodes computed in one go: what only the next one reads, row for row, is a row of no window."""

    nodes: tuple[tuple[Node, RowForm], ...]
    reads: tuple[tuple[Value, RowWindow], ...]
    wholes: tuple[Value, ...]
    """Tensors of which each row takes all."""

    @property
    def output(self) -> Value:
        return self.nodes[-1][0].output

    @property
    def form(self) -> RowForm:
        return self.nodes[-1][1]

    @cached_property
    def body(self) -> Graph:
        """A graph of its own. Each read is an input, then what is read as a whole; sums come last."""
        body = Graph(self.output.name)
        windows = iter([(v, body.add_input(v.name, _band(v, window))) for v, window in self.reads])
        inner_values: dict[Value, Value] = {value: body.add_input(value.name, value.type) for value in self.wholes}
        for node, form in self.nodes:
            inputs: list[Value | None] = []
            for value in node.inputs:
                if value is None:
                    inputs.append(None)
                elif value.data is not None:
                    inputs.append(body.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value]))
                elif value in inner_values:
                    inputs.append(inner_values[value])
                else:
                    read, formal = next(windows)
                    assert read is value
                    inputs.append(formal)
            types = [band_type(node.output.type, form.axis, form.rows)]
            if form.finish:
                types = list(form.op.infer(*(v.type if v else None for v in inputs)))
                inputs.append(body.add_input(f"{node.output.name}.sums", types[0]))
            inner_values[node.output] = body.add(
                form.op, inputs, node.origin, names=[node.output.name], types=types
            ).output
        body.add_output(self.output.name, inner_values[self.output])
        return body


MAX_WINDOW_CASES = 4
"""Largest number of cases of one layer in a row-by-row group; a group with a layer of more cases is not formed.

A case is a distance between the layer's windows and the newest rows of its inputs; each case has its own calls in C.
"""

MAX_GROUP_ENDS = 3
"""Largest number of inputs, and of outputs, of a group of layers that is computed row by row."""


def group_of(
    nodes: Sequence[Node], kept: Collection[Value] = (), *, is_narrow: bool = False, pairs: Collection[str] = ()
) -> Streamed | None:
    """Return the group that computes consecutive nodes row by row (line-buffer fusion); None if they cannot form one.

    Args:
        nodes: The nodes, in order.
        kept: Values that must be outputs of the group although no other node reads them.
        is_narrow: Whether rows have no padding columns in memory.
        pairs: Names of outputs that are computed two rows at a time if possible.
    """
    return RowGroups(nodes, kept, is_narrow=is_narrow, pairs=pairs).group(0, len(nodes))


def two_rows_per_step(form: RowForm, output: TensorType) -> RowForm:
    """Return how to compute a layer row by row (for line-buffer fusion) with twice as many rows per step.

    Args:
        form: How the layer is computed row by row.
        output: Type of the layer's output.

    Returns:
        The new description. It is `form` itself if the layer cannot compute more rows at once, or if the number of
        output rows is no multiple of the larger step.
    """
    if not form.extends or output.shape[form.axis] % (2 * form.rows):
        return form
    windows = [w and replace(w, span=w.span + w.stride, stride=2 * w.stride) for w in form.windows]
    return replace(form, windows=tuple(windows), rows=2 * form.rows)


def ends_of(nodes: Sequence[Node], kept: Collection[Value]) -> tuple[list[Value], list[Value]]:
    """Return the inputs and the outputs of a set of nodes, seen as one node.

    Inputs are the values that the nodes read but do not compute. Outputs are the values that other nodes read or that
    are in `kept`.
    """
    produced = dict.fromkeys(v for node in nodes for v in node.outputs)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and not v.is_constant)
    inside = set(nodes)
    return [v for v in read if v not in produced], [v for v in produced if v in kept or not inside.issuperset(v.users)]


class RowGroups:
    """Finder of groups of consecutive nodes that can be computed together row by row (line-buffer fusion).

    The inputs of a group are the values that its nodes read from other nodes. Its outputs are the values that other
    nodes read, or that are in `kept`. All readers of a tensor must pad it with the same values. A tensor that is read
    as a whole must be computed before the group. With `is_narrow`, rows have no padding columns in memory. Outputs
    whose names are in `pairs` are computed two rows per step if their number of rows allows that.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        kept: Collection[Value] = (),
        *,
        is_narrow: bool = False,
        pairs: Collection[str] = (),
    ) -> None:
        self._nodes = list(nodes)
        self._kept = frozenset(kept)
        self._is_narrow = is_narrow
        self.pairs = frozenset(pairs)
        self._units: dict[int, list[dict[Value, _Unit] | None]] = {}
        self._known: dict[tuple[Node, ...], _Unit] = {}
        self._rows: dict[tuple[Value, int, tuple[int, int]], Rows] = {}

    @cached_property
    def forms(self) -> list[RowForm | None]:
        """Return, for each node, how to compute it row by row; None for nodes for which that is impossible."""
        return [self._form(node) for node in self._nodes]

    def _form(self, node: Node) -> RowForm | None:
        form = row_form(node.op, node.sig, is_narrow=self._is_narrow)
        return (
            two_rows_per_step(form, node.output.type) if form is not None and node.output.name in self.pairs else form
        )

    def group(self, first: int, end: int) -> Streamed | None:
        """Return the operator that computes the nodes number `first` to before `end` row by row; None if impossible."""
        forms, units = self.forms[first:end], self._units_of(first, end)
        if units is None or any(f is None or (f.finish and f is not forms[-1]) for f in forms):
            return None
        read, results = ends_of(self._nodes[first:end], self._kept)
        wholes = list(dict.fromkeys(v for unit in units.values() for v in unit.wholes))
        axes = {value: window.axis for unit in units.values() for value, window in unit.reads}
        sources = [v for v in read if v in axes]
        if not 0 < len(sources) <= MAX_GROUP_ENDS or not 0 < len(results) <= MAX_GROUP_ENDS:
            return None
        if any(v in axes or v not in read for v in wholes):
            return None
        if any(axes[v] != w.axis for u in units.values() for v, w in u.reads):
            return None
        if any(axes[v] != u.form.axis for v, u in units.items() if v in axes):
            return None
        if forms[-1] is not None and forms[-1].finish and results != [self._nodes[end - 1].output]:
            return None
        return self._streamed(units, axes, read, sources, wholes, results)

    def _units_of(self, first: int, end: int) -> dict[Value, _Unit] | None:
        """Return the units of a group by their results; None if some node cannot be in a unit."""
        prefix_units = self._units.setdefault(first, [{}])
        while len(prefix_units) <= end - first:
            number, before = first + len(prefix_units) - 1, prefix_units[-1]
            form, node = self.forms[number], self._nodes[number]
            units = None if before is None else dict(before)
            unit = None if units is None or form is None or len(node.outputs) != 1 else self._unit(node, form, units)
            if units is not None and unit is not None:
                units[node.output] = unit
                prefix_units.append(units)
            else:
                prefix_units.append(None)
        return prefix_units[end - first]

    def _unit(self, node: Node, form: RowForm, units: dict[Value, _Unit]) -> _Unit | None:
        """Return the unit of a node and the chain of nodes before it whose rows only it reads."""
        unit = _Unit(((node, form),), (), ())
        for value, window in zip(node.inputs, form.windows, strict=True):
            if value is None or window is None:
                if value is not None and not value.is_constant and value not in unit.wholes:
                    unit = replace(unit, wholes=(*unit.wholes, value))
            elif value.is_constant:
                return None
            elif self._goes_on(value, window, units):
                before = units.pop(value)
                wholes = tuple(dict.fromkeys((*before.wholes, *unit.wholes)))
                unit = _Unit((*before.nodes, *unit.nodes), (*before.reads, *unit.reads), wholes)
            else:
                unit = replace(unit, reads=(*unit.reads, (value, window)))
        return self._known.setdefault(tuple(node for node, _ in unit.nodes), unit)

    def _goes_on(self, value: Value, window: RowWindow, units: Mapping[Value, _Unit]) -> bool:
        """Return whether a unit makes the rows that are read, one by one, and nobody else reads them."""
        if value not in units or len(value.uses) > 1 or value in self._kept:
            return False
        form = units[value].form
        return window == RowWindow(form.axis, span=form.rows, stride=form.rows, fill=window.fill)

    def _streamed(
        self,
        units: Mapping[Value, _Unit],
        axes: Mapping[Value, int],
        read: Sequence[Value],
        sources: Sequence[Value],
        wholes: Sequence[Value],
        results: Sequence[Value],
    ) -> Streamed | None:
        """Return the group of these units, if all of them agree on rows."""
        places = {value: place for place, value in enumerate((*sources, *units))}
        windows: list[list[RowWindow]] = [[] for _ in places]
        for unit in units.values():
            for value, window in unit.reads:
                windows[places[value]].append(window)
        rows = [
            self._rows_of(v, readers, axes[v] if v in axes else units[v].form.axis)
            for v, readers in zip(places, windows, strict=True)
        ]
        outputs, last = tuple(v.type for v in results), list(units.values())[-1]
        if last.form.finish:
            (node, form), outputs = last.nodes[-1], (last.body.outputs[0].type,)
            added = form.windows[0]
            assert added is not None
            rows[-1] = Rows(node.input(0).type.shape[added.axis], added.axis, outputs[0])
        tensors = tuple(r for r in rows if r)
        if len(tensors) < len(rows) or min(t.height for t in tensors) < 2:
            return None
        paces = [unit.form.rows for unit in units.values()]
        if any(t.height % step for t, step in zip(tensors[len(sources) :], paces, strict=True)):
            return None
        if not all(map(_agree, windows, [1] * len(sources) + paces)):
            return None
        layers = tuple(
            Layer(
                unit.body,
                tuple((places[value], window) for value, window in unit.reads),
                unit.form.finish is not None,
                unit.form.rows,
                tuple(wholes.index(v) for v in unit.wholes),
            )
            for unit in units.values()
        )
        whole_inputs = tuple(read.index(v) for v in wholes)
        op = Streamed(layers, tensors, tuple(places[v] for v in results), outputs, wholes=whole_inputs)
        return op if op.schedule.most_cases <= MAX_WINDOW_CASES else None

    def _rows_of(self, value: Value, readers: Sequence[RowWindow], axis: int) -> Rows | None:
        """Return the rows of a tensor with the side columns that its readers need.

        Readers of several rows at once need the rows as they lie in memory.
        """
        sides = max((w.sides[0] for w in readers), default=0), max((w.sides[1] for w in readers), default=0)
        if any(w.span > 1 and w.sides != sides for w in readers):
            return None
        if (value, axis, sides) not in self._rows:
            self._rows[value, axis, sides] = Rows.of(value.type, axis, sides)
        return self._rows[value, axis, sides]


def _band(value: Value, window: RowWindow) -> TensorType:
    return band_type(value.type, window.axis, window.span, window.sides)


def _agree(readers: Sequence[RowWindow], step: int) -> bool:
    """Return whether all layers that read beyond a tensor's ends expect the same values there.

    Rows that are computed several per step cannot be repeated.
    """
    outside = {(w.fill, w.repeats) for w in readers if w.leaves}
    return len(outside) < 2 and not (step > 1 and any(w.repeats for w in readers))
