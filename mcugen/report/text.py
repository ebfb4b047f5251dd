# SPDX-License-Identifier: Apache-2.0
"""The report for people: tables on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcugen.errors import printable
from mcugen.report.accuracy import Accuracy
from mcugen.report.figures import Layer, Report


def print_report(report: Report, console: Console) -> None:
    """Totals, then one line a layer."""
    console.print(_totals(report))
    console.print(_layers(report, console.width))


def _totals(report: Report) -> Table:
    model = report.model
    table = Table(title=escape(f"{model.name} on {report.board} ({report.cpu}), {report.precision}"), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    if report.accuracy is not None:
        _add_accuracy(table, report.accuracy)
    table.add_row("MACs", _number(model.macs), f"{model.parameters:,} parameters")
    table.add_row("instructions", _number(report.instructions), "retired, one inference")
    if report.instructions_per_mac is not None:
        table.add_row("instructions/MAC", f"{report.instructions_per_mac:.3f}", "")
    flash, ram = report.flash, report.ram
    table.add_row("flash: code", _number(flash.code), "bytes, library functions included")
    table.add_row("flash: weights", _number(flash.weights), "bytes")
    table.add_row("flash: total", _number(flash.total), "bytes")
    table.add_row("RAM: arena", _number(ram.arena), "bytes: activations, scratch, inputs, outputs")
    if ram.state:
        table.add_row("RAM: state", _number(ram.state), "bytes, kept between calls")
    table.add_row("RAM: static", _number(ram.static), "bytes besides the arena")
    table.add_row("RAM: peak stack", _number(ram.stack), "bytes below the caller's frame")
    table.add_row("RAM: total", _number(ram.total), "bytes")
    return table


def _add_accuracy(table: Table, accuracy: Accuracy) -> None:
    samples = f"{accuracy.samples} sample{'s' * (accuracy.samples != 1)}"
    if accuracy.target is not None:
        table.add_row("accuracy", f"{100 * accuracy.target:.2f} %", f"top-1 on {samples}, run under simulation")
    if accuracy.float32 is not None:
        table.add_row(f"  {accuracy.reference}", f"{100 * accuracy.float32:.2f} %", "the same model and samples")
    table.add_row(
        "agreement",
        f"{100 * accuracy.agreement:.2f} %",
        f"same class as {accuracy.reference}, {samples}",
    )
    noise = "exact" if accuracy.sqnr_db is None else f"SQNR {accuracy.sqnr_db:.1f} dB"
    table.add_row("largest error", f"{accuracy.max_abs_error:.3g}", f"against {accuracy.reference}; {noise}")


def _layers(report: Report, width: int) -> Table:
    rows = [(str(i), layer.kernel, *_layer_figures(layer)) for i, layer in enumerate(report.layers)]
    heads = ("#", "kernel", "MACs", "instructions", "/MAC", "flash", "RAM")
    taken = sum(max(map(len, (head, *(row[i] for row in rows)))) + 1 for i, head in enumerate(heads))
    table = Table(title="layers", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("layer", overflow="ellipsis", no_wrap=True, max_width=max(width - taken - len(heads) - 4, 12))
    for column in heads[1:]:
        table.add_column(column, justify="left" if column == "kernel" else "right", no_wrap=True)
    for (number, *figures), layer in zip(rows, report.layers, strict=True):
        name = layer.origin[-1] if layer.origin and layer.origin[-1] else layer.name
        table.add_row(number, escape(printable(name)), *figures)
    return table


def _layer_figures(layer: Layer) -> tuple[str, ...]:
    per_mac = f"{layer.instructions / layer.macs:.2f}" if layer.instructions and layer.macs else ""
    macs = f"{layer.macs:,}" if layer.macs else ""
    return macs, _number(layer.instructions), per_mac, f"{layer.flash:,}", f"{layer.ram:,}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
