# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML file, which loads nothing from the network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import fields

from markupsafe import Markup

from mcugen.core.packages import optional_package
from mcugen.evaluation.layers import LayerError
from mcugen.evaluation.metrics import described
from mcugen.evaluation.sample_results import SampleResult, SampleView
from mcugen.reporting.cells import TableCell, number, words
from mcugen.reporting.charts import page
from mcugen.reporting.figures import Alternative, Report, ReportedLayer, SelfTestLayer, stalled_share
from mcugen.reporting.layer_charts import charts_of
from mcugen.reporting.text import findings, title, totals

LAYER_HEADS = ("#", "layer", "kernel", "MACs", "instructions", "cycles", "waits", "weights", "RAM")
"""Column titles of the table of layers."""
ERROR_HEADS = ("#", "layer", "op", "type", "range", "method", "clipped", "weights dB", "SQNR dB", "cosine", "max error")
"""Column titles of the table of quantization errors by layer."""
ALTERNATIVE_HEADS = ("option", "RAM", "flash", "instructions")
"""Column titles of the table of alternatives."""

TESTED_HEADS = ("layer", "flips", "change a result", "found")
"""Column titles of the table with the self-test's fault coverage of each layer."""

OLD_REPORT_NOTE = "what an earlier version of mcugen did not write is missing here: make the report again to see it"
"""Note on the page of a report that an older version of mcugen wrote."""


def report_page(report: Report) -> str:
    """Return the HTML page of a report: all of the text report, charts, pictures of samples, and the basis.

    Equal reports give equal bytes.
    """
    comparison, samples = report.quantization, report.samples
    basis = [(f.name.replace("_", " "), getattr(report.basis, f.name)) for f in fields(report.basis)]
    return page(
        "report.html.j2",
        charts_of(report),
        title=title(report),
        verdict=verdict(report),
        totals=totals(report),
        layer_heads=LAYER_HEADS,
        layers=[_layer_row(i, layer) for i, layer in enumerate(report.layers)],
        reasons=[(r.name, r.kernel, r.reason) for r in report.layers if r.reason],
        alternative_heads=ALTERNATIVE_HEADS,
        alternatives=[_alternative_row(other, report.alternatives[0]) for other in report.alternatives],
        tested_heads=TESTED_HEADS,
        tested=[_tested_row(layer) for layer in report.self_test.layers] if report.self_test else [],
        error_heads=ERROR_HEADS,
        errors=[_error_row(i, layer) for i, layer in enumerate(comparison.layers)] if comparison else [],
        findings=findings(comparison) if comparison else [],
        compared=f"{comparison.samples} sample{'s' * (comparison.samples != 1)}" if comparison else "",
        wrong=[_sample(result, samples.names) for result in samples.wrong] if samples else [],
        unsure=[_sample(result, samples.names) for result in samples.unsure] if samples else [],
        farthest=[_sample(result, None) for result in samples.farthest] if samples else [],
        warnings=report.warnings,
        notes=[*report.notes, *([OLD_REPORT_NOTE] * (report.buffers is None))],
        basis=[(name, str(value)) for name, value in basis if value is not None],
        sha256=report.model.sha256,
        command=report.command,
    )


def verdict(report: Report) -> list[tuple[bool, str]]:
    """Return the main findings on memory, accuracy and time, each with whether it keeps to the limits."""
    statements: list[tuple[bool, str]] = []
    budget, deadline, accuracy = report.budget, report.deadline, report.accuracy
    limits = (
        ("RAM", report.ram.total, report.ram.arena + report.ram.state, budget.max_ram if budget else None),
        ("flash", report.flash.total, report.flash.weights, budget.max_flash if budget else None),
    )
    for what, total, lower_bound, allowed in limits:
        used = lower_bound if total is None else total
        held = sum(use.size for use in report.memories if use.kind == what.lower())
        of = f" of {held:,}" * (allowed is None and held > 0)
        room = f", of {allowed:,} allowed" if allowed is not None else ""
        statements.append(
            (allowed is None or used <= allowed, f"{'at least ' * (total is None)}{used:,}{of} bytes of {what}{room}")
        )
    if accuracy is not None:
        metric = described(accuracy.metric)
        before = "" if accuracy.float32 is None else f", {metric.show(accuracy.float32)} of {accuracy.reference}"
        samples = f"{accuracy.samples:,} sample{'s' * (accuracy.samples != 1)}"
        statements.append((True, f"{metric.title} {metric.show(accuracy.target)} on {samples}{before}"))
    if report.milliseconds_estimate is not None and report.cycles_estimate is not None:
        late = deadline is not None and report.cycles_estimate > deadline.max_cycles
        allowed_cycles = f", of {deadline.max_cycles:,} allowed" if deadline else ""
        cycles = f"about {report.milliseconds_estimate:.4g} ms ({report.cycles_estimate:,} cycles{allowed_cycles})"
        statements.append((not late, f"{cycles} a call on {report.board}"))
    else:
        statements.append((True, report.cycles_note or "time is not known: it did not run on a simulated board"))
    return statements


