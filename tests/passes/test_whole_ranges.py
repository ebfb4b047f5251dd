# SPDX-License-Identifier: Apache-2.0
"""Ranges of whole numbers: what is known of each operator's result, and which codes hold it."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

import mcugen.ops  # noqa: F401  (operators are known to the parser once their modules are imported)
from mcugen.hir.parser import parse_graph
from mcugen.ops.conversion import Quantize
from mcugen.passes.integer_valued_floats import ValueRange, _range, recognize_whole

INPUTS = """graph net {
  input %x : 2x4 float32
  input %image : 1x1x4x4 float32
  input %byte : 2x4 uint8
  input %short : 2x4 int16
  input %long : 2x4 int32
  input %code : 2x4 int8(1.0, -128)
  input %half : 2x4 int8(0.5, 0)
  const %whole : scalar float32 = 3.0
  const %part : scalar float32 = 0.5
  const %minus : scalar float32 = -2.0
  const %nought : scalar float32 = 0.0
  const %four : scalar int32 = 4
  const %many : 2x4 float32 = [1.0, -3.0, 2.0, 7.0, 0.0, 0.0, 0.0, 1.0]
  const %weights : 2x4 float32 = [1.0, -3.0, 2.0, 7.0, 0.0, 0.0, 0.0, 1.0]
  %f = floor(%x) : 2x4 float32
  %c = clamp(%f) {low=-3.0, high=10.0} : 2x4 float32
  %p = clamp(%f) {low=2.0, high=10.0} : 2x4 float32
  %n = clamp(%f) {low=-9.0, high=-2.0} : 2x4 float32
  %r = clamp(%x) {low=0.5, high=10.0} : 2x4 float32
  %b = cast(%byte) : 2x4 float32
  %i = cast(%byte) {to=int32} : 2x4 int32
"""


def lines(body: str) -> str:
    """Return a graph's text: the inputs, then `body`, whose last line computes %y."""
    return f"{INPUTS}{body}\n"


RANGES = {
    "%y = floor(%x) : 2x4 float32": ValueRange(-inf, inf, True),
    "%y = exp(%x) : 2x4 float32": ValueRange(),
    "%y = neg(%byte) : 2x4 uint8": ValueRange(0, 255, True),
    "%y = clamp(%f) {low=-3.0, high=10.0} : 2x4 float32": ValueRange(-3, 10, True),
    "%y = clamp(%f) {low=-3.0} : 2x4 float32": ValueRange(-3, inf, True),
    "%y = clamp(%f) {low=-3.0, high=9.5} : 2x4 float32": ValueRange(-3, 9.5, False),
    "%y = clamp(%c) {low=-9.0, high=4.0} : 2x4 float32": ValueRange(-3, 4, True),
    "%y = clamp(%x) {low=-3.0, high=10.0} : 2x4 float32": ValueRange(-3, 10, False),
    "%y = cast(%byte) : 2x4 float32": ValueRange(0, 255, True),
    "%y = cast(%r) : 2x4 float32": ValueRange(0, 11, False),
    "%y = cast(%r) {to=int32} : 2x4 int32": ValueRange(0, 11, True),
    "%y = cast(%c) {to=int8} : 2x4 int8": ValueRange(-3, 10, True),
    "%y = cast(%c) {to=uint8} : 2x4 uint8": ValueRange(0, 255, True),
    "%y = cast(%b) {to=int8} : 2x4 int8": ValueRange(-128, 127, True),
    "%y = ceil(%r) : 2x4 float32": ValueRange(0, 11, True),
    "%y = round(%c) : 2x4 float32": ValueRange(-4, 11, True),
    "%y = reshape(%c) {shape=(8,)} : 8 float32": ValueRange(-3, 10, True),
    "%y = reshape(%r) {shape=(8,)} : 8 float32": ValueRange(0, 10, False),
    "%y = pad(%c) {before=(0, 1), after=(0, 0), value=20.0} : 2x5 float32": ValueRange(-3, 20, True),
    "%y = pad(%c) {before=(0, 1), after=(0, 0), value=-9.5} : 2x5 float32": ValueRange(-9.5, 10, False),
    "%y = reduce_mean(%p) {axes=(1,)} : 2x1 float32": ValueRange(0, 10, False),
    "%y = reduce_mean(%n) {axes=(1,)} : 2x1 float32": ValueRange(-9, 0, False),
    "%y = reduce_max(%p) {axes=(1,)} : 2x1 float32": ValueRange(0, 10, True),
    "%y = reduce_sum(%p) {axes=(1,)} : 2x1 float32": ValueRange(),
    "%y = add(%c, %whole) : 2x4 float32": ValueRange(0, 13, True),
    "%y = add(%c, %many) : 2x4 float32": ValueRange(-6, 17, True),
    "%y = add(%c, %part) : 2x4 float32": ValueRange(-2.5, 10.5, False),
    "%y = add(%r, %whole) : 2x4 float32": ValueRange(3.5, 13, False),
    "%y = add(%f, %whole) : 2x4 float32": ValueRange(),
    "%y = add(%c, %whole) {clamp=(0.0, 5.0)} : 2x4 float32": ValueRange(),
    "%y = sub(%whole, %c) : 2x4 float32": ValueRange(-7, 6, True),
    "%y = mul(%c, %minus) : 2x4 float32": ValueRange(-20, 6, True),
    "%y = mul(%f, %nought) : 2x4 float32": ValueRange(),
    "%y = div(%c, %part) : 2x4 float32": ValueRange(-6, 20, False),
    "%y = div(%c, %minus) : 2x4 float32": ValueRange(),
    "%y = div(%c, %nought) : 2x4 float32": ValueRange(),
    "%y = div(%i, %four) : 2x4 int32": ValueRange(-1, 64, True),
    "%y = max(%c, %whole) : 2x4 float32": ValueRange(),
    "%y = add(%byte, %byte) : 2x4 uint8": ValueRange(0, 255, True),
    "%y = mul(%long, %four) : 2x4 int32": ValueRange(-(2**31), 2**31 - 1, True),
    "%y = dequantize(%code) : 2x4 float32": ValueRange(0, 255, True),
    "%y = dequantize(%half) : 2x4 float32": ValueRange(),
    "%y = concat(%c, %c) {axis=0} : 4x4 float32": ValueRange(),
}


@pytest.mark.parametrize("body", RANGES)
def test_ranges(body: str):
    graph = parse_graph(lines(f"  {body}\n  output y = %y\n}}"))
    assert _range(graph.outputs[0]) == RANGES[body]


@pytest.mark.parametrize(("count", "expected"), [(11, ValueRange(0, 255, True)), (12, ValueRange())])
def test_a_range_is_looked_for_through_twelve_operators(count: int, expected: ValueRange):
    names = ["b", *(f"b{number}" for number in range(count))]
    moved = [f"  %{name} = reshape(%{of}) {{shape=(2, 4)}} : 2x4 float32" for of, name in pairwise(names)]
    graph = parse_graph(lines("\n".join([*moved, f"  output y = %{names[-1]}", "}"])))
    assert _range(graph.outputs[0]) == expected


def clamped(low: float, high: float) -> str:
    return f"  %y = clamp(%f) {{low={float(low)}, high={float(high)}}} : 2x4 float32"


CODES = {
    clamped(0, 255): "int8(1, -128)",
    clamped(0, 127): "int8(1, 0)",
    clamped(0, 128): "int8(1, -128)",
    clamped(0, 256): "int16(1, 0)",
    clamped(-128, 127): "int8(1, 0)",
    clamped(-129, 126): "int8(1, 1)",
    clamped(-1, 254): "int8(1, -127)",
    clamped(-1, 255): "int16(1, 0)",
    clamped(5, 256): "int16(1, 0)",
    clamped(-256, -5): "int16(1, 0)",
    clamped(-255, -5): "int8(1, 127)",
    clamped(-32768, 32767): "int16(1, 0)",
    clamped(-32769, 0): None,
    clamped(0, 32768): None,
    clamped(0, inf): None,
    clamped(-inf, 0): None,
    clamped(0, 9.5): None,
}


@pytest.mark.parametrize("body", CODES)
def test_codes_hold_all_numbers(body: str):
    layer = "  %z = dense(%y, %weights) : 2x2 float32\n  output z = %z\n}"
    graph = parse_graph(lines(f"{body}\n{layer}"))
    assert recognize_whole(graph)
    stored = [str(node.output.type) for node in graph.nodes if isinstance(node.op, Quantize)]
    assert stored == ([] if CODES[body] is None else [f"2x4 {CODES[body]}"])


@pytest.mark.parametrize(
    ("extreme", "is_code"), [(127.0, True), (128.0, False), (-128.0, True), (-129.0, False), (1.5, False)]
)
def test_weights_are_codes_within_eight_bits(extreme: float, is_code: bool):
    weights = f"  const %w : 1x4 float32 = [1.0, 0.0, {extreme}, 2.0]"
    text = lines("  %z = dense(%c, %w) : 2x1 float32\n  output z = %z\n}")
    graph = parse_graph(text.replace("  %f = floor", f"{weights}\n  %f = floor"))
    recognize_whole(graph)
    assert any(isinstance(node.op, Quantize) for node in graph.nodes) == is_code
