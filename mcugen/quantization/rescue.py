# SPDX-License-Identifier: Apache-2.0
"""Wider types for layers that are inaccurate in int8, if the model's outputs are bad without them and good with them.

First, layers that read features of very different ranges are computed in float32, and so are those that read numbers
mostly far smaller than their extremes: one scale serves only the largest. Recurrent layers of such inputs are computed
in int16, because they lose a part of the input in each step. If that is not enough, weights compensate a part of the
errors of earlier layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.layers import PrecisionReason
from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import readers_behind, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.ops.recurrent import Recurrent
from mcugen.quantization.estimate import MAX_EVALUATION_MACS, MIN_EVALUATION_SAMPLES, output_sqnr_db
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.quantize import Quantization, Quantizer
from mcugen.quantization.scores import cheap_macs, score_layers

MIN_FEATURE_RANGE_RATIO = 8.0
"""Smallest ratio of the ranges of two input features for which a wider type is tried.

At this ratio the narrowest feature has five of the eight bits left.
"""

BAD_DB = 25.0
"""SQNR of the outputs, in dB, below which an int8 model counts as not accurate enough."""

DOUBTFUL_DB = 31.0
"""SQNR of the outputs, in dB, below which wider types are tried for some layers.

It is higher than BAD_DB, because estimates on few samples are wrong by some dB.
"""

STREAM_DOUBTFUL_DB = 40.0
"""SQNR in dB below which wider types are tried for the layers that compute a state, in place of DOUBTFUL_DB.

It is higher, because errors of a state add up over more steps than the samples have.
"""

STREAM_GOOD_DB = 45.0
"""SQNR of a stream's outputs in dB below which all layers that depend on a state are tried in the type of the state.

They then read the state as it is stored, without a conversion.
"""

SCORE_DOUBTFUL_DB = 40.0
"""SQNR in dB of anomaly scores below which wider types are tried, in place of DOUBTFUL_DB.

Normal scores differ little from each other, and small anomalies differ little from normal samples. At 31 dB the area
under the ROC curve was up to 0.022 less than that of float32 (tests/quantization/test_scores.py).
"""

COARSE_MARGIN_DB = 4.0
"""Margin in dB that is added to DOUBTFUL_DB, for the SQNR of the outputs with only one tensor quantized.

If that SQNR is below the sum, the layers that compute and read the tensor get a wider type: the noise of three such
tensors together makes the outputs doubtful.
"""

INT16_ENOUGH_DB = 33.0
"""SQNR of the outputs in dB at and above which int16 is accepted for layers that are slow in float32.

It includes a margin: on other samples than the measured ones, the SQNR was up to 3 dB lower.
"""

MAX_INT16_LOSS_DB = 1.0
"""Largest loss of SQNR in dB for which slow float32 layers get int16 activations and weights instead.

It applies if the SQNR of the outputs with int16 is below INT16_ENOUGH_DB. A small loss then shows that other layers
cause most of the noise.
"""

MIN_RESCUE_GAIN_DB = 3.0
"""Smallest gain in SQNR, in dB, for which a wider type of some layers is kept."""

MIN_COMPENSATION_GAIN_DB = 2.0
"""Smallest gain in SQNR, in dB, for which weights that cancel errors of earlier layers are kept.

The gain may be small, because such weights cost no run time.
"""

MAX_OBSERVED_SAMPLES = 256
"""Largest number of samples on which the ranges of the model's input features are compared with each other."""

MAX_FIRST_CHECK_SAMPLES = 16
"""Largest number of samples on which the int8 model is first compared with the float model."""

MAX_COMPARED_SAMPLES = 64
"""Largest number of samples on which models with different types are compared."""


TimeOf = Callable[[Quantization], float | None]
"""A function that estimates the time of a quantized model on the board, in cycles or instructions; None if unknown."""


@dataclass(frozen=True)
class _Remedy:
    """Layers, a wider type to compute them in, why int8 may not serve them, and the SQNR below which it is tried."""

    layers: Sequence[str]
    dtype: DType
    why: str
    below_db: float = DOUBTFUL_DB


