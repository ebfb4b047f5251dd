# SPDX-License-Identifier: Apache-2.0
"""Outputs with channels of disparate ranges keep the precision of 32-bit sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import random_weights, sqnr
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.hir.types import Array
from mcugen.quantization.scheme import Scheme
from mcugen.simulation import simulate

FEATURES, HIDDEN = 8, 24
APART = np.array([1.0, 30.0, 1000.0])
"""Ranges of three quantities in different units."""


def perceptron(kind: str, scales: Array = APART, offset: float = 0.0) -> onnx.ModelProto:
    """A regression of several quantities: in one layer, of convolutions, turned around, split, or decoded behind it."""
    net, is_conv = Net(18), kind == "convolution"
    shape = (1, FEATURES, 4) if is_conv else (1, FEATURES)
    x = net.input("x", *shape)
    first, last = random_weights(1, HIDDEN, FEATURES), random_weights(2, len(scales), HIDDEN) * scales[:, None]
    bias = np.full(len(scales), offset)
    if is_conv:
        y = net.op("Relu", net.op("Conv", x, net.const(first[..., None])))
        net.op("Conv", y, net.const(last[..., None]), net.const(bias), out="last")
    else:
        y = net.op("Relu", net.op("MatMul", x, net.const(first.T)))
        net.op("Gemm", y, net.const(last), net.const(bias), transB=1, out="last")
    if kind == "split":
        sizes = net.const([1, len(scales) - 1], np.int64)
        net.output(*net.ops("Split", "last", sizes, outs=["o", "others"], axis=1))
    elif kind == "decoded":
        net.output(net.op("Mul", "last", net.op("Sigmoid", "last"), out="o"))
    elif kind == "probabilities":
        net.output(net.op("Softmax", "last", out="o"))
    else:
        net.output(net.op("Transpose", "last", perm=[0, 2, 1], out="o") if is_conv else "last")
    return net.model()


def samples_of(model: onnx.ModelProto, count: int = 160) -> Array:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    return np.random.default_rng(3).standard_normal((count, *shape)).astype(np.float32)


def quantized(model: onnx.ModelProto, board: str = "host", **options: object) -> Compilation:
    quantizing = Quantizing(calibration={"x": samples_of(model)[:120]}, **options)  # type: ignore[arg-type]
    return Compilation(model, board, quantizing=quantizing)


def channels_db(model: onnx.ModelProto, made: onnx.ModelProto) -> list[float]:
    """The SQNR of each channel of the outputs, without the part that is constant."""
    feeds = [{"x": x[None]} for x in samples_of(model)[120:]]
    exact, found = (run_onnxruntime(each, feeds) for each in (model, made))
    decibels = []
    for name in exact[0]:
        a, b = (np.stack([run[name] for run in runs]) for runs in (exact, found))
        for channel in range(a.shape[-1]):
            mean = a[..., channel].mean()
            decibels.append(sqnr(a[..., channel] - mean, b[..., channel] - mean))
    return decibels


@pytest.mark.parametrize("kind", ["dense", "convolution", "split", "decoded"])
def test_every_quantity_is_as_good(kind: str):
    """One scale for all left the smallest quantity none of its bits."""
    model = perceptron(kind)
    made = quantized(model).quantized
    assert min(channels_db(model, made.proto)) >= 24
    rounded = quantized(model, scheme=Scheme(integer_io=True)).quantized
    if kind != "decoded":
        assert min(channels_db(model, as_reals(rounded.proto))) < 10
    assert any("times that of its narrowest channel" in note for note in made.notes)


def as_reals(model: onnx.ModelProto) -> onnx.ModelProto:
    """A quantized model whose inputs and outputs are integers, with real ones."""
    proto = onnx.ModelProto.FromString(model.SerializeToString())
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    params = {n.input[0]: n.input[1:] for n in proto.graph.node if n.op_type == "DequantizeLinear"}
    params |= {n.output[0]: n.input[1:] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for end in (*proto.graph.input, *proto.graph.output):
        name, scale_and_zero = end.name, params.get(end.name)
        assert scale_and_zero is not None and scale_and_zero[0] in constants
        is_input = end in list(proto.graph.input)
        for node in proto.graph.node:
            names = node.input if is_input else node.output
            for place, each in enumerate(names):
                names[place] = f"{name}_integer" if each == name else each
            if not is_input:
                for place, each in enumerate(node.input):
                    node.input[place] = f"{name}_integer" if each == name else each
        op_type = "QuantizeLinear" if is_input else "DequantizeLinear"
        ends = ([name], [f"{name}_integer"]) if is_input else ([f"{name}_integer"], [name])
        new = onnx.helper.make_node(op_type, [*ends[0], *scale_and_zero], ends[1])
        proto.graph.node.insert(0 if is_input else len(proto.graph.node), new)
        end.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return proto


def test_a_quantity_that_varies_little_about_a_large_mean():
    """20 degrees, give or take one."""
    model = perceptron("dense", np.ones(1), offset=60.0)
    assert min(channels_db(model, quantized(model).quantized.proto)) >= 24


@pytest.mark.parametrize(
    ("kind", "scales", "options"),
    [
        ("dense", np.ones(3), {}),
        ("probabilities", APART, {}),
        ("decoded", APART, {"layers": {"o": "int8"}}),
        ("dense", np.resize(APART, 300), {}),
        ("dense", APART, {"scheme": Scheme(integer_io=True)}),
        ("dense", APART, {"precision": "int16x8"}),
    ],
    ids=["alike", "classes", "as the user wants", "more than all other tensors", "integers", "int16"],
)
def test_where_outputs_are_rounded(kind: str, scales: Array, options: dict[str, object]):
    made = quantized(perceptron(kind, scales), **options).quantized
    assert "last" in made.plan.activations
    assert not any("an output is not rounded" in note for note in made.notes)


def test_a_state_is_rounded():
    """States are integers between steps; another output of the same step is not."""
    net = Net(18)
    total = net.op(
        "Add", net.op("MatMul", net.input("x", 1, 8), net.const(random_weights(1, 8, 8))), net.input("h", 1, 8)
    )
    net.op("Tanh", total, out="hn")
    net.output(net.op("Gemm", "hn", net.const(random_weights(2, 8, 3) * APART), net.const(np.zeros(3)), out="last"))
    net.output("hn")
    samples = np.random.default_rng(1).standard_normal((60, 8)).astype(np.float32)
    made = Compilation(
        net.model(), options=CompileOptions(states={"hn": "h"}), quantizing=Quantizing(calibration={"x": samples})
    ).quantized
    assert "hn" in made.plan.activations and "last" not in made.plan.activations


@pytest.mark.qemu
@pytest.mark.riscv
@pytest.mark.parametrize("kind", ["dense", "convolution", "split", "decoded"])
@pytest.mark.parametrize("board", ["host", "rp2040", "sam3x8e", "nrf52840", "rt1060", "corstone300", "rv32imc"])
def test_boards_compute_what_numpy_does(board: str, kind: str):
    compiled = quantized(perceptron(kind), board).compiled
    (sample,) = samples_of(compiled.model, 1)
    expected = compiled.interpret({"x": sample[None]})
    (found,) = simulate(compiled.bundle, compiled.board, [{"x": sample[None]}]).outputs
    for name, array in found.items():
        assert np.allclose(array, expected[name], rtol=3e-7, atol=0)


@pytest.mark.parametrize("precision", ["w4a8", "w4a8g32", "auto"])
def test_other_precisions(precision: str):
    """Weights of 4 bits, and a search, whose types of layers stand."""
    model = perceptron("decoded")
    made = quantized(model, "nrf52840", precision=precision)
    assert "last" not in made.quantized.plan.activations
    assert min(channels_db(model, made.quantized.proto)) >= 12
    assert made.compiled.program.instrs
