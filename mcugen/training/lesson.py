# SPDX-License-Identifier: Apache-2.0
"""Conversion of an inference graph to a trainable one: a loss, gradients and updates, as HIR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.core.errors import UsageError
from mcugen.core.options import INTEGER_OPTIMIZER_NAMES, Training
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.lesson import Lesson
from mcugen.hir.types import Array, DType, TensorType
from mcugen.ops.conversion import Quantize
from mcugen.ops.gradient import gradients, unfuse
from mcugen.ops.movement import Reshape
from mcugen.ops.onnx_node import Refusal
from mcugen.training.coded_errors import UnfitError
from mcugen.training.heads import Head, attach_head, head_of
from mcugen.training.integers import (
    CODED_LOSSES,
    UpdateState,
    replace_by_trainable,
    set_gradients,
    update_integer_parameter,
)
from mcugen.training.layers import TrainableLayer, layer_name, nodes_before, select_layers
from mcugen.training.losses import SCALAR, TrainingLoss, add_loss
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import (
    OPTIMIZERS,
    Batch,
    OptimizerInputs,
    accumulate_batch,
    apply_optimizer,
    dither_counter,
    dither_fraction,
    update_int8_weights,
)
from mcugen.training.parameters import TrainedParameter, add_parameters, read_int8_weights
from mcugen.training.reals import dependent_nodes, real_result, real_result_of, remove_requantization
from mcugen.training.statistics import (
    add_normalization_parameters,
    drop_cancelled_biases,
    freeze_early_statistics,
    loss_with_sample_statistics,
    new_statistics,
)

DESCENT_TEXT = "the trained weights in `state` move by `rate` times the gradient of the loss."
"""Sentence for the generated header that says how plain gradient descent changes the weights."""


def make_trainable(graph: Graph, training: Training) -> Mapping[str, str]:
    """Add a loss, gradients and updates to a graph, in place, and describe them in `graph.lesson`.

    Inference stays as it was, except that trained layers and the layers that depend on them may compute in float.

    Args:
        graph: The graph.
        training: The options of training, such as the trained layers.

    Returns:
        The name of the state input that each state output updates, by the name of the output.

    Raises:
        Refusal: The graph cannot be trained with these options.
    """
    if training.updates_statistics:
        freeze_early_statistics(graph, training.layers)
    fuse_float(graph)
    what, _, layer = training.layers.partition("@")
    head = head_of(what)
    return _train_layers(graph, training) if head is None else _train_head(graph, head, layer)


def _train_head(graph: Graph, head: Head, layer: str) -> Mapping[str, str]:
    """Add a head behind the model, or behind a named layer; the model itself stays as it was."""
    result = real_result_of(graph, layer) if layer else real_result(graph.outputs[0])
    end = attach_head(graph, result, head)
    states: dict[str, str] = {}
    for state, new in end.embedding.new_states.items():
        _keep(graph, states, state, new)
    loss = _free_output(graph, "loss")
    graph.add_output(loss, end.loss)
    graph.sort()
    names = end.embedding.target.name, end.embedding.rate.name, loss
    kept = end.embedding.initial_states
    graph.lesson = Lesson(*names, states, (head.output,), kept, head.classes, head.loss, head.learning)
    return states


def _train_layers(graph: Graph, training: Training) -> Mapping[str, str]:
    layers = select_layers(graph, training.layers)
    if training.precision != "int8":
        return _train_reals(graph, training, layers)
    try:
        _train_integers(graph.copy(), training)
    except UnfitError as unfit:
        if training.optimizer != INTEGER_OPTIMIZER_NAMES[0] or training.batch > 1:
            rule = "--train-weights int8 learns in batches, and by momentum, in integers alone"
            remedy = f"--optimizer {INTEGER_OPTIMIZER_NAMES[0]} --batch 1, or --train-weights float32"
            raise UsageError(rule, str(unfit), remedy) from None
        graph.notes.append(f"int8 weights learn by float32 gradients, as integers do not compute {unfit}")
        return _train_reals(graph, training, layers)
    return _train_integers(graph, training)


def _train_integers(graph: Graph, training: Training) -> Mapping[str, str]:
    """Make a graph trainable without sums of reals on the way to the trained parameters.

    Raises:
        UnfitError: That is impossible; the graph is then unusable.
    """
    if training.loss not in CODED_LOSSES:
        raise UnfitError(f"the gradient of {training.loss}")
    unfuse(graph, dependent_nodes(graph, [layer.node for layer in select_layers(graph, training.layers)]))
    trained = [replace_by_trainable(graph, layer) for layer in select_layers(graph, training.layers)]
    result = real_result(graph.outputs[0])
    loss = add_loss(graph, result, training.loss)
    graph.rename(loss.loss, "loss")
    rate, rates = _rates(graph, [layer.name for layer in trained])
    set_gradients(graph, trained, result, loss.target, training.loss)
    before, states = set(graph.nodes), dict[str, str]()
    batch = _batch(graph, training.batch, states) if training.batch > 1 else None
    turns = dither_counter(graph, _counted(graph, states, batch))
    for layer in trained:
        for learned in layer.learned:
            tensor, has_momentum = learned.parameter.value, training.optimizer == "momentum"
            kept = UpdateState.of(graph, tensor, in_batches=batch is not None, has_momentum=has_momentum)
            new = update_integer_parameter(graph, learned, rates[layer.name], turns, kept, batch)
            for state, value in zip([tensor, *kept.states], new, strict=True):
                _keep(graph, states, state, value)
    _soon(graph, [node for node in graph.nodes if node not in before])
    parameters = [learned.parameter for layer in trained for learned in layer.learned]
    return _taught(graph, training, loss, rate, states, parameters)


def _train_reals(graph: Graph, training: Training, layers: Sequence[TrainableLayer]) -> Mapping[str, str]:
    remove_requantization(graph, dependent_nodes(graph, [layer.node for layer in layers]))
    _require_reals(graph, [layer.node for layer in layers])
    unfuse(graph, dependent_nodes(graph, [layer.node for layer in layers]))
    parameters = add_parameters(graph, select_layers(graph, training.layers), coded=training.precision == "int8")
    normalizing, running = add_normalization_parameters(graph)
    parameters = [*drop_cancelled_biases(graph, parameters), *normalizing]
    judgement = add_loss(graph, real_result(graph.outputs[0]), training.loss)
    graph.rename(judgement.loss, "loss")
    rate, rates = _rates(graph, [parameter.layer for parameter in parameters])
    loss, statistics = loss_with_sample_statistics(graph, judgement.loss) if running else (judgement.loss, {})
    states = _learned(graph, training, loss, parameters, rates, statistics)
    first = {value.name: constant.data for value, constant in running.items() if constant.data is not None}
    return _taught(graph, training, judgement, rate, states, parameters, first)


def _require_reals(graph: Graph, layers: Sequence[Node]) -> None:
    """Raise Refusal if values between a trained layer and the result are quantized, as in loops without derivatives."""
    path_nodes = nodes_before(real_result(graph.outputs[0]))
    for node in dependent_nodes(graph, layers):
        if node in path_nodes and isinstance(node.op, Quantize):
            readers = ", ".join(f"'{layer_name(user)}'" for user in node.output.users[:3] if user in path_nodes)
            rule = "--train: what lies behind the first trained layer must have a derivative"
            remedy = "train only the layers after it, or quantize with --layer NAME=float32 for it"
            raise Refusal(rule, f"{readers} computes codes", remedy)


def _taught(
    graph: Graph,
    training: Training,
    judgement: TrainingLoss,
    rate: Value,
    states: Mapping[str, str],
    parameters: Sequence[TrainedParameter],
    running: Mapping[str, Array] | None = None,
) -> Mapping[str, str]:
    """Finish the graph with the loss, and set the description of its training."""
    name = _free_output(graph, "loss")
    graph.add_output(name, judgement.loss)
    graph.sort()
    first = {parameter.kept.name: parameter.first for parameter in parameters} | dict(running or {})
    names = tuple(dict.fromkeys(parameter.layer for parameter in parameters))
    ends = judgement.target.name, rate.name, name
    graph.lesson = Lesson(*ends, states, names, first, judgement.classes, training.loss, DESCENT_TEXT)
    return states


def _rates(graph: Graph, layers: Sequence[str]) -> tuple[Value, dict[str, Value]]:
    """Add the input of learning rates; return it and its part for each layer."""
    names = tuple(dict.fromkeys(layers))
    rate = graph.add_input("rate", TensorType((len(names),), DType.FLOAT32))
    return rate, dict(zip(names, _parts(graph, rate), strict=True))


def _parts(graph: Graph, rate: Value) -> list[Value]:
    """Return the learning rate of each layer."""
    if rate.type.shape == SCALAR:
        return [rate]
    call = OnnxCalls(graph, "rate")
    return [
        call("Slice", rate, np.asarray([i]), np.asarray([i + 1]), np.asarray([0])) for i in range(rate.type.shape[0])
    ]


def _learned(
    graph: Graph,
    training: Training,
    loss: Value,
    parameters: Sequence[TrainedParameter],
    rates: Mapping[str, Value],
    statistics: Mapping[Value, tuple[str, Value]],
) -> dict[str, str]:
    """Add the gradients of a loss and the updates, with each layer's rate; return the states by output."""
    optimizer, is_coded = OPTIMIZERS[training.optimizer], training.precision == "int8"
    by = [parameter.value for parameter in parameters]
    shared = optimizer.scaled is not None and len(rates) == 1 and not is_coded
    seed = next(iter(rates.values())) if shared else None
    optimizer = optimizer if seed is None else optimizer.scaled or optimizer
    inference_nodes = set(graph.nodes)
    slopes = gradients(graph, loss, by, seed, strictly=True)
    before = set(graph.nodes)
    states: dict[str, str] = {}
    for state, value in new_statistics(graph, statistics, rates):
        _keep(graph, states, state, value)
    batch = _batch(graph, training.batch, states) if training.batch > 1 else None
    count = _counted(graph, states, batch) if optimizer.counts or is_coded else None
    dither = dither_fraction(graph, count) if is_coded and count is not None else None
    for parameter, gradient in zip(parameters, slopes, strict=True):
        tensor = parameter.value
        memories = [graph.add_input(f"{tensor.name}.{name}", tensor.type) for name in optimizer.memories]
        group = OptimizerInputs(tensor, gradient, memories, rates[parameter.layer], count)
        if parameter.coded is not None and dither is not None:
            kept, new = [parameter.kept], [update_int8_weights(graph, group, *parameter.coded, dither)]
        elif batch is None:
            kept, new = [tensor, *memories], apply_optimizer(graph, optimizer, group)
        else:
            total = graph.add_input(f"{tensor.name}.sum", tensor.type)
            kept, new = [tensor, *memories, total], accumulate_batch(graph, optimizer, group, batch, total)
        for state, value in zip(kept, new, strict=True):
            _keep(graph, states, state, value)
    updates = [node for node in graph.nodes if node not in before]
    read_int8_weights(graph, parameters, [node for node in graph.nodes if node in before - inference_nodes])
    _soon(graph, updates)
    return states