def rescue_layers(
    quantizer: Quantizer, precisions: Mapping[str, DType], *, is_searched: bool = False, time_of: TimeOf | None = None
) -> tuple[dict[str, DType], list[PrecisionReason], list[str]]:
    """Choose layers that are computed more precisely than the scheme says, because the outputs would be bad otherwise.

    Args:
        quantizer: The quantizer. Its field `compensates` is set if weights that cancel a part of earlier layers' errors
            improve the outputs.
        precisions: Precisions that the user chose, by layer. They stay as they are.
        is_searched: Whether `--precision auto` searches for precisions afterwards. Only outputs below BAD_DB are
            improved then.
        time_of: Estimates the time of a quantized model on the board, if that is known. Costly layers get the fastest
            type with which the outputs are good.

    Returns:
        `precisions` with the chosen layers, the reason of each chosen layer, and notes for the user on other changes.
    """
    layers, reasons, notes = dict(precisions), list[PrecisionReason](), list[str]()
    doubtful = DOUBTFUL_DB if is_searched else _doubtful_db(quantizer.model)
    if not quantizer.samples or _sqnr(quantizer, layers, MAX_FIRST_CHECK_SAMPLES) >= doubtful:
        return layers, reasons, notes
    before_db = _sqnr(quantizer, layers, MAX_COMPARED_SAMPLES)
    for remedy in _remedies(quantizer, is_searched=is_searched):
        raised = {name: remedy.dtype for name in remedy.layers if name not in layers}
        if not raised or before_db >= (BAD_DB if is_searched else remedy.below_db):
            continue
        after_db = _sqnr(quantizer, layers | raised, MAX_COMPARED_SAMPLES)
        if after_db >= before_db + MIN_RESCUE_GAIN_DB:
            raised, after_db = _economize(quantizer, layers, raised, after_db, time_of or _unknown_time)
            effect = f"{remedy.why}, and outputs have {after_db:.1f} dB so, not {before_db:.1f}"
            reasons += [PrecisionReason(name, dtype.value, effect) for name, dtype in raised.items()]
            layers, before_db = layers | raised, after_db
    can_compensate = quantizer.scheme.optimize_rounding and not quantizer.quantize(layers).plan.compensates
    if before_db < BAD_DB and can_compensate and len(quantizer.samples) >= MAX_FIRST_CHECK_SAMPLES:
        quantizer.compensates = True
        after_db = _sqnr(quantizer, layers, MAX_COMPARED_SAMPLES)
        quantizer.compensates = after_db >= before_db + MIN_COMPENSATION_GAIN_DB
        if quantizer.compensates:
            effect = f"outputs have {after_db:.1f} dB so, not {before_db:.1f}"
            notes.append(f"weights make good a part of what layers before have lost: {effect}")
    return layers, reasons, notes


def _doubtful_db(model: FloatModel) -> float:
    """Return the SQNR of the outputs below which wider types are tried."""
    doubtful = _doubtful_without_state_db(model)
    return max(doubtful, STREAM_DOUBTFUL_DB) if any(_state_layers(model)) else doubtful


def _doubtful_without_state_db(model: FloatModel) -> float:
    """Return the SQNR of the outputs below which wider types are tried, if the model has no state."""
    return SCORE_DOUBTFUL_DB if score_layers(model.graph) else DOUBTFUL_DB


