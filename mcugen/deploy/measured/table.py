# SPDX-License-Identifier: Apache-2.0
"""Shared measurements beside the estimates: as a table on a terminal, in Markdown, and as an HTML page with a chart."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from mcugen.deploy.measured.contribution import SharedMeasurement
from mcugen.reporting.cells import TableCell, number, words
from mcugen.reporting.charts import Chart, chart, page
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table

NO_MEASUREMENTS = "no measurements yet: `mcugen validate --share FILE.json` writes one (docs/how-to/kits.md)"
"""Text in place of the table while there are no measurements."""

HEADS = ("board", "model", "precision", "MHz", "measured", "estimate", "difference", "compiler", "mcugen")
"""Headings of the table of measurements."""


def difference(cycles: int, estimate: int | None) -> float | None:
    """Return how much an estimate exceeds measured cycles, as a share of these; None without an estimate."""
    return None if estimate is None or not cycles else estimate / cycles - 1


def _rows(measurements: Sequence[SharedMeasurement]) -> list[list[TableCell]]:
    rows = []
    for one in measurements:
        share = difference(one.cycles, one.cycles_estimate)
        estimate = "" if one.cycles_estimate is None else f"{one.cycles_estimate:,}"
        rows.append(
            [
                words(one.board),
                words(one.sha256[:12]),
                words(one.precision),
                number(one.clock_hz, f"{one.clock_hz / 1e6:g}"),
                number(one.cycles, f"{one.cycles:,}"),
                number(one.cycles_estimate, estimate),
                number(share, "" if share is None else f"{share:+.1%}"),
                words(one.compiler),
                words(one.mcugen),
            ]
        )
    return rows


def print_measurements(measurements: Sequence[SharedMeasurement], console: Console) -> None:
    """Print the table of measurements, or that there are none yet."""
    if not measurements:
        console.print(NO_MEASUREMENTS, markup=False, highlight=False, soft_wrap=True)
        return
    texts = {"board", "model", "precision", "compiler", "mcugen"}
    columns = [TableColumn(head, CellKind.WORD if head in texts else CellKind.NUMBER) for head in HEADS]
    print_table(TextTable(columns, [tuple(c.text for c in row) for row in _rows(measurements)], "measured"), console)


def measurement_table(measurements: Sequence[SharedMeasurement]) -> str:
    """Return the table of measurements in Markdown, or a line that there are none yet."""
    if not measurements:
        return f"{NO_MEASUREMENTS[0].upper()}{NO_MEASUREMENTS[1:]}.\n"
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(c.text for c in row)} |" for row in _rows(measurements))]) + "\n"


def measurement_page(measurements: Sequence[SharedMeasurement]) -> str:
    """Return an HTML page that plots estimates against measurements; equal measurements give equal bytes."""
    boards = len({one.board for one in measurements})
    plot = _plot(measurements)
    return page(
        "measured.html.j2",
        {} if plot is None else {"plot": plot},
        title="Measured boards",
        verdict=f"Measurements: {len(measurements)}; boards: {boards}" if measurements else NO_MEASUREMENTS,
        heads=HEADS,
        rows=_rows(measurements),
    )


def _plot(measurements: Sequence[SharedMeasurement]) -> Chart | None:
    """Return estimates against measured cycles of inferences and layers on logarithmic axes; None if there are none."""
    rows = [
        {"board": one.board, "what": what, "kernel": kernel, "measured": cycles, "estimate": estimate}
        for one in measurements
        for what, kernel, cycles, estimate in (
            ("inference", "", one.cycles, one.cycles_estimate),
            *(("layer", layer.kernel, layer.cycles, layer.cycles_estimate) for layer in one.layers),
        )
        if cycles and estimate
    ]
    if not rows:
        return None
    ends = [min(row["measured"] for row in rows), max(row["measured"] for row in rows)]  # type: ignore[type-var]
    axis = {"type": "quantitative", "scale": {"type": "log"}}
    points = {
        "mark": {"type": "point", "filled": True},
        "encoding": {
            "x": {"field": "measured", "title": "measured cycles", **axis},
            "y": {"field": "estimate", "title": "estimated cycles", **axis},
            "color": {"field": "board", "type": "nominal", "title": None},
            "shape": {"field": "what", "type": "nominal", "title": None},
            "tooltip": [{"field": key} for key in ("board", "what", "kernel", "measured", "estimate")],
        },
    }
    equal = {
        "data": {"values": [{"measured": end, "estimate": end} for end in ends]},
        "mark": {"type": "line", "strokeDash": [4, 4]},
        "encoding": {"x": {"field": "measured", **axis}, "y": {"field": "estimate", **axis}},
    }
    spec = {"height": 420, "data": {"values": rows}, "layer": [equal, points]}
    return chart("Estimated against measured cycles; on the dashed line they are equal", spec)
