# SPDX-License-Identifier: Apache-2.0
"""Random graphs of everything: a few here, more in the sweep, many by `make fuzz`; and what makes them small."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from fuzz_graphs import findings, sized_finding
from mixed_graphs import mixed_model
from onnx_models import Net, random_feeds, reference_outputs
from reduce_model import reduced

SEEDS_IN_CI, SEEDS = 5, 200
SIZED_IN_CI, SIZED = 4, 60
PART = 20


def found(seeds: range) -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return list(findings([mixed_model(seed) for seed in seeds]))


def test_mixed_graphs() -> None:
    assert found(range(SEEDS_IN_CI)) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS_IN_CI, SEEDS, PART))
def test_more_mixed_graphs(first: int) -> None:
    assert found(range(first, first + PART)) == []


def test_graphs_over_a_length() -> None:
    assert [found for seed in range(SIZED_IN_CI) if (found := sized_finding(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SIZED_IN_CI, SIZED, PART))
def test_more_graphs_over_a_length(first: int) -> None:
    assert [found for seed in range(first, first + PART) if (found := sized_finding(seed))] == []


def test_mixed_graphs_have_everything() -> None:
    """Over some seeds: control flow, recurrent layers, codes, several outputs, sizes known at run time."""
    graphs = [mixed_model(seed).model.graph for seed in range(20)]
    used = {node.op_type for graph in graphs for node in graph.node}
    assert used >= {"If", "Loop", "Scan", "GRU", "LSTM", "TopK", "QuantizeLinear", "Concat", "Slice", "Split"}
    assert used & {"Unique", "NonZero"}
    readers = [sum("shared" in node.input for node in graph.node) for graph in graphs]
    assert max(readers) > 1


def test_a_seed_gives_the_same_model() -> None:
    assert mixed_model(3).model == mixed_model(3).model


def long_chain() -> Net:
    """A tail and a head around a division whose result is not finite."""
    net = Net()
    x = net.op("Relu", net.op("Neg", net.input("x", 4)))
    y = net.op("Div", net.op("Abs", x), net.op("Sub", x, x))
    net.output(net.op("Identity", net.op("Neg", net.op("Abs", y)), out="y"), net.op("Tanh", x, out="z"))
    return net


def test_a_model_is_made_small() -> None:
    def fails(model: onnx.ModelProto) -> bool:
        with np.errstate(all="ignore"):
            outputs = reference_outputs(model, random_feeds(model)).values()
        return any(not np.isfinite(array).all() for array in outputs)

    small = reduced(long_chain().model(), fails)
    assert fails(small)
    assert {node.op_type for node in small.graph.node} <= {"Sub", "Div", "Identity", "Neg", "Abs"}
    assert "Tanh" not in {node.op_type for node in small.graph.node}
    assert len(small.graph.node) < 6
