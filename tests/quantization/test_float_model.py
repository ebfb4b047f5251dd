# SPDX-License-Identifier: Apache-2.0
"""A fused graph written as ONNX again: the same numbers, whatever the source looks like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, quantized, random_weights
from onnx import TensorProto
from onnx_models import Net, onnxruntime_outputs
from shared_models import FLOAT, MODELS

from mcugen.core.errors import UnsupportedError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import DType
from mcugen.ops.onnx_node import BUILT_IN
from mcugen.passes.islands import float_layers
from mcugen.quantization import float_model, quantize
from mcugen.quantization.float_model import FloatModel, _is_unknown, build_float_model, to_known_operators
from mcugen.quantization.scheme import Scheme


def built(model: onnx.ModelProto, **options: object) -> FloatModel:
    source = load(model)
    fused = build_float_model(source.proto, "net", **options)  # type: ignore[arg-type]
    onnx.checker.check_model(fused.proto, full_check=True)
    return fused


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_same(model: onnx.ModelProto, fused: FloatModel) -> None:
    for feeds in normal_samples(model, 3):
        wanted, found = onnxruntime_outputs(model, feeds), onnxruntime_outputs(fused.proto, feeds)
        assert wanted.keys() == found.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_batch_normalization_and_activations_are_part_of_the_layers() -> None:
    model = conv_net()
    fused = built(model, equalized=False)
    assert "BatchNormalization" not in operators(fused.proto)
    assert operators(fused.proto)[:4] == ["Conv", "Clip", "Conv", "Relu"]
    assert_same(model, fused)


def test_values_of_the_graph_are_tensors_of_the_model() -> None:
    fused = built(conv_net())
    made = {name for node in fused.proto.graph.node for name in node.output} | {"x"}
    assert {v.name for v in fused.tensors} <= made
    assert {"x", "relu6", "relu", "sum", "pool", "logits", "scores"} <= {v.name for v in fused.tensors}


def test_what_has_no_form_of_its_own_is_taken_over() -> None:
    """GELU in its five nodes is one function in the graph; Split has two results; TopK is no layer at all."""
    net = Net()
    x = net.input("x", 1, 8)
    y = net.op("MatMul", x, net.const(random_weights(1, 8, 8)), out="y")
    e = net.op("Erf", net.op("Div", y, net.const(1.4142135)))
    gelu = net.op("Mul", net.op("Mul", y, net.op("Add", e, net.const(1.0))), net.const(0.5), out="gelu")
    net.ops("Split", gelu, net.const([3, 5], np.int64), outs=["a", "b"], axis=1)
    net.ops("TopK", "b", net.const([2], np.int64), outs=["top", "at"])
    net.output("a", "top")
    net.output("at", dtype=np.int64)
    model = net.model()
    fused = built(model)
    assert operators(fused.proto).count("Erf") == operators(fused.proto).count("Split") == 1
    assert_same(model, fused)


def test_outputs_keep_their_names() -> None:
    """One tensor under two names, an input handed through, and a constant."""
    net = Net()
    x = net.input("x", 1, 4)
    y = net.op("Relu", x, out="y")
    net.op("Identity", y, out="again")
    net.op("Identity", x, out="through")
    net.op("Identity", net.const([1.0, 2.0]), out="fixed")
    net.output("y", "again", "through", "fixed")
    model = net.model()
    assert_same(model, built(model))


@pytest.mark.parametrize("first", ["scores", "label"])
@pytest.mark.parametrize("nothing", ["Cast", "Identity", "Dropout", "Reshape"])
@pytest.mark.parametrize("reader", ["Sign", "ArgMax", "Gemm"])
def test_an_output_that_does_nothing_and_is_read(reader: str, nothing: str, first: str) -> None:
    """As skl2onnx casts scores to their own type; what reads them is copied, and the cast with it."""
    net = Net(18)
    y = net.op("Gemm", net.input("x", 1, 4), net.const(random_weights(1, 4, 4)))
    extra = [net.const([1, 4], np.int64)] if nothing == "Reshape" else []
    net.op(nothing, y, *extra, out="scores", **({"to": TensorProto.FLOAT} if nothing == "Cast" else {}))
    if reader == "Gemm":
        net.op("Gemm", "scores", net.const(random_weights(2, 4, 4)), out="label")
    elif reader == "ArgMax":
        net.op("Cast", net.op("ArgMax", "scores", axis=1), to=TensorProto.FLOAT, out="label")
    else:
        net.op(reader, "scores", out="label")
    net.output(*sorted(("scores", "label"), key=lambda name: name != first))
    model = net.model()
    assert_same(model, built(model))
    proto = quantized(model).proto
    onnx.checker.check_model(proto, full_check=True)
    assert onnxruntime_outputs(proto, normal_samples(model, 1)[0]).keys() == {"scores", "label"}


def test_bodies_see_what_is_around_them() -> None:
    """The branches of an If read a tensor of the model, which is fused with the layer before."""
    net = Net()
    x = net.input("x", 1, 4)
    y = net.op("Relu", net.op("MatMul", x, net.const(random_weights(1, 4, 4))), out="y")
    total = net.op("ReduceSum", x, keepdims=0)
    positive = net.op("Greater", total, net.const(0.0))
    branches = []
    for op_type in ("Neg", "Exp"):
        result = onnx.helper.make_tensor_value_info(f"{op_type}_y", onnx.TensorProto.FLOAT, (1, 4))
        node = onnx.helper.make_node(op_type, [y], [f"{op_type}_y"], op_type)
        branches.append(onnx.helper.make_graph([node], op_type, [], [result]))
    net.op("If", positive, then_branch=branches[0], else_branch=branches[1], out="z")
    net.output("z")
    model = net.model()
    assert_same(model, built(model))


def test_bound_inputs_are_constants() -> None:
    net = Net()
    x, k = net.input("x", 1, 4), net.input("k", 4)
    net.op("Relu", net.op("Add", x, k), out="y")
    net.output("y")
    model = net.model()
    fused = built(model, bound={"k": np.arange(4.0)})
    feeds = {"x": np.ones((1, 4), np.float32)}
    assert [i.name for i in fused.proto.graph.input] == ["x"]
    np.testing.assert_allclose(onnxruntime_outputs(fused.proto, feeds)["y"], [[1, 2, 3, 4]])


def test_a_quantized_model_is_refused() -> None:
    net = Net()
    net.op("Relu", net.fake(net.input("x", 1, 4), 0.1), out="y")
    net.output("y")
    with pytest.raises(UnsupportedError, match="only a float model can be quantized"):
        built(net.model())


def test_a_wrong_fusion_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(graph: float_model.Graph) -> bool:
        weights = graph.nodes[0].input(1)
        assert weights.data is not None
        weights.data = weights.data * 1.1
        return True

    monkeypatch.setattr(float_model, "equalize", spoil)
    with pytest.raises(VerificationError, match="must give the results of the original model"):
        built(conv_net())


@pytest.mark.parametrize("name", FLOAT)
def test_shared_models(name: str) -> None:
    """`built` compares outputs itself; every layer with weights is written anew."""
    source = load(MODELS / f"{name}.onnx")
    fused = build_float_model(source.proto, "net", {"batch": 1} if "dynbatch" in name else None)
    layers = [node for node in fused.graph.nodes if weight_axes(node.op)]
    assert {node.output.name for node in layers} <= {v.name for v in fused.tensors}
    assert "BatchNormalization" not in operators(fused.proto)


def test_a_free_batch_is_one_sample_here_too() -> None:
    model, samples = conv_net(), normal_samples(conv_net(), 8)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    source = load(model)
    fused = quantize.import_float_model(source, CompileOptions(), Scheme())
    assert fused.graph.inputs[0].type.shape[0] == 1
    quantized = quantize.create_quantizer(source, fused, Scheme(), samples).quantize()
    note = compile_model(quantized).report.notes[0]
    assert note.startswith("dimension 'batch' of input") and "--dim batch=SIZE" in note


def test_an_output_that_data_movements_make_is_taken_over() -> None:
    """A column of a layer's result: what is left of Gather and Unsqueeze has no name in the source."""
    net = Net(12)
    y = net.op("MatMul", net.input("x", 2, 8), net.const(random_weights(1, 8, 4)))
    for index in range(2):
        net.op("Unsqueeze", net.op("Gather", y, net.const(index, np.int64), axis=1), out=f"y{index}", axes=[1])
    net.output("y0", "y1")
    fused = built(net.model())
    assert set(operators(fused.proto)) == {"Gemm", "Slice", "Identity"}
    assert_same(net.model(), fused)


