# SPDX-License-Identifier: Apache-2.0
"""Helpers that build small ONNX models and run them: by ONNX Runtime, by the numpy reference, and as generated C."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcugen.backends.cpu.pipeline import optimize
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.oracle import start_reference_evaluator
from mcugen.evaluation.session import Session
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import prepare_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.hir.verify import verify_graph
from mcugen.ops.training import TRAINING
from mcugen.passes.rewrite import Rewriting

Feeds = Mapping[str, Array]
"""Inputs or outputs of a model: an array by name."""
MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
DOMAINS = {MICROSOFT: 1, ML: 3, TRAINING: 1}
"""Version of each operator domain that is not ONNX's own."""


class Net:
    """A builder of an ONNX graph, node by node; methods take and return the names of tensors."""

    def __init__(self, opset: int = 17, ir_version: int = 10, prefix: str = "") -> None:
        """Create an empty graph; `prefix` begins generated names, which must differ between a graph and its bodies."""
        self.opset, self.ir_version, self.prefix = opset, ir_version, prefix
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def input(self, name: str, *shape: int | str, dtype: type = np.float32) -> str:
        """Add an input of the graph and return its name."""
        self.inputs.append(_info(name, dtype, shape))
        return name

    def const(self, data: object, dtype: type = np.float32, name: str = "") -> str:
        """Add an initializer and return its name."""
        name = name or f"{self.prefix}const{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def op(self, op_type: str, *inputs: str, out: str = "", domain: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name: `out`, or a new name."""
        return self.ops(
            op_type, *inputs, outs=[out or f"{self.prefix}t{len(self.nodes)}"], domain=domain, **attributes
        )[0]

    def ops(self, op_type: str, *inputs: str, outs: list[str], domain: str = "", **attributes: object) -> list[str]:
        """Add a node with several outputs; its name is the operator and its first output."""
        name = f"{op_type}_{next(filter(None, outs))}"
        node = helper.make_node(op_type, inputs, outs, name, domain=domain, **attributes)
        self.nodes.append(node)
        return outs

    def output(self, *names: str, dtype: type = np.float32, shape: Sequence[int] | None = None) -> None:
        """Declare outputs; shapes are inferred unless given."""
        self.outputs += [_info(name, dtype, shape) for name in names]

    def quantize(self, x: str, scale: float, zero: int = 0, dtype: type = np.int8, out: str = "") -> str:
        """Add a QuantizeLinear and return its output."""
        return self.op("QuantizeLinear", x, self.const(scale), self.const(zero, dtype), out=out)

    def dequantize(self, q: str, scale: float, zero: int = 0, dtype: type = np.int8, out: str = "") -> str:
        """Add a DequantizeLinear and return its output."""
        return self.op("DequantizeLinear", q, self.const(scale), self.const(zero, dtype), out=out)

    def fake(self, x: str, scale: float, zero: int = 0, dtype: type = np.int8, out: str = "") -> str:
        """Add QuantizeLinear and DequantizeLinear."""
        return self.dequantize(self.quantize(x, scale, zero, dtype), scale, zero, dtype, out)

    def plain_model(self, name: str = "net") -> onnx.ModelProto:
        """Return the model as written, with the given output shapes; it need not be valid."""
        graph = self.graph(name)
        opsets = [helper.make_opsetid("", self.opset)]
        domains = dict.fromkeys(node.domain for graph in nested(graph) for node in graph.node if node.domain)
        opsets += [helper.make_opsetid(domain, DOMAINS[domain]) for domain in domains if domain in DOMAINS]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)

    def graph(self, name: str) -> onnx.GraphProto:
        """Return the nodes as the body of another node."""
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)

    def model(self, name: str = "net") -> onnx.ModelProto:
        """Return the model with inferred output shapes."""
        model = self.plain_model(name)
        inferred = onnx.shape_inference.infer_shapes(model).graph.output
        for output, found in zip(model.graph.output, inferred, strict=True):
            output.CopyFrom(found)
            output.type.tensor_type.shape.SetInParent()  # the checker wants one, if only that of a scalar
        return model


