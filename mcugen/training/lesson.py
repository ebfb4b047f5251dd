# SPDX-License-Identifier: Apache-2.0
"""From a model for inference to one that learns: a loss, the gradients by what is trained, and updates, as HIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mcugen.hir.graph import Graph, Value
from mcugen.hir.lesson import Lesson
from mcugen.hir.types import Array, DType, TensorType
from mcugen.ops.gradient import gradients
from mcugen.options import Training
from mcugen.pipeline import fuse_float
from mcugen.training.layers import chosen
from mcugen.training.losses import SCALAR, Judged, judged
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import OPTIMIZERS, Group, Optimizer, updated
from mcugen.training.parameters import Parameter, with_parameters
from mcugen.training.reals import behind, compute_reals, part_clamps, real_result


def teach(graph: Graph, training: Training) -> Mapping[str, str]:
    """Makes a graph one that learns, in place, and tells its states; `graph.lesson` says more. Refusal where it cannot.

    What is computed for inference stays as it was, but that trained layers, and what lies behind them, are real.
    """
    fuse_float(graph)
    layers = chosen(graph, training.layers)
    compute_reals(graph, behind(graph, [layer.node for layer in layers]))
    part_clamps(graph, behind(graph, [layer.node for layer in layers]))
    parameters = with_parameters(graph, chosen(graph, training.layers))
    found = judged(graph, real_result(graph.outputs[0]), training.loss)
    graph.rename(found.loss, "loss")
    rate = graph.add_input("rate", TensorType(SCALAR, DType.FLOAT32))
    states, first = _learned(graph, OPTIMIZERS[training.optimizer], found, parameters, rate)
    name = _free_output(graph, "loss")
    graph.add_output(name, found.loss)
    graph.sort()
    graph.lesson = Lesson(found.target.name, rate.name, name, states, first, found.classes, training.loss)
    return states


def _learned(
    graph: Graph, optimizer: Optimizer, found: Judged, parameters: Sequence[Parameter], rate: Value
) -> tuple[dict[str, str], dict[str, Array]]:
    """Adds gradients and updates: states by output, and what these hold at first."""
    by = [parameter.value for parameter in parameters]
    slopes = gradients(graph, found.loss, by, rate if optimizer.scales else None)
    states: dict[str, str] = {}
    count = _counted(graph, states) if optimizer.counts else None
    for parameter, gradient in zip(parameters, slopes, strict=True):
        tensor = parameter.value
        memories = [graph.add_input(f"{tensor.name}.{name}", tensor.type) for name in optimizer.memories]
        group = Group(tensor, gradient, memories, rate, count)
        for state, new in zip([tensor, *memories], updated(graph, optimizer, group), strict=True):
            _keep(graph, states, state, new)
    return states, {parameter.value.name: parameter.first for parameter in parameters}


def _counted(graph: Graph, states: dict[str, str]) -> Value:
    """How often was updated, this time included."""
    before = graph.add_input("updates", TensorType((), DType.INT64))
    now = OnnxCalls(graph, "updates.now")("Add", before, np.ones((), np.int64))
    _keep(graph, states, before, now)
    return now


def _keep(graph: Graph, states: dict[str, str], state: Value, new: Value) -> None:
    """Makes a value what the state is in the next call."""
    name = _free_output(graph, f"{state.name}.new")
    graph.add_output(name, new)
    states[name] = state.name


def _free_output(graph: Graph, wanted: str) -> str:
    while wanted in graph.output_names:
        wanted += "_"
    return wanted
