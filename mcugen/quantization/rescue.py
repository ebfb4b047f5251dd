# SPDX-License-Identifier: Apache-2.0
"""Layers that int8 does not serve are computed more precisely, where outputs are bad without that and good with it.

First layers that read features of disparate ranges, or numbers that are mostly far smaller than their extremes, in
float32: one scale serves none but the largest. Recurrent layers of such inputs in int16: what is lost of an input is
lost in each step. Where that is not enough, weights make good a part of what layers before have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.layers import PrecisionReason
from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.ops.recurrent import Recurrent
from mcugen.quantization.estimate import LEAST_JUDGED, MOST_MACS, output_sqnr
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.quantize import Quantization, Quantizer
from mcugen.quantization.scores import cheap_macs, score_layers

APART = 8.0
"""Ratio of the ranges of features from which a wider type is tried: the narrowest has five bits of eight left."""

BAD_DB, DOUBTFUL_DB = 25.0, 31.0
"""SQNR of the outputs below which int8 serves them badly, and below which wider types are tried.

The second is higher, because estimates on few samples err by some dB.
"""

STREAM_DOUBTFUL_DB = 40.0
"""The same for layers of a state: their errors add up over more steps than the samples have."""

STREAM_GOOD_DB = 45.0
"""SQNR of a stream's outputs below which all layers behind a state are tried like those of the state.

These read the state as it is then, so that nothing converts it.
"""

SCORE_DOUBTFUL_DB = 40.0
"""SQNR of anomaly scores below which wider types are tried: normal scores hardly differ, nor do small anomalies.

At 31 dB the area under the ROC curve was up to 0.022 less than that of float32 (tests/quant/test_scores.py).
"""

COARSE_MARGIN_DB = 4.0
"""Layers beside a tensor are raised if the SQNR is doubtful, or by so much not, when that tensor alone is quantized.

The noise of three such tensors leaves outputs that are doubtful.
"""

INT16_ENOUGH_DB = 33.0
"""SQNR of the outputs from which int16 is enough for layers that cost much in float32.

Other samples than those that it is measured on had up to 3 dB less.
"""

MAX_LOSS_DB = 1.0
"""Loss of SQNR against float32 that layers with int16 activations and weights may cause, where less than 33 dB is left.

