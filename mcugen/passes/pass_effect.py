# SPDX-License-Identifier: Apache-2.0
"""What a pass did to a graph, for people and as data."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass

from mcugen.hir.graph import Graph
from mcugen.hir.printer import print_graph
from mcugen.passes.rewrite import Log, Refusal


@dataclass(frozen=True)
class Effect:
    """One run of a pass. `laws` are by pattern; a pass that is none of patterns has none, and refuses nothing."""

    name: str
    because: str
    graph: str
    laws: dict[str, str]
    before: str
    after: str
    refusals: tuple[Refusal, ...]

    @property
    def diff(self) -> str:
        """Unified; empty where nothing changed."""
        names = (f"before {self.name}", f"after {self.name}")
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), *names, lineterm="")
        return "\n".join(lines)

    def __str__(self) -> str:
        laws = [f"  {name}: {law}" for name, law in self.laws.items()]
        return "\n".join(
            [
                f"{self.name} of graph {self.graph}: {self.because}",
                *laws,
                self.diff or "nothing changed",
                *map(str, self.refusals),
                "",
            ]
        )

    def to_json(self) -> dict[str, object]:
        """All that was observed, with the difference of the graphs as text."""
        return asdict(self) | {"diff": self.diff}


def observed(pass_: object, because: str, graph: Graph, before: str, log: Log) -> Effect:
    """What a pass that has just run made of the graph that was printed `before`."""
    patterns = getattr(pass_, "patterns", ())
    laws = {pattern.name: pattern.stated for pattern in patterns}
    name = str(getattr(pass_, "__name__", pass_))
    return Effect(name, because, graph.name, laws, before, print_graph(graph), tuple(log.refusals(graph)))