def _economize(
    quantizer: Quantizer, layers: Mapping[str, DType], raised: Mapping[str, DType], reached_db: float, time_of: TimeOf
) -> tuple[dict[str, DType], float]:
    """Return the raised layers and the SQNR, with integers instead of float32 for expensive layers if that is enough.

    int16 activations are tried with 8-bit weights first, then with 16-bit weights and sums that nothing rounds.

    Args:
        quantizer: The quantizer.
        layers: The precisions without the raised layers.
        raised: The raised layers and their types.
        reached_db: The SQNR with these types.
        time_of: Estimates the time of a quantized model; of the types that are enough, the fastest is chosen.
    """
    graph = quantizer.model.graph
    limit = cheap_macs(graph)
    costly = {n.outputs[0].name for n in graph.nodes if n.op.macs(n.sig) > limit and weight_axes(n.op)}
    in_float = [name for name, dtype in raised.items() if dtype is DType.FLOAT32 and name in costly]
    if not in_float or quantizer.scheme.activations is not DType.INT8:
        return dict(raised), reached_db
    enough_db = {DType.INT16: INT16_ENOUGH_DB, DType.INT32: min(INT16_ENOUGH_DB, reached_db - MAX_INT16_LOSS_DB)}
    candidates: list[tuple[dict[str, DType], float]] = []
    for dtype, min_db in enough_db.items():
        cheaper = {**raised, **dict.fromkeys(in_float, dtype)}
        cheaper_db = _sqnr(quantizer, {**layers, **cheaper}, MAX_COMPARED_SAMPLES)
        if cheaper_db >= min_db:
            candidates.append((cheaper, cheaper_db))
    if not candidates:
        return dict(raised), reached_db
    candidates.append((dict(raised), reached_db))
    times = [time_of(quantizer.quantize({**layers, **candidate})) for candidate, _ in candidates]
    known = [time for time in times if time is not None]
    return candidates[times.index(min(known))] if len(known) == len(times) else candidates[0]


def _unknown_time(_model: Quantization) -> float | None:
    """Return None: without a board, the first type that is enough is chosen."""
    return None


