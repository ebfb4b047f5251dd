# SPDX-License-Identifier: Apache-2.0
"""Comparison of the float model with its integer model, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.backends.cpu.pipeline import convert_integers
from mcugen.core.options import DIVERGED_DB
from mcugen.evaluation.layers import Histogram, LayerComparison, LayerError, summarize_layers
from mcugen.evaluation.metrics import METRICS, bounded, cosine, max_abs_error, sqnr_db
from mcugen.evaluation.samples import as_stored, graph_endpoints
from mcugen.evaluation.session import Session
from mcugen.frontend.onnx import import_model
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import interpret
from mcugen.hir.layer_names import name_results_of
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import dequantize
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.qdq import stored_name
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.samples import Sample
from mcugen.quantization.scheme import represented_range
from mcugen.quantization.weights import real_weights

DEFAULT_SAMPLES = 16
"""Default number of samples of a layer-by-layer comparison: numpy runs the integer model, which is slow."""


def compare_layers(
    quantized: Quantization,
    samples: Sequence[Sample],
    threshold_db: float = DIVERGED_DB,
    progress: Callable[[int], None] | None = None,
) -> LayerComparison:
    """Compare each tensor of the float model with the same tensor of the integer model.

    ONNX Runtime runs the float model. The numpy interpreter runs the integer model, and its results equal those of the
    generated code bit by bit.

    Args:
        quantized: The quantized model.
        samples: The inputs of both models.
        threshold_db: The SQNR in dB below which a layer has diverged.
        progress: Called with the number of finished samples.
    """
    graph = integer_graph(quantized)
    pairs = {value.name: _Pair() for value, _ in _layers(quantized.model)}
    session = Session(all_tensors(quantized.model))
    names = session.outputs
    for number, sample in enumerate(samples, 1):
        real = session.run(names, sample)
        integers = integer_tensors(graph, sample)
        for name, pair in pairs.items():
            integer = integers.get(stored_name(name), integers.get(name))
            if integer is not None:
                pair.add(integer, {**sample, **real}[name])
        if progress:
            progress(number)
    sources = _sources(quantized.model.graph, {name for name, pair in pairs.items() if pair.integer_values})
    titles = name_results_of(quantized.model.graph)
    rows = [
        _row(quantized, (value, node), pairs[value.name], [titles.get(n, n) for n in sources[value]], titles)
        for value, node in _layers(quantized.model)
    ]
    return summarize_layers(rows, len(samples), threshold_db)


def integer_graph(quantized: Quantization) -> Graph:
    """Return the integer HIR graph of a quantized model before layout passes, so that its nodes keep the model's order.

    Its values equal those of the generated code bit by bit.
    """
    graph = import_model(quantized.proto, "integers", registry=quantized.source.registry)
    convert_integers(graph)
    return graph


def integer_tensors(graph: Graph, sample: Sample) -> dict[str, Array]:
    """Interpret an integer graph on one sample, and return all activations by name, dequantized to real values."""
    tensors: dict[str, Array] = {}

    def keep(node: Node, arrays: list[Array]) -> None:
        present = [v for v in node.inputs if v is not None]
        tensors.update((v.name, _real(v, a)) for v, a in zip(present, arrays, strict=True) if not v.is_constant)

    outputs = interpret(graph, as_stored(sample, graph_endpoints(graph)), keep)
    results = {v.name: _real(v, outputs[n]) for n, v in zip(graph.output_names, graph.outputs, strict=True)}
    return tensors | results


def weights_sqnr_db(weights: Array, codes: QuantizedWeights) -> float:
    """Return the SQNR in dB of a layer's quantized weights.

    Args:
        weights: The float weights.
        codes: The quantized weights of the same layer.
    """
    return sqnr_db(real_weights(codes).reshape(-1), weights.reshape(-1).astype(np.float64))


@dataclass
class _Pair:
    """The values of one tensor in both models, over all samples."""

    integer_values: list[Array] = field(default_factory=list)
    float_values: list[Array] = field(default_factory=list)

    def add(self, integer: Array, real: Array) -> None:
        self.integer_values.append(integer.reshape(-1).astype(np.float64))
        self.float_values.append(real.reshape(-1).astype(np.float64))

    def concatenated(self) -> tuple[Array, Array]:
        """Return all elements of the integer model's tensor, and all of the float model's."""
        empty = [np.zeros(0)]
        return np.concatenate(self.integer_values or empty), np.concatenate(self.float_values or empty)


def _real(value: Value, array: Array) -> Array:
    return array if value.type.quant is None else dequantize(array, value.type.quant)


def _layers(model: FloatModel) -> Iterator[tuple[Value, Node | None]]:
    """Yield the inputs and the computed tensors of a model, each with its producer.

    Tensors that a node only moves are left out.
    """
    for value in model.tensors:
        if value.producer is None or not value.producer.op.moves_data:
            yield value, value.producer


def _sources(graph: Graph, known: set[str]) -> dict[Value, list[str]]:
    """Return, for each value, the nearest tensors among `known` that it is computed from."""
    sources: dict[Value, list[str]] = {value: [] for value in graph.inputs}
    for node in graph.nodes:
        inputs = [v for v in node.inputs if v is not None and v in sources]
        input_sources = [[v.name] if v.name in known else sources[v] for v in inputs]
        made_from = list(dict.fromkeys(name for names in input_sources for name in names))
        sources |= dict.fromkeys(node.outputs, made_from)
    return sources


def _row(
    quantized: Quantization,
    layer: tuple[Value, Node | None],
    pair: _Pair,
    sources: list[str],
    titles: Mapping[str, str],
) -> LayerError:
    """Return the error of a tensor.

    Args:
        quantized: The quantized model.
        layer: The tensor and its producer.
        pair: Its values in both models.
        sources: The names of the tensors that it is computed from.
        titles: The names of layers, by the names of their results.
    """
    value, node = layer
    plan, layer_name = quantized.plan, node.outputs[0].name if node else value.name
    stored = plan.activations.get(value.name)
    low, high = representable_range(stored) if stored else (None, None)
    integer, real = pair.concatenated()
    return LayerError(
        name=titles.get(value.name, value.name),
        origin=list(node.origin) if node else [],
        op=node.op.name if node else "input",
        precision=_precision(plan, node, stored).value,
        reason=quantized.assignment.reasons.get(layer_name, ""),
        method=stored.method if stored else "",
        low=low,
        high=high,
        clipped=clipped_share(real, stored) if stored and pair.integer_values else None,
        weights_sqnr_db=_weights(plan, node),
        sqnr_db=bounded(METRICS["sqnr"], sqnr_db(integer, real)) if pair.integer_values else None,
        cosine=cosine(integer, real) if pair.integer_values else None,
        max_abs_error=bounded(METRICS["max_abs_error"], max_abs_error(integer, real)) if pair.integer_values else None,
        sources=sources,
        histogram=Histogram.of(real, integer) if pair.integer_values else None,
    )


def _precision(plan: Plan, node: Node | None, stored: Stored | None) -> DType:
    """Return the type that a layer computes in; for an input of the model, the type that it is stored in."""
    if node is not None:
        return plan.precision_of(node)
    return stored.dtype if stored else DType.FLOAT32


def representable_range(stored: Stored) -> tuple[float, float]:
    """Return the smallest and the largest real value that a stored tensor can represent."""
    return represented_range(stored.quant, stored.dtype)


def clipped_share(real: Array, stored: Stored) -> float:
    """Return the share of elements that quantization clips, from 0 to 1.

    An element counts if it is outside the representable range by more than half a scale.

    Args:
        real: The real values.
        stored: The integer storage, which determines the representable range.
    """
    low, high = representable_range(stored)
    step = float(stored.quant.scale[0]) / 2
    return float(((real < low - step) | (real > high + step)).mean()) if real.size else 0.0


def _weights(plan: Plan, node: Node | None) -> float | None:
    codes = plan.layers.get(node.outputs[0].name) if node else None
    if codes is None or node is None:
        return None
    data = node.input(next(iter(weight_axes(node.op)))).data
    return None if data is None else bounded(METRICS["sqnr"], weights_sqnr_db(data, codes))
