# SPDX-License-Identifier: Apache-2.0
"""Bounds of real numbers: the exact bound of each operator's result, by hand."""

from __future__ import annotations

from math import inf, sqrt

import pytest

import mcugen.ops  # noqa: F401  (operators are known to the parser once their modules are imported)
from mcugen.hir.parser import parse_graph
from mcugen.passes.magnitudes import MAX_PRODUCERS, ROUNDING_GROWTH, Magnitudes

INPUTS = """graph net {
  input %x : 2x4 float32
  input %image : 1x2x2x2 float32
  input %byte : 2x4 uint8
  input %short : 2x4 int16
  input %code : 2x4 int8(0.5, 28)
  const %bits : 2x4 bool = ...
  const %two : scalar float32 = -2.0
  const %half : 2x4 float32 = [2.0, -0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0]
  const %nought : scalar float32 = 0.0
  const %never : scalar float32 = nan
  const %weights : 2x4 float32 = [0.0, 3.0, 0.0, -4.0, 1.0, 0.0, 2.0, 2.0]
  const %bias : 2 float32 = [1.0, -6.0]
  const %matrix : 4x2 float32 = [0.0, 1.0, 3.0, 0.0, 0.0, 2.0, -4.0, 2.0]
  const %scale : 4 float32 = [3.0, 1.0, 1.0, -5.0]
  const %shift : 4 float32 = [0.0, 2.0, -7.0, 0.0]
  const %codes : 2x4 int8(0.5, 1) = [1, 1, 1, 1, 1, -9, 1, 1]
  const %taps : 3x2x1x1 float32 = [0.0, 1.0, 3.0, -4.0, 2.0, 2.0]
  %c = clamp(%x) {low=-3.0, high=2.0} : 2x4 float32
  %d = clamp(%x) {low=-1.0, high=7.0} : 2x4 float32
  %o = clamp(%x) {low=0.0, high=0.0} : 2x4 float32
  %i = clamp(%image) {low=-3.0, high=2.0} : 1x2x2x2 float32
  %n = normalize(%x, %scale, %shift) {axes=(1,)} : 2x4 float32
  %m = normalize(%x, %scale) {axes=(0,)} : 2x4 float32
  %k = reshape(%n) {shape=(1, 2, 4)} : 1x2x4 float32
"""
_C, _D = 3 * ROUNDING_GROWTH, 7 * ROUNDING_GROWTH
"""The bounds of %c and %d."""

