# SPDX-License-Identifier: Apache-2.0
"""Bytes that transpositions move: what sinking one saves and costs, counted by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

import mcugen.ops  # noqa: F401  (operators are known to the parser once their modules are imported)
from mcugen.hir.parser import parse_graph
from mcugen.passes import layout

INPUTS = """graph net {
  input %a : 2x3 float32
  input %b : 3x2 float32
  input %row : 1x2 float32
  input %cube : 2x3x4 float32
  input %byte : 2x3 uint8
  const %c : 3x2 float32 = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
  %t = transpose(%a) {perm=(1, 0)} : 3x2 float32
"""
TURN = "{perm=(1, 0)} : 2x3 float32"
SUM = ": 3x2 float32"
REFUSED = "more bytes would be transposed"

ONE_STEP = {
    "as many behind it": (f"%y = neg(%t) {SUM}\n output y = %y", True),
    "a constant turns at once": (f"%y = add(%t, %c) {SUM}\n output y = %y", True),
    "both operands are transposed": (
        f"%s = transpose(%a) {{perm=(1, 0)}} {SUM}\n %y = add(%t, %s) {SUM}\n output y = %y",
        True,
    ),
    "the other operand would be": (f"%y = add(%t, %b) {SUM}\n output y = %y", REFUSED),
    "the other operand would be, and the result no more": (
        f"%y = add(%t, %b) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z",
        REFUSED,
    ),
    "a smaller operand would be, and the result no more": (
        f"%y = add(%t, %row) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z",
        True,
    ),
    "a smaller operand and the result would be": (f"%y = add(%t, %row) {SUM}\n output y = %y", REFUSED),
    "the result is an output, too": (
        f"%y = add(%t, %row) {SUM}\n %z = transpose(%y) {TURN}\n output y = %y\n output z = %z",
        REFUSED,
    ),
    "the result has another reader": (
        f"%y = add(%t, %row) {SUM}\n %z = transpose(%y) {TURN}\n %e = exp(%y) {SUM}\n output z = %z\n output e = %e",
        REFUSED,
    ),
    "half of what is transposed is read elsewhere": (
        f"%y = neg(%t) {SUM}\n %e = exp(%t) {SUM}\n output y = %y\n output e = %e",
        REFUSED,
    ),
    "what is transposed is an output": (f"%y = neg(%t) {SUM}\n output y = %y\n output t = %t", REFUSED),
    "numbers get wider": (
        f"%s = transpose(%byte) {{perm=(1, 0)}} : 3x2 uint8\n %y = cast(%s) {SUM}\n output y = %y",
        REFUSED,
    ),
    "numbers get narrower": ("%y = cast(%t) {to=int8} : 3x2 int8\n output y = %y", True),
    "one byte less": (
        "input %p : 1x2 uint8\n input %q : 1x1 uint8\n %s = transpose(%p) {perm=(1, 0)} : 2x1 uint8\n"
        " %y = add(%s, %q) : 2x1 uint8\n %z = transpose(%y) {perm=(1, 0)} : 1x2 uint8\n output z = %z",
        True,
    ),
    "another transposition is behind it": (
        "%s = transpose(%cube) {perm=(1, 2, 0)} : 3x4x2 float32\n %y = cast(%s) {to=float64} : 3x4x2 float64\n"
        " %z = transpose(%y) {perm=(1, 2, 0)} : 4x2x3 float64\n output z = %z",
        REFUSED,
    ),
    "another transposition is before the other operand": (
        "input %d : 4x3x2 float32\n %s = transpose(%cube) {perm=(1, 2, 0)} : 3x4x2 float32\n"
        " %u = transpose(%d) {perm=(1, 0, 2)} : 3x4x2 float32\n %y = add(%s, %u) : 3x4x2 float32\n output y = %y",
        REFUSED,
    ),
}


def graph_of(body: str):
    """Return the graph; inputs of the body come first."""
    lines = [line.strip() for line in body.split("\n")]
    given = [line for line in lines if line.startswith("input ")]
    rest = [line for line in lines if not line.startswith("input ")]
    head, const, more = INPUTS.partition("  const ")
    return parse_graph(head + "".join(f"  {line}\n" for line in given) + const + more + "\n".join(rest) + "\n}\n")


@pytest.mark.parametrize("case", ONE_STEP)
def test_a_transposition_sinks_where_fewer_bytes_move(case: str):
    body, expected = ONE_STEP[case]
    graph = graph_of(body)
    reader = next(node for node in graph.nodes if node.outputs[0].name == "y")
    assert layout.sink_transpose.law(graph, reader) == expected


SEVERAL = {
    "the result moves": (f"%y = neg(%t) {SUM}\n output y = %y", 24 - 24),
    "nothing moves": (f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z", 24 + 24),
    "the result is an output, too": (
        f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z\n output y = %y",
        24 + 24 - 24,
    ),
    "a reader of the result is none of them": (
        f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n %s = dense(%y, %c) : 3x3 float32\n"
        " output z = %z\n output s = %s",
        24 + 24 - 24,
    ),
    "both readers": (
        f"%y = neg(%t) {SUM}\n %e = exp(%t) {SUM}\n output y = %y\n output e = %e",
        24 - 24 - 24,
    ),
    "a chain": (f"%e = exp(%t) {SUM}\n %y = neg(%e) {SUM}\n output y = %y", 24 - 24),
    "a chain that is read in between": (
        f"%e = exp(%t) {SUM}\n %y = neg(%e) {SUM}\n output y = %y\n output e = %e",
        24 - 24 - 24,
    ),
    "twice the same operand": (f"%y = mul(%t, %t) {SUM}\n output y = %y", 24 - 24),
    "a sum of both": (f"%e = exp(%t) {SUM}\n %y = mul(%t, %e) {SUM}\n output y = %y", 24 - 24),
    "a constant": (f"%y = mul(%t, %c) {SUM}\n output y = %y", 24 - 24),
    "an operand from elsewhere": (f"%y = mul(%t, %row) {SUM}\n output y = %y", 24 - 8 - 24),
    "a computed operand from elsewhere": (f"%e = exp(%row) : 1x2 float32\n %y = mul(%t, %e) {SUM}\n output y = %y", -8),
    "what is transposed is an output": (f"%y = neg(%t) {SUM}\n output y = %y\n output t = %t", -24),
    "another reads what is transposed": (
        f"%y = neg(%t) {SUM}\n %s = dense(%t, %c) : 3x3 float32\n output y = %y\n output s = %s",
        -24,
    ),
    "another transposition is behind it": (
        "%s = transpose(%cube) {perm=(1, 2, 0)} : 3x4x2 float32\n %y = neg(%s) : 3x4x2 float32\n"
        " %z = transpose(%y) {perm=(1, 2, 0)} : 4x2x3 float32\n output z = %z",
        96 - 96,
    ),
    "another transposition is before the other operand": (
        "input %d : 4x3x2 float32\n %s = transpose(%cube) {perm=(1, 2, 0)} : 3x4x2 float32\n"
        " %u = transpose(%d) {perm=(1, 0, 2)} : 3x4x2 float32\n %y = add(%s, %u) : 3x4x2 float32\n output y = %y",
        96 - 96 - 96,
    ),
    "nobody reads the result": (f"%e = exp(%t) {SUM}\n %y = neg(%t) {SUM}\n output e = %e", 24 - 24),
    "nobody reads what is transposed back": (
        f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n %e = exp(%t) {SUM}\n output e = %e",
        24 - 24,
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_bytes_that_a_region_saves(case: str):
    body, expected = SEVERAL[case]
    graph = graph_of(body)
    name = "s" if "%s = transpose" in body else "t"
    turn = next(node for node in graph.nodes if node.outputs[0].name == name)
    assert layout._gain(graph, layout._region(turn)) == expected


ENDS = {
    f"%e = exp(%t) {SUM}\n %y = neg(%e) {SUM}\n output y = %y": ["y"],
    f"%e = exp(%t) {SUM}\n %y = neg(%t) {SUM}\n output y = %y\n output e = %e": ["e", "y"],
    f"%e = exp(%t) {SUM}\n %y = neg(%e) {SUM}\n %s = dense(%e, %c) : 3x3 float32\n output y = %y\n output s = %s": [
        "y"
    ],
}


@pytest.mark.parametrize("body", ENDS)
def test_what_no_other_of_a_region_reads(body: str):
    graph = graph_of(body)
    turn = next(node for node in graph.nodes if node.outputs[0].name == "t")
    assert [node.outputs[0].name for node in layout._ends(layout._region(turn))] == ENDS[body]


CHAINS = {
    "undone": (f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z", ["y"]),
    "undone behind two": (
        f"%e = exp(%t) {SUM}\n %y = neg(%e) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z",
        ["e", "y"],
    ),
    "with a constant": (f"%y = mul(%t, %c) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z", ["y"]),
    "not undone": (f"%y = neg(%t) {SUM}\n output y = %y", []),
    "with another operand": (f"%y = mul(%t, %row) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z", []),
    "with another reader": (
        f"%y = neg(%t) {SUM}\n %z = transpose(%y) {TURN}\n output z = %z\n output y = %y",
        [],
    ),
    "with what does not pass": (
        "%y = dense(%t, %c) : 3x3 float32\n %z = transpose(%y) {perm=(1, 0)} : 3x3 float32\n output z = %z",
        [],
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_ends_at_the_transposition_that_undoes_it(case: str):
    body, expected = CHAINS[case]
    graph = graph_of(body)
    turn = next(node for node in graph.nodes if node.outputs[0].name == "t")
    assert [node.outputs[0].name for node in layout._chain(graph, turn)] == expected


def test_a_chain_that_another_transposition_ends_is_none():
    graph = graph_of(
        "%s = transpose(%cube) {perm=(1, 2, 0)} : 3x4x2 float32\n %y = neg(%s) : 3x4x2 float32\n"
        " %z = transpose(%y) {perm=(1, 2, 0)} : 4x2x3 float32\n output z = %z"
    )
    turn = next(node for node in graph.nodes if node.outputs[0].name == "s")
    assert layout._chain(graph, turn) == {}


@pytest.mark.parametrize("length", [layout.MAX_SINK_NODES - 1, layout.MAX_SINK_NODES, layout.MAX_SINK_NODES + 1])
def test_so_many_nodes_at_once(length: int):
    names = ["t", *(f"n{number}" for number in range(length))]
    steps = [f"%{name} = neg(%{of}) {SUM}" for of, name in pairwise(names)]
    graph = graph_of("\n".join([*steps, f"%z = transpose(%{names[-1]}) {TURN}", "output z = %z"]))
    turn = next(node for node in graph.nodes if node.outputs[0].name == "t")
    assert len(layout._region(turn)) == min(length, layout.MAX_SINK_NODES)
    assert bool(layout._chain(graph, turn)) == (length < layout.MAX_SINK_NODES)


PARTS = {
    ((4, 6), (24,)): ([4, 6], [range(0, 1), range(1, 2)], [range(0, 2)]),
    ((24,), (2, 3, 4)): ([2, 3, 4], [range(0, 3)], [range(0, 1), range(1, 2), range(2, 3)]),
    ((4, 6), (2, 2, 6)): ([2, 2, 6], [range(0, 2), range(2, 3)], [range(0, 1), range(1, 2), range(2, 3)]),
    ((1, 4), (4, 1)): ([4], [range(0, 0), range(0, 1)], [range(0, 1), range(1, 1)]),
    ((4, 6), (8, 3)): ([4, 2, 3], [range(0, 1), range(1, 3)], [range(0, 2), range(2, 3)]),
    ((4, 6), (6, 4)): None,
    ((0, 3), (3, 0)): None,
}


@pytest.mark.parametrize(("one", "other"), PARTS)
def test_parts_that_two_shapes_have_in_common(one: tuple[int, ...], other: tuple[int, ...]):
    assert layout._common_parts(one, other) == PARTS[one, other]
