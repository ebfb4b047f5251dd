# SPDX-License-Identifier: Apache-2.0
"""Several samples through a recurrent layer at once: what each gives by itself, results and what is computed within."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, imported
from test_recurrent import Layer, tensors

from mcugen.hir.graph import Node
from mcugen.hir.interpreter import evaluate_node, evaluate_samples
from mcugen.hir.types import Array
from mcugen.ops import recurrent
from mcugen.ops.recurrent import Recurrent

SAMPLES = 5


def the_layer(op: str, layout: int, fed: tuple[str, ...]) -> tuple[Node, list[list[Array]]]:
    """A layer, and its inputs of several samples; of those that are not fed all have the same."""
    layers = []
    for seed in range(SAMPLES):
        random = tensors(op, "bidirectional", steps=4, batch=2, layout=layout, seed=seed, without=("P", "lens"))
        if "lens" in fed:
            random["lens"] = np.random.default_rng(seed).integers(0, 5, 2).astype(np.int32)
        layers.append(Layer(op, random, fed, "bidirectional", layout=layout))
    net = Net(21)
    layers[0].add_to(net, 0)
    (node,) = [n for n in imported(net.model()).nodes if isinstance(n.op, Recurrent)]
    read = [v for v in node.inputs if v is not None]
    return node, [[layer.feeds(0)[v.name] if v.data is None else v.data for v in read] for layer in layers]


@pytest.mark.parametrize("op", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("fed", [("X",), ("X", "h0", "c0"), ("X", "lens"), ("X", "W")], ids=lambda fed: fed[-1])
def test_several_samples_give_what_each_gives(op: str, layout: int, fed: tuple[str, ...]):
    node, samples = the_layer(op, layout, tuple(role for role in fed if op == "LSTM" or role != "c0"))
    assert isinstance(node.op, Recurrent)
    for arrays, results in zip(samples, evaluate_samples(node, samples), strict=True):
        for found, wanted in zip(results, evaluate_node(node, arrays), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    for arrays, (_, internals) in zip(samples, node.op.evaluate_batch(node.sig, samples), strict=True):
        wanted = node.op.internals(node.sig, *arrays)
        assert set(internals) == set(wanted)
        for role, array in internals.items():
            np.testing.assert_allclose(array, wanted[role], rtol=1e-6, atol=1e-7)


def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch):
    """Each step computes two samples of 4 steps, 2 directions, 2 sequences; then the last one."""
    node, samples = the_layer("GRU", 0, ("X",))
    assert isinstance(node.op, Recurrent)
    hidden = node.input(recurrent.R).type.shape[2]
    monkeypatch.setattr(recurrent, "MAX_BATCH_ELEMENTS", 2 * 4 * 2 * 2 * 4 * hidden)
    rows, step = list[int](), recurrent.Gru.step

    def told(self: recurrent.Gru, d: int, x: Array, *others: Array) -> dict[str, Array]:
        rows.append(len(x))
        return step(self, d, x, *others)

    monkeypatch.setattr(recurrent.Gru, "step", told)
    assert len(list(node.op.evaluate_batch(node.sig, samples))) == SAMPLES
    assert rows == [4] * 16 + [2] * 8