def _layer_row(index: int, layer: ReportedLayer) -> list[TableCell]:
    waits = stalled_share(layer.cycles_estimate, layer.stalls) if layer.stalls else None
    return [
        number(index),
        words(layer.name),
        words(layer.kernel),
        number(layer.macs),
        number(layer.instructions),
        number(layer.cycles_estimate),
        number(waits, "" if waits is None else f"{100 * waits:.1f} %"),
        number(layer.flash),
        number(layer.ram),
    ]


def _tested_row(layer: SelfTestLayer) -> list[TableCell]:
    share = f"{100 * layer.found / max(layer.significant, 1):.0f} %" * (layer.significant > 0)
    counts = (number(layer.flips), number(layer.significant), number(layer.found, f"{layer.found} {share}".strip()))
    return [words(layer.layer), *counts]


def _alternative_row(other: Alternative, present: Alternative) -> list[TableCell]:
    """Return the cells of an alternative: each figure with its difference from the present choice."""
    if other.refusal:
        return [words(other.options), words(other.refusal, is_long=True), words(""), words("")]
    pairs = (
        (other.ram, present.ram),
        (other.flash_estimate, present.flash_estimate),
        (other.instructions_estimate, present.instructions_estimate),
    )
    return [words(other.options), *(_change_cell(now, before) for now, before in pairs)]


def _change_cell(now: int | None, before: int | None) -> TableCell:
    """Return a cell with a figure, and by which share it is more than before."""
    if now is None or not before or now == before:
        return number(now)
    return number(now, f"{now:,} ({100 * (now / before - 1):+.1f} %)")


def _error_row(index: int, layer: LayerError) -> list[TableCell]:
    spread = "" if layer.low is None or layer.high is None else f"{layer.low:.3g} to {layer.high:.3g}"
    clipped = "" if layer.clipped is None else f"{100 * layer.clipped:.2f} %"
    exact = layer.cosine is not None and layer.sqnr_db is None
    return [
        number(index),
        words(layer.name),
        words(layer.op),
        words(layer.precision),
        words(spread),
        words(layer.method),
        number(layer.clipped, clipped),
        _short(layer.weights_sqnr_db, "{:.1f}"),
        TableCell("exact", 1e9) if exact else _short(layer.sqnr_db, "{:.1f}"),
        _short(layer.cosine, "{:.5f}"),
        _short(layer.max_abs_error, "{:.3g}"),
    ]


def _short(value: float | None, form: str) -> TableCell:
    return number(value, "" if value is None else form.format(value))


def _sample(result: SampleResult, names: Sequence[str] | None) -> tuple[str, str, str]:
    """Return a sample's description, its picture as a data address ("" if there is none), and the picture's class."""
    view = result.view
    shown = picture(view) if view else ""
    shape = "tall" if view and view.height > 2 * view.width else ""
    if result.predicted is None:
        return f"sample {result.index}: SQNR {result.margin:.1f} dB", shown, shape

    def title(number: int) -> str:
        return f"'{names[number]}'" if names else f"class {number}"

    label = "" if result.label is None else f", is {title(result.label)}"
    return (
        f"sample {result.index}: taken for {title(result.predicted)}{label}; margin {result.margin:.3g}",
        shown,
        shape,
    )


def picture(view: SampleView) -> Markup | str:
    """Return the picture of an evaluated sample as a PNG data URL; a signal is drawn as a curve.

    The result is "" if the sample's data are inconsistent.
    """
    with optional_package("report", "the picture of a sample"):
        from PIL import Image

    data = base64.b64decode(view.values)
    if len(data) != view.height * view.width * view.channels or view.channels not in (1, 3):
        return ""
    if view.height == 1 and view.channels == 1:
        image = Image.new("L", (view.width, 64), 255)
        for x, value in enumerate(data):
            image.putpixel((x, 63 - value * 63 // 255), 0)
    else:
        image = Image.frombytes("L" if view.channels == 1 else "RGB", (view.width, view.height), data)
    file = io.BytesIO()
    image.save(file, "PNG")
    return Markup("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