def nested(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and the bodies of its nodes, at every depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nested(attribute.g)


def _info(name: str, dtype: type, shape: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def imported(model: onnx.ModelProto, **dims: int) -> Graph:
    """Return the HIR graph of a model right after import."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return import_model(prepare_model(copy, "test"), "net", dims)


def optimized(model: onnx.ModelProto) -> Graph:
    """Return the HIR graph of a model after all passes."""
    graph = imported(model)
    optimize(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    """Return the names of a graph's operators in order."""
    return [node.op.name for node in graph.nodes]


def reference_outputs(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Compute the outputs by ONNX's own reference implementation."""
    return {name: np.asarray(array) for name, array in start_reference_evaluator(model)(feeds).items()}


def random_feeds(model: onnx.ModelProto, seed: int = 0, spread: float = 1.0) -> dict[str, Array]:
    """Return normal floats, uniform integers and booleans for every input."""
    random = np.random.default_rng(seed)
    return {info.name: _random(info, random, spread) for info in model.graph.input}


def _random(info: onnx.ValueInfoProto, random: np.random.Generator, spread: float) -> Array:
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    if dtype.name.startswith(("float", "bfloat")):
        return np.asarray(random.standard_normal(shape) * spread, dtype)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), dtype)
    limits = np.iinfo(dtype) if dtype.itemsize == 1 else np.iinfo(np.int16)
    return np.asarray(random.integers(max(limits.min, np.iinfo(dtype).min), limits.max + 1, shape), dtype)


def onnxruntime_outputs(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Compute the outputs by ONNX Runtime without graph optimizations."""
    session = Session(model, threads=1)
    return {name: np.asarray(found) for name, found in session.run(session.outputs, feeds).items()}


def numpy_outputs(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Compute the outputs by the numpy reference on the optimized graph."""
    return interpret(optimized(model), feeds)


def c_outputs(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Compute the outputs by the generated C on this computer, under the address and UB sanitizers."""
    return outputs_in_c(compile_model(model), feeds)


def outputs_in_c(compiled: CompiledModel, feeds: Feeds) -> dict[str, Array]:
    """Compute the outputs of a compiled model by its C on this computer, under the sanitizers."""
    found = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    return {name: array[0] for name, array in found.items()}


def assert_close(found: Feeds, expected: Feeds, relative: float = 1e-5) -> None:
    """Check that floats differ by at most `relative` of their tensor's largest magnitude, and the rest is equal."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        got = np.asarray(found[name])
        assert got.dtype == array.dtype, name
        assert got.shape == array.shape, name
        if array.dtype.name.startswith(("bfloat", "float8", "float4")):
            got, array = got.astype(np.float32), array.astype(np.float32)
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(got, array, err_msg=name)
            continue
        largest = np.abs(array[np.isfinite(array)]).max(initial=1e-6)
        np.testing.assert_allclose(got, array, rtol=relative, atol=relative * largest, err_msg=name)


def assert_within_one(found: Feeds, expected: Feeds, share: float = 0.005) -> None:
    """Check that quantized values differ by at most 1, and less than `share` of them differ."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        difference = np.abs(found[name].astype(np.int64) - array.astype(np.int64))
        assert difference.max(initial=0) <= 1, name
        assert (difference > 0).mean() < share, name


def check_everywhere(model: onnx.ModelProto, feeds: Feeds | None = None, relative: float = 1e-5) -> None:
    """Check that ONNX Runtime, the numpy reference and the generated C agree."""
    feeds = random_feeds(model) if feeds is None else feeds
    compiled = compile_model(model)
    reference = interpret(compiled.graph, feeds)
    assert_close(reference, onnxruntime_outputs(model, feeds), relative)
    assert_close(outputs_in_c(compiled, feeds), reference, relative)


def check_quantized(model: onnx.ModelProto, feeds: Feeds | None = None, share: float = 0.005) -> None:
    """Check that the numpy reference is within one step of ONNX Runtime, and that the generated C equals it."""
    feeds = random_feeds(model) if feeds is None else feeds
    compiled = compile_model(model)
    reference = interpret(compiled.graph, feeds)
    assert_within_one(reference, onnxruntime_outputs(model, feeds), share)
    assert_close(outputs_in_c(compiled, feeds), reference)


remove_dead_code = Rewriting("remove_dead_code")
"""A pass without patterns, which removes unused nodes only."""


def apply(model: onnx.ModelProto, *passes: Callable[[Graph], bool]) -> Graph:
    """Return the imported graph after passes, each repeated until it changes nothing; check that results stay."""
    graph, feeds = imported(model), random_feeds(model)
    before = interpret(graph, feeds)
    for pass_ in passes:
        while pass_(graph):
            pass
        remove_dead_code(graph)
        verify_graph(graph)
    assert_close(interpret(graph, feeds), before)
    return graph
