# SPDX-License-Identifier: Apache-2.0
"""The fused float32 model that is quantized: as ONNX for ONNX Runtime, as HIR for decisions, with equal names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.core.errors import UnsupportedError, VerificationError
from mcugen.core.limits import limit_cpu_seconds
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.oracle import OracleModel, OracleRun, run_oracle
from mcugen.frontend.onnx import import_model, size_output
from mcugen.frontend.onnx.composition import Composed, replace_composed_nodes
from mcugen.frontend.onnx.functions import STANDARD_DOMAINS
from mcugen.frontend.onnx.opset_upgrade import standard_opset, upgrade
from mcugen.frontend.onnx.rolled import may_be_steps
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.onnx_node import BUILT_IN, Registry
from mcugen.passes.simplify import fold_dequantized
from mcugen.quantization.equalize import equalize
from mcugen.quantization.normalized import equalize_normalizations
from mcugen.quantization.onnx_writer import OnnxWriter
from mcugen.quantization.weights import add_zero_biases

OPSET_INT16 = 21
"""First ONNX opset whose QuantizeLinear can write int16 activations and 4-bit weights."""

MAX_FUSION_ERROR = 1e-3
"""Largest accepted error of the fused model's outputs, as a share of the outputs' range.

Fusion of batch normalization and equalization of channels may change outputs by rounding only.
"""

NOISE_RUNS = 3
"""Number of runs of the original model with inputs changed by one float32 rounding step.

They measure by how much rounding may change each output.
"""

MAX_NOISE_RATIO = 16.0
"""Largest accepted error of the fused model's outputs, divided by the largest change of the outputs in the NOISE_RUNS.

It is above 1 because these runs stand for the rounding of inputs only, while every term of a sum is rounded.
"""


@dataclass
class FloatModel:
    """The user's float model with fused layers, in two forms: ONNX and HIR.

    A tensor that is in both forms has one name and the same numbers in both.

    Attributes:
        proto: The model as ONNX, which ONNX Runtime runs.
        graph: The model as HIR, from which the decisions of quantization are made.
        oracle: The user's model, which other programs run to compute the correct outputs.
        states: The input that keeps a state from one call to the next, by the output that gives the state.
    """

    proto: onnx.ModelProto
    graph: Graph
    oracle: OracleModel
    states: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def with_int16(self) -> FloatModel:
        """Return a copy of the model in opset OPSET_INT16, in which tensors may be quantized to int16."""
        opset = standard_opset(self.proto)
        if opset is None or opset >= OPSET_INT16:
            return self
        return replace(self, proto=upgrade(self.proto, OPSET_INT16, "the fused model"))

    @property
    def first_states(self) -> dict[str, Array]:
        """Return the initial value of each input that holds a state, by the input's name: zeros."""
        state_inputs = [v for v in self.graph.inputs if v.name in self.states.values()]
        return {v.name: np.zeros(v.type.shape, v.type.dtype.numpy) for v in state_inputs}

    def reference(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int], None] | None = None
    ) -> OracleRun:
        """Compute the outputs of the user's model for each sample by another program, such as ONNX Runtime.

        Args:
            samples: The inputs of each sample, by name.
            progress: Called with the number of finished samples.

        Raises:
            VerificationError: No other program runs the model.
        """
        oracle = replace(self.oracle, fixed={**self.oracle.fixed, **self.first_states}, states=self.states)
        return run_oracle(oracle, samples, progress)

    @property
    def tensors(self) -> list[Value]:
        """Return the float32 activations, inputs included, that both `proto` and `graph` have, in graph order."""
        written_names = {name for node in self.proto.graph.node for name in node.output} | {
            v.name for v in self.graph.inputs
        }
        written = (v for v in self.graph.values() if not v.is_constant and v.name in written_names)
        return [v for v in written if v.type.dtype is DType.FLOAT32 and v.type.count]


def build_float_model(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int] | None = None,
    bound: Mapping[str, Array] | None = None,
    equalized: bool = True,
    states: Mapping[str, str] | None = None,
    registry: Registry = BUILT_IN,
    original: onnx.ModelProto | None = None,
) -> FloatModel:
    """Import a checked float model, fuse it, and write it as ONNX again.

    Args:
        model: The float model.
        name: The name of the graph.
        dims: The sizes of symbolic dimensions.
        bound: The values of inputs that become constants.
        equalized: Whether to equalize the ranges of channels.
        states: The input that keeps a state from one call to the next, by the output that gives the state.
        registry: The importers of operators.
        original: The model as the user gave it; None if that is `model`.

    Raises:
        UnsupportedError: The model is quantized already, or ONNX Runtime cannot run it.
        VerificationError: The outputs of the fused model differ from those of `original`.
    """
    composed: Composed = {}
    oracle = OracleModel(original or model, model, bound or {})
    model = equalize_normalizations(model) if equalized else model
    with limit_cpu_seconds("import"):
        graph = import_model(model, name, dims, bound, composed=composed, registry=registry)
        _drop_sizes(graph)
        fold_dequantized(graph)  # Models with quantized weights and real activations count as float models.
    if any(isinstance(node.op, Quantize | Dequantize) for node in graph.nodes):
        remedy = "compile it as it is, or quantize the float model that it stems from"
        raise UnsupportedError("only a float model can be quantized", "QuantizeLinear or DequantizeLinear", remedy)
    with limit_cpu_seconds("fusion"):
        fuse_float(graph)
    add_zero_biases(graph)
    if equalized:
        equalize(graph)
    source = _with_constants(model, bound or {})
    fused = FloatModel(OnnxWriter(replace_composed_nodes(source, composed), graph).write(), graph, oracle, states or {})
    _check_same(fused)
    return fused