BOUNDS = {
    "exp(%x) : 2x4 float32": inf,
    "clamp(%x) {low=-3.0, high=2.0} : 2x4 float32": 3,
    "clamp(%c) {low=-1.0} : 2x4 float32": _C,
    "clamp(%c) {low=-1.0, high=2.0} : 2x4 float32": 2,
    "tanh(%x) : 2x4 float32": 1,
    "neg(%c) : 2x4 float32": _C,
    "exp(%c) : 2x4 float32": inf,
    "dequantize(%code) : 2x4 float32": 78,
    "dequantize(%codes) : 2x4 float32": 0.5 * 129,
    "cast(%byte) : 2x4 float32": 255,
    "cast(%short) : 2x4 float32": 32768,
    "cast(%c) {to=int8} : 2x4 int8": _C,
    "cast(%x) {to=int8} : 2x4 int8": 128 / ROUNDING_GROWTH,
    "reshape(%c) {shape=(8,)} : 8 float32": _C,
    "pad(%c) {before=(0, 1), after=(0, 0), value=-9.0} : 2x5 float32": 9,
    "pad(%c) {before=(0, 1), after=(0, 0), value=1.0} : 2x5 float32": _C,
    "concat(%c, %d) {axis=0} : 4x4 float32": _D,
    "softmax(%x) {axis=1} : 2x4 float32": 1,
    "log_softmax(%x) {axis=1} : 2x4 float32": inf,
    "where(%bits, %c, %d) : 2x4 float32": _D,
    "add(%c, %two) : 2x4 float32": _C + 2,
    "add(%c, %codes) : 2x4 float32": inf,
    "add(%c, %x) : 2x4 float32": inf,
    "add(%c, %never) : 2x4 float32": inf,
    "sub(%c, %d) : 2x4 float32": _C + _D,
    "mul(%c, %two) : 2x4 float32": _C * 2,
    "mul(%x, %nought) : 2x4 float32": 0,
    "mul(%o, %x) : 2x4 float32": 0,
    "div(%c, %half) : 2x4 float32": _C / 0.5,
    "div(%c, %nought) : 2x4 float32": inf,
    "div(%two, %c) : 2x4 float32": inf,
    "max(%c, %two) : 2x4 float32": _C,
    "min(%c, %d) : 2x4 float32": _D,
    "pow(%c, %two) : 2x4 float32": inf,
    "add(%c, %d) {clamp=(-4.0, 1.0)} : 2x4 float32": 4,
    "affine(%c, %two, %half) : 2x4 float32": _C * 2 + 4,
    'affine(%c, %two, %half) {steps=("Add", "Mul")} : 2x4 float32': (_C + 2) * 4,
    "reduce_mean(%c) {axes=(1,)} : 2x1 float32": _C,
    "reduce_sum(%c) {axes=(1,)} : 2x1 float32": _C * 4,
    "reduce_sum(%c) {axes=(0, 1)} : 1x1 float32": _C * 8,
    "reduce_l1(%c) {axes=(0,)} : 1x4 float32": _C * 2,
    "reduce_prod(%c) {axes=(0,)} : 1x4 float32": inf,
    "dense(%c, %weights) : 2x2 float32": 2 * _C * 5,
    "dense(%c, %weights, %bias) : 2x2 float32": 2 * _C * 5 + 6,
    "dense(%c, %d) : 2x2 float32": 2 * _C * (2 * _D),
    "matmul(%c, %matrix) : 2x2 float32": 2 * _C * 5,
    "matmul(%c, %matrix) {factor=-0.5} : 2x2 float32": 2 * _C * 5 * 0.5,
    "dense(%n, %weights) : 2x2 float32": 2 * (5 + 7) * 5,
    "dense(%k, %weights) : 1x2x2 float32": 2 * (5 + 7) * 5,
    "dense(%m, %weights) : 2x2 float32": 2 * (sqrt(2) * 5 * ROUNDING_GROWTH) * 5,
    "conv(%i, %taps) {window=Window((1, 1), (0, 0), (0, 0), (1, 1))} : 1x3x2x2 float32 NCHW": sqrt(2) * _C * 5,
    "normalize(%x) {axes=(1,)} : 2x4 float32": 2,
    "normalize(%x, %scale, %shift) {axes=(1,)} : 2x4 float32": 2 * 5 + 7,
    "normalize(%x, %scale) {axes=(0,)} : 2x4 float32": sqrt(2) * 5,
}
"""Operators, and what is known of their results before floats round them."""


@pytest.mark.parametrize("operator", BOUNDS)
def test_bounds(operator: str):
    graph = parse_graph(f"{INPUTS}  %y = {operator}\n  output y = %y\n}}\n")
    bound = Magnitudes().of(graph.outputs[0])
    expected = BOUNDS[operator]
    is_exact = "clamp=" in operator
    assert bound == (expected if is_exact else pytest.approx(expected * ROUNDING_GROWTH, rel=1e-9))


@pytest.mark.parametrize(("count", "bound"), [(MAX_PRODUCERS - 1, 3), (MAX_PRODUCERS, inf)])
def test_bounds_are_looked_for_through_so_many_operators(count: int, bound: float):
    moved = [f"  %v{number + 1} = reshape(%v{number}) {{shape=(2, 4)}} : 2x4 float32" for number in range(count)]
    body = "\n".join(["  %v0 = clamp(%x) {low=-3.0, high=2.0} : 2x4 float32", *moved])
    graph = parse_graph(f"{INPUTS}{body}\n  output y = %v{count}\n}}\n")
    assert Magnitudes().of(graph.outputs[0]) == pytest.approx(bound * ROUNDING_GROWTH ** (count + 1))
