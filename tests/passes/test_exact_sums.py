# SPDX-License-Identifier: Apache-2.0
"""Layers whose sums float32 holds to the last digit: which constants they take in, and which not, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx_models import Net, imported

import mcugen.ops  # noqa: F401  (operators are known to the parser once their modules are imported)
from mcugen.hir.parser import parse_graph
from mcugen.passes import fuse

APART = "sums of whole numbers are exact as they are, and would not be"
LARGEST = 2**24
"""Whole numbers up to here are float32."""

WHOLE = [[3, -5], [1, 1]]
"""The largest sum of a row's magnitudes is 8: for bytes, 2048."""
HALVES = [[1, 0.5], [0, 2]]
NO_STEPS = [[1, 0.1], [0, 2]]

CASES = {
    # A sum of constants is rounded, while sums of products are not.
    ("add", "rounded"): (WHOLE, [1, 0], [0.1, 0], APART),
    ("add", "rounded, of halves"): (HALVES, [0, 1], [0, 0.1], APART),
    ("add", "rounded, as products are"): (NO_STEPS, [1, 0], [0.1, 0], True),
    ("add", "exact"): (WHOLE, [1, 0], [0.5, 0], True),
    ("add", "no bias before"): (WHOLE, [0, 0], [0.1, 0.3], True),
    ("add", "too large"): (WHOLE, [2, 0], [LARGEST - 1, 0], APART),
    ("sub", "not too large"): (WHOLE, [2, 0], [LARGEST - 1, 0], True),
    ("sub", "rounded"): (WHOLE, [1, 0], [0.1, 0], APART),
    # Whole numbers stay below 2²⁴ before the product, and not behind it.
    ("mul", "2²⁴"): (WHOLE, [0, 0], [LARGEST // 2048, 1], APART),
    ("mul", "less than 2²⁴"): (WHOLE, [0, 0], [LARGEST // 2048 - 1, 1], True),
    ("mul", "the other channel reaches 2²⁴"): (WHOLE, [0, 0], [1, -LARGEST // 2048], APART),
    ("mul", "2²⁴ before"): ([[LARGEST // 256, 0], [0, 0]], [0, 0], [3, 1], True),
    ("mul", "less than 2²⁴ before"): ([[LARGEST // 256 - 1, 0], [0, 0]], [0, 0], [3, 1], APART),
    ("mul", "no weights"): ([[0, 0], [0, 0]], [0, 0], [LARGEST // 256, 1], True),
    # A factor of many digits rounds what is a sum, of products or of one and a bias.
    ("mul", "many digits"): (HALVES, [0, 0], [0.1, 1], APART),
    ("mul", "many digits, of whole numbers"): (WHOLE, [0, 0], [0.1, 1], APART),
    ("mul", "many digits, of a whole factor and weights"): (WHOLE, [0.5, 0], [4097, 1], APART),
    ("mul", "many digits of a single product"): (HALVES, [0, 0], [1, 0.1], True),
    ("mul", "many digits of a product and a bias"): (HALVES, [0, 1], [1, 0.1], APART),
    ("mul", "many digits of a sum and a bias"): (HALVES, [1, 0], [0.1, 1], APART),
    ("mul", "many digits, as products have"): (NO_STEPS, [0, 0], [0.1, 1], True),
    ("mul", "few digits"): (HALVES, [0, 0], [4095, 1], True),
    ("div", "few digits"): (HALVES, [0, 0], [8, 1], True),
    ("div", "many digits"): (HALVES, [0, 0], [10, 1], APART),
    ("div", "large"): (WHOLE, [0, 0], [2**13, 1], True),
}


def listed(numbers: object) -> str:
    return str([float(number) for number in np.asarray(numbers).reshape(-1)])


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_exact_sums_stay_exact(case: tuple[str, str]):
    weights, bias, constant, expected = CASES[case]
    graph = parse_graph(
        f"""graph net {{
  input %x : 1x2 float32
  const %w : 2x2 float32 = {listed(weights)}
  const %b : 2 float32 = {listed(bias)}
  const %c : 1x2 float32 = {listed(constant)}
  %d = dense(%x, %w, %b) : 1x2 float32
  %y = {case[0]}(%d, %c) : 1x2 float32
  output y = %y
}}
"""
    )
    _, node = graph.nodes
    assert fuse.fold_affine.law(graph, node) == expected
    if expected is True:
        (layer,) = graph.nodes
        w, b, c = (np.asarray(numbers, np.float32).astype(np.float64) for numbers in (weights, bias, constant))
        factor = c if case[0] == "mul" else 1 / c if case[0] == "div" else np.ones(2)
        shift = {"add": c, "sub": -c}.get(case[0], np.zeros(2))
        for index, numbers in ((1, w * factor[:, None]), (2, b * factor + shift)):
            np.testing.assert_array_equal(layer.input(index).data, numbers.astype(np.float32))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1 / 128], True),
        ([1, 1 / 256], False),
        ([255 / 128, -1 / 128], True),
        ([-255, 1], True),
        ([256, 1], False),
        ([-512, 4], True),
        ([510, 2], True),
        ([0, 0], True),
        ([0.1, 0.3], False),
        ([np.inf, 1], False),
    ],
)
def test_weights_are_steps(weights: list[float], expected: bool):
    with np.errstate(invalid="ignore"):
        assert fuse._are_steps(np.asarray([weights], np.float32)) == expected


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_weights_of_transposed_convolutions_by_channel(groups: int, depth: int):
    """[I, O / groups, H, W] holds, of each input of a group, the weights of each output of that group."""
    shape = (2 * groups, depth, 2, 3)
    weights = np.random.default_rng(groups).normal(size=shape).astype(np.float32)
    net = Net()
    x = net.input("x", 1, 2 * groups, 3, 3)
    net.output(net.op("ConvTranspose", x, net.const(weights), group=groups))
    layer = next(node for node in imported(net.model()).nodes if node.op.name == "conv_transpose")
    rows = np.zeros((groups * depth, 2 * 2 * 3))
    factors = np.random.default_rng(depth).normal(size=groups * depth)
    scaled = np.zeros(shape)
    for group, out in itertools.product(range(groups), range(depth)):
        channel = group * depth + out
        inputs = range(group * 2, group * 2 + 2)
        rows[channel] = np.concatenate([weights[index, out].reshape(-1) for index in inputs])
        for index in inputs:
            scaled[index, out] = weights[index, out] * factors[channel]
    assert fuse._channels(layer) == groups * depth
    np.testing.assert_array_equal(fuse._rows(layer, weights), rows.astype(np.float32))
    np.testing.assert_array_equal(fuse._scaled_weights(layer, weights, factors), scaled.astype(np.float32))
