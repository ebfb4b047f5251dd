# SPDX-License-Identifier: Apache-2.0
"""Layers that int8 does not serve are computed more precisely, where outputs are bad without that and good with it.

First layers that read features of disparate ranges, in float32: one scale serves none but the largest. Recurrent layers
whose inputs are mostly far smaller than their extremes, in int16: what is lost of an input is lost in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.evaluation.samples import spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.recurrent import Recurrent
from mcugen.quant.estimate import sqnr_of
from mcugen.quant.quantize import Quantizer
from mcugen.quant.samples import Sample

APART = 32.0
"""Ratio of the ranges of an input's features: the smaller has three bits of eight left."""

BAD_DB, BETTER_DB = 25.0, 6.0
"""Outputs of a lower SQNR than the first ask for another way, which must bring as much as the second."""

MOST_SAMPLES = 64
"""By which the two ways are judged."""


@dataclass(frozen=True)
class _Remedy:
    """Layers, what they may be computed in instead, and why int8 may not serve them."""

    layers: Sequence[str]
    dtype: DType
    why: str


def rescued(maker: Quantizer, wanted: Mapping[str, DType]) -> tuple[dict[str, DType], list[str]]:
    """`wanted` with the layers that are computed more precisely, and a note for each reason that names them."""
    remedies = [r for r in _remedies(maker, wanted) if r.layers]
    layers, notes = dict(wanted), list[str]()
    if not remedies or maker.model.states or maker.scheme.integer_io:
        return layers, notes
    samples = [maker.samples[i] for i in spread(len(maker.samples), MOST_SAMPLES)]
    before = sqnr_of(maker.model, maker.quantize(wanted).proto, samples)
    for remedy in remedies:
        if before >= BAD_DB:
            break
        raised = {**layers, **dict.fromkeys(remedy.layers, remedy.dtype)}
        after = sqnr_of(maker.model, maker.quantize(raised).proto, samples)
        if after >= before + BETTER_DB:
            named = ", ".join(f"'{name}'" for name in remedy.layers)
            told = f"{remedy.why}, and outputs have {after:.1f} dB so, not {before:.1f}"
            notes.append(f"computed in {remedy.dtype.value}: {named}; {told}")
            layers, before = raised, after
    return layers, notes


def _remedies(maker: Quantizer, wanted: Mapping[str, DType]) -> Iterator[_Remedy]:
    """What may be tried, the cheapest first."""
    if not maker.samples:
        return
    if maker.scheme.activations is DType.INT8:
        cells = [n.outputs[0].name for n in maker.model.graph.nodes if isinstance(n.op, Recurrent)]
        why = "int8 keeps too little of what a recurrent layer reads"
        yield _Remedy([name for name in cells if name not in wanted], DType.INT16, why)
    why = f"the features that they read differ in range more than {APART:.0f} times"
    yield _Remedy([name for name in _heads(maker) if name not in wanted], DType.FLOAT32, why)


def _heads(maker: Quantizer) -> list[str]:
    """The first layers behind inputs of disparate features."""
    inputs = [v for v in maker.model.graph.inputs if v.type.dtype is DType.FLOAT32 and v.type.rank > 1]
    apart = [v for v in inputs if _is_disparate(v, maker.samples)]
    return list(dict.fromkeys(node.outputs[0].name for value in apart for node in _readers(value)))


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
