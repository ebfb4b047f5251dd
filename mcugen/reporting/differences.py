# SPDX-License-Identifier: Apache-2.0
"""Differences of two reports: which figures changed, by how much, possible causes, and limits for changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mcugen.core.errors import ConstraintError, UsageError
from mcugen.reporting.basis import Basis
from mcugen.reporting.figures import Report, ReportedLayer

Get = Callable[[Report], float | None]
"""A function that returns a figure of a report; None if the report does not have it."""


@dataclass(frozen=True)
class Figure:
    """A figure that a comparison of two reports covers.

    Attributes:
        key: Name of the figure on the command line, such as "cycles".
        title: Name of the figure in tables.
        get: Returns the figure of a report; None if the report does not have it.
        better: -1 if lower values are better, else 1.
    """

    key: str
    title: str
    get: Get
    better: int = -1


FIGURES = (
    Figure("instructions", "instructions", lambda r: r.instructions),
    Figure("cycles", "cycles, estimate", lambda r: r.cycles_estimate),
    Figure("ms", "milliseconds, estimate", lambda r: r.milliseconds_estimate),
    Figure("flash", "flash, bytes", lambda r: r.flash.total),
    Figure("code", "flash: code", lambda r: r.flash.code),
    Figure("weights", "flash: weights", lambda r: r.flash.weights),
    Figure("ram", "RAM, bytes", lambda r: r.ram.total),
    Figure("arena", "RAM: arena", lambda r: r.ram.arena),
    Figure("state", "RAM: state", lambda r: r.ram.state),
    Figure("stack", "RAM: peak stack", lambda r: r.ram.stack),
    Figure("accuracy", "accuracy", lambda r: r.accuracy.target if r.accuracy else None, 1),
    Figure("agreement", "agreement", lambda r: r.accuracy.agreement if r.accuracy else None, 1),
    Figure("sqnr", "SQNR, dB", lambda r: r.accuracy.sqnr_db if r.accuracy else None, 1),
    Figure("macs", "multiply-accumulates", lambda r: r.model.macs),
    Figure("parameters", "parameters", lambda r: r.model.parameters),
)
"""The figures that are compared, in the order of the table."""

MAX_SHOWN_LAYERS = 20
"""Largest number of changed layers that are shown, the largest changes first."""


@dataclass(frozen=True)
class Change:
    """The values of one figure in two reports.

    Attributes:
        figure: The figure.
        before: Its value in the older report; None if that report does not have it.
        after: Its value in the newer report; None if that report does not have it.
    """

    figure: Figure
    before: float | None
    after: float | None

    @property
    def is_one(self) -> bool:
        """Return whether the values of the figure differ in both reports."""
        return self.before != self.after

    @property
    def delta(self) -> float | None:
        """Return the figure after minus the figure before; None if one is unknown."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def share(self) -> float | None:
        """Return the difference as a share of the figure before.

        The share is None if a figure is unknown, or if the figure before is 0.
        """
        return None if self.delta is None or not self.before else self.delta / self.before


@dataclass(frozen=True)
class LayerChange:
    """A layer that changed, appeared or disappeared between two reports.

    Attributes:
        title: Name of the layer.
        before: The layer in the older report; None if it is new.
        after: The layer in the newer report; None if it is gone.
    """

    title: str
    before: ReportedLayer | None
    after: ReportedLayer | None

    @property
    def sides(self) -> dict[str, ReportedLayer | None]:
        """Return the layer in the older and the newer report, by the keys `before` and `after`."""
        return {"before": self.before, "after": self.after}

    @property
    def weight(self) -> int:
        """Return the magnitude of the change in cycles, or in instructions if cycles are unknown.

        A comparison lists layers by it, the largest first.
        """
        return abs(_time(self.after) - _time(self.before))

    @property
    def what(self) -> str:
        """Return a text on what changed: "new", "gone", or the kernels before and after."""
        if self.before is None or self.after is None:
            return "gone" if self.after is None else "new"
        if self.before.kernel != self.after.kernel:
            return f"{self.before.kernel} -> {self.after.kernel}"
        return self.after.kernel


@dataclass(frozen=True)
class Limit:
    """A limit of how much worse a figure may become from one report to the next.

    Attributes:
        figure: The figure.
        text: The limit as the user wrote it.
        amount: The largest change for the worse, in the figure's unit or as a share of the figure before.
        is_share: Whether the amount is a share.
    """

    figure: Figure
    text: str
    amount: float
    is_share: bool

    def allows(self, change: Change) -> bool:
        """Return whether a change is within the limit.

        Raises:
            UsageError: A report does not have the figure.
        """
        if change.before is None or change.after is None:
            missing = "before" if change.before is None else "after"
            raise UsageError(f"--limit {self.text} needs figures", f"the report {missing} has none", "measure it")
        room = abs(self.amount * change.before) if self.is_share else abs(self.amount)
        return -self.figure.better * (change.after - change.before) <= room


