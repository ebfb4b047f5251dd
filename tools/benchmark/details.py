# SPDX-License-Identifier: Apache-2.0
"""Tables of one model: by CPU and goal, and layer by layer, beside what was recorded."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.figures import LayerFigures, Row, quotient
from benchmark.recorded import Study, Tflm
from benchmark.tables import Cell, Table, format_number, notes, short_cpu_name

STUDIED = "cortex-m4"
"""The CPU whose cycles were recorded, and whose layers are told most of."""

_GOAL_COLUMNS = (
    *("CPU", "goal", "instructions", "\n/MAC", "instructions\nby TFLM", "instructions\nby study"),
    *("cycles,\nestimate", "cycles\nby TFLM", "cycles\nby study", "ms"),
    *("code", "code\nby TFLM", "weights", "arena", "arena\nby TFLM", "stack", "notes"),
)


def by_goal(model: str, rows: Sequence[Row], tflm: Tflm, study: Study) -> Table:
    """Return a table with a row for each CPU and goal; ratios are mcugen's figure over the recorded one."""
    return Table(f"{model}: CPUs and goals", _GOAL_COLUMNS, [_goal(row, tflm, study) for row in rows])


def _goal(row: Row, tflm: Tflm, study: Study) -> list[Cell]:
    head: list[Cell] = [short_cpu_name(row.cpu), row.goal]
    ours, theirs = row.mcugen.figures, tflm.figures(row.model, row.cpu)
    if ours is None:
        return [*head, *("-" for _ in _GOAL_COLUMNS[3:]), notes(row)]
    recorded = study.cycles(row.model) if row.cpu == STUDIED else (None, None)
    cycles: list[Cell] = [format_number(ours.cycles), *(quotient(ours.cycles, other) for other in recorded)]
    return [
        *(*head, format_number(ours.instructions), _per_mac(ours.instructions, row.macs)),
        quotient(ours.instructions, theirs and theirs.instructions),
        quotient(ours.instructions, study.instructions(row.model, row.cpu)),
        *(*cycles, _milliseconds(ours.cycles, row.clock_hz)),
        *(format_number(ours.code), quotient(ours.code, theirs and theirs.code), format_number(ours.weights)),
        *(
            format_number(ours.arena),
            quotient(ours.arena, theirs and theirs.arena),
            format_number(ours.stack),
            row.mcugen.note,
        ),
    ]


def _per_mac(instructions: int, macs: int) -> str:
    return f"{instructions / macs:.3f}" if macs else ""


def _milliseconds(cycles: int | None, clock_hz: int) -> str:
    return "-" if cycles is None else f"{1e3 * cycles / clock_hz:.2f}"


def by_layer(model: str, rows: Sequence[Row], tflm: Tflm, study: Study) -> Table:
    """Return a table with a row for each layer and columns for each CPU, joined by the layers' names."""
    columns: list[str] = ["layer", "output", "MACs"]
    parts = [_Layers(row, tflm, study) for row in rows if row.mcugen.layers]
    for part in parts:
        columns += part.columns
    layers = {layer.name: layer for part in parts for layer in part.row.mcugen.layers}
    body = [_line(layer, parts) for layer in layers.values()]
    return Table(f"{model}: layers, {rows[0].goal}", tuple(columns), body)


def _line(layer: LayerFigures, parts: Sequence[_Layers]) -> list[Cell]:
    macs = f"{layer.macs:,}" if layer.macs else ""
    return [*_head(layer), macs, *(cell for part in parts for cell in part.cells(layer.name))]


def _head(layer: LayerFigures) -> list[Cell]:
    """Return the cells of operator and output shape."""
    return [layer.op, "x".join(map(str, layer.shape[1:]))]


_UNITS = {
    "multiply": "products",
    "float": "floating\npoint",
    "memory": "loads,\nstores",
    "shift": "unpacking,\nshifts",
    "alu": "other\narithmetic",
    "branch": "branches",
}


def by_unit(model: str, rows: Sequence[Row]) -> Table:
    """Return a table of the instructions of each layer by unit of the CPU STUDIED."""
    layers = [layer for row in rows if row.cpu == STUDIED for layer in row.mcugen.layers if layer.units]
    used = [unit for unit in _UNITS if any(layer.units.get(unit) for layer in layers)]
    columns = ("layer", "output", "instructions", *(_UNITS[unit] for unit in used))
    title = f"{model}: where the instructions go, {short_cpu_name(STUDIED)}"
    return Table(
        title, columns, [[*_head(layer), format_number(layer.instructions), *_shares(layer, used)] for layer in layers]
    )


def _shares(layer: LayerFigures, units: Sequence[str]) -> list[Cell]:
    total = sum(layer.units.values())
    return [f"{100 * layer.units.get(unit, 0) / total:.0f} %" for unit in units]


class _Layers:
    """The columns of one CPU: for STUDIED also kernel and cycles, and figures of peers where they are known."""

    def __init__(self, row: Row, tflm: Tflm, study: Study) -> None:
        self.row = row
        layers = row.mcugen.layers
        self._studied = row.cpu == STUDIED
        theirs = tflm.layers(row.model, row.cpu, layers)
        studied = [study.layer(layer, row.cpu) for layer in layers]
        self._has_tflm, self._has_study = any(theirs), any(studied)
        each = zip(layers, theirs, studied, strict=True)
        self._cells = {layer.name: self._layer(layer, *others) for layer, *others in each}

    @property
    def columns(self) -> list[str]:
        """Return the titles of the columns."""
        titles = ["kernel"] * self._studied + ["instructions"] + ["/MAC", "cycles"] * self._studied
        titles += ["by TFLM"] * self._has_tflm + ["by study"] * self._has_study
        return [f"{short_cpu_name(self.row.cpu)}\n{title}" for title in titles]

    def cells(self, name: str) -> list[Cell]:
        """Return the cells of a layer by its name; empty cells if this CPU has no such layer."""
        return self._cells.get(name, [None] * len(self.columns))

    def _layer(self, layer: LayerFigures, tflm: float | None, study: float | None) -> list[Cell]:
        retired = layer.instructions
        cells: list[Cell] = [layer.kernel] * self._studied
        cells += [format_number(retired), *[_per_mac(retired, layer.macs), format_number(layer.cycles)] * self._studied]
        return cells + [quotient(retired, tflm)] * self._has_tflm + [quotient(retired, study)] * self._has_study
