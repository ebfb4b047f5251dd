# SPDX-License-Identifier: Apache-2.0
"""Constants that are zero, one, equal or absent: a layer that is integer with other constants is integer with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from float_models import random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array

CHANNELS, IMAGE = 6, (1, 6, 4, 4)


def first_zero(values: Array) -> Array:
    return np.where(np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)) == 0, 0.0, values)


KINDS: Mapping[str, Callable[[Array], Array | None]] = {
    "random": lambda values: values,
    "zero": np.zeros_like,
    "first zero": first_zero,
    "ones": np.ones_like,
    "minus one": lambda values: -np.ones_like(values),
    "equal": lambda values: np.full_like(values, 0.37),
    "absent": lambda _: None,
}
WEIGHTS = [kind for kind in KINDS if kind != "absent"]
PAIRS = [*((kind, "random") for kind in WEIGHTS), *(("random", k) for k in KINDS), ("zero", "zero"), ("zero", "absent")]


def constant(net: Net, kind: str, *shape: int) -> list[str]:
    """The name of a constant of that kind; none where it is absent."""
    values = KINDS[kind](random_weights(len(shape), *shape))
    return [] if values is None else [net.const(values)]


def convolved(net: Net, x: str) -> str:
    """A layer in integers beside the one that is looked at, which alone may be an island."""
    return net.op("Conv", x, *constant(net, "random", CHANNELS, CHANNELS, 1, 1), *constant(net, "random", CHANNELS))


Layer = Callable[[Net, str, str], str]
"""Adds a layer with weights of one kind and a bias, or shift, of another to a network that it begins."""


def weighted(
    op_type: str, x: tuple[int, ...], w: tuple[int, ...], channels: int = CHANNELS, **attributes: object
) -> Layer:
    def build(net: Net, weights: str, bias: str) -> str:
        operands = [*constant(net, weights, *w), *constant(net, bias, channels)]
        return net.op(op_type, net.input("x", *x), *operands, **attributes)

    return build


def _normalized(net: Net, weights: str, bias: str) -> str:
    scale, shift = constant(net, weights, CHANNELS), constant(net, bias, CHANNELS)
    spread = [net.const(np.zeros(CHANNELS)), net.const(np.full(CHANNELS, 0.8))]
    x = convolved(net, net.input("x", *IMAGE))
    return convolved(net, net.op("BatchNormalization", net.op("Relu", x), *scale, *shift, *spread))


def _arithmetic(op_type: str) -> Layer:
    def build(net: Net, weights: str, bias: str) -> str:
        x = net.op("Relu", convolved(net, net.input("x", *IMAGE)))
        y = net.op(op_type, x, *constant(net, weights, 1, CHANNELS, 1, 1))
        return convolved(net, net.op("Add", y, *constant(net, bias, CHANNELS, 1, 1)))

    return build


def _prelu(net: Net, weights: str, bias: str) -> str:
    return convolved(
        net, net.op("PRelu", convolved(net, net.input("x", *IMAGE)), *constant(net, weights, CHANNELS, 1, 1))
    )


def _layer_norm(net: Net, weights: str, bias: str) -> str:
    y = net.op("MatMul", net.input("x", 1, 5, 8), *constant(net, "random", 8, 8))
    y = net.op("LayerNormalization", y, *constant(net, weights, 8), *constant(net, bias, 8))
    return net.op("MatMul", y, *constant(net, "random", 8, 3))


def _recurrent(op_type: str, gates: int) -> Layer:
    def build(net: Net, weights: str, bias: str) -> str:
        matrices = [*constant(net, weights, 1, gates * 4, 3), *constant(net, weights, 1, gates * 4, 4)]
        x = net.input("x", 5, 1, 3)
        return net.op(op_type, x, *matrices, *constant(net, bias, 1, 8 * gates), hidden_size=4)

    return build


LAYERS: dict[str, Layer] = {
    "conv of one axis": weighted("Conv", (1, 4, 10), (6, 4, 3), pads=[1, 1]),
    "conv": weighted("Conv", (1, 4, 6, 6), (6, 4, 3, 3)),
    "depthwise": weighted("Conv", IMAGE, (6, 1, 3, 3), group=6),
    "groups": weighted("Conv", IMAGE, (6, 3, 3, 3), group=2),
    "transposed": weighted("ConvTranspose", (1, 4, 5, 5), (4, 6, 3, 3), strides=[2, 2]),
    "gemm": weighted("Gemm", (1, 8), (8, 6)),
    "one output": weighted("Gemm", (1, 8), (8, 1), 1),
    "batch norm": _normalized,
    "mul": _arithmetic("Mul"),
    "add": _arithmetic("Add"),
    "sub": _arithmetic("Sub"),
    "prelu": _prelu,
    "layer norm": _layer_norm,
    "gru": _recurrent("GRU", 3),
    "lstm": _recurrent("LSTM", 4),
    "rnn": _recurrent("RNN", 1),
}
WITHOUT_BIAS = ("prelu",)
ALWAYS_BIASED = ("batch norm", "mul", "add", "sub")


def is_real(value: Value) -> bool:
    """Whether it is a tensor of reals that is computed."""
    return value.type.dtype.is_float and not value.is_constant


def float_layers(graph: Graph) -> set[str]:
    """The layers that compute with reals, in bodies too, but for conversions."""
    nodes = [node for each in graph.nested() for node in each.nodes]
    mixed = [n for n in nodes if any(v is not None and is_real(v) for v in (*n.inputs, *n.outputs))]
    return {node.op.name for node in mixed if node.op.name not in ("quantize", "dequantize")}


def case(layer: str, weights: str, bias: str) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    net = Net(21)
    net.output(net.op("Identity", LAYERS[layer](net, weights, bias), out="y"))
    model = net.model()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(5)
    return model, [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(12)]


def cases() -> list[tuple[str, str, str]]:
    found = [(layer, w, b) for layer in LAYERS for w, b in PAIRS]
    found = [(n, w, b) for n, w, b in found if not (n in ALWAYS_BIASED and b == "absent")]
    return [(n, w, b) for n, w, b in dict.fromkeys(found) if n not in WITHOUT_BIAS or b == "random"]


@pytest.mark.spread(8)
@pytest.mark.parametrize(("layer", "weights", "bias"), cases())
def test_no_kind_of_constant_leaves_integers(layer: str, weights: str, bias: str):
    model, samples = case(layer, weights, bias)
    calibration = {"x": np.stack([sample["x"] for sample in samples])}
    compiled = compile_model(Compilation(model, quantizing=Quantizing(calibration=calibration)).quantized.proto)
    assert not float_layers(compiled.graph)
    wanted = [onnxruntime_outputs(model, sample)["y"] for sample in samples]
    found = [compiled.interpret(sample)["y"] for sample in samples]
    assert all(np.isfinite(array).all() for array in found)
    if not np.any(wanted):
        assert not np.any(found)
    else:
        assert sqnr(wanted, found) > 25