@dataclass(frozen=True)
class Differences:
    """All differences between two reports: figures, their causes, and layers."""

    before: Report
    """The older report."""
    after: Report
    """The newer report."""
    changes: tuple[Change, ...]
    """All compared figures, whether they changed or not."""
    causes: tuple[tuple[str, str, str], ...]
    """Changed versions, options and the like that may be the cause: triples of title, value before and value after."""
    layers: tuple[LayerChange, ...]
    """The layers that changed, the largest change of time first."""

    @property
    def changed(self) -> list[Change]:
        """Return the changes of those figures whose values differ."""
        return [change for change in self.changes if change.is_one]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON: figures by key, possible causes, and layers."""
        figures = {c.figure.key: {"before": c.before, "after": c.after} for c in self.changes}
        causes = [{"what": what, "before": was, "after": now} for what, was, now in self.causes]
        layers = [
            {"layer": c.title, "what": c.what} | {key: layer and asdict(layer) for key, layer in c.sides.items()}
            for c in self.layers
        ]
        return {"figures": figures, "causes": causes, "layers": layers}

    def require(self, limits: Sequence[Limit]) -> None:
        """Check the changes of figures against the user's limits.

        Raises:
            ConstraintError: Figures exceed their limits; the message names all of them.
        """
        by_key = {change.figure.key: change for change in self.changes}
        broken = [by_key[limit.figure.key] for limit in limits if not limit.allows(by_key[limit.figure.key])]
        if broken:
            exceeded = "; ".join(f"{c.figure.title} {number(c.before)} -> {number(c.after)}" for c in broken)
            raise ConstraintError("figures must stay within their limits", exceeded, "see the changes above")


def differences(before: Report, after: Report) -> Differences:
    """Return the differences of figures, possible causes and layers between two reports."""
    changes = tuple(Change(figure, figure.get(before), figure.get(after)) for figure in FIGURES)
    return Differences(before, after, changes, tuple(_causes(before, after)), tuple(_layers(before, after)))


_LIMIT = re.compile(r"([a-z]+)=([+-]?)([0-9]{1,12}(?:\.[0-9]{1,9})?)(%?)")


def read_limit(text: str) -> Limit:
    """Parse a limit of the command line: FIGURE=CHANGE, for example cycles=+2%, ram=+0 or accuracy=-0.005.

    Raises:
        UsageError: The text cannot be read.
    """
    match = _LIMIT.fullmatch(text)
    figures = {figure.key: figure for figure in FIGURES}
    if match is None:
        raise UsageError("--limit must read FIGURE=+AMOUNT or FIGURE=+SHARE%", f"'{text}'", "e.g. --limit cycles=+2%")
    if match[1] not in figures:
        raise UsageError("--limit must name a figure", f"'{match[1]}'", f"one of: {', '.join(figures)}")
    figure, sign = figures[match[1]], match[2]
    if float(match[3]) and sign != ("+" if figure.better < 0 else "-"):
        worse = "grow: +" if figure.better < 0 else "fall: -"
        raise UsageError(f"--limit {figure.key} says how much it may {worse}", f"'{text}'", "give the other sign")
    return Limit(figure, text, float(match[3]) / (100 if match[4] else 1), bool(match[4]))


def number(value: float | None) -> str:
    """Return a figure of a report as text; "unknown" for None."""
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _causes(before: Report, after: Report) -> Iterator[tuple[str, str, str]]:
    for title, get in _SOURCES.items():
        was, now = get(before), get(after)
        if was != now:
            yield title, was, now
    for field in fields(Basis):
        pair = getattr(before.basis, field.name), getattr(after.basis, field.name)
        if pair[0] != pair[1]:
            is_digest = field.name.endswith("_sha256")
            was, now = (_short(value) if is_digest else str(value) for value in pair)
            yield field.name.removesuffix("_sha256"), was, now


_SOURCES: Mapping[str, Callable[[Report], str]] = {
    "model": lambda r: f"{r.model.name} {_short(r.model.sha256)}",
    "board name": lambda r: r.board,
    "cpu": lambda r: r.cpu,
    "precision": lambda r: r.precision,
    "kernels": lambda r: r.kernels,
    "cycles": lambda r: r.cycles_note,
}


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _layers(before: Report, after: Report) -> Iterator[LayerChange]:
    was = {layer.name: layer for layer in _renamed(before.layers, after.layers)}
    now = {layer.name: layer for layer in after.layers}
    changes = [LayerChange(name, was.get(name), now.get(name)) for name in dict.fromkeys([*was, *now])]
    changed = [change for change in changes if _without_reason(change.before) != _without_reason(change.after)]
    yield from sorted(changed, key=lambda change: -change.weight)


def _without_reason(layer: ReportedLayer | None) -> ReportedLayer | None:
    """Return a layer without the text of why its kernel was chosen, whose words may differ between versions."""
    return layer and replace(layer, reason="")


def _renamed(before: Sequence[ReportedLayer], after: Sequence[ReportedLayer]) -> list[ReportedLayer]:
    """Return the layers before, each with the name of the layer after that computes the same ONNX nodes.

    mcugen 0.1.0 named layers after their tensors, later versions name them after their nodes. A layer whose name is in
    both reports keeps it.
    """
    common = {layer.name for layer in before} & {layer.name for layer in after}
    old, new = (_by_nodes(layer for layer in layers if layer.name not in common) for layers in (before, after))
    names = {old[nodes].name: new[nodes].name for nodes in old.keys() & new.keys()}
    return [replace(layer, name=names.get(layer.name, layer.name)) for layer in before]


def _by_nodes(layers: Iterable[ReportedLayer]) -> dict[tuple[str, ...], ReportedLayer]:
    """Return layers by the names of their ONNX nodes, except those that share all their nodes with another layer."""
    by_nodes: dict[tuple[str, ...], list[ReportedLayer]] = {}
    for layer in layers:
        by_nodes.setdefault(tuple(layer.origin), []).append(layer)
    return {nodes: alike[0] for nodes, alike in by_nodes.items() if nodes and len(alike) == 1}


def _time(layer: ReportedLayer | None) -> int:
    return (layer.cycles_estimate or layer.instructions or 0) if layer else 0