def to_known_operators(
    model: onnx.ModelProto, dims: Mapping[str, int] | None, bound: Mapping[str, Array] | None, registry: Registry
) -> onnx.ModelProto:
    """Return the model in operators that ONNX Runtime knows.

    A recurrent layer whose time steps are separate nodes becomes a single node. Operators that ONNX Runtime does not
    know are replaced by the operators that they consist of.

    Args:
        model: The checked model.
        dims: The sizes of symbolic dimensions.
        bound: The values of inputs that become constants.
        registry: The importers of operators.
    """
    if not any(_has_body(node) or _is_unknown(node) for node in model.graph.node) and not may_be_steps(model):
        return model
    composed: Composed = {}
    import_model(model, "model", dims, bound, composed=composed, registry=registry)
    return replace_composed_nodes(model, composed)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)


def _is_unknown(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS and not onnx.defs.has(node.op_type)


def _drop_sizes(graph: Graph) -> None:
    """Remove the outputs that report computed sizes: the importer will add them to the quantized model as well."""
    sizes = {size_output(symbol) for symbol in graph.sizes or {}}
    kept_outputs = [(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True) if n not in sizes]
    graph.output_names, graph.outputs = [n for n, _ in kept_outputs], [v for _, v in kept_outputs]


def all_tensors(model: FloatModel) -> onnx.ModelProto:
    """Return a copy of the float model's ONNX form in which every tensor is an output."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    present = {v.name for v in (*proto.graph.output, *proto.graph.input)}
    for value in (v for v in model.tensors if v.name not in present):
        info = onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, value.type.shape)
        proto.graph.output.append(info)
    return proto


def _with_constants(model: onnx.ModelProto, bound: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model with bound inputs as initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    free_inputs = [v for v in copy.graph.input if v.name not in bound]
    types = {v.name: v.type.tensor_type.elem_type for v in copy.graph.input}
    del copy.graph.input[:]
    copy.graph.input.extend(free_inputs)
    for name, array in bound.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(array).astype(dtype), name))
    return copy


def _random(value: Value, random: np.random.Generator) -> Array:
    """Return standard normal reals; for integers 0 and 1, which are valid indices wherever there are two elements."""
    shape, dtype = value.type.shape, value.type.dtype
    numbers = random.integers(0, 2, shape) if dtype.is_integer or dtype is DType.BOOL else random.standard_normal(shape)
    return np.asarray(numbers, dtype.value)


def _check_same(fused: FloatModel) -> None:
    """Check that the user's model and the fused one compute the same outputs for a random sample.

    Another program runs both models, so that an error in the fusion cannot hide.
    """
    random = np.random.default_rng(0)
    sample = {v.name: _random(v, random) for v in fused.graph.inputs}
    try:
        (expected,) = run_oracle(fused.oracle, [sample]).outputs
    except VerificationError as error:
        remedy = "export with an opset and operators that ONNX Runtime knows"
        raise UnsupportedError("quantization needs ONNX Runtime to run the model", error.found, remedy) from error
    (fused_outputs,) = run_onnxruntime(fused.proto, [sample])
    noise = None
    for name in fused.graph.output_names:
        expected_output, fused_output = expected[name], fused_outputs[name].reshape(expected[name].shape)
        worst, magnitude = _largest_difference(expected_output, fused_output)
        if worst <= MAX_FUSION_ERROR * max(magnitude, 1e-6):
            continue
        noise = noise or _outputs_of_noise(fused, sample)
        if not worst <= MAX_NOISE_RATIO * max(
            _largest_difference(expected_output, outputs[name])[0] for outputs in noise
        ):
            reason = f"output '{name}' differs by {worst:.3g} of {magnitude:.3g}"
            raise VerificationError(
                "the fused model must give the results of the original model", reason, "report this bug"
            )


def _largest_difference(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the largest difference and the largest magnitude of the elements that are expected to be finite."""
    is_finite = np.isfinite(expected)
    exact, other = expected[is_finite].astype(np.float64), actual[is_finite].astype(np.float64)
    return float(np.abs(exact - other).max(initial=0.0)), float(np.abs(exact).max(initial=0.0))


def _outputs_of_noise(fused: FloatModel, sample: Mapping[str, Array]) -> Sequence[Mapping[str, Array]]:
    """Return the outputs of the user's model for inputs whose last bit is wrong.

    Where large terms cancel, an output is as uncertain as these show.
    """
    noisy = []
    for seed in range(NOISE_RUNS):
        random = np.random.default_rng(seed)
        signs = {n: random.choice((-1, 1), np.shape(a)) * np.float32(2**-23) for n, a in sample.items()}
        noisy.append({n: a * (1 + signs[n]).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in sample.items()})
    return run_oracle(fused.oracle, noisy).outputs
