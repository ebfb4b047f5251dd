# SPDX-License-Identifier: Apache-2.0
"""Functions with a domain, behind layers in integers: no NaN and no infinity, whatever saturates or rounds to 0."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.compilation import Compilation
from mcugen.hir.types import Array
from mcugen.importer import import_model
from mcugen.quant.domains import Domain, domain_of
from mcugen.tasks import Quantizing

DEPTH, WIDTH = 6, 12
FUNCTIONS = ("Sqrt", "Log", "Reciprocal", "Div", "Pow 0.5", "Pow -0.5", "Pow -1", "Pow 1.5")


def network(function: str, tail: str) -> onnx.ModelProto:
    """A positive sum of squares, and the function of it; `tail` is what reads that."""
    random, net = np.random.default_rng(0), Net(21)
    x = net.input("x", 1, DEPTH)
    weights = np.abs(random.standard_normal((DEPTH, WIDTH)))
    positive = net.op("Gemm", net.op("Mul", x, x), net.const(weights), net.const(np.full(WIDTH, 0.01)))
    name, _, exponent = function.partition(" ")
    if name == "Div":
        y = net.op("Div", net.op("MatMul", x, net.const(random.standard_normal((DEPTH, WIDTH)))), positive)
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
    net = Compilation(model, quantizing=Quantizing(calibration={"x": samples}, precision=precision))
    proto = net.quantized.proto
    extreme = np.concatenate([samples[:20] * size for size in (10, 1e3, 1e-3, 0, -40)]).astype(np.float32)
    assert np.isfinite(outputs(proto, extreme)).all()
    assert sqnr(outputs(model, samples), outputs(proto, samples)) > 30
    found = net.run({"x": extreme})
    (array,) = found.values()
    assert np.isfinite(array).all()


DOMAINS: list[tuple[str, list[float] | None, tuple[Domain | None, Domain | None]]] = [
    ("Sqrt", None, (Domain.NOT_NEGATIVE, None)),
    ("Log", None, (Domain.POSITIVE, None)),
    ("Reciprocal", None, (Domain.NOT_ZERO, None)),
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
