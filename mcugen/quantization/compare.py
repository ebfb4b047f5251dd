# SPDX-License-Identifier: Apache-2.0
"""The float model and its integer twin side by side, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.backends.cpu.pipeline import convert_integers
from mcugen.core.options import DIVERGED_DB
from mcugen.evaluation.layers import Histogram, LayerComparison, LayerError, compared
from mcugen.evaluation.metrics import METRICS, bounded, cosine, max_abs_error, sqnr_db
from mcugen.evaluation.samples import as_stored, graph_endpoints
from mcugen.evaluation.session import Session
from mcugen.frontend.onnx import import_model
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import interpret
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import dequantize
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.plan import Codes, Plan, Stored
from mcugen.quantization.qdq import stored_name
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.scheme import code_range
from mcugen.quantization.weights import real_weights

Sample = Mapping[str, Array]

DEFAULT_SAMPLES = 16
"""How many samples tell the layers apart: numpy runs the integer model, slowly."""


def compare_layers(
    quantized: Quantization,
    samples: Sequence[Sample],
    threshold_db: float = DIVERGED_DB,
    progress: Callable[[int], None] | None = None,
) -> LayerComparison:
    """Every tensor of the float model by ONNX Runtime, against the generated code's integers (by numpy)."""
    graph = integer_graph(quantized)
    pairs = {value.name: _Pair() for value, _ in _layers(quantized.model)}
    session = Session(all_tensors(quantized.model))
    names = session.outputs
    for done, sample in enumerate(samples, 1):
        real = session.run(names, sample)
        found = integer_tensors(graph, sample)
        for name, pair in pairs.items():
            integer = found.get(stored_name(name), found.get(name))
            if integer is not None:
                pair.add(integer, {**sample, **real}[name])
        if progress:
            progress(done)
    sources = _sources(quantized.model.graph, {name for name, pair in pairs.items() if pair.found})
    rows = [_row(quantized, value, node, pairs[value.name], sources[value]) for value, node in _layers(quantized.model)]
    return compared(rows, len(samples), threshold_db)


def integer_graph(quantized: Quantization) -> Graph:
    """The HIR in integers, before layout: its values are the generated code's to the last bit, in the model's order."""
    graph = import_model(quantized.proto, "integers", registry=quantized.source.registry)
    convert_integers(graph)
    return graph


def integer_tensors(graph: Graph, sample: Sample) -> dict[str, Array]:
    """What each value is for one sample, by name; quantized ones as reals."""
    found: dict[str, Array] = {}

    def keep(node: Node, arrays: list[Array]) -> None:
        present = [v for v in node.inputs if v is not None]
        found.update((v.name, _real(v, a)) for v, a in zip(present, arrays, strict=True) if not v.is_constant)

    outputs = interpret(graph, as_stored(sample, graph_endpoints(graph)), keep)
    results = {v.name: _real(v, outputs[n]) for n, v in zip(graph.output_names, graph.outputs, strict=True)}
    return found | results


def weights_sqnr_db(weights: Array, codes: Codes) -> float:
    """Of a layer's weights in integers."""
    return sqnr_db(real_weights(codes).reshape(-1), weights.reshape(-1).astype(np.float64))


@dataclass
class _Pair:
    """One tensor of both models on all samples."""

    found: list[Array] = field(default_factory=list)
    wanted: list[Array] = field(default_factory=list)

    def add(self, found: Array, wanted: Array) -> None:
        self.found.append(found.reshape(-1).astype(np.float64))
        self.wanted.append(wanted.reshape(-1).astype(np.float64))

    def joined(self) -> tuple[Array, Array]:
        """All elements of both."""
        none = [np.zeros(0)]
        return np.concatenate(self.found or none), np.concatenate(self.wanted or none)


def _real(value: Value, array: Array) -> Array:
    return array if value.type.quant is None else dequantize(array, value.type.quant)


def _layers(model: FloatModel) -> Iterator[tuple[Value, Node | None]]:
    """The tensors that something computes (or the caller gives), with what computes them."""
    for value in model.tensors:
        if value.producer is None or not value.producer.op.moves_data:
            yield value, value.producer


def _sources(graph: Graph, known: set[str]) -> dict[Value, list[str]]:
    """By value: the nearest tensors among `known` that it is made from."""
    sources: dict[Value, list[str]] = {value: [] for value in graph.inputs}
    for node in graph.nodes:
        inputs = [v for v in node.inputs if v is not None and v in sources]
        found = [[v.name] if v.name in known else sources[v] for v in inputs]
        made_from = list(dict.fromkeys(name for names in found for name in names))
        sources |= dict.fromkeys(node.outputs, made_from)
    return sources


def _row(quantized: Quantization, value: Value, node: Node | None, pair: _Pair, sources: list[str]) -> LayerError:
    plan, key = quantized.plan, node.outputs[0].name if node else value.name
    stored = plan.activations.get(value.name)
    low, high = reach(stored) if stored else (None, None)
    found, wanted = pair.joined()
    return LayerError(
        name=value.name,
        origin=list(node.origin) if node else [],
        op=node.op.name if node else "input",
        precision=_precision(plan, node, stored).value,
        reason=quantized.assignment.reasons.get(key, ""),
        method=stored.method if stored else "",
        low=low,
        high=high,
        clipped=clipped_share(wanted, stored) if stored and pair.found else None,
        weights_sqnr_db=_weights(plan, node),
        sqnr_db=bounded(METRICS["sqnr"], sqnr_db(found, wanted)) if pair.found else None,
        cosine=cosine(found, wanted) if pair.found else None,
        max_abs_error=bounded(METRICS["max_abs_error"], max_abs_error(found, wanted)) if pair.found else None,
        sources=sources,
        histogram=Histogram.of(wanted, found) if pair.found else None,
    )


def _precision(plan: Plan, node: Node | None, stored: Stored | None) -> DType:
    """What a layer computes in; of an input, what it is stored in."""
    if node is not None:
        return plan.precision_of(node)
    return stored.dtype if stored else DType.FLOAT32


def reach(stored: Stored) -> tuple[float, float]:
    """The least and the greatest real that the codes stand for."""
    return code_range(stored.quant, stored.dtype)


def clipped_share(real: Array, stored: Stored) -> float:
    """Of the elements beyond what the codes reach, by more than rounding."""
    low, high = reach(stored)
    step = float(stored.quant.scale[0]) / 2
    return float(((real < low - step) | (real > high + step)).mean()) if real.size else 0.0


def _weights(plan: Plan, node: Node | None) -> float | None:
    codes = plan.layers.get(node.outputs[0].name) if node else None
    if codes is None or node is None:
        return None
    data = node.input(next(iter(weight_axes(node.op)))).data
    return None if data is None else bounded(METRICS["sqnr"], weights_sqnr_db(data, codes))