def _sqnr(quantizer: Quantizer, layers: Mapping[str, DType], max_samples: int) -> float:
    """Return the SQNR of the outputs in dB on at most `max_samples` samples; large models are judged by fewer.

    The samples of a stream are consecutive, because each step starts from the state that the last one left.
    """
    macs = sum(node.op.macs(node.sig) for node in quantizer.model.graph.nodes)
    max_samples = min(max_samples, max(MAX_EVALUATION_MACS // max(macs, 1), MIN_EVALUATION_SAMPLES))
    places = (
        range(min(max_samples, len(quantizer.samples)))
        if quantizer.model.states
        else spread(len(quantizer.samples), max_samples)
    )
    return output_sqnr_db(quantizer.quantize(layers), [quantizer.samples[i] for i in places])


def _remedies(quantizer: Quantizer, *, is_searched: bool) -> Iterator[_Remedy]:
    """Yield the remedies that may be tried, the cheapest first.

    A search of precisions finds layers inside the network by itself.
    """
    graph, is_int8 = quantizer.model.graph, quantizer.scheme.activations is DType.INT8
    if is_int8:
        cells = [n.outputs[0].name for n in graph.nodes if isinstance(n.op, Recurrent)]
        yield _Remedy(cells, DType.INT16, "int8 keeps too little of what a recurrent layer reads")
    inputs = [v for v in graph.inputs if v.type.dtype is DType.FLOAT32]
    moved = _moved_inputs(quantizer.model, inputs)
    apart = [v for v in (*inputs, *moved) if v.type.rank > 1 and _is_disparate(v, _observe(quantizer, v))]
    why = f"the features that they read differ in range more than {MIN_FEATURE_RANGE_RATIO:.0f} times"
    yield _Remedy(_readers_of(apart, quantizer), DType.FLOAT32, why)
    coarse = [v for v in inputs if v not in apart and quantizer.sqnr_of_tensor(v.name) < BAD_DB]
    why = "much of what they read is far smaller than its extremes"
    yield _Remedy(_readers_of(coarse, quantizer), DType.FLOAT32, why)
    if not is_searched:
        doubtful = _doubtful_without_state_db(quantizer.model)
        coarse = [v for v in quantizer.model.tensors if quantizer.sqnr_of_tensor(v.name) < doubtful + COARSE_MARGIN_DB]
        why = "much of what they read or compute is far smaller than its extremes"
        yield _Remedy(_adjacent_layers(coarse), DType.FLOAT32, why, doubtful)
    if is_int8:
        why = "errors of a state stay in it from step to step"
        kept, behind = _state_layers(quantizer.model)
        yield _Remedy(kept, DType.INT16, why, STREAM_DOUBTFUL_DB)
        why = "they read a state, which int16 keeps"
        yield _Remedy([*kept, *behind], DType.INT16, why, STREAM_GOOD_DB)


def _adjacent_layers(values: Sequence[Value]) -> list[str]:
    """Return the layers that compute these tensors or read them."""
    nodes = [n for v in values for n in (v.producer, *readers_behind(v)) if n is not None and not n.op.moves_data]
    return [n.outputs[0].name for n in dict.fromkeys(nodes)]


def _state_layers(model: FloatModel) -> tuple[list[str], list[str]]:
    """Return the layers of states, and all other layers that depend on a state.

    The layers of a state lie between its input and its output, or produce what these layers read directly. A state
    whose elements are only moved from step to step, such as a cache of keys or a window of samples, has none: it keeps
    each element as it was rounded once, so that errors do not add up.
    """
    graph = model.graph
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    chosen, behind = set[Node](), set[Node]()
    for source, target in model.states.items():
        dependent, readers = {v for v in graph.inputs if v.name == target}, set[Node]()
        for node in graph.nodes:
            if not dependent.isdisjoint(node.inputs):
                dependent.update(node.outputs)
                readers.add(node)
        needed = {outputs[source]}
        for node in reversed(graph.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(v for v in node.inputs if v is not None)
        cycle = {n for n in graph.nodes if not (dependent & needed).isdisjoint(n.outputs)}
        if all(node.op.moves_data for node in cycle):
            continue
        producers = {v.producer for n in cycle for v in n.inputs if v is not None and v.producer is not None}
        chosen |= cycle | producers
        behind |= readers
    named = [(n, n.outputs[0].name) for n in graph.nodes if not n.op.moves_data]
    return [name for n, name in named if n in chosen], [name for n, name in named if n in behind - chosen]


def _readers_of(inputs: Sequence[Value], quantizer: Quantizer) -> list[str]:
    """Return the first layers behind inputs, and the layers behind each result that int8 serves as badly as the input.

    A spectrum is such a result: the logarithm behind it needs the small values, which int8 rounds to 0.
    """
    chosen: dict[str, None] = {}
    todo = list(inputs)
    for value in todo:
        for node in readers_behind(value):
            chosen.update(dict.fromkeys(v.name for v in node.outputs[:1]))
            todo += [v for v in node.outputs if v not in todo and quantizer.sqnr_of_tensor(v.name) < BAD_DB]
    return list(chosen)


def _moved_inputs(model: FloatModel, inputs: Sequence[Value]) -> list[Value]:
    """Return the tensors that hold elements of several inputs and nothing else, such as their concatenation."""
    moved: dict[Value, set[Value]] = {v: {v} for v in inputs}
    for node in model.graph.nodes:
        sources = [v for v in node.inputs if v is not None and v.type.dtype is DType.FLOAT32 and not v.is_constant]
        if node.op.moves_data and sources and all(v in moved for v in sources):
            moved.update(dict.fromkeys(node.outputs, set().union(*(moved[v] for v in sources))))
    return [v for v in model.tensors if len(moved.get(v, ())) > 1]


def _observe(quantizer: Quantizer, value: Value) -> list[Array]:
    """Return a tensor of the float model for some samples, each in the tensor's shape."""
    samples = [quantizer.samples[i] for i in spread(len(quantizer.samples), MAX_OBSERVED_SAMPLES)]
    if value.name in samples[0]:
        return [np.asarray(sample[value.name]).reshape(value.type.shape) for sample in samples]
    results = run_onnxruntime(all_tensors(quantizer.model), samples)
    return [result[value.name].reshape(value.type.shape) for result in results]


def _is_disparate(value: Value, arrays: Sequence[Array]) -> bool:
    """Return whether the ranges of channels, or of features in rows, differ more than MIN_FEATURE_RANGE_RATIO times."""
    axes = {1, value.type.rank - 1} if value.type.rank < 4 else {1}
    return any(_ratio(value, arrays, axis) > MIN_FEATURE_RANGE_RATIO for axis in axes)


def _ratio(value: Value, arrays: Sequence[Array], axis: int) -> float:
    """Return the widest range of an index along an axis, divided by the narrowest that is not empty."""
    other_axes = tuple(a for a in range(value.type.rank) if a != axis)
    low = np.minimum(np.min([a.min(other_axes) for a in arrays], axis=0), 0)
    high = np.maximum(np.max([a.max(other_axes) for a in arrays], axis=0), 0)
    spans: Array = (high - low)[high > low]
    return float(spans.max() / spans.min()) if spans.size else 1.0
