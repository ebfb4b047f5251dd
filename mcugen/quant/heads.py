# SPDX-License-Identifier: Apache-2.0
"""Layers that read features of disparate ranges: one scale serves none but the largest, so they may stay in float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import METRICS
from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType
from mcugen.quant.estimate import comparable
from mcugen.quant.quantize import Quantizer
from mcugen.quant.samples import Sample
from mcugen.quant.sensitivity import spread

APART = 32.0
"""Ratio of the ranges of an input's features: the smaller has three bits of eight left."""

BAD_DB, BETTER_DB = 25.0, 6.0
"""Outputs of a lower SQNR than the first ask for another way, which must bring as much as the second."""

MOST_SAMPLES = 64
"""By which the two ways are judged."""


def float_heads(maker: Quantizer, wanted: Mapping[str, DType]) -> tuple[dict[str, DType], list[str]]:
    """`wanted` with layers in float32 that read disparate features, where outputs are bad without and good with that.

    And a note that names them.
    """
    names = [name for name in _heads(maker) if name not in wanted]
    if not names or maker.model.states or maker.scheme.integer_io:
        return dict(wanted), []
    raised = {**wanted, **dict.fromkeys(names, DType.FLOAT32)}
    samples = spread(maker.samples, MOST_SAMPLES)
    before = _sqnr(maker, maker.quantize(wanted).proto, samples)
    if before >= BAD_DB:
        return dict(wanted), []
    after = _sqnr(maker, maker.quantize(raised).proto, samples)
    if after < before + BETTER_DB:
        return dict(wanted), []
    layers = ", ".join(f"'{name}'" for name in names)
    why = f"the features that they read differ in range more than {APART:.0f} times"
    note = f"computed in float32: {layers}; {why}, and outputs have {after:.1f} dB so, not {before:.1f}"
    return raised, [note]


def _heads(maker: Quantizer) -> list[str]:
    """The first layers behind inputs of disparate features."""
    inputs = [v for v in maker.model.graph.inputs if v.type.dtype is DType.FLOAT32 and v.type.rank > 1]
    apart = [v for v in inputs if maker.samples and _is_disparate(v, maker.samples)]
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


def _sqnr(maker: Quantizer, proto: onnx.ModelProto, samples: Sequence[Sample]) -> float:
    """Of all outputs together, in dB."""
    real, found = (run_onnxruntime(each, samples) for each in (maker.model.proto, proto))
    pairs = comparable(found, real, set())
    return METRICS["sqnr"].compute(pairs) if pairs.names else float("inf")
