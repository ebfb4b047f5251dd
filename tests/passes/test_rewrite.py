# SPDX-License-Identifier: Apache-2.0
"""The driver of patterns: what it visits, in which order, what it says, and that it ends."""

from __future__ import annotations

from collections import Counter

import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.pointwise import Binary, Unary
from mcugen.passes import rewrite
from mcugen.passes.rewrite import Log, RewriteOutcome, Rewriting, Turns, pattern

NEG, EXP, ABS = Unary("Neg"), Unary("Exp"), Unary("Abs")
VECTOR = TensorType((4,))


def chain(*ops: Unary) -> Graph:
    """x → the operators, one after the other → y."""
    graph = Graph("chain")
    value = graph.add_input("x", VECTOR)
    for number, op in enumerate(ops):
        value = graph.add(op, [value], [f"n{number}"], names=[f"v{number}"]).output
    graph.add_output("y", value)
    return graph


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pattern(Unary)
def cancel_negations(graph: Graph, node: Node) -> RewriteOutcome:
    """Neg(Neg(x)) → x.

    More of it.
    """
    inner = node.input(0).producer
    if node.op != NEG or inner is None or inner.op != NEG:
        return False
    if graph.only_user(inner.output) is not node:
        return "others read the negative"
    graph.replace(node.output, inner.input(0))
    return True


def test_what_a_rewrite_makes_possible_is_found():
    """Only the pair in the middle matches at first."""
    graph = chain(EXP, *[NEG] * 40, EXP)
    assert cancel_negations(graph)
    assert names(graph) == ["exp", "exp"]
    verify_graph(graph)
    assert not cancel_negations(graph)


def test_only_what_may_have_changed_is_looked_at_again():
    looks: Counter[str] = Counter()

    @pattern(Unary)
    def look(graph: Graph, node: Node) -> RewriteOutcome:
        """Abs(Abs(x)) → Abs(x)."""
        looks[node.output.name] += 1
        inner = node.input(0).producer
        if node.op != ABS or inner is None or inner.op != ABS:
            return False
        graph.replace(node.output, inner.output)
        return True

    assert look(chain(*[EXP] * 50, ABS, ABS, *[EXP] * 50))
    again = [name for name, count in looks.items() if count > 1]
    assert again == ["v50", "v52"]  # what is read by others now, and who reads something else


def test_what_was_made_comes_next_and_its_neighbours_last():
    seen: list[str] = []

    @pattern(Unary)
    def halve(graph: Graph, node: Node) -> RewriteOutcome:
        """Exp(x) → Abs(Abs(x))."""
        seen.append(node.output.name)
        if node.op != EXP:
            return False
        first = graph.add(ABS, node.inputs, names=["first"], before=node)
        graph.rewrite(node, ABS, [first.output])
        return True

    halve(chain(NEG, EXP, NEG))
    assert seen == ["v0", "v1", "first", "v1", "v2", "v0"]


def test_patterns_are_asked_in_their_order_where_their_operators_stand():
    @pattern(Binary)
    def never(graph: Graph, node: Node) -> RewriteOutcome:
        """x → x."""
        raise AssertionError

    @pattern(Unary)
    def first(graph: Graph, node: Node) -> RewriteOutcome:
        """Neg(x) → Exp(x)."""
        return node.op == NEG and bool(graph.rewrite(node, EXP, node.inputs))

    @pattern()
    def second(graph: Graph, node: Node) -> RewriteOutcome:
        """Neg(x) → Abs(x)."""
        return node.op == NEG and bool(graph.rewrite(node, ABS, node.inputs))

    graph = chain(NEG)
    assert Rewriting("both", never, first, second)(graph)
    assert names(graph) == ["exp"]


def test_what_nobody_reads_goes_with_all_that_it_needed():
    graph = chain(NEG)
    value = graph.inputs[0]
    for _ in range(9):
        value = graph.add(EXP, [value]).output
    assert Rewriting("nothing else")(graph)
    assert names(graph) == ["neg"]
    verify_graph(graph)


def test_laws_that_contradict_each_other_end():
    @pattern(Unary)
    def turn(graph: Graph, node: Node) -> RewriteOutcome:
        """Exp(x) → Abs(x) and back."""
        return bool(graph.rewrite(node, ABS if node.op == EXP else EXP, node.inputs))

    with pytest.raises(VerificationError, match=r"pass turn must end.*2001 rewrites, the last at .* 'n0'"):
        turn(chain(EXP))


def test_passes_that_undo_each_other_end(monkeypatch: pytest.MonkeyPatch):
    @pattern(Unary)
    def there(graph: Graph, node: Node) -> RewriteOutcome:
        """Exp(x) → Abs(x)."""
        return node.op == EXP and bool(graph.rewrite(node, ABS, node.inputs))

    @pattern(Unary)
    def back(graph: Graph, node: Node) -> RewriteOutcome:
        """Abs(x) → Exp(x)."""
        return node.op == ABS and bool(graph.rewrite(node, EXP, node.inputs))

    monkeypatch.setattr(rewrite, "MAX_PASS_ROUNDS", 7)
    with pytest.raises(VerificationError, match=r"pass swing must end.*7 turns"):
        Turns("swing", there, back)(chain(EXP))


def test_refusals_are_those_that_hold_in_the_end():
    graph = chain(NEG, NEG, EXP, NEG, NEG)
    graph.add_output("other", graph.nodes[3].output)
    reader = graph.add(ABS, [graph.nodes[0].output])  # nobody reads it: its objection goes with it
    log = Log()
    assert cancel_negations(graph, log)
    assert names(graph) == ["exp", "neg", "neg"]
    assert reader not in graph.nodes
    assert list(map(str, log.refusals(graph))) == ["cancel_negations left neg 'n4' (%v4): others read the negative"]
    assert log.rewrites == 1


def test_a_pattern_states_its_law_in_a_line():
    assert cancel_negations.stated == "Neg(Neg(x)) → x."
    assert cancel_negations.__name__ == "cancel_negations"
