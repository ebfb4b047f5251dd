# SPDX-License-Identifier: Apache-2.0
"""HTML page of an exploration: linked charts of all combinations, the layers of a chosen one, and a table."""

from __future__ import annotations

from typing import Any

from mcugen.explore.point import Outcome
from mcugen.explore.search import Explored
from mcugen.explore.text import figure_cells, heading, verdict_lines
from mcugen.hir.layer_names import shorten_name
from mcugen.reporting.cells import TableCell, number, words
from mcugen.reporting.charts import PALETTE, Chart, chart, page

MAX_LAYERS = 6000
"""Largest number of layers, over all combinations, that the HTML page shows as bars; the Pareto front comes first."""

TABLE_HEADS = ("board", "precision", "goal", "accuracy", "ms", "RAM", "flash", "µJ", "front", "misses")
"""Headings of all columns in the HTML page's table of combinations."""

_AXES = (
    ("ram", "RAM, bytes"),
    ("flash", "flash, bytes"),
    ("accuracy", "accuracy"),
    ("microjoules", "energy of a call, µJ"),
)
"""Quantities drawn over the time of a call, if they are known for a combination."""


def explored_page(explored: Explored) -> str:
    """Return an HTML page with charts and a table of all combinations; equal results give equal bytes."""
    return page(
        "explore.html.j2",
        {"points": explored_chart(explored)} if any(outcome.figures for outcome in explored.outcomes) else {},
        title=heading(explored),
        verdict=verdict_lines(explored),
        heads=TABLE_HEADS,
        rows=[_row(explored, outcome) for outcome in explored.outcomes],
    )


def _row(explored: Explored, outcome: Outcome) -> list[TableCell]:
    """Return the cells of a combination's row in the table."""
    point, figures = outcome.point, outcome.figures
    values: list[float | None] = [None] * 5
    if figures is not None:
        values = [figures.accuracy, figures.ms, figures.ram, figures.flash, figures.microjoules]
    texts = figure_cells(explored, outcome)
    remark = outcome.refusal.reason if outcome.refusal else ", ".join(explored.missed(outcome))
    names = map(words, (point.board, point.precision, point.optimize))
    front = words("yes" if outcome in explored.front else "")
    return [*names, *(number(v, t) for v, t in zip(values, texts, strict=True)), front, words(remark, is_long=True)]


def explored_chart(explored: Explored) -> Chart:
    """Return scatter plots side by side that share the chosen combination, and bars of its layers below.

    Args:
        explored: The exploration, in which at least one combination has figures.
    """
    rows = [_datum(explored, i, outcome) for i, outcome in enumerate(explored.outcomes) if outcome.figures]
    shown = [(key, title) for key, title in _AXES if any(row[key] is not None for row in rows)]
    ids = [row["id"] for row in rows]
    chosen = _chosen(explored)
    pick = {
        "name": "pick",
        "select": {"type": "point", "fields": ["id"], "on": "click", "clear": False},
        "bind": {"input": "select", "options": ids, "name": "combination "},
        "value": [{"id": chosen}],
        "views": [f"over_{key}" for key, _ in shown],
    }
    boards = sorted({row["board"] for row in rows})
    scatters = [_scatter(key, title, boards, is_first=key == shown[0][0]) for key, title in shown]
    columns = 3 if len(scatters) == 3 else 2
    below = [_layers(explored)] if any(o.report for o in explored.outcomes) else []
    spec = {
        "data": {"values": rows},
        "params": [pick],
        "vconcat": [
            {"concat": scatters, "columns": columns, "resolve": {"scale": {"color": "independent"}}},
            *below,
        ],
        "align": "none",
        "bounds": "full",
        "resolve": {"scale": {"color": "independent"}},
    }
    return chart(heading(explored), spec)


def _chosen(explored: Explored) -> str:
    """Return the combination that is shown first."""
    best = explored.cheapest or next(outcome for outcome in explored.outcomes if outcome.figures)
    return str(best.point)


