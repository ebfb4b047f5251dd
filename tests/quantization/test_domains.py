# SPDX-License-Identifier: Apache-2.0
"""Functions with a domain, behind layers in integers: no NaN and no infinity, whatever saturates or rounds to 0."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from float_models import sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx import import_model
from mcugen.hir.types import Array
from mcugen.quantization.domains import Domain, domain_of

DEPTH, WIDTH = 6, 12
FUNCTIONS = (
    *("Sqrt", "Log", "Reciprocal", "Div", "Pow 0.5", "Pow -0.5", "Pow -1", "Pow 1.5"),
    *("Asin", "Acos", "Acosh", "Atanh", "Reciprocal(Sqrt)", "Log(Sqrt)", "Sqrt(Reciprocal)"),
)


WITHIN_ONE = ("Asin", "Acos", "Atanh")


def share_of(net: Net, positive: str) -> str:
    """Numbers from 0 to 1 that a matrix of weights has made, which saturate."""
    shares = np.full((WIDTH, WIDTH), 0.9 / WIDTH)
    return net.op(
        "Gemm", net.op("Sigmoid", net.op("Log", positive)), net.const(shares), net.const(np.full(WIDTH, 0.05))
    )


def network(function: str, tail: str) -> onnx.ModelProto:
    """A positive sum of squares, and the function of it; `tail` is what reads that."""
    random, net = np.random.default_rng(0), Net(21)
    x = net.input("x", 1, DEPTH)
    weights = np.abs(random.standard_normal((DEPTH, WIDTH)))
    positive = net.op("Gemm", net.op("Mul", x, x), net.const(weights), net.const(np.full(WIDTH, 0.01)))
    name, _, exponent = function.partition(" ")
    if name == "Div":
        y = net.op("Div", net.op("MatMul", x, net.const(random.standard_normal((DEPTH, WIDTH)))), positive)
    elif "(" in name:
        outer, inner = name.rstrip(")").split("(")
        y = net.op(outer, net.op(inner, positive))
    elif name == "Acosh":
        y = net.op(name, net.op("Add", positive, net.const(0.99)))
    elif name in WITHIN_ONE:
        y = net.op(name, share_of(net, positive))
    elif exponent:
        y = net.op("Pow", positive, net.const(float(exponent)))
    else:
        y = net.op(name, positive)
    if tail == "MatMul":
        y = net.op("MatMul", y, net.const(random.standard_normal((WIDTH, WIDTH))))
    net.output(y)
    return net.model()


def outputs(model: onnx.ModelProto, samples: Array) -> Array:
    return np.concatenate([next(iter(onnxruntime_outputs(model, {"x": x[None]}).values())) for x in samples])


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize("tail", ["", "MatMul"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_finite(function: str, tail: str, precision: str):
    model = network(function, tail)
    samples = np.random.default_rng(1).uniform(0.3, 1.5, (60, DEPTH)).astype(np.float32)
    proto = check_finite(model, samples, precision)
    assert sqnr(outputs(model, samples), outputs(proto, samples)) > 30


def check_finite(model: onnx.ModelProto, samples: Array, precision: str) -> onnx.ModelProto:
    """The quantized model, whose results are numbers in ONNX Runtime and in C, also far outside of the samples."""
    net = Compilation(model, quantizing=Quantizing(calibration={"x": samples}, precision=precision))
    proto = net.quantized.proto
    extreme = np.concatenate([samples[:20] * size for size in (1, 10, 1e3, 1e-3, 0, -40)]).astype(np.float32)
    assert np.isfinite(outputs(proto, extreme)).all()
    (array,) = net.run({"x": extreme}).values()
    assert np.isfinite(array).all()
    return proto


DOMAINS: list[tuple[str, list[float] | None, tuple[Domain | None, Domain | None]]] = [
    ("Sqrt", None, (Domain.NOT_NEGATIVE, None)),
    ("Log", None, (Domain.POSITIVE, None)),
    ("Reciprocal", None, (Domain.NOT_ZERO, None)),
    ("Acosh", None, (Domain.AT_LEAST_ONE, None)),
    ("Asin", None, (Domain.WITHIN_ONE, None)),
    ("Acos", None, (Domain.WITHIN_ONE, None)),
    ("Atanh", None, (Domain.INSIDE_ONE, None)),
    ("Exp", None, (None, None)),
    ("Softmax", None, (None, None)),
    ("Add", None, (None, None)),
    ("Div", None, (None, Domain.NOT_ZERO)),
    ("Div", [2.0, 4.0], (None, Domain.NOT_ZERO)),
    ("Pow", None, (Domain.POSITIVE, None)),
    ("Pow", [0.0, 3.0], (None, None)),
    ("Pow", [0.5, 2.0], (Domain.NOT_NEGATIVE, None)),
    ("Pow", [-1.0, 2.0], (Domain.NOT_ZERO, None)),
    ("Pow", [-0.5, 1.0], (Domain.POSITIVE, None)),
    ("Pow", [-2.0, 1.5], (Domain.POSITIVE, None)),
]


@pytest.mark.parametrize(("function", "constant", "wanted"), DOMAINS)
def test_each_input_has_its_domain(
    function: str, constant: list[float] | None, wanted: tuple[Domain | None, Domain | None]
):
    net = Net(21)
    inputs = [net.input("x", 1, 2)]
    if function in ("Add", "Div", "Pow"):
        inputs.append(net.const(constant) if constant else net.input("y", 1, 2))
    net.output(net.op(function, *inputs, out="z"))
    (node,) = [n for n in import_model(net.model(), "net").nodes if not n.op.moves_data]
    assert tuple(domain_of(node, node.input(i)) for i in range(len(inputs))) == wanted[: len(inputs)]


@pytest.mark.parametrize(
    ("domain", "low", "high", "wanted"),
    [
        (Domain.NOT_NEGATIVE, -1.0, 5.0, (0.0, math.inf)),
        (Domain.POSITIVE, 0.0, 5.0, (0.25, math.inf)),
        (Domain.NOT_ZERO, 0.0, 5.0, (0.25, math.inf)),
        (Domain.NOT_ZERO, -5.0, 0.0, (-math.inf, -0.25)),
        (Domain.NOT_ZERO, -5.0, 5.0, (-math.inf, math.inf)),
        (Domain.AT_LEAST_ONE, 1.0, 5.0, (1.0, math.inf)),
        (Domain.WITHIN_ONE, -1.0, 1.0, (-1.0, 1.0)),
        (Domain.INSIDE_ONE, -1.0, 1.0, (-0.75, 0.75)),
    ],
)
def test_ends_of_domains(domain: Domain, low: float, high: float, wanted: tuple[float, float]):
    assert domain.ends(0.25, low, high) == wanted


def test_the_inside_of_one_has_an_end_in_float32():
    least, most = Domain.INSIDE_ONE.ends(0.0, -1.0, 1.0)
    assert np.isfinite(np.arctanh(np.float32([least, most]))).all()


DENOMINATORS = {"positive": 1.0, "negative": -1.0, "either sign": 0.0}


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize("function", ["Div", "Reciprocal", "Pow"])
@pytest.mark.parametrize("sign", DENOMINATORS)
def test_quotients_of_any_sign_are_finite(sign: str, function: str, precision: str):
    """A denominator of few codes is 0 where the float model's is not; that of either sign has numbers near 0."""
    random, net = np.random.default_rng(0), Net(21)
    x = net.input("x", 1, DEPTH)
    weights = random.standard_normal((DEPTH, WIDTH))
    side = DENOMINATORS[sign]
    weights, offset = (np.abs(weights) * side, 0.02 * side) if side else (weights, 0.001)
    below = net.op("Gemm", net.op("Mul", x, x) if side else x, net.const(weights), net.const(np.full(WIDTH, offset)))
    if function == "Div":
        y = net.op("Div", net.op("MatMul", x, net.const(random.standard_normal((DEPTH, WIDTH)))), below)
    else:
        y = net.op(function, below, *([net.const(-1.0)] if function == "Pow" else []))
    net.output(y)
    samples = random.uniform(0.3, 1.5, (60, DEPTH)).astype(np.float32) * (
        1 if side else random.choice([-1, 1], (60, 1))
    )
    check_finite(net.model(), samples.astype(np.float32), precision)


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize("function", ["Sqrt", "Log", "Pow 0.5", "Acos"])
def test_real_arguments_that_integers_lead_to_are_valid(function: str, precision: str):
    """A variance as a difference of two rounded means is negative, and one over the other is above 1."""
    random, net = np.random.default_rng(0), Net(21)
    x = net.input("x", 1, DEPTH)
    hidden = net.op("Relu", net.op("Gemm", x, net.const(random.standard_normal((DEPTH, WIDTH)))))
    mean = net.op("ReduceMean", hidden, net.const([1], np.int64))
    square = net.op("ReduceMean", net.op("Mul", hidden, hidden), net.const([1], np.int64))
    name, _, exponent = function.partition(" ")
    if name == "Acos":
        argument = net.op("Div", net.op("Mul", mean, mean), net.op("Add", square, net.const(1e-6)))
    else:
        argument = net.op("Add", net.op("Sub", square, net.op("Mul", mean, mean)), net.const(1e-6))
    net.output(net.op(name, argument, *([net.const(float(exponent))] if exponent else [])))
    samples = random.uniform(0.3, 1.5, (60, DEPTH)).astype(np.float32)
    check_finite(net.model(), samples, precision)
