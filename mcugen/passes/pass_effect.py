# SPDX-License-Identifier: Apache-2.0
"""The effect of a pass on a graph, as text and as JSON."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass

from mcugen.hir.graph import Graph
from mcugen.hir.printer import print_graph
from mcugen.passes.rewrite import Log, NearMiss


@dataclass(frozen=True)
class Effect:
    """The effect of one run of a pass on a graph.

    Attributes:
        name: Name of the pass.
        because: Why the pass runs, as a sentence from the pipeline.
        graph: Name of the graph.
        laws: Equation `before → after` of each pattern, by the pattern's name; empty for a pass without patterns.
        before: Printed graph before the pass.
        after: Printed graph after the pass.
        refusals: Near misses: nodes that patterns left as they are, though they almost matched.
    """

    name: str
    because: str
    graph: str
    laws: dict[str, str]
    before: str
    after: str
    refusals: tuple[NearMiss, ...]

    @property
    def diff(self) -> str:
        """Return the unified diff of the printed graphs; empty if nothing changed."""
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
        """Return all fields and the difference of the printed graphs as JSON values."""
        return asdict(self) | {"diff": self.diff}


def observed(pass_: object, because: str, graph: Graph, before: str, log: Log) -> Effect:
    """Return the Effect (a record for reports) of a pass that has just run on a graph.

    Args:
        pass_: The pass.
        because: The reason of the pass, as the pipeline states it.
        graph: The graph after the pass.
        before: The printed graph before the pass.
        log: The outcomes of the pass's patterns.
    """
    patterns = getattr(pass_, "patterns", ())
    laws = {pattern.name: pattern.stated for pattern in patterns}
    name = str(getattr(pass_, "__name__", pass_))
    return Effect(name, because, graph.name, laws, before, print_graph(graph), tuple(log.refusals(graph)))
