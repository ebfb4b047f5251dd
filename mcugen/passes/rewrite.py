# SPDX-License-Identifier: Apache-2.0
"""Local rewriting: patterns that each state a law, and a worklist that applies them until nothing changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator

RewriteOutcome = bool | str
"""Result of a pattern at a node.

True: the pattern rewrote the node. False: the node does not match. A text: the node almost matches, and the text is a
phrase that says why it was left as it is (a near miss).
"""
Outcome = RewriteOutcome
"""Former name of RewriteOutcome, for plug-ins."""

Law = Callable[[Graph, Node], RewriteOutcome]
"""The function of a rewrite pattern: it rewrites a node of a graph if it matches, and returns the outcome."""

MAX_REWRITES_PER_NODE = 1000
"""Largest number of rewrites in a pass, per node of the graph.

More rewrites mean that patterns undo each other; an error is raised then.
"""

MAX_PASS_ROUNDS = 1000
"""Largest number of rounds in which passes that enable each other are repeated (Turns).

More rounds mean a bug in a pass; an error is raised then.
"""


@dataclass(frozen=True)
class NearMiss:
    """A record of why a pattern left a node as it is, though it almost matched.

    Attributes:
        pattern: Name of the pattern.
        place: Operator and ONNX name of the node, as messages show them.
        value: Name of the node's first output.
        reason: What did not match, as a phrase.
    """

    pattern: str
    place: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pattern} left {self.place} (%{self.value}): {self.reason}"


@dataclass
class Log:
    """A record of the outcome of each pattern at each node, during one run of a pass.

    A pattern is applied again to a node that changed; its last outcome counts.

    Attributes:
        rewrites: Number of rewrites so far.
    """

    rewrites: int = 0
    _refused: dict[tuple[str, Node], str] = field(default_factory=dict)

    def note(self, pattern: Pattern, node: Node, outcome: RewriteOutcome) -> None:
        """Record the outcome of a rewrite pattern at a node: rewritten, no match, or why the node almost matched."""
        self.rewrites += outcome is True
        self._refused.pop((pattern.name, node), None)
        if isinstance(outcome, str):
            self._refused[pattern.name, node] = outcome

    def refusals(self, graph: Graph) -> list[NearMiss]:
        """Return the near misses of a pass: nodes that a pattern left as they are, though they almost matched.

        Only the last outcome of a pattern at a node counts. The order is that of nodes in the graph.
        """
        place = {node: number for number, node in enumerate(graph.nodes)}
        held = [(place[node], name, node, why) for (name, node), why in self._refused.items() if node in place]
        held.sort(key=lambda row: row[:2])
        return [NearMiss(name, node.place, node.outputs[0].name, why) for _, name, node, why in held]


class Rewriting:
    """A pass that applies rewrite patterns until nothing changes, and removes nodes that nobody reads.

    At each node, the first pattern that matches is applied.
    """

    def __init__(self, name: str, *patterns: Pattern) -> None:
        self.__name__ = name
        self.patterns = patterns
        self._by_operator: dict[type[Operator], tuple[Pattern, ...]] = {}

    def __call__(self, graph: Graph, log: Log | None = None) -> bool:
        """Apply the patterns, and return whether anything changed.

        Raises:
            VerificationError: The patterns do not end, because they contradict each other.
        """
        worklist, limit = _Worklist(graph), MAX_REWRITES_PER_NODE * (len(graph.nodes) + 1)
        rewrites = 0
        with graph.watched(worklist):
            while (node := worklist.take()) is not None:
                rewrites += self._rewrite(graph, node, log)
                if rewrites > limit:
                    raise _endless(self, f"{rewrites} rewrites, the last at {node.place}")
        return rewrites > 0

    def _rewrite(self, graph: Graph, node: Node, log: Log | None) -> bool:
        if not any(v.uses or graph.is_output(v) for v in node.outputs):
            graph.remove(node)
            return True
        for pattern in self._patterns_of(type(node.op)):
            outcome = pattern.law(graph, node)
            if log is not None:
                log.note(pattern, node, outcome)
            if outcome is True:
                return True
        return False

    def _patterns_of(self, op: type[Operator]) -> tuple[Pattern, ...]:
        """Return the patterns that may match a node with an operator of this class."""
        patterns = self._by_operator.get(op)
        if patterns is None:
            patterns = tuple(p for p in self.patterns if issubclass(op, p.roots))
            self._by_operator[op] = patterns
        return patterns


class Pattern(Rewriting):
    """A rewrite pattern, which is also a pass of its own.

    A pattern is a function (`law`) that gets the graph and a node with an operator of the classes `roots`. It
    rewrites the node and returns True, or returns False, or the reason of a near miss. The first line of its
    docstring is the equation `before → after` (its law), which reports show.
    """

    def __init__(self, law: Law, roots: tuple[type[Operator], ...]) -> None:
        super().__init__(law.__name__, self)
        self.law, self.roots = law, roots
        self.__doc__ = law.__doc__

    @property
    def name(self) -> str:
        """Return the name of the pattern: that of its function."""
        return self.__name__

    @property
    def stated(self) -> str:
        """Return the pattern's law in one line, the equation `before → after` from the docstring of its function."""
        return (self.__doc__ or "").partition("\n")[0]


def pattern(*roots: type) -> Callable[[Law], Pattern]:
    """Return a decorator that turns a function into a rewrite pattern, which is also a pass of its own.

    The function gets the graph and a node. It rewrites the node and returns True, or returns False, or the reason why
    the node almost matched. The first line of its docstring is the equation `before → after`. It is called for nodes
    whose operator is of a class in `roots`, or for all nodes without `roots`.
    """
    return lambda law: Pattern(law, roots or (Operator,))


class Turns(Rewriting):
    """A pass that repeats a sequence of passes until none of them changes anything, because they enable each other."""

    def __init__(self, name: str, *passes: Rewriting) -> None:
        super().__init__(name, *(pattern for one in passes for pattern in one.patterns))
        self.passes = passes

    def __call__(self, graph: Graph, log: Log | None = None) -> bool:
        """Run the passes in turns, and return whether anything changed.

        Raises:
            VerificationError: The passes do not end, because they undo each other's work.
        """
        for turn in range(MAX_PASS_ROUNDS):
            if not sum(one(graph, log) for one in self.passes):
                return turn > 0
        raise _endless(self, f"{MAX_PASS_ROUNDS} turns")


def _endless(pass_: Rewriting, symptom: str) -> VerificationError:
    return VerificationError(f"pass {pass_.__name__} must end", symptom, "report this as a bug of mcugen")


class _Worklist:
    """The nodes that patterns must still look at: first all in order, then those that may have changed.

    Nodes that a rewrite made come next, in the order in which they were made; neighbours of what it changed come last.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._queue = deque(graph.nodes)
        self._waiting = set(graph.nodes)
        self._made: list[Node] = []

    def take(self) -> Node | None:
        """Return the next node that is still part of the graph; None if no node is left."""
        self._queue.extendleft(reversed(self._made))
        self._made.clear()
        while self._queue:
            node = self._queue.popleft()
            self._waiting.discard(node)
            if node in self._nodes:
                return node
        return None

    def added(self, node: Node) -> None:
        """Add a node to the queue that has just become part of the graph."""
        self._made.append(node)
        self._waiting.add(node)

    def changed(self, node: Node) -> None:
        """Add a node to the queue whose operands or readers changed."""
        if node not in self._waiting:
            self._queue.append(node)
            self._waiting.add(node)
