# SPDX-License-Identifier: Apache-2.0
"""Layers that int8 does not serve are computed more precisely, where outputs are bad without that and good with it.

First layers that read features of disparate ranges, or numbers that are mostly far smaller than their extremes, in
float32: one scale serves none but the largest. Recurrent layers of such inputs in int16: what is lost of an input is
lost in each step. Where that is not enough, weights make good a part of what layers before have lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.ops.recurrent import Recurrent
from mcugen.quant.estimate import LEAST_JUDGED, MOST_MACS, sqnr_of
from mcugen.quant.quantize import Quantizer
from mcugen.quant.samples import Sample

APART = 32.0
"""Ratio of the ranges of an input's features: the smaller has three bits of eight left."""

BAD_DB, BETTER_DB = 25.0, 6.0
"""Outputs of a lower SQNR than the first ask for another way, which must bring as much as the second."""

GAINED_DB = 2.0
"""What compensating weights must bring, which cost nothing."""

FEW_SAMPLES, MOST_SAMPLES = 16, 64
"""By which is seen whether outputs are far from bad, and by which two ways are judged."""


@dataclass(frozen=True)
class _Remedy:
    """Layers, what they may be computed in instead, and why int8 may not serve them."""

    layers: Sequence[str]
    dtype: DType
    why: str


def rescued(maker: Quantizer, wanted: Mapping[str, DType]) -> tuple[dict[str, DType], list[str]]:
    """`wanted` with the layers that are computed more precisely, and a note for each reason that names them.

    From then on the weights of `maker` compensate where that helps.
    """
    layers, notes = dict(wanted), list[str]()
    if not maker.samples or maker.model.states or maker.scheme.integer_io:
        return layers, notes
    if _sqnr(maker, layers, FEW_SAMPLES) >= BAD_DB + BETTER_DB:
        return layers, notes
    before = _sqnr(maker, layers, MOST_SAMPLES)
    for remedy in _remedies(maker, wanted):
        if before >= BAD_DB:
            return layers, notes
        raised = {**layers, **dict.fromkeys(remedy.layers, remedy.dtype)}
        after = _sqnr(maker, raised, MOST_SAMPLES)
        if after >= before + BETTER_DB:
            named = ", ".join(f"'{name}'" for name in remedy.layers)
            told = f"{remedy.why}, and outputs have {after:.1f} dB so, not {before:.1f}"
            notes.append(f"computed in {remedy.dtype.value}: {named}; {told}")
            layers, before = raised, after
    can_compensate = maker.scheme.optimize_rounding and not maker.quantize(layers).plan.compensates
    if before < BAD_DB and can_compensate and len(maker.samples) >= FEW_SAMPLES:
        maker.compensates = True
        after = _sqnr(maker, layers, MOST_SAMPLES)
        maker.compensates = after >= before + GAINED_DB
        if maker.compensates:
            told = f"outputs have {after:.1f} dB so, not {before:.1f}"
            notes.append(f"weights make good a part of what layers before have lost: {told}")
    return layers, notes


def _sqnr(maker: Quantizer, layers: Mapping[str, DType], most: int) -> float:
    """Of the outputs by so many samples, of large models fewer."""
    macs = sum(node.op.macs(node.sig) for node in maker.model.graph.nodes)
    most = min(most, max(MOST_MACS // max(macs, 1), LEAST_JUDGED))
    samples = [maker.samples[i] for i in spread(len(maker.samples), most)]
    return sqnr_of(maker.model, maker.quantize(layers).proto, samples)


def _remedies(maker: Quantizer, wanted: Mapping[str, DType]) -> Iterator[_Remedy]:
    """What may be tried, the cheapest first."""
    if maker.scheme.activations is DType.INT8:
        cells = [n.outputs[0].name for n in maker.model.graph.nodes if isinstance(n.op, Recurrent)]
        yield from _remedy(cells, wanted, DType.INT16, "int8 keeps too little of what a recurrent layer reads")
    inputs = [v for v in maker.model.graph.inputs if v.type.dtype is DType.FLOAT32]
    apart = [v for v in inputs if v.type.rank > 1 and _is_disparate(v, maker.samples)]
    why = f"the features that they read differ in range more than {APART:.0f} times"
    yield from _remedy(_readers_of(apart, maker), wanted, DType.FLOAT32, why)
    coarse = [v for v in inputs if v not in apart and maker.sqnr_alone(v.name) < BAD_DB]
    why = "much of what they read is far smaller than its extremes"
    yield from _remedy(_readers_of(coarse, maker), wanted, DType.FLOAT32, why)


def _remedy(layers: Sequence[str], wanted: Mapping[str, DType], dtype: DType, why: str) -> Iterator[_Remedy]:
    """Of the layers that the user did not decide, if there are any."""
    free = [name for name in layers if name not in wanted]
    if free:
        yield _Remedy(free, dtype, why)


def _readers_of(inputs: Sequence[Value], maker: Quantizer) -> list[str]:
    """The first layers behind inputs: of those without weights, too, what reads results that int8 serves no better."""
    found: dict[str, None] = {}
    todo = list(inputs)
    for value in todo:
        for node in _readers(value):
            found.update(dict.fromkeys(v.name for v in node.outputs[:1]))
            if not weight_axes(node.op):
                todo += [v for v in node.outputs if v not in todo and maker.sqnr_alone(v.name) < BAD_DB]
    return list(found)


def _readers(value: Value) -> Iterator[Node]:
    """What computes with a value, wherever it has been moved."""
    for node in value.users:
        if node.op.moves_data:
            yield from (found for moved in node.outputs for found in _readers(moved))
        else:
            yield node


def _is_disparate(value: Value, samples: Sequence[Sample]) -> bool:
    """By the axis of channels, or of features in rows."""
    axes = {1, value.type.rank - 1} if value.type.rank < 4 else {1}
    return any(_ratio(value, samples, axis) > APART for axis in axes)


def _ratio(value: Value, samples: Sequence[Sample], axis: int) -> float:
    """Of the widest range of an index along an axis to the narrowest that is any."""
    others = tuple(a for a in range(value.type.rank) if a != axis)
    arrays = [np.asarray(sample[value.name]).reshape(value.type.shape) for sample in samples]
    low = np.minimum(np.min([a.min(others) for a in arrays], axis=0), 0)
    high = np.maximum(np.max([a.max(others) for a in arrays], axis=0), 0)
    spans: Array = (high - low)[high > low]
    return float(spans.max() / spans.min()) if spans.size else 1.0
