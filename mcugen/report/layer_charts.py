# SPDX-License-Identifier: Apache-2.0
"""A report's charts: its layers, its arena over time, its flash, where errors come from, which classes are confused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mcugen.report.charts import FAINT, Chart, chart
from mcugen.report.figures import Layer, LearningFigures, Report, layer_title
from mcugen.report.memory import KINDS
from mcugen.report.two_cores import TwoCores

MEASURES = ("cycles", "instructions", "MACs", "weights, bytes", "RAM, bytes", "microjoules")
"""What bars of layers may show, the first that is known at first."""

ORDERS = ("of the network", "the largest first")

KIND_COLORS = {"input": "#3b82c4", "output": "#d97706", "activation": "#2f9e6e", "scratch": "#a855c7"}

LONGEST = 60
"""Characters of a name in a chart."""


def charts_of(report: Report) -> dict[str, Chart]:
    """By the place in the page; what is not known has no chart."""
    found = {"layers": _layers(report), "flash": _flash(report)} if report.layers else {}
    if report.buffers:
        found["memory"] = _memory(report)
    if report.quantization is not None and any(layer.cosine is not None for layer in report.quantization.layers):
        found["sqnr"] = _errors(report)
    if report.samples is not None and report.samples.confusion is not None:
        found["confusion"] = _confusion(report.samples.confusion)
    if report.learning is not None:
        found["learning"] = _learning(report.learning)
    if report.two_cores is not None:
        found["cores"] = _cores(report.two_cores, report.layers)
    return found


def _name(index: int, layer: Layer) -> str:
    return f"{index} {layer_title(layer.name, layer.origin)}"[:LONGEST]


def _parts(layer: Layer) -> list[tuple[str, str, float | None]]:
    """Measure, part of it, and value."""
    stalls = layer.stalls or []
    waits = sum(stall.cycles for stall in stalls)
    work = None if layer.cycles_estimate is None else layer.cycles_estimate - waits
    return [
        ("cycles", "work", work),
        *(("cycles", f"waits for {stall.memory}", stall.cycles) for stall in stalls),
        ("instructions", "instructions", layer.instructions),
        ("MACs", "MACs", layer.macs),
        ("weights, bytes", "weights", layer.flash),
        ("RAM, bytes", "RAM", layer.ram),
        ("microjoules", "energy", layer.microjoules_estimate),
    ]


def _layers(report: Report) -> Chart:
    """Bars, a layer each; what they show, and in which order, is chosen above them."""
    rows: list[dict[str, Any]] = [
        {
            "index": index,
            "layer": _name(index, layer),
            "kernel": layer.kernel,
            "measure": measure,
            "part": part,
            "value": value,
        }
        for index, layer in enumerate(report.layers)
        for measure, part, value in _parts(layer)
        if value is not None
    ]
    known = [measure for measure in MEASURES if any(row["measure"] == measure for row in rows)]
    params = [
        {"name": "measure", "value": known[0], "bind": {"input": "select", "options": known, "name": "bars show "}},
        {
            "name": "order",
            "value": ORDERS[0],
            "bind": {"input": "select", "options": list(ORDERS), "name": "in the order "},
        },
    ]
    spec = {
        "data": {"values": rows},
        "params": params,
        "transform": [
            {"filter": "datum.measure == measure"},
            {"joinaggregate": [{"op": "sum", "field": "value", "as": "all"}], "groupby": ["index"]},
            {"calculate": f"order == '{ORDERS[0]}' ? -datum.index : datum['all']", "as": "rank"},
        ],
        "height": 16 * len(report.layers) + 8,
        "mark": "bar",
        "encoding": {
            "y": {
                "field": "layer",
                "type": "nominal",
                "title": None,
                "sort": {"field": "rank", "op": "max", "order": "descending"},
            },
            "x": {"field": "value", "type": "quantitative", "title": None},
            "color": {"field": "part", "type": "nominal", "title": None},
            "order": {"field": "part"},
            "tooltip": [
                {"field": "layer"},
                {"field": "kernel"},
                {"field": "part"},
                {"field": "value", "format": ","},
                {"field": "all", "title": "in all", "format": ","},
            ],
        },
    }
    return chart("Layers", spec)


def _memory(report: Report) -> Chart:
    """Rectangles: layers from left to right, addresses from below."""
    rows = [
        {
            "name": buffer.name[:LONGEST],
            "kind": buffer.kind,
            "bytes": buffer.bytes,
            "offset": buffer.offset,
            "end": buffer.offset + buffer.bytes,
            "first": buffer.first,
            "behind": buffer.last + 1,
            "layers": f"{buffer.first} to {buffer.last}",
        }
        for buffer in report.buffers or []
    ]
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    scale = {"domain": kinds, "range": [KIND_COLORS[kind] for kind in kinds]}
    spec = {
        "data": {"values": rows},
        "height": 320,
        "mark": {"type": "rect", "stroke": "currentColor", "strokeWidth": 0.5, "opacity": 0.75},
        "encoding": {
            "x": {
                "field": "first",
                "type": "quantitative",
                "title": "layer",
                "axis": {"tickMinStep": 1, "format": "d"},
            },
            "x2": {"field": "behind"},
            "y": {"field": "offset", "type": "quantitative", "title": "address in the arena"},
            "y2": {"field": "end"},
            "color": {"field": "kind", "type": "nominal", "title": None, "scale": scale},
            "tooltip": [{"field": name} for name in ("name", "kind", "bytes", "offset", "layers")],
        },
    }
    return chart("The arena over time", spec)


def _flash(report: Report) -> Chart:
    """What lies in flash: weights by the kernel that reads them, and all code."""
    weights: Counter[str] = Counter()
    for layer in report.layers:
        weights[layer.kernel] += layer.flash
    rows = [{"what": kernel, "part": "weights", "bytes": nbytes} for kernel, nbytes in weights.items() if nbytes]
    if report.flash.code is not None:
        rows.append({"what": "code of all kernels", "part": "code", "bytes": report.flash.code})
    spec = {
        "data": {"values": rows},
        "height": 18 * len({row["what"] for row in rows}) + 8,
        "mark": "bar",
        "encoding": {
            "y": {"field": "what", "type": "nominal", "sort": "-x", "title": None},
            "x": {"field": "bytes", "type": "quantitative"},
            "color": {"field": "part", "type": "nominal", "title": None},
            "tooltip": [{"field": "what"}, {"field": "part"}, {"field": "bytes", "format": ","}],
        },
    }
    return chart("Flash", spec)


def _errors(report: Report) -> Chart:
    """SQNR along the network; a line where layers count as diverged."""
    comparison = report.quantization
    assert comparison is not None, "asked before"
    rows = [
        {"index": i, "layer": layer.name[:LONGEST], "sqnr": layer.sqnr_db, "clipped": layer.clipped, "op": layer.op}
        for i, layer in enumerate(comparison.layers)
        if layer.sqnr_db is not None
    ]
    along = {"field": "index", "type": "quantitative", "title": "layer", "axis": {"tickMinStep": 1}}
    quality = {"field": "sqnr", "type": "quantitative", "title": "SQNR, dB", "scale": {"zero": False, "padding": 10}}
    tooltip = [
        {"field": "layer"},
        {"field": "op"},
        {"field": "sqnr", "title": "SQNR, dB", "format": ".1f"},
        {"field": "clipped", "format": ".2%"},
    ]
    spec = {
        "height": 220,
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": {"filled": True, "size": 60}},
                "encoding": {"x": along, "y": quality, "tooltip": tooltip},
            },
            {
                "data": {"values": [{"threshold": comparison.threshold_db}]},
                "mark": {"type": "rule", "strokeDash": [4, 4], "color": "#d6455d"},
                "encoding": {"y": {"field": "threshold", "type": "quantitative"}},
            },
        ],
    }
    return chart("SQNR along the network", spec)


def _confusion(matrix: list[list[int]]) -> Chart:
    """A field for each pair of label and answer."""
    rows = [
        {"label": label, "answer": answer, "samples": count}
        for label, counts in enumerate(matrix)
        for answer, count in enumerate(counts)
    ]
    field = {"type": "ordinal"}
    text = {"field": "samples", "type": "quantitative"}
    place = {
        "x": {"field": "answer", **field, "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "label", **field},
    }
    is_dark = f"datum.samples > {max(map(max, matrix)) / 2}"
    spec = {
        "data": {"values": rows},
        "height": 22 * len(matrix),
        "encoding": place,
        "layer": [
            {
                "mark": "rect",
                "encoding": {
                    "color": {**text, "scale": {"range": ["#3b82c410", "#1f5f9e"]}, "legend": None},
                    "tooltip": [{"field": name} for name in ("label", "answer", "samples")],
                },
            },
            {
                "transform": [{"filter": "datum.samples > 0"}],
                "mark": {"type": "text", "fontSize": 10},
                "encoding": {
                    "text": text,
                    "color": {"condition": {"test": is_dark, "value": "white"}, "value": "currentColor"},
                },
            },
        ],
    }
    return chart("Confusion matrix", spec)


def _learning(learning: LearningFigures) -> Chart:
    """Accuracy along the steps."""
    spec = {
        "data": {"values": [vars(examined) for examined in learning.examinations]},
        "height": 160,
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "steps", "type": "quantitative"},
            "y": {"field": "accuracy", "type": "quantitative", "axis": {"format": "%"}, "scale": {"domain": [0, 1]}},
            "tooltip": [{"field": name} for name in ("steps", "accuracy", "loss")],
        },
    }
    return chart("Accuracy while it learns", spec)


def _cores(cores: TwoCores, layers: Sequence[Layer]) -> Chart:
    """Two rows of bars along the time: what each core computes, and where one waits."""
    rows = [
        {
            "core": f"core {span.core}",
            "begin": round(span.begin),
            "end": round(span.end),
            "layer": _name(span.layer, layers[span.layer]),
            "what": "alone" if layers[span.layer].core is None else "portion",
        }
        for span in cores.spans
    ]
    spec = {
        "data": {"values": rows},
        "height": 80,
        "mark": {"type": "bar", "stroke": FAINT},
        "encoding": {
            "y": {"field": "core", "type": "nominal", "title": None},
            "x": {"field": "begin", "type": "quantitative", "title": cores.unit},
            "x2": {"field": "end"},
            "color": {"field": "what", "type": "nominal", "title": None},
            "tooltip": [{"field": name} for name in ("layer", "core", "begin", "end")],
        },
    }
    return chart("Both cores", spec)
