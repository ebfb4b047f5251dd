# SPDX-License-Identifier: Apache-2.0
"""The layers of a quantized model that compute in another type than most, and why; for stderr and the report."""

from __future__ import annotations

from collections.abc import Mapping

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.options import INT16_WEIGHT_PRECISIONS
from mcugen.evaluation.layers import (
    GIVEN_REAL,
    KEEP_INT8_REMEDY,
    RAISED_BY_SEARCH,
    REASON_REMEDIES,
    REQUESTED_REAL,
    UNCONVERTED,
    OtherPrecision,
    PrecisionReason,
)
from mcugen.frontend.onnx import import_model
from mcugen.hir.graph import Graph, Node
from mcugen.hir.layer_names import name_results_of
from mcugen.hir.traits import readers_behind
from mcugen.hir.types import DType, QuantParams
from mcugen.ops.conversion import Quantize
from mcugen.ops.elementwise import Stack
from mcugen.passes.islands import float_islands, float_layers
from mcugen.quantization.qdq import stored_name
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.scheme import represented_range

(WIDE_PRECISION,) = INT16_WEIGHT_PRECISIONS
"""Precision of layers with int16 activations and weights, as `--layer` names it."""


def precisions_of_given(graph: Graph) -> tuple[OtherPrecision, ...]:
    """Return the layers that compute in float32 in a quantized model that the user passed, made by another tool."""
    islands, titles = float_islands(graph), name_results_of(graph)
    rows = []
    for name, op in float_layers(graph).items():
        reason = UNCONVERTED if name in islands else GIVEN_REAL
        rows.append(OtherPrecision(titles[name], op, DType.FLOAT32.value, reason, REASON_REMEDIES[reason]))
    return tuple(rows)


def other_precisions(quantization: Quantization, because: Mapping[str, PrecisionReason]) -> tuple[OtherPrecision, ...]:
    """Return the layers of a model quantized by mcugen that do not compute in the requested type.

    The integer graph is checked, too, because a layer with an integer form may have none for its constants.

    Args:
        quantization: The quantized model.
        because: Why mcugen chose a layer's type, by the name of the layer's result. Layers whose type the user chose by
            name have no entry.
    """
    main, assigned = quantization.plan.scheme.activations, quantization.assignment
    in_float = set(float_layers(_optimize_written(quantization)))
    titles = name_results_of(quantization.model.graph)
    rows = []
    for node in quantization.model.graph.nodes:
        name = node.outputs[0].name
        if name not in assigned.precision or (node.op.moves_data and name not in assigned.reasons):
            continue
        dtype, reason = assigned.precision[name], assigned.reasons.get(name, REQUESTED_REAL)
        if dtype is not DType.FLOAT32 and not in_float.isdisjoint((name, stored_name(name))):
            dtype, reason = DType.FLOAT32, UNCONVERTED
        if dtype is main:
            continue
        remedy = REASON_REMEDIES.get(reason, KEEP_INT8_REMEDY)
        if reason == REQUESTED_REAL and name in because:
            reason, remedy = because[name].reason, because[name].remedy
        precision = WIDE_PRECISION if name in quantization.plan.wide_weights else dtype.value
        rows.append(OtherPrecision(titles[name], node.op.name, precision, reason, remedy))
    return tuple(rows)


def _optimize_written(quantization: Quantization) -> Graph:
    graph = import_model(quantization.proto, "precisions", registry=quantization.source.registry)
    optimize(graph)
    return graph


def search_reasons(quantization: Quantization, known: Mapping[str, DType]) -> dict[str, PrecisionReason]:
    """Return why the precision search chose another type for a layer than for most, by the name of the layer's result.

    Args:
        quantization: The quantized model that the search returned.
        known: Layers whose types were chosen before the search, by the user or by mcugen; they get no reason.
    """
    main = quantization.plan.scheme.activations
    raised = {n: d for n, d in quantization.assignment.precision.items() if d is not main and n not in known}
    return {
        name: PrecisionReason(name, dtype.value, RAISED_BY_SEARCH, REASON_REMEDIES[RAISED_BY_SEARCH])
        for name, dtype in raised.items()
    }


def calibrated_ranges(quantization: Quantization) -> dict[str, tuple[float, float]]:
    """Return the range of values that the quantized model was calibrated for, by the name of the input.

    The range holds all values of the samples and, for a quantized input, the chosen range. Inputs that hold states are
    left out.
    """
    inputs = [v for v in quantization.model.graph.inputs if v.name not in quantization.model.states.values()]
    tensors, stored = quantization.profile.tensors, quantization.plan.activations
    seen = {v.name: (tensors[v.name].low, tensors[v.name].high) for v in inputs if v.name in tensors}
    coded = {name: (stored[name].low, stored[name].high) for name in seen if name in stored}
    return {
        name: (min(low, coded[name][0]), max(high, coded[name][1])) if name in coded else (low, high)
        for name, (low, high) in seen.items()
    }


def quantized_inputs(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return the range that the integers of each float32 input cover, by name.

    Only inputs that the model quantizes before any other use are in the result.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for value in (v for v in graph.inputs if v.type.dtype is DType.FLOAT32):
        readers = readers_behind(value)
        stored = [_first_quantized(node) for node in readers]
        ends = [represented_range(quant, dtype) for quant, dtype in filter(None, stored) if len(quant.scale) == 1]
        if ends and len(ends) == len(readers):
            ranges[value.name] = min(low for low, _ in ends), max(high for _, high in ends)
    return ranges


def _first_quantized(node: Node) -> tuple[QuantParams, DType] | None:
    """Return how a node quantizes its only input before it does anything else with it; None if it does not."""
    if isinstance(node.op, Quantize) and node.output.type.quant is not None:
        return node.output.type.q, node.output.type.dtype
    first = node.op.steps[0] if isinstance(node.op, Stack) and len(node.inputs) == 1 else None
    if first is not None and isinstance(first.op, Quantize) and first.quant is not None:
        return first.quant, first.dtype
    return None