def lstm_in_branches() -> onnx.ModelProto:
    """Whether there are states, which is known at compile time, decides in which of two branches the LSTM is."""
    net = Net(16)
    x, kept = net.input("x", 1, 1, 4), net.input("kept", 2, 1, 3)
    net.op("Cast", net.op("Gather", net.op("Shape", kept), net.const(0, np.int64)), out="given", to=TensorProto.BOOL)
    bodies = []
    for side in ("with", "without"):
        body = Net(16, prefix=side)
        weights = [body.const(random_weights(seed, 1, 12, depth)) for seed, depth in ((1, 4), (2, 3))]
        first = [
            body.op("Unsqueeze", body.op("Gather", kept, body.const(i, np.int64)), body.const([0], np.int64))
            for i in range(2 if side == "with" else 0)
        ]
        outs = [f"{side}_y", f"{side}_h", f"{side}_c"]
        body.ops("LSTM", x, *weights, *([""] * 2 if first else []), *first, outs=outs, hidden_size=3)
        body.output(*outs[1:])
        bodies.append(body.graph(side))
    net.ops("If", "given", outs=["h", "c"], then_branch=bodies[0], else_branch=bodies[1])
    net.op("Relu", "h", out="z")
    net.output("z", "c")
    return net.model()


def test_a_branch_that_is_taken_at_compile_time_is_layers_like_others() -> None:
    """The LSTM's first states are parts of an input that have no name in the source."""
    model = lstm_in_branches()
    fused = built(model)
    assert "If" not in operators(fused.proto) and "LSTM" in operators(fused.proto)
    assert_same(model, fused)
    result = quantized(model)
    assert {n.op_type for n in result.proto.graph.node} >= {"Scan", "QuantizeLinear"}
    feeds = normal_samples(model, 4, seed=5)
    found = compile_model(result).run({n: np.stack([f[n] for f in feeds]) for n in ("x", "kept")}, sanitize=True)
    for index, feed in enumerate(feeds):
        for name, wanted in onnxruntime_outputs(result.proto, feed).items():
            assert np.abs(found[name][index] - wanted).max() <= 0.02, name


