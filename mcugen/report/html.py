# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from mcugen.report.drawing import draw
from mcugen.report.figures import Report, layer_title
from mcugen.report.memory import MemoryMap
from mcugen.report.pages import rendered
from mcugen.report.text import ERROR_COLUMNS, LAYER_COLUMNS, findings, title, totals


def report_page(report: Report, memory: MemoryMap) -> str:
    """All that the text says, and the memory map; equal reports give equal bytes. It is XML, too."""
    comparison = report.quantization
    return rendered(
        "report.html.j2",
        title=title(report),
        sha256=report.model.sha256,
        totals=totals(report),
        heads=[head for head, *_ in LAYER_COLUMNS],
        layers=[(layer_title(r.name, r.origin), [show(r) for *_, show in LAYER_COLUMNS]) for r in report.layers],
        drawing=draw(memory),
        comparison=comparison,
        findings=findings(comparison) if comparison else [],
        error_heads=[head for head, *_ in ERROR_COLUMNS],
        errors=[(r.name, [show(r) for *_, show in ERROR_COLUMNS]) for r in comparison.layers] if comparison else [],
    )
