# SPDX-License-Identifier: Apache-2.0
"""The model that is quantized: fused float32, as ONNX for ONNX Runtime and as HIR for decisions, with equal names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.core.errors import UnsupportedError, VerificationError
from mcugen.core.limits import cpu_seconds
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.oracle import OracleModel, OracleRun, run_oracle
from mcugen.frontend.onnx import import_model, size_output
from mcugen.frontend.onnx.composition import Composed, spelled_out
from mcugen.frontend.onnx.functions import STANDARD_DOMAINS
from mcugen.frontend.onnx.opset_upgrade import standard_opset, upgrade
from mcugen.frontend.onnx.rolled import may_be_steps
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.onnx_node import BUILT_IN, Registry
from mcugen.passes.simplify import fold_dequantized
from mcugen.quantization.equalize import equalize
from mcugen.quantization.normalized import even_out
from mcugen.quantization.onnx_writer import OnnxWriter
from mcugen.quantization.weights import give_biases

OPSET_INT16 = 21
"""The first operator set whose QuantizeLinear knows int16 and weights of 4 bits."""

TOLERANCE = 1e-3
"""Of the fused model's outputs, relative to their range; what BN folding and equalization change is rounding."""


@dataclass
class FloatModel:
    """The values of `graph` that `proto` has as well bear the same names and numbers there.

    `oracle` is the user's model, which other programs get to compute the outputs that are right.
    """

    proto: onnx.ModelProto
    graph: Graph
    oracle: OracleModel
    states: Mapping[str, str] = field(default_factory=dict)
    """Inputs by the outputs that they keep from one call to the next."""

    @cached_property
    def with_int16(self) -> FloatModel:
        """Return the same model in an operator set that quantizes to int16."""
        opset = standard_opset(self.proto)
        if opset is None or opset >= OPSET_INT16:
            return self
        return replace(self, proto=upgrade(self.proto, OPSET_INT16, "the fused model"))

    @property
    def first_states(self) -> dict[str, Array]:
        """What the inputs that hold states are at first: zeros."""
        kept = [v for v in self.graph.inputs if v.name in self.states.values()]
        return {v.name: np.zeros(v.type.shape, v.type.dtype.numpy) for v in kept}

    def reference(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int], None] | None = None
    ) -> OracleRun:
        """Compute the outputs of the user's model for each sample, by another program.

        Raises:
            VerificationError: No other program runs the model.
        """
        oracle = replace(self.oracle, fixed={**self.oracle.fixed, **self.first_states}, states=self.states)
        return run_oracle(oracle, samples, progress)

    @property
    def tensors(self) -> list[Value]:
        """The float32 activations that both have, inputs among them, in order."""
        named = {name for node in self.proto.graph.node for name in node.output} | {v.name for v in self.graph.inputs}
        known = (v for v in self.graph.values() if not v.is_constant and v.name in named)
        return [v for v in known if v.type.dtype is DType.FLOAT32 and v.type.count]


def build_float_model(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int] | None = None,
    bound: Mapping[str, Array] | None = None,
    equalized: bool = True,
    states: Mapping[str, str] | None = None,
    registry: Registry = BUILT_IN,
    given: onnx.ModelProto | None = None,
) -> FloatModel:
    """Imports a checked float model, fuses it, and writes it as ONNX again. VerificationError if numbers change.

    `given` is the model as the user gave it, unless that is `model` itself.
    """
    composed: Composed = {}
    oracle = OracleModel(given or model, model, bound or {})
    model = even_out(model) if equalized else model
    with cpu_seconds("import"):
        graph = import_model(model, name, dims, bound, composed=composed, registry=registry)
        _drop_sizes(graph)
        fold_dequantized(graph)  # of weights alone
    if any(isinstance(node.op, Quantize | Dequantize) for node in graph.nodes):
        remedy = "compile it as it is, or quantize the float model that it stems from"
        raise UnsupportedError("only a float model can be quantized", "QuantizeLinear or DequantizeLinear", remedy)
    with cpu_seconds("fusion"):
        fuse_float(graph)
    give_biases(graph)
    if equalized:
        equalize(graph)
    source = _with_constants(model, bound or {})
    fused = FloatModel(OnnxWriter(spelled_out(source, composed), graph).write(), graph, oracle, states or {})
    _check_same(fused)
    return fused


def in_known_operators(
    model: onnx.ModelProto, dims: Mapping[str, int] | None, bound: Mapping[str, Array] | None, registry: Registry
) -> onnx.ModelProto:
    """The model with what are layers as such (bodies, steps that are written out), and with what ONNX Runtime does not
    know in the operators that it consists of.
    """
    if not any(_has_body(node) or _is_unknown(node) for node in model.graph.node) and not may_be_steps(model):
        return model
    composed: Composed = {}
    import_model(model, "model", dims, bound, composed=composed, registry=registry)
    return spelled_out(model, composed)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)


def _is_unknown(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS and not onnx.defs.has(node.op_type)


def _drop_sizes(graph: Graph) -> None:
    """Takes out the outputs that tell computed sizes: the importer will add them to the quantized model, too."""
    sizes = {size_output(symbol) for symbol in graph.sizes or {}}
    kept = [(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True) if n not in sizes]
    graph.output_names, graph.outputs = [n for n, _ in kept], [v for _, v in kept]


def all_tensors(model: FloatModel) -> onnx.ModelProto:
    """The float model with every tensor among its outputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    present = {v.name for v in (*proto.graph.output, *proto.graph.input)}
    for value in (v for v in model.tensors if v.name not in present):
        info = onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, value.type.shape)
        proto.graph.output.append(info)
    return proto


def _with_constants(model: onnx.ModelProto, bound: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with bound inputs as initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [v for v in copy.graph.input if v.name not in bound]
    types = {v.name: v.type.tensor_type.elem_type for v in copy.graph.input}
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    for name, array in bound.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(array).astype(dtype), name))
    return copy


def _random(value: Value, random: np.random.Generator) -> Array:
    """Standard normal reals; integers 0 and 1, which are indices wherever there are two elements."""
    shape, dtype = value.type.shape, value.type.dtype
    drawn = random.integers(0, 2, shape) if dtype.is_integer or dtype is DType.BOOL else random.standard_normal(shape)
    return np.asarray(drawn, dtype.value)


def _check_same(fused: FloatModel) -> None:
    """A second, dumber program: the user's model and the fused one compute the same for a random sample."""
    random = np.random.default_rng(0)
    sample = {v.name: _random(v, random) for v in fused.graph.inputs}
    try:
        (wanted,) = run_oracle(fused.oracle, [sample]).outputs
    except VerificationError as error:
        remedy = "export with an opset and operators that ONNX Runtime knows"
        raise UnsupportedError("quantization needs ONNX Runtime to run the model", error.found, remedy) from error
    (found,) = run_onnxruntime(fused.proto, [sample])
    for name in fused.graph.output_names:
        a, b = wanted[name].astype(np.float64), found[name].astype(np.float64).reshape(wanted[name].shape)
        known = np.isfinite(a)
        worst = np.abs(a[known] - b[known]).max(initial=0.0)
        span = np.abs(a[known]).max(initial=0.0)
        if not worst <= TOLERANCE * max(span, 1e-6):
            reason = f"output '{name}' differs by {worst:.3g} of {span:.3g}"
            raise VerificationError("the fused model must compute what the model computes", reason, "report this bug")
