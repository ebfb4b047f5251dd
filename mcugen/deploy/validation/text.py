# SPDX-License-Identifier: Apache-2.0
"""The text and HTML form of a validation report: totals, a table of layers, and differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable
from mcugen.deploy.validation.figures import CYCLES, CycleRange, LayerCheck, ValidationReport, Verdict
from mcugen.reporting.pages import render_template
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_facts, print_table
from mcugen.reporting.text import accuracy_rows

_WORDS = {
    Verdict.EXACT: "bit-exact",
    Verdict.CLOSE: "within tolerance",
    Verdict.DIFFERENT: "different",
    Verdict.UNKNOWN: "not compared",
}

Row = tuple[str, str, str]
"""Label, value and note of one figure of the report, as texts."""

LAYER_CHECK_COLUMNS: tuple[tuple[TableColumn, Callable[[LayerCheck], str]], ...] = (
    (TableColumn("kernel", CellKind.WORD, 4), lambda layer: layer.kernel),
    (TableColumn("bits", CellKind.WORD, 1), lambda layer: _WORDS[Verdict(layer.verdict)] if layer.verdict else ""),
    (TableColumn("MACs", rank=6), lambda layer: f"{layer.macs:,}" if layer.macs else ""),
    (TableColumn(CYCLES), lambda layer: _number(layer.cycles, "")),
    (TableColumn("sim. instr.", rank=5), lambda layer: _number(layer.instructions, "")),
    (TableColumn("est. cycles", rank=2), lambda layer: _number(layer.cycles_estimate, "")),
    (TableColumn("stack", rank=1), lambda layer: _number(layer.stack, "")),
    (TableColumn("sim. stack", rank=3), lambda layer: _number(layer.stack_simulated, "")),
)
"""Columns of the table of layers, each with the text that it shows for a layer."""


def title(report: ValidationReport) -> str:
    """Return the title of a validation report: model, board, CPU, precision and port."""
    return f"{report.model.name} on {report.board} ({report.cpu}), {report.precision}, by {report.wire.port}"


def totals(report: ValidationReport) -> list[Row]:
    """Return the label, value and note of each figure of the report that is about the whole model."""
    rows = [("outputs", _WORDS[Verdict(report.outputs)], _outputs(report))]
    rows.append(("layers", _WORDS[_layers(report)], f"on {report.layer_samples} samples, beside this computer's"))
    if report.accuracy is not None:
        rows += accuracy_rows(report.accuracy, "run on the board")
    rows += _times(report)
    if report.stack is not None:
        note = "bytes below the caller's frame" + _simulated_note(report.simulated.stack if report.simulated else None)
        rows.append(("peak stack", _number(report.stack), note))
    firmware, wire = report.firmware, report.wire
    rows.append(("arena", _number(firmware.arena), "bytes"))
    rows.append(("firmware", f"mcugen {firmware.version}", f"{firmware.compiler}: {firmware.flags}"))
    spoilt = f"{wire.lost:,} lost, {wire.damaged:,} damaged, {wire.resets:,} resets"
    rows.append(("frames", _number(wire.frames), spoilt))
    sizes = f"{wire.sent:,} bytes sent, {wire.received:,} received; time on the wire at {wire.baud:,} baud"
    return [*rows, ("wire", f"{wire.seconds:,.1f} s", sizes)]


def _outputs(report: ValidationReport) -> str:
    count = f"{report.samples} sample{'s' * (report.samples != 1)}"
    return f"{report.different_samples} of {count} differ" if report.different_samples else f"of {count}"


def _layers(report: ValidationReport) -> Verdict:
    verdicts = [Verdict(layer.verdict) for layer in report.layers if layer.verdict]
    order = (Verdict.DIFFERENT, Verdict.CLOSE, Verdict.EXACT)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.UNKNOWN)


def _times(report: ValidationReport) -> list[Row]:
    cycles, simulated = report.cycles, report.simulated
    rows: list[Row] = []
    if cycles is not None:
        rows.append((cycles.unit, _number(cycles.first), f"one inference, by {cycles.counter}{_range(cycles)}"))
        if cycles.unit == CYCLES:
            rows.append(("milliseconds", f"{cycles.milliseconds:,.3f}", f"at {cycles.clock_hz / 1e6:g} MHz"))
    else:
        rows.append(("cycles", "-", "the firmware has no counter, or it was too short"))
    if simulated is not None:
        note = simulated.cycles_note
        rows.append(("  simulator", _number(simulated.instructions), "instructions, retired"))
        rows.append(("  estimate", _number(simulated.cycles_estimate), f"cycles: {note}" if note else "cycles"))
    elif report.instructions_estimate is not None:
        rows.append(("  estimate", _number(report.instructions_estimate), "instructions, by the costs of kernels"))
    return rows


def _range(cycles: CycleRange) -> str:
    return "" if cycles.least == cycles.most else f"; {cycles.least:,} to {cycles.most:,} of all samples"


def _simulated_note(simulated: int | None) -> str:
    return "" if simulated is None else f"; the simulator's: {simulated:,}"


def findings(report: ValidationReport) -> list[str]:
    """Return lines of text on constants that differ on the board, and on the first difference with likely causes."""
    lines = [f"weights on the board differ: {name}" for name in report.constants_differ]
    difference = report.difference
    if difference is not None:
        lines.append(f"first difference: {difference}")
        lines += ["usual causes, the likeliest first:"] * bool(difference.causes)
        lines += [f"  {number}. {cause}" for number, cause in enumerate(difference.causes, 1)]
    return lines


def print_validation(report: ValidationReport, console: Console, wide: bool = False) -> None:
    """Print the totals, the table of layers, and the findings.

    Args:
        report: The report.
        console: Where to print.
        wide: Whether to print all columns of tables, however wide the console is.
    """
    print_facts(title(report), totals(report), console)
    print_table(layer_check_table(report), console, wide)
    for line in findings(report):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def _columns(report: ValidationReport) -> list[tuple[TableColumn, Callable[[LayerCheck], str]]]:
    """Return LAYER_CHECK_COLUMNS with the unit that the board's counter counts."""
    unit = report.cycles.unit if report.cycles is not None else CYCLES
    return [(replace(c, head=unit) if c.head == CYCLES else c, show) for c, show in LAYER_CHECK_COLUMNS]


def layer_check_table(report: ValidationReport) -> TextTable:
    """Return the table of validated layers, without columns that have no figures."""
    known = [(column, show) for column, show in _columns(report) if any(map(show, report.layers))]
    return TextTable(
        (TableColumn("#"), TableColumn("layer", CellKind.NAME), *(column for column, _ in known)),
        [(str(i), layer.name, *(show(layer) for _, show in known)) for i, layer in enumerate(report.layers)],
        "layers",
        ["bold red" if layer.verdict == Verdict.DIFFERENT else None for layer in report.layers],
    )


def validation_page(report: ValidationReport) -> str:
    """Return the report as one HTML file, with all columns."""
    return render_template(
        "validation.html.j2",
        title=title(report),
        sha256=report.model.sha256,
        totals=totals(report),
        heads=[column.head for column, _ in _columns(report)],
        layers=[(r.name, [show(r) for _, show in LAYER_CHECK_COLUMNS]) for r in report.layers],
        findings=findings(report),
    )


def _number(value: int | None, unknown: str = "-") -> str:
    return unknown if value is None else f"{value:,}"
