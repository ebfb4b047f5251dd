# SPDX-License-Identifier: Apache-2.0
"""Which nodes can be a group that is computed row by row (mcugen.ops.stream), and that group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import RowForm, RowWindow
from mcugen.hir.traits import row_form
from mcugen.ops.stream import Layer, Rows, Streamed, band_type


@dataclass
class _Unit:
    """Nodes computed in one go: what only the next one reads, row for row, is a row of no window."""

    nodes: list[tuple[Node, RowForm]]
    reads: list[tuple[Value, RowWindow]]

    @property
    def output(self) -> Value:
        return self.nodes[-1][0].output

    @property
    def form(self) -> RowForm:
        return self.nodes[-1][1]


def group_of(nodes: Sequence[Node]) -> Streamed | None:
    """The group of nodes that follow one another, with one input and one output, or None if it cannot be.

    All tensors must come in rows at a fixed pace, and what lies outside of one must be the same for all who read it.
    """
    source = nodes[0].inputs[0] if nodes and nodes[0].inputs else None
    if source is None or source.is_constant:
        return None
    units: dict[Value, _Unit] = {}
    for node in nodes:
        form = row_form(node.op, node.sig)
        if form is None or len(node.outputs) != 1 or (form.finish and node is not nodes[-1]):
            return None
        unit = _unit(node, form, units)
        if unit is None or any(value is not source and value not in units for value, _ in unit.reads):
            return None
        units[node.output] = unit
    axes = {value: window.axis for unit in units.values() for value, window in unit.reads}
    values = [source, *units]
    if any(axes[v] != w.axis for u in units.values() for v, w in u.reads) or any(v not in axes for v in values[:-1]):
        return None
    if any(axes[v] != u.form.axis for v, u in units.items() if v in axes):
        return None
    layers = tuple(_layer(unit, values) for unit in units.values())
    tensors: list[Rows | None] = [
        _rows(v, [w for u in units.values() for x, w in u.reads if x is v]) for v in values[:-1]
    ]
    last, result = units[values[-1]], layers[-1].body.outputs[0].type
    if last.form.finish:
        node, form = last.nodes[-1]
        added = form.windows[0]
        assert added is not None
        tensors.append(Rows(node.input(0).type.shape[added.axis], added.axis, result))
    else:
        tensors.append(Rows.of(values[-1].type, last.form.axis))
    if any(rows is None for rows in tensors):
        return None
    op = Streamed(layers, tuple(t for t in tensors if t), result if last.form.finish else values[-1].type)
    is_one = min(t.height for t in op.tensors) > 1 and op.schedule.is_regular
    is_one = is_one and all(_agree(op, tensor) for tensor in range(len(tensors)))
    return op if is_one else None


def _unit(node: Node, form: RowForm, units: dict[Value, _Unit]) -> _Unit | None:
    """The node, with those before it whose rows only it reads, one by one."""
    unit = _Unit([(node, form)], [])
    for value, window in zip(node.inputs, form.windows, strict=True):
        if value is None or window is None:
            if value is not None and not value.is_constant:
                return None
        elif value.is_constant:
            return None
        elif value in units and len(value.uses) == 1 and window == RowWindow(units[value].form.axis, fill=window.fill):
            before = units.pop(value)
            unit = _Unit([*before.nodes, *unit.nodes], [*before.reads, *unit.reads])
        else:
            unit.reads.append((value, window))
    return unit


def _layer(unit: _Unit, values: Sequence[Value]) -> Layer:
    """With a body of its own. Each read is an input; the sums of a unit that adds come last."""
    body = Graph(unit.output.name)
    windows = iter(unit.reads)
    made: dict[Value, Value] = {}
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
                read, window = next(windows)
                assert read is value
                inputs.append(body.add_input(value.name, band_type(value.type, window.axis, window.span, window.sides)))
        types = [band_type(node.output.type, form.axis, 1)]
        if form.finish:
            types = list(form.op.infer(*(v.type if v else None for v in inputs)))
            inputs.append(body.add_input(f"{node.output.name}.sums", types[0]))
        made[node.output] = body.add(form.op, inputs, node.origin, names=[node.output.name], types=types).output
    body.add_output(unit.output.name, made[unit.output])
    reads = tuple((values.index(value), window) for value, window in unit.reads)
    return Layer(body, reads, unit.form.finish is not None)


def _rows(value: Value, readers: Sequence[RowWindow]) -> Rows | None:
    """The rows of a tensor with the columns that its readers want at their sides.

    Who reads several rows at once must have them as they lie.
    """
    left, right = (max(w.sides[i] for w in readers) for i in range(2))
    if any(w.span > 1 and w.sides != (left, right) for w in readers):
        return None
    return Rows.of(value.type, readers[0].axis, (left, right))


def _agree(op: Streamed, tensor: int) -> bool:
    fills = {w.fill for layer in op.layers for t, w in layer.reads if t == tensor and w.leaves}
    return len(fills) < 2