def test_models_of_known_operators_are_taken_as_they_are() -> None:
    """Operators of other domains are no matter of ONNX's list; one of its own domains that is not in it is unknown."""
    model = conv_net()
    assert to_known_operators(model, None, None, BUILT_IN) is model
    named = [("Relu", ""), ("Nothing", ""), ("Relu", "ai.onnx"), ("Nothing", "ai.onnx"), ("Nothing", "com.example")]
    nodes = [onnx.helper.make_node(op_type, ["x"], ["y"], domain=domain) for op_type, domain in named]
    assert [_is_unknown(node) for node in nodes] == [False, True, False, True, False]


HEADS: dict[str, Callable[[Net, str], str]] = {
    "none": lambda net, y: y,
    "bias": lambda net, y: net.op("Add", y, net.const(random_weights(1, 1, 1, 1, 8))),
    "relu": lambda net, y: net.op("Relu", y),
    "normalization": lambda net, y: net.op(
        "Relu",
        net.op("Mul", net.op("Sub", y, net.const(random_weights(1, 8))), net.const(np.abs(random_weights(1, 8)) + 0.1)),
    ),
}
"""What follows a convolution behind a transposition to channels last, as Keras' exporter writes it."""
READERS: dict[str, Callable[[Net, str], str]] = {
    "pool": lambda net, y: net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]),
    "average": lambda net, y: net.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]),
    "convolution": lambda net, y: net.op("Conv", y, net.const(random_weights(1, 4, 8, 2, 2))),
    "activation": lambda net, y: net.op("Sigmoid", y),
    "both": lambda net, y: net.op(
        "Concat", net.op("MaxPool", y, kernel_shape=[2, 2]), net.op("AveragePool", y, kernel_shape=[2, 2]), axis=1
    ),
    "sum": lambda net, y: net.op("Add", y, net.op("Tanh", y)),
}
"""Layers that read the result behind a transposition back to channels first."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("num_channels", [1, 3])
def test_layers_between_transpositions_are_quantized(num_channels: int, head: str, reader: str) -> None:
    net = Net(17)
    y = net.op("Conv", net.input("x", 1, num_channels, 8, 8), net.const(random_weights(1, 8, num_channels, 3, 3)))
    y = HEADS[head](net, net.op("Transpose", y, perm=[0, 2, 3, 1]))
    y = READERS[reader](net, net.op("Transpose", y, perm=[0, 3, 1, 2]))
    net.output(net.op("Transpose", y, perm=[0, 2, 3, 1], out="y"))
    model = net.model()
    fused = built(model)
    assert_same(model, fused)
    activations = {v for v in fused.graph.values() if not v.is_constant and v.type.dtype is DType.FLOAT32}
    assert {*fused.tensors} == activations
    compiled = compile_model(quantized(model, Scheme(integer_io=True)).proto)
    assert float_layers(compiled.graph) == {}
