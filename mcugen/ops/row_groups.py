# SPDX-License-Identifier: Apache-2.0
"""Which nodes can be a group that is computed row by row (mcugen.ops.stream), and that group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import RowForm, RowWindow
from mcugen.hir.traits import row_form
from mcugen.hir.types import TensorType
from mcugen.ops.stream import Layer, Rows, Streamed, band_type


@dataclass
class _Unit:
    """Nodes computed in one go: what only the next one reads, row for row, is a row of no window."""

    nodes: list[tuple[Node, RowForm]]
    reads: list[tuple[Value, RowWindow]]
    wholes: list[Value]
    """Tensors of which each row takes all."""

    @property
    def output(self) -> Value:
        return self.nodes[-1][0].output

    @property
    def form(self) -> RowForm:
        return self.nodes[-1][1]


MOST_CASES = 4
"""Of each layer: a case for each distance of its windows from the newest rows, each with calls of its own."""

MOST_ENDS = 3
"""Inputs of a group, and outputs."""


def group_of(nodes: Sequence[Node], kept: Collection[Value] = (), *, narrow: bool = False) -> Streamed | None:
    """The group of nodes that follow one another, or None if it cannot be; with `narrow` rows, see Rowwise.

    Its inputs are what they read of others, its outputs what others read of them, or what is `kept`. What lies outside
    of a tensor must be the same for all who read it. What is read as a whole, must be made before.
    """
    forms = [row_form(node.op, node.sig, narrow=narrow) for node in nodes]
    if any(f is None or (f.finish and f is not forms[-1]) for f in forms) or any(len(n.outputs) != 1 for n in nodes):
        return None
    read, results = ends_of(nodes, kept)
    units: dict[Value, _Unit] = {}
    for node, form in zip(nodes, forms, strict=True):
        unit = _unit(node, form, units, results) if form else None
        if unit is None:
            return None
        units[node.output] = unit
    wholes = list(dict.fromkeys(v for unit in units.values() for v in unit.wholes))
    by_rows = {v for unit in units.values() for v, _ in unit.reads}
    sources = [v for v in read if v in by_rows]
    if not 0 < len(sources) <= MOST_ENDS or not 0 < len(results) <= MOST_ENDS:
        return None
    if any(v in by_rows or v not in read for v in wholes):
        return None
    return _checked(units, read, sources, wholes, results)


def ends_of(nodes: Sequence[Node], kept: Collection[Value]) -> tuple[list[Value], list[Value]]:
    """What nodes read of others, and what others read of them or is `kept`, in order."""
    made = dict.fromkeys(v for node in nodes for v in node.outputs)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and not v.is_constant)
    inside = set(nodes)
    return [v for v in read if v not in made], [v for v in made if v in kept or not inside.issuperset(v.users)]


def _checked(
    units: Mapping[Value, _Unit],
    read: Sequence[Value],
    sources: Sequence[Value],
    wholes: Sequence[Value],
    results: Sequence[Value],
) -> Streamed | None:
    """The group of these units, if all of them agree on rows."""
    values = [*sources, *units]
    axes = {value: window.axis for unit in units.values() for value, window in unit.reads}
    if any(axes[v] != w.axis for u in units.values() for v, w in u.reads):
        return None
    if any(axes[v] != u.form.axis for v, u in units.items() if v in axes):
        return None
    finish = next((unit for unit in units.values() if unit.form.finish), None)
    if finish is not None and results != [finish.output]:
        return None
    layers = tuple(_layer(unit, values, wholes) for unit in units.values())
    windows = {v: [w for u in units.values() for x, w in u.reads if x is v] for v in values}
    rows = [_rows(v, windows[v], axes[v] if v in axes else units[v].form.axis) for v in values]
    outputs = tuple(v.type for v in results)
    if finish is not None:
        node, form = finish.nodes[-1]
        added, outputs = form.windows[0], (layers[-1].body.outputs[0].type,)
        assert added is not None
        rows[-1] = Rows(node.input(0).type.shape[added.axis], added.axis, outputs[0])
    tensors = tuple(r for r in rows if r)
    if len(tensors) < len(rows) or min(t.height for t in tensors) < 2:
        return None
    places = tuple(read.index(v) for v in wholes)
    op = Streamed(layers, tensors, tuple(values.index(v) for v in results), outputs, wholes=places)
    agree = all(_agree(op, tensor) for tensor in range(len(tensors)))
    return op if agree and _keeps_pace(op) else None


def _keeps_pace(op: Streamed) -> bool:
    """Whether rows come at a pace that few cases of each layer make."""
    if any(t.height % layer.rows for t, layer in zip(op.tensors[op.sources :], op.layers, strict=True)):
        return False
    found = Counter(case.tensor for case in op.schedule.cases if case.is_row)
    return max(found.values()) <= MOST_CASES


def _unit(node: Node, form: RowForm, units: dict[Value, _Unit], results: Sequence[Value]) -> _Unit | None:
    """The node, with those before it whose rows only it reads, one by one."""
    unit = _Unit([(node, form)], [], [])
    for value, window in zip(node.inputs, form.windows, strict=True):
        if value is None or window is None:
            if value is not None and not value.is_constant:
                unit.wholes.append(value)
        elif value.is_constant:
            return None
        elif _goes_on(value, window, units, results):
            before = units.pop(value)
            unit = _Unit([*before.nodes, *unit.nodes], [*before.reads, *unit.reads], [*before.wholes, *unit.wholes])
        else:
            unit.reads.append((value, window))
    return unit


def _goes_on(value: Value, window: RowWindow, units: Mapping[Value, _Unit], results: Sequence[Value]) -> bool:
    """Whether a unit makes the rows that are read, one by one, and nobody else reads them."""
    if value not in units or len(value.uses) > 1 or value in results:
        return False
    form = units[value].form
    return window == RowWindow(form.axis, span=form.rows, stride=form.rows, fill=window.fill)


def _layer(unit: _Unit, values: Sequence[Value], wholes: Sequence[Value]) -> Layer:
    """With a body of its own. Each read is an input, then what is read as a whole; sums come last."""
    body = Graph(unit.output.name)
    windows = iter([(v, body.add_input(v.name, _band(v, window))) for v, window in unit.reads])
    taken = list(dict.fromkeys(unit.wholes))
    made: dict[Value, Value] = {value: body.add_input(value.name, value.type) for value in taken}
    for node, form in unit.nodes:
        inputs: list[Value | None] = []
        for value in node.inputs:
            if value is None:
                inputs.append(None)
            elif value.data is not None:
                inputs.append(body.constant(value.name, value.data, value.type.quant, value.type.dtype))
            elif value in made:
                inputs.append(made[value])
            else:
                read, formal = next(windows)
                assert read is value
                inputs.append(formal)
        types = [band_type(node.output.type, form.axis, form.rows)]
        if form.finish:
            types = list(form.op.infer(*(v.type if v else None for v in inputs)))
            inputs.append(body.add_input(f"{node.output.name}.sums", types[0]))
        made[node.output] = body.add(form.op, inputs, node.origin, names=[node.output.name], types=types).output
    body.add_output(unit.output.name, made[unit.output])
    reads = tuple((values.index(value), window) for value, window in unit.reads)
    return Layer(body, reads, unit.form.finish is not None, unit.form.rows, tuple(wholes.index(v) for v in taken))


def _band(value: Value, window: RowWindow) -> TensorType:
    return band_type(value.type, window.axis, window.span, window.sides)


def _rows(value: Value, readers: Sequence[RowWindow], axis: int) -> Rows | None:
    """The rows of a tensor with the columns that its readers want at their sides.

    Who reads several rows at once must have them as they lie.
    """
    left, right = (max((w.sides[i] for w in readers), default=0) for i in range(2))
    if any(w.span > 1 and w.sides != (left, right) for w in readers):
        return None
    return Rows.of(value.type, axis, (left, right))


def _agree(op: Streamed, tensor: int) -> bool:
    """Whether all who leave a tensor find the same there; the newest row alone can be had again."""
    outside = {(w.fill, w.repeats) for layer in op.layers for t, w in layer.reads if t == tensor and w.leaves}
    return len(outside) < 2 and not (op.schedule.repeats(tensor) and op.schedule.step(tensor) > 1)