What such layers lose is far below what the rest of the model loses then.
"""

BETTER_DB = 3.0
"""Gain in SQNR that a wider type of some layers must bring."""

GAINED_DB = 2.0
"""What compensating weights must bring, which cost nothing."""

MOST_OBSERVED = 256
"""Samples by which the ranges of features are compared."""

FEW_SAMPLES, MOST_SAMPLES = 16, 64
"""By which is seen whether outputs are far from bad, and by which two ways are judged."""


TimeOf = Callable[[Quantization], float | None]
"""Returns the estimated time of a quantized model in cycles or instructions, or None if nothing is known of it."""


@dataclass(frozen=True)
class _Remedy:
    """Layers, a wider type to compute them in, why int8 may not serve them, and the SQNR below which it is tried."""

    layers: Sequence[str]
    dtype: DType
    why: str
    below_db: float = DOUBTFUL_DB


def rescued(
    maker: Quantizer, wanted: Mapping[str, DType], *, is_searched: bool = False, time_of: TimeOf | None = None
) -> tuple[dict[str, DType], list[PrecisionReason], list[str]]:
    """Choose layers that are computed more precisely than the scheme asks, because the outputs are bad without that.

    Args:
        maker: The quantizer; its weights compensate from then on, where that helps.
        wanted: Precisions that the user chose, by layer. They stay as they are.
        is_searched: Whether `--precision auto` searches for the precisions of layers afterwards, by the user's demand.
            Only what int8 serves badly is raised then.
        time_of: Estimates the time of a quantized model on the board, where that is known. Of the types that serve the
            outputs, costly layers get the fastest.

    Returns:
        `wanted` with the chosen layers, the reason of each chosen layer, and notes of what else was changed.
    """
    layers, reasons, notes = dict(wanted), list[PrecisionReason](), list[str]()
    doubtful = DOUBTFUL_DB if is_searched else _doubtful_db(maker.model)
    if not maker.samples or _sqnr(maker, layers, FEW_SAMPLES) >= doubtful:
        return layers, reasons, notes
    before = _sqnr(maker, layers, MOST_SAMPLES)
    for remedy in _remedies(maker, is_searched=is_searched):
        free = {name: remedy.dtype for name in remedy.layers if name not in layers}
        if not free or before >= (BAD_DB if is_searched else remedy.below_db):
            continue
        after = _sqnr(maker, layers | free, MOST_SAMPLES)
        if after >= before + BETTER_DB:
            free, after = _economized(maker, layers, free, after, time_of or _unknown_time)
            told = f"{remedy.why}, and outputs have {after:.1f} dB so, not {before:.1f}"
            reasons += [PrecisionReason(name, dtype.value, told) for name, dtype in free.items()]
            layers, before = layers | free, after
    can_compensate = maker.scheme.optimize_rounding and not maker.quantize(layers).plan.compensates
    if before < BAD_DB and can_compensate and len(maker.samples) >= FEW_SAMPLES:
        maker.compensates = True
        after = _sqnr(maker, layers, MOST_SAMPLES)
        maker.compensates = after >= before + GAINED_DB
        if maker.compensates:
            told = f"outputs have {after:.1f} dB so, not {before:.1f}"
            notes.append(f"weights make good a part of what layers before have lost: {told}")
    return layers, reasons, notes


def _doubtful_db(model: FloatModel) -> float:
    """Return the SQNR of the outputs below which wider types are tried."""
    doubtful = _doubtful_without_state_db(model)
    return max(doubtful, STREAM_DOUBTFUL_DB) if model.states else doubtful


def _doubtful_without_state_db(model: FloatModel) -> float:
    """Return the SQNR of the outputs below which wider types are tried, if the model has no state."""
    return SCORE_DOUBTFUL_DB if score_layers(model.graph) else DOUBTFUL_DB


def _economized(
    maker: Quantizer, layers: Mapping[str, DType], raised: Mapping[str, DType], reached_db: float, time_of: TimeOf
) -> tuple[dict[str, DType], float]:
    """Return the raised layers with integers for those that cost much in float32, if these are enough, and the SQNR.

    int16 activations are tried with weights of 8 bits first, then with weights of 16 and sums that nothing rounds.
    """
    graph = maker.model.graph
    limit = cheap_macs(graph)
    costly = {n.outputs[0].name for n in graph.nodes if n.op.macs(n.sig) > limit and weight_axes(n.op)}
    in_float = [name for name, dtype in raised.items() if dtype is DType.FLOAT32 and name in costly]
    if not in_float or maker.scheme.activations is not DType.INT8:
        return dict(raised), reached_db
    enough_db = {DType.INT16: INT16_ENOUGH_DB, DType.INT32: min(INT16_ENOUGH_DB, reached_db - MAX_LOSS_DB)}
    good: list[tuple[dict[str, DType], float]] = []
    for dtype, least_db in enough_db.items():
        cheaper = {**raised, **dict.fromkeys(in_float, dtype)}
        reached = _sqnr(maker, {**layers, **cheaper}, MOST_SAMPLES)
        if reached >= least_db:
            good.append((cheaper, reached))
    good.append((dict(raised), reached_db))
    times = [time_of(maker.quantize({**layers, **candidate})) for candidate, _ in good] if len(good) > 1 else []
    known = [time for time in times if time is not None]
    return good[times.index(min(known))] if known and len(known) == len(times) else good[0]


def _unknown_time(_model: Quantization) -> float | None:
    """Return None: without a board, the first type that is enough is the best."""
    return None


def _sqnr(maker: Quantizer, layers: Mapping[str, DType], most: int) -> float:
    """Return the SQNR of the outputs in dB on at most `most` samples; large models are judged by fewer.

    The samples of a stream are consecutive, because each step starts from the state that the last one left.
    """
    macs = sum(node.op.macs(node.sig) for node in maker.model.graph.nodes)
    most = min(most, max(MOST_MACS // max(macs, 1), LEAST_JUDGED))
    places = range(min(most, len(maker.samples))) if maker.model.states else spread(len(maker.samples), most)
    return output_sqnr(maker.quantize(layers), [maker.samples[i] for i in places])


def _remedies(maker: Quantizer, *, is_searched: bool) -> Iterator[_Remedy]:
    """Yield what may be tried, the cheapest first; a search looks for layers inside the network by itself."""
    graph, is_int8 = maker.model.graph, maker.scheme.activations is DType.INT8
    if is_int8:
        cells = [n.outputs[0].name for n in graph.nodes if isinstance(n.op, Recurrent)]
        yield _Remedy(cells, DType.INT16, "int8 keeps too little of what a recurrent layer reads")
    inputs = [v for v in graph.inputs if v.type.dtype is DType.FLOAT32]
    moved = _moved_inputs(maker.model, inputs)
    apart = [v for v in (*inputs, *moved) if v.type.rank > 1 and _is_disparate(v, _observed(maker, v))]
    why = f"the features that they read differ in range more than {APART:.0f} times"
    yield _Remedy(_readers_of(apart, maker), DType.FLOAT32, why)
    coarse = [v for v in inputs if v not in apart and maker.sqnr_alone(v.name) < BAD_DB]
    why = "much of what they read is far smaller than its extremes"
    yield _Remedy(_readers_of(coarse, maker), DType.FLOAT32, why)
    if not is_searched:
        doubtful = _doubtful_without_state_db(maker.model)
        coarse = [v for v in maker.model.tensors if maker.sqnr_alone(v.name) < doubtful + COARSE_MARGIN_DB]
        why = "much of what they read or compute is far smaller than its extremes"
        yield _Remedy(_layers_beside(coarse), DType.FLOAT32, why, doubtful)
    if is_int8:
        why = "errors of a state stay in it from step to step"
        kept, behind = _state_layers(maker.model)
        yield _Remedy(kept, DType.INT16, why, STREAM_DOUBTFUL_DB)
        why = "they read a state, which int16 keeps"
        yield _Remedy([*kept, *behind], DType.INT16, why, STREAM_GOOD_DB)


def _layers_beside(values: Sequence[Value]) -> list[str]:
    """Return the layers that compute these tensors or read them."""
    nodes = [n for v in values for n in (v.producer, *_readers(v)) if n is not None and not n.op.moves_data]
    return [n.outputs[0].name for n in dict.fromkeys(nodes)]


def _state_layers(model: FloatModel) -> tuple[list[str], list[str]]:
    """Return the layers of states, and all others that read what comes of a state.

    Those of a state lie between its input and its output, or make what these read directly.
    """
    graph = model.graph
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    chosen, behind = set[Node](), set[Node]()
    for source, target in model.states.items():
        fed = {v for v in graph.inputs if v.name == target}
        for node in graph.nodes:
            if not fed.isdisjoint(node.inputs):
                fed.update(node.outputs)
                behind.add(node)
        needed = {outputs[source]}
        for node in reversed(graph.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(v for v in node.inputs if v is not None)
        cycle = {n for n in graph.nodes if not (fed & needed).isdisjoint(n.outputs)}
        read = {v.producer for n in cycle for v in n.inputs if v is not None and v.producer is not None}
        chosen |= cycle | read
    named = [(n, n.outputs[0].name) for n in graph.nodes if not n.op.moves_data]
    return [name for n, name in named if n in chosen], [name for n, name in named if n in behind - chosen]


def _readers_of(inputs: Sequence[Value], maker: Quantizer) -> list[str]:
    """Return the first layers behind inputs, and on from each result that int8 serves as badly as the input.

    A spectrum is such a result: the logarithm behind it needs the small values, which int8 rounds to 0.
    """
    chosen: dict[str, None] = {}
    todo = list(inputs)
    for value in todo:
        for node in _readers(value):
            chosen.update(dict.fromkeys(v.name for v in node.outputs[:1]))
            todo += [v for v in node.outputs if v not in todo and maker.sqnr_alone(v.name) < BAD_DB]
    return list(chosen)


def _readers(value: Value) -> Iterator[Node]:
    """What computes with a value, wherever it has been moved."""
    for node in value.users:
        if node.op.moves_data:
            yield from (found for moved in node.outputs for found in _readers(moved))
        else:
            yield node


def _moved_inputs(model: FloatModel, inputs: Sequence[Value]) -> list[Value]:
    """Return the tensors that hold elements of several inputs and nothing else, such as their concatenation."""
    moved: dict[Value, set[Value]] = {v: {v} for v in inputs}
    for node in model.graph.nodes:
        sources = [v for v in node.inputs if v is not None and v.type.dtype is DType.FLOAT32 and not v.is_constant]
        if node.op.moves_data and sources and all(v in moved for v in sources):
            moved.update(dict.fromkeys(node.outputs, set().union(*(moved[v] for v in sources))))
    return [v for v in model.tensors if len(moved.get(v, ())) > 1]


def _observed(maker: Quantizer, value: Value) -> list[Array]:
    """Return a tensor of the float model for some samples, each in the tensor's shape."""
    samples = [maker.samples[i] for i in spread(len(maker.samples), MOST_OBSERVED)]
    if value.name in samples[0]:
        return [np.asarray(sample[value.name]).reshape(value.type.shape) for sample in samples]
    results = run_onnxruntime(all_tensors(maker.model), samples)
    return [result[value.name].reshape(value.type.shape) for result in results]


def _is_disparate(value: Value, arrays: Sequence[Array]) -> bool:
    """Return whether the ranges of channels, or of features in rows, differ more than APART times."""
    axes = {1, value.type.rank - 1} if value.type.rank < 4 else {1}
    return any(_ratio(value, arrays, axis) > APART for axis in axes)


def _ratio(value: Value, arrays: Sequence[Array], axis: int) -> float:
    """Return the widest range of an index along an axis, divided by the narrowest that is not empty."""
    others = tuple(a for a in range(value.type.rank) if a != axis)
    low = np.minimum(np.min([a.min(others) for a in arrays], axis=0), 0)
    high = np.maximum(np.max([a.max(others) for a in arrays], axis=0), 0)
    spans: Array = (high - low)[high > low]
    return float(spans.max() / spans.min()) if spans.size else 1.0