def _datum(explored: Explored, index: int, outcome: Outcome) -> dict[str, Any]:
    """Return the data of a combination's point in the charts."""
    figures, point = outcome.figures, outcome.point
    assert figures is not None, "only what has figures is drawn"
    accuracy = figures.accuracy
    return {
        "id": str(point),
        "board": point.board,
        "precision": point.precision,
        "goal": point.optimize,
        "ms": figures.ms,
        "ram": figures.ram,
        "flash": figures.flash,
        "microjoules": figures.microjoules,
        "accuracy": None if accuracy is None or abs(accuracy) == float("inf") else accuracy,
        "front": outcome in explored.front,
        "misses": ", ".join(explored.missed(outcome)) or "nothing",
    }


def _scatter(key: str, title: str, boards: list[str], *, is_first: bool) -> Chart:
    """Return a plot of one figure over time, both on logarithmic scales, as boards differ by orders of magnitude.

    The first plot has a legend of boards if there are enough colors; otherwise tooltips tell them apart.
    """
    legend = {} if is_first and len(boards) <= len(PALETTE) else {"legend": None}
    scale = {"zero": False, "padding": 12} if key == "accuracy" else {"type": "log", "padding": 12}
    is_picked = {"param": "pick", "empty": False}
    return {
        "name": f"over_{key}",
        "width": 300,
        "height": 240,
        "transform": [{"filter": f"isValid(datum['{key}']) && isValid(datum.ms) && datum.ms > 0"}],
        "mark": {"type": "point", "filled": True, "cursor": "pointer"},
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "title": "ms", "scale": {"type": "log", "padding": 12}},
            "y": {"field": key, "type": "quantitative", "title": title, "scale": scale},
            "color": {"field": "board", "type": "nominal", "title": None, "scale": {"domain": boards}, **legend},
            "shape": {"field": "precision", "type": "nominal", "title": None},
            "opacity": {"condition": {"test": "datum.front", "value": 1}, "value": 0.35},
            "size": {"condition": {**is_picked, "value": 320}, "value": 80},
            "stroke": {"condition": {**is_picked, "value": "currentColor"}, "value": "transparent"},
            "tooltip": [{"field": name} for name in ("id", "ms", key, "misses")],
        },
    }


def _layers(explored: Explored) -> Chart:
    """Return bars of the chosen combination's layers: cycles where they are known, else multiply-accumulates."""
    return {
        "data": {"values": _layer_rows(explored)},
        "transform": [{"filter": {"param": "pick", "empty": False}}],
        "height": {"step": 16},
        "mark": "bar",
        "encoding": {
            "y": {"field": "layer", "type": "nominal", "sort": {"field": "index"}, "title": "layer"},
            "x": {"field": "value", "type": "quantitative", "title": "of the chosen combination"},
            "color": {"field": "unit", "type": "nominal", "title": None},
            "tooltip": [{"field": name} for name in ("id", "layer", "kernel", "unit", "value", "flash", "ram")],
        },
    }


def _layer_rows(explored: Explored) -> list[dict[str, Any]]:
    """Return the bars of all combinations' layers, at most MAX_LAYERS, those of the Pareto front first."""
    front = explored.front
    ordered = sorted(explored.outcomes, key=lambda outcome: outcome not in front)
    rows: list[dict[str, Any]] = []
    for outcome in ordered:
        layers = outcome.report.layers if outcome.report else []
        if len(rows) + len(layers) > MAX_LAYERS:
            break
        for index, layer in enumerate(layers):
            known = [("cycles", layer.cycles_estimate), ("instructions", layer.instructions), ("MACs", layer.macs)]
            unit, value = next((unit, value) for unit, value in known if value is not None)
            rows.append(
                {
                    "id": str(outcome.point),
                    "index": index,
                    "layer": shorten_name(f"{index} {layer.name}", 60),
                    "kernel": layer.kernel,
                    "unit": unit,
                    "value": value,
                    "flash": layer.flash,
                    "ram": layer.ram,
                }
            )
    return rows
