# SPDX-License-Identifier: Apache-2.0
"""The result of `mcugen monitor` on a terminal, and as an HTML page with charts of devices over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from mcugen.core.errors import listed
from mcugen.deploy.monitoring.drift import ClassDrift, Distance, SnapshotDrift
from mcugen.deploy.monitoring.fleet import Fleet
from mcugen.reporting.cells import TableCell, number, words
from mcugen.reporting.charts import Chart, chart, page
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table

MAX_CHARTED_SNAPSHOTS = 400
"""Largest number of snapshots in the histograms of the HTML page: the last ones of all."""

SNAPSHOT_HEADS = (
    "snapshot",
    "model",
    "version",
    "device",
    "time",
    "runs",
    "errors",
    "longest, cycles",
    "self-tests failed",
    "checksums failed",
    "alarms",
)
"""Headings of the table of snapshots."""

MODEL_HEADS = ("model", "hash", "weights", "version", "devices")
"""Headings of the table of which device runs what."""

DRIFT_HEADS = ("tensor", "device", "time", "PSI", "limit", "KS", "limit", "mean", "samples", "clipped", "drift")
"""Headings of the table of tensors and outputs."""


def print_fleet(fleet: Fleet, console: Console, wide: bool = False) -> None:
    """Print tables of all snapshots and of their tensors.

    Args:
        fleet: The snapshots.
        console: Where to print.
        wide: Whether to print all columns, however wide the console is.
    """
    heads = [TableColumn(head, CellKind.NUMBER if head == "version" else CellKind.NAME) for head in MODEL_HEADS]
    model_rows = [tuple(cell.text for cell in row) for row in _model_rows(fleet)]
    print_table(TextTable(heads, model_rows, "What devices run, by their last snapshots"), console, wide)
    ranks = zip(SNAPSHOT_HEADS[2:-1], _RANKS, strict=True)
    figures = [TableColumn(head, CellKind.NUMBER, rank) for head, rank in ranks]
    columns = (TableColumn("snapshot", CellKind.NAME), TableColumn("model", CellKind.NAME, 9), *figures)
    rows = [tuple(cell.text for cell in _snapshot_row(one)) for one in fleet.snapshots]
    alarms = TableColumn("alarms", CellKind.NUMBER)
    print_table(TextTable((*columns, alarms), rows, "Snapshots"), console, wide)
    kinds = {"tensor": CellKind.NAME, "drift": CellKind.TEXT}
    drift_columns = [
        TableColumn(head, kinds.get(head, CellKind.NUMBER), rank)
        for head, rank in zip(DRIFT_HEADS, (0, 0, 0, 0, 5, 0, 6, 3, 4, 2, 0), strict=True)
    ]
    texts = [tuple(cell.text for cell in row) for row in _drift_rows(fleet.snapshots)]
    print_table(TextTable(drift_columns, texts, "Drift"), console, wide)


_RANKS = (7, 0, 0, 0, 3, 6, 5, 4)
"""Order in which columns of the table of snapshots are left out of a narrow one."""


def _model_rows(fleet: Fleet) -> list[list[TableCell]]:
    """Return a row for each model with each file of weights, with the devices that ran it last."""
    newest: dict[tuple[str, int], SnapshotDrift] = {}
    for one in fleet.snapshots:
        key = (one.model, one.device)
        newest[key] = max(newest.get(key, one), one, key=lambda s: s.time)
    devices: dict[tuple[str, str, int, int], list[int]] = {}
    for one in newest.values():
        devices.setdefault((one.model, one.model_hash, one.weights, one.version), []).append(one.device)
    return [
        [
            words(name),
            words(model_hash),
            words(f"{weights:08x}" if weights else "in the firmware"),
            number(version, str(version)),
            words(listed([str(device) for device in sorted(known)]), is_long=True),
        ]
        for (name, model_hash, weights, version), known in sorted(devices.items())
    ]


def _snapshot_row(one: SnapshotDrift) -> list[TableCell]:
    counters = (one.runs, one.errors, one.longest_cycles, one.self_test_failures, one.checksum_failures)
    names = [words(one.source), words(f"{one.model} {one.model_hash}"), number(one.version, str(one.version))]
    names += [number(value, str(value)) for value in (one.device, one.time)]
    return [*names, *(number(count, f"{count:,}") for count in counters), number(len(one.alarms), str(len(one.alarms)))]


def _drift_rows(snapshots: Sequence[SnapshotDrift]) -> list[list[TableCell]]:
    rows = []
    for one in snapshots:
        place = [number(one.device, str(one.device)), number(one.time, str(one.time))]
        for tensor in one.tensors:
            figures = (tensor.mean, tensor.reference_mean)
            means = [number(value, f"{value:.4g}") for value in figures]
            clipped = number(tensor.clipped, f"{100 * tensor.clipped:.1f} %")
            names = words("; ".join(tensor.names), is_long=True)
            rows.append([words(tensor.name), *place, *_distance_cells(tensor.distance), *means, clipped, names])
        for output in one.outputs:
            empty = [words("")] * 3
            for title, distance in ((" classes", output.classes), (" confidence", output.confidence)):
                names = words("; ".join(output.names) if distance.is_alarm else "", is_long=True)
                rows.append([words(output.name + title), *place, *_distance_cells(distance), *empty, names])
    return rows


def _distance_cells(distance: Distance) -> list[TableCell]:
    values = (distance.psi, distance.psi_limit, distance.ks, distance.ks_limit)
    return [number(value, f"{value:.3f}") for value in values]


def fleet_page(fleet: Fleet) -> str:
    """Return an HTML page with charts that compare devices and times; equal results give equal bytes."""
    alarms = fleet.alarms
    total = len(fleet.snapshots)
    devices = len({(one.model, one.device) for one in fleet.snapshots})
    verdict = f"{len(alarms)} alarms" if alarms else "No alarms"
    charts = {"drift": _drift_chart(fleet), "histograms": _histograms(fleet)}
    return page(
        "monitor.html.j2",
        {key: spec for key, spec in charts.items() if spec is not None},
        title=f"{total} snapshots of {devices} devices",
        verdict=[verdict, *alarms],
        model_heads=MODEL_HEADS,
        model_rows=_model_rows(fleet),
        snapshot_heads=SNAPSHOT_HEADS,
        snapshot_rows=[_snapshot_row(one) for one in fleet.snapshots],
        drift_heads=DRIFT_HEADS,
        drift_rows=_drift_rows(fleet.snapshots),
    )


def _observed(one: SnapshotDrift) -> list[tuple[str, Distance, Sequence[float]]]:
    """Return title, distances and reference shares of each histogram of a snapshot."""
    tensors = [(t.name, t.distance, t.reference_shares) for t in one.tensors]
    outputs = [item for output in one.outputs for item in _class_histograms(output)]
    return [*tensors, *outputs]


def _class_histograms(output: ClassDrift) -> list[tuple[str, Distance, Sequence[float]]]:
    classes = (f"{output.name}: class", output.classes, output.reference_classes)
    return [classes, (f"{output.name}: confidence", output.confidence, output.reference_confidence)]


def _drift_chart(fleet: Fleet) -> Chart | None:
    """Return lines of PSI over time, one for each device, below each other for each tensor."""
    rows = [
        {
            "tensor": f"{one.model}: {title}",
            "device": f"device {one.device}",
            "time": one.time,
            "psi": round(distance.psi, 5),
            "share": round(distance.psi / distance.psi_limit, 5),
            "ks": round(distance.ks / distance.ks_limit, 5),
        }
        for one in fleet.snapshots
        for title, distance, _ in _observed(one)
    ]
    if not rows:
        return None
    tips = [{"field": key} for key in ("tensor", "device", "time", "psi")]
    line: dict[str, Any] = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "time", "type": "quantitative", "title": "time, as the firmware tells"},
            "y": {"field": "share", "type": "quantitative", "title": "PSI / limit"},
            "color": {"field": "device", "type": "nominal", "title": None},
            "tooltip": tips,
        },
    }
    limit = {"mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"y": {"datum": 1}}}
    spec = {
        "data": {"values": rows},
        "facet": {"row": {"field": "tensor", "title": None, "header": {"labelAngle": 0, "labelOrient": "top"}}},
        "spec": {"width": 640, "height": 110, "layer": [line, limit]},
    }
    return _facets("PSI of each tensor over time, in units of its limit", spec)


def _histograms(fleet: Fleet) -> Chart | None:
    """Return histograms of the last snapshots beside those of the samples."""
    rows = []
    for one in fleet.snapshots[-MAX_CHARTED_SNAPSHOTS:]:
        for title, distance, reference in _observed(one):
            key = {"tensor": f"{one.model}: {title}", "device": f"device {one.device}"}
            rows += [{**key, "bin": i, "share": round(share, 5)} for i, share in enumerate(distance.shares)]
            rows += [
                {"tensor": key["tensor"], "device": "samples", "bin": i, "share": round(share, 5)}
                for i, share in enumerate(reference)
            ]
    if not rows:
        return None
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "bin", "type": "ordinal", "title": "bin or class"},
            "xOffset": {"field": "device"},
            "y": {"field": "share", "aggregate": "mean", "type": "quantitative", "title": "share"},
            "color": {"field": "device", "type": "nominal", "title": None},
        },
        "width": 640,
        "height": 110,
    }
    spec = {
        "data": {"values": rows},
        "facet": {"row": {"field": "tensor", "title": None, "header": {"labelAngle": 0, "labelOrient": "top"}}},
        "spec": bars,
    }
    return _facets("Shares of bins and classes, beside those of the samples", spec)


def _facets(title: str, spec: Chart) -> Chart:
    """Return a complete specification of plots below each other, which have sizes of their own."""
    return {key: value for key, value in chart(title, spec).items() if key not in ("width", "autosize")}
