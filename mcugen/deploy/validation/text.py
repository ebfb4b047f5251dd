# SPDX-License-Identifier: Apache-2.0
"""The text and HTML form of a validation report: totals, a table of layers, and differences."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcugen.core.errors import printable
from mcugen.deploy.validation.figures import CycleRange, LayerCheck, ValidationReport, Verdict
from mcugen.reporting.figures import layer_title
from mcugen.reporting.pages import render_template
from mcugen.reporting.text import MIN_WIDE_TERMINAL_COLUMNS, accuracy_rows, table_of_facts

_WORDS = {
    Verdict.EXACT: "bit-exact",
    Verdict.CLOSE: "within tolerance",
    Verdict.DIFFERENT: "different",
    Verdict.UNKNOWN: "not compared",
}

Row = tuple[str, str, str]
"""Label, value and note of one figure of the report, as texts."""

LAYER_CHECK_COLUMNS: tuple[tuple[str, bool, Callable[[LayerCheck], str]], ...] = (
    ("kernel", False, lambda layer: layer.kernel),
    ("bits", False, lambda layer: _WORDS[Verdict(layer.verdict)] if layer.verdict else ""),
    ("MACs", True, lambda layer: f"{layer.macs:,}" if layer.macs else ""),
    ("cycles", True, lambda layer: _number(layer.cycles, "")),
    ("instructions", True, lambda layer: _number(layer.instructions, "")),
    ("cycles, est.", True, lambda layer: _number(layer.cycles_estimate, "")),
    ("stack", True, lambda layer: _number(layer.stack, "")),
    ("stack, sim.", True, lambda layer: _number(layer.stack_simulated, "")),
)
"""Columns of the table of layers: heading, whether it is right-aligned, and the text that it shows for a layer."""

WIDE_CONSOLE_COLUMNS = ("kernel", "MACs", "instructions")
"""Headings of the columns of the layer table that only wide consoles show."""


def title(report: ValidationReport) -> str:
    """Return the title: model, board, CPU, precision and port."""
    return f"{report.model.name} on {report.board} ({report.cpu}), {report.precision}, by {report.wire.port}"


def totals(report: ValidationReport) -> list[Row]:
    """Return the rows of the report's total figures."""
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
        rows.append(("cycles", _number(cycles.first), f"one inference, by {cycles.counter}{_range(cycles)}"))
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
    """Return lines of text on differing weights, and on the first difference with its likely causes."""
    lines = [f"weights on the board differ: {name}" for name in report.constants_differ]
    difference = report.difference
    if difference is not None:
        lines.append(f"first difference: {difference}")
        lines += ["usual causes, the likeliest first:"] * bool(difference.causes)
        lines += [f"  {number}. {cause}" for number, cause in enumerate(difference.causes, 1)]
    return lines


def print_validation(report: ValidationReport, console: Console) -> None:
    """Print the totals, the table of layers, and the findings."""
    console.print(table_of_facts(title(report), totals(report)))
    console.print(_table(report, console.width))
    for line in findings(report):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def _table(report: ValidationReport, console_width: int) -> Table:
    table = Table(title="layers", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True, min_width=len(str(len(report.layers))))
    table.add_column("layer", overflow="ellipsis", no_wrap=True)
    known = [column for column in LAYER_CHECK_COLUMNS if any(column[2](layer) for layer in report.layers)]
    shown = [
        column
        for column in known
        if console_width >= MIN_WIDE_TERMINAL_COLUMNS or column[0] not in WIDE_CONSOLE_COLUMNS
    ]
    for head, is_right, show in shown:
        width = max(len(text) for text in (head, *map(show, report.layers)))
        table.add_column(head, justify="right" if is_right else "left", no_wrap=True, min_width=width)
    for number, layer in enumerate(report.layers):
        texts = (layer_title(layer.name, layer.origin), *(show(layer) for *_, show in shown))
        style = "bold red" if layer.verdict == Verdict.DIFFERENT else None
        table.add_row(str(number), *(escape(printable(text)) for text in texts), style=style)
    return table


def validation_page(report: ValidationReport) -> str:
    """Return the report as one HTML file, with all columns."""
    return render_template(
        "validation.html.j2",
        title=title(report),
        sha256=report.model.sha256,
        totals=totals(report),
        heads=[head for head, *_ in LAYER_CHECK_COLUMNS],
        layers=[(layer_title(r.name, r.origin), [show(r) for *_, show in LAYER_CHECK_COLUMNS]) for r in report.layers],
        findings=findings(report),
    )


def _number(value: int | None, unknown: str = "-") -> str:
    return unknown if value is None else f"{value:,}"
