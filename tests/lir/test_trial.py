# SPDX-License-Identifier: Apache-2.0
"""A layer is lowered by itself once, however many graphs have it; another one is not taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net

from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node
from mcugen.lir import trial as module
from mcugen.lir.spec import own_kernels
from mcugen.lir.trial import trial

NONE = frozenset[str]()


def layer(weights: np.ndarray, rows: int = 8) -> Node:
    net = Net()
    net.output(net.op("Conv", net.input("x", 1, 4, rows, 8), net.const(weights)))
    nodes = compile_model(net.model()).graph.nodes
    return next(node for node in nodes if own_kernels(node.op) and len(node.inputs) > 1)


def test_a_layer_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIALS", {})
    node = layer(np.ones((5, 4, 3, 3)))
    kernel = next(k for k in own_kernels(node.op) if k.emit and k.fits(node, NONE))
    again = Node(node.op, node.inputs, node.outputs, ())
    first = trial(node, kernel, NONE)
    assert trial(again, kernel, NONE) is first
    assert len(first.inputs) == len(node.inputs) and first.inputs[0] in first.program.buffers
    assert sum(first.constants.values()) == first.program.weights_size
    assert trial(layer(np.ones((5, 4, 3, 3)), 9), kernel, NONE) is not first
    other = trial(layer(np.full((5, 4, 3, 3), 2.0)), kernel, NONE)
    assert other is not first and other.constants != first.constants


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIALS", {})
    monkeypatch.setattr(module, "MAX_CACHED_TRIALS", 2)
    nodes = [layer(np.full((5, 4, 3, 3), float(number))) for number in range(3)]
    kernel = next(k for k in own_kernels(nodes[0].op) if k.emit and k.fits(nodes[0], NONE))
    module._TRIALS.clear()
    made = [trial(node, kernel, NONE) for node in nodes]
    assert len(module._TRIALS) == 2
    assert [trial(node, kernel, NONE) is one for node, one in zip(nodes, made, strict=True)] == [False, False, False]
