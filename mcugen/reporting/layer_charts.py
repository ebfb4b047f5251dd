# SPDX-License-Identifier: Apache-2.0
"""Charts of a report: layers, arena over time, flash, sources of error, confused classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mcugen.evaluation.layers import ERROR_HISTOGRAM_BINS, LayerComparison
from mcugen.hir.layer_names import shorten_name
from mcugen.reporting.charts import FAINT, Chart, chart
from mcugen.reporting.figures import LearningFigures, Report, ReportedLayer
from mcugen.reporting.memory import BUFFER_KINDS
from mcugen.reporting.two_cores import TwoCores

MEASURES = ("cycles", "instructions", "MACs", "weights, bytes", "RAM, bytes", "microjoules")
"""Quantities that the bar chart of layers can show, in order of preference: the first known one is shown at first."""
ORDERS = ("of the network", "the largest first")
"""Orders of the bars in the chart of layers, from which the reader chooses."""
KIND_COLORS = {"input": "#3b82c4", "output": "#d97706", "activation": "#2f9e6e", "scratch": "#a855c7"}
"""Color of each kind of buffer in the chart of the arena."""
OF_NETWORK, OF_LIBRARIES = "(the network itself)", "(library functions)"
"""Names in the flash chart: code of the run function, and functions of libraries."""
OF_NOBODY, OF_ALL = "(tables and parameters)", "(code of all kernels)"
"""Names in the flash chart: data that belongs to no function, and code whose functions are unknown."""

MAX_CHART_NAME_CHARACTERS = 60
"""Largest number of characters of a name in a chart."""


def charts_of(report: Report) -> dict[str, Chart]:
    """Return the charts of a report by the name of their place in the template, without charts of unknown figures."""
    charts = {"layers": _layers(report), "flash": _flash(report)} if report.layers else {}
    if report.buffers:
        charts["memory"] = _memory(report)
    if report.quantization is not None and any(layer.cosine is not None for layer in report.quantization.layers):
        charts["sqnr"] = _errors(report)
        if any(layer.histogram for layer in report.quantization.layers):
            charts["values"] = _values(report.quantization)
    if report.samples is not None and report.samples.confusion is not None:
        charts["confusion"] = _confusion(report.samples.confusion, report.samples.names)
    if report.learning is not None:
        charts["learning"] = _learning(report.learning)
    if report.two_cores is not None:
        charts["cores"] = _cores(report.two_cores, report.layers)
    return charts


def _short(name: str) -> str:
    return shorten_name(name, MAX_CHART_NAME_CHARACTERS)


def _name(index: int, layer: ReportedLayer) -> str:
    return _short(f"{index} {layer.name}")


def _parts(layer: ReportedLayer) -> list[tuple[str, str, float | None]]:
    """Return measure, part of the measure, and value, for each bar of a layer."""
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
    """Return bars, one for each layer; the reader chooses the measure and the order above them."""
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
            "order": {"field": "part", "sort": "descending"},
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
    """Return rectangles of buffers: layers from left to right, addresses from below."""
    rows = [
        {
            "name": _short(buffer.name),
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
    kinds = [kind for kind in BUFFER_KINDS if any(row["kind"] == kind for row in rows)]
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
                "scale": {"nice": False, "zero": False},
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
    """Return bars of flash: weights and code by kernel, and code that belongs to no kernel."""
    kernels = list(dict.fromkeys(layer.kernel for layer in report.layers))
    weights = Counter[str]()
    for layer in report.layers:
        weights[layer.kernel] += layer.flash
    code = _code_by_kernel(report, kernels)
    parts = (("weights", weights), ("code", code))
    rows = [
        {"what": what, "part": part, "bytes": nbytes}
        for part, counts in parts
        for what, nbytes in counts.items()
        if nbytes > 0
    ]
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


def _code_by_kernel(report: Report, kernels: Sequence[str]) -> Counter[str]:
    """Return the bytes of code by kernel: functions count for the kernel whose name they begin with.

    Other functions count for the network, or for libraries.
    """
    code, flash, model = Counter[str](), report.flash, report.model.name
    if flash.code is None:
        return code
    for function, nbytes in (flash.functions or {}).items():
        owners = [kernel for kernel in kernels if function.startswith(kernel)]
        other = OF_NETWORK if function.startswith(model) else OF_LIBRARIES
        code[max(owners, key=len, default=other)] += nbytes
    code[OF_NOBODY if flash.functions else OF_ALL] += flash.code - sum((flash.functions or {}).values())
    return code


def _errors(report: Report) -> Chart:
    """Return the SQNR along the network, with a line at the threshold below which layers count as diverged."""
    comparison = report.quantization
    assert comparison is not None, "asked before"
    rows = [
        {
            "index": i,
            "layer": _short(layer.name),
            "sqnr": layer.sqnr_db,
            "clipped": layer.clipped,
            "op": layer.op,
        }
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


def _values(comparison: LayerComparison) -> Chart:
    """Return histograms of the layer that the reader chooses above them, the worst at first."""
    rows = [
        {
            "layer": _short(f"{index} {layer.name}"),
            "low": histogram.low,
            "width": (histogram.high - histogram.low) / ERROR_HISTOGRAM_BINS,
            "float": histogram.real,
            "integer": histogram.integer,
        }
        for index, layer in enumerate(comparison.layers)
        if (histogram := layer.histogram) is not None
    ]
    worst = next((layer.name for layer in comparison.worst_first if layer.histogram), "")
    names = [row["layer"] for row in rows]
    first = next(
        (_short(f"{i} {layer.name}") for i, layer in enumerate(comparison.layers) if layer.name == worst),
        names[0],
    )
    spec = {
        "data": {"values": rows},
        "params": [
            {"name": "shown", "value": first, "bind": {"input": "select", "options": names, "name": "values of "}}
        ],
        "transform": [
            {"filter": "datum.layer == shown"},
            {"flatten": ["float", "integer"]},
            {"window": [{"op": "row_number", "as": "bin"}]},
            {"calculate": "datum.low + (datum.bin - 1) * datum.width", "as": "from"},
            {"calculate": "datum.from + datum.width", "as": "to"},
            {"fold": ["float", "integer"], "as": ["model", "elements"]},
        ],
        "height": 160,
        "mark": {"type": "bar", "opacity": 0.55},
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "title": "value", "bin": {"binned": True}},
            "x2": {"field": "to"},
            "y": {"field": "elements", "type": "quantitative", "stack": None, "scale": {"type": "sqrt"}},
            "color": {"field": "model", "type": "nominal", "title": None},
            "tooltip": [
                {"field": "model"},
                {"field": "from", "format": ".4g"},
                {"field": "to", "format": ".4g"},
                {"field": "elements", "format": ","},
            ],
        },
    }
    return chart("Values of a layer, float and integer", spec)


def _confusion(matrix: list[list[int]], names: Sequence[str] | None) -> Chart:
    """Return a field for each pair of label and answer."""
    titles = (
        [f"{i} {name}"[:MAX_CHART_NAME_CHARACTERS] for i, name in enumerate(names)] if names else range(len(matrix))
    )
    rows = [
        {"label": titles[label], "answer": titles[answer], "samples": count}
        for label, counts in enumerate(matrix)
        for answer, count in enumerate(counts)
    ]
    field = {"type": "ordinal", "sort": list(titles)}
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
    """Return the accuracy along the steps of learning."""
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


def _cores(cores: TwoCores, layers: Sequence[ReportedLayer]) -> Chart:
    """Return two rows of bars along the time: what each core computes, every other layer lighter; gaps are waits."""
    rows = [
        {
            "core": f"core {span.core}",
            "begin": round(span.begin),
            "end": round(span.end),
            "layer": _name(span.layer, layers[span.layer]),
            "what": "alone" if layers[span.layer].core is None else "portion",
            "turn": number % 2,
        }
        for core in (0, 1)
        for number, span in enumerate(span for span in cores.spans if span.core == core)
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
            "opacity": {"field": "turn", "type": "nominal", "scale": {"range": [1, 0.7]}, "legend": None},
            "tooltip": [{"field": name} for name in ("layer", "core", "begin", "end")],
        },
    }
    return chart("Both cores", spec)