def _soon(graph: Graph, updates: Sequence[Node]) -> None:
    """Move each update to the first place where its gradient exists and no other node reads what it changes.

    Two gradients then need not be kept at once.
    """
    places: dict[Node | None, int] = {node: place for place, node in enumerate(graph.nodes)}
    places |= dict.fromkeys(updates, 0) | {None: 0}
    graph_inputs = set(graph.inputs)
    for node in updates:
        producer_places = [places[v.producer] for v in node.inputs if v is not None]
        reader_places = [places[user] for v in node.inputs if v in graph_inputs for user in _readers(v)]
        places[node] = max([*producer_places, *reader_places])
    late = set(updates)
    graph.nodes = sorted(graph.nodes, key=lambda node: (places[node], node in late))


def _readers(value: Value) -> Iterator[Node]:
    """Yield the nodes that read a value, also in another shape."""
    for user in value.users:
        yield user
        if isinstance(user.op, Reshape):
            yield from _readers(user.output)


def _batch(graph: Graph, size: int, states: dict[str, str]) -> Batch:
    """Add a counter of the samples in a batch, including the present one."""
    before = graph.add_input("samples", TensorType((), DType.INT32))
    call = OnnxCalls(graph, "samples.now")
    now = call("Add", before, np.ones((), np.int32))
    is_full = call("GreaterOrEqual", now, np.full((), size, np.int32))
    _keep(graph, states, before, call("Where", is_full, np.zeros((), np.int32), now))
    return Batch(size, is_full)


def _counted(graph: Graph, states: dict[str, str], batch: Batch | None) -> Value:
    """Add a counter of updates, including the present one if there is one."""
    before = graph.add_input("updates", TensorType((), DType.INT64))
    call = OnnxCalls(graph, "updates.now")
    now = call("Add", before, np.ones((), np.int64))
    if batch is not None:
        now = call("Where", batch.is_full, now, before)
    _keep(graph, states, before, now)
    return now


def _keep(graph: Graph, states: dict[str, str], state: Value, new: Value) -> None:
    """Make a value the state of the next call."""
    name = _free_output(graph, f"{state.name}.new")
    graph.add_output(name, new)
    states[name] = state.name


def _free_output(graph: Graph, name: str) -> str:
    while name in graph.output_names:
        name += "_"
    return name
