# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime is an oracle: on this CPU too, its integers must be exact where they are largest."""

from __future__ import annotations

import platform
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mcugen.core.errors import VerificationError
from mcugen.evaluation import session
from mcugen.evaluation.session import Session
from mcugen.hir.types import Array
from tests.onnx_models import MICROSOFT, Net

DEPTH = 64
MIXED = [(np.uint8, np.int8), (np.int8, np.uint8)]
ALL = list(product((np.uint8, np.int8), repeat=2))
ENDS = [(1, 1), (1, 0), (0, 0)]
"""Of which ends of their types the operands are: greatest or least."""


def operands(a_type: type, b_type: type, ends: tuple[int, int]) -> tuple[Array, Array]:
    """Two matrices of extremes, whose last row and column are the other ends."""
    a, b = np.full((4, DEPTH), _end(a_type, ends[0]), a_type), np.full((DEPTH, 8), _end(b_type, ends[1]), b_type)
    a[-1], b[:, -1] = _end(a_type, not ends[0]), _end(b_type, not ends[1])
    return a, b


def _end(dtype: type, greatest: bool) -> int:
    limits = np.iinfo(dtype)
    return int(limits.max if greatest else limits.min)


def check_exact(net: Net, feeds: dict[str, Array], expected: Array, tolerance: float = 0.0) -> None:
    model = net.plain_model()
    for literal in (True, False):
        session = Session(model, literal, threads=1)
        (found,) = session.run(session.outputs, feeds).values()
        worst = np.abs(found.astype(np.float64) - expected).max()
        computed = f"{runtime_and_cpu()} computes {net.nodes[0].op_type} wrongly: it is no oracle here"
        assert worst <= tolerance * np.abs(expected).max(), f"{computed}. Off by {worst} (optimized: {not literal})"


def runtime_and_cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"ONNX Runtime {onnxruntime.__version__} on this CPU ({names[0] if names else platform.machine()})"


def test_a_product_that_this_guards_against_is_extreme() -> None:
    """vpmaddubsw adds two products in 16 bits."""
    a, b = operands(np.uint8, np.int8, (1, 1))
    assert int(a[0, 0]) * int(b[0, 0]) * 2 > 2**15


class Product:
    """One operator on extremes: constant or computed weights."""

    def __init__(self, a: Array, b: Array, is_constant: bool) -> None:
        self.net, self.a, self.b = Net(), a, b
        self.x = self.net.input("a", *a.shape, dtype=a.dtype)
        self.w = self.net.const(b, b.dtype, "b") if is_constant else self.net.input("b", *b.shape, dtype=b.dtype)
        self.feeds = {"a": a} if is_constant else {"a": a, "b": b}

    def zero(self, like: Array, value: int) -> str:
        return self.net.const(value, like.dtype)

    def check(self, op_type: str, inputs: list[str], expected: Array, dtype: type, domain: str = "") -> None:
        self.net.op(op_type, *inputs, out="y", domain=domain)
        self.net.output("y", dtype=dtype)
        check_exact(self.net, self.feeds, expected, 1e-6 if dtype is np.float32 else 0.0)


def centered(a: Array, b: Array, a_zero: int, b_zero: int) -> Array:
    return (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("types", ALL, ids=str)
class TestProducts:
    def test_matmul_integer(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a, b, is_constant)
        case.check("MatMulInteger", [case.x, case.w], centered(a, b, 0, 0), np.int32)
        case = Product(a, b, is_constant)
        zeros = [case.zero(a, 5), case.zero(b, 100)]
        case.check("MatMulInteger", [case.x, case.w, *zeros], centered(a, b, 5, 100), np.int32)

    def test_conv_integer(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a.T[None, :, :, None], b.T[:, :, None, None], is_constant)
        expected = centered(a, b, 7, 0).T[None, :, :, None]
        case.check("ConvInteger", [case.x, case.w, case.zero(a, 7)], expected, np.int32)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=str)
class TestQuantizedProducts:
    def test_qlinear_matmul(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a, b, is_constant)
        inputs, expected = self._requantized(case, a, b)
        case.check("QLinearMatMul", inputs, expected, types[0])

    def test_qgemm(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a, b, is_constant)
        one = case.net.const(1.0)
        inputs = [case.x, one, case.zero(a, 3), case.w, one, case.zero(b, 100)]
        case.check("QGemm", inputs, centered(a, b, 3, 100), np.float32, MICROSOFT)

    def test_qlinear_conv(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a.T[None, :, :, None], b.T[:, :, None, None], is_constant)
        inputs, expected = self._requantized(case, a, b)
        case.check("QLinearConv", inputs, expected.T[None, :, :, None], types[0])

    def test_matmul_integer_to_float(self, types: tuple[type, type], ends: tuple[int, int], is_constant: bool) -> None:
        a, b = operands(*types, ends)
        case = Product(a, b, is_constant)
        one = case.net.const(1.0)
        inputs = [case.x, case.w, one, one, case.zero(a, 3), case.zero(b, 100)]
        case.check("MatMulIntegerToFloat", inputs, centered(a, b, 3, 100), np.float32, MICROSOFT)

    def _requantized(self, case: Product, a: Array, b: Array) -> tuple[list[str], Array]:
        """Scales that spread the sums over 120 codes, which no rounding is near to: powers of two."""
        sums, net = centered(a, b, 0, 0), case.net
        step = 2.0 ** np.ceil(np.log2(np.abs(sums).max() / 120))
        limits = np.iinfo(a.dtype)
        expected = np.clip(np.rint(sums / step), limits.min, limits.max)
        zero_a, zero_b, one = case.zero(a, 0), case.zero(b, 0), net.const(1.0)
        return [case.x, one, zero_a, case.w, one, zero_b, net.const(step), zero_a], expected


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
def test_dynamic_quantize_matmul(b_type: type, is_constant: bool) -> None:
    _, b = operands(np.uint8, b_type, (1, 1))
    a = np.full((4, DEPTH), 255, np.float32)
    a[-1] = 0
    case = Product(a, b, is_constant)
    inputs = [case.x, case.w, case.net.const(1.0)]
    case.check("DynamicQuantizeMatMul", inputs, centered(a, b, 0, 0), np.float32, MICROSOFT)


@pytest.mark.parametrize("w_type", [np.uint8, np.int8])
def test_dynamic_quantize_lstm(w_type: type) -> None:
    """Gates of about 1, that would be half of it if products saturated. What is left is the rounding of the state."""
    units, scale = 8, 1 / (DEPTH * 255 * 127)
    net, zero = Net(), 128 if w_type is np.uint8 else 0
    x = np.full((2, 1, DEPTH), 255, np.float32)
    codes = np.full((1, DEPTH, 4 * units), 127 + zero, w_type)
    recurrent = np.full((1, units, 4 * units), zero, w_type)
    params = [net.const([scale]), net.const([zero], w_type)] * 2
    weights = [net.const(codes, w_type), net.const(recurrent, w_type)]
    inputs = [net.input("x", *x.shape), *weights, *[""] * 5, *params]
    net.op("DynamicQuantizeLSTM", *inputs, out="y", domain=MICROSOFT, hidden_size=units)
    net.output("y")
    sigmoid, cell, expected = 1 / (1 + np.exp(-1.0)), 0.0, []
    for _ in x:
        cell = sigmoid * cell + sigmoid * np.tanh(1.0)
        expected.append(np.full((1, 1, units), sigmoid * np.tanh(cell)))
    check_exact(net, {"x": x}, np.asarray(expected), 1e-5)


@pytest.mark.parametrize("types", ALL[:2], ids=str)
def test_qattention(types: tuple[type, type]) -> None:
    """Of one position: it attends to itself, so that its values come out."""
    net, heads, size = Net(), 2, DEPTH
    a, w = np.full((1, 1, size), 255, types[0]), np.full((size, 3 * size), _end(types[1], True), types[1])
    bias, one = net.const(np.zeros(3 * size)), net.const(1 / 2**12)
    zeros = [net.const(0, types[0]), net.const(0, types[1])]
    inputs = [net.input("a", *a.shape, dtype=types[0]), net.const(w, types[1]), bias, one, one, "", *zeros]
    net.op("QAttention", *inputs, out="y", domain=MICROSOFT, num_heads=heads)
    net.output("y")
    expected = centered(a, w[:, 2 * size :], 0, 0) / 2**24
    check_exact(net, {"a": a}, expected, 1e-6)


def test_products_in_subgraphs_and_functions() -> None:
    """A branch reads weights from around it; a function's types are those of its call."""
    a, b = operands(np.uint8, np.int8, (1, 1))
    net = Net()
    net.input("a", *a.shape, dtype=np.uint8)
    net.const(b, np.int8, "b")
    info = onnx.helper.make_empty_tensor_value_info
    node = onnx.helper.make_node
    branches = [
        onnx.helper.make_graph([node(op, ["a", "b"], [name], domain=domain)], name, [], [info(name)])
        for op, name, domain in (("MatMulInteger", "first", ""), ("Twice", "second", "local"))
    ]
    net.op("If", net.input("c", dtype=np.bool_), out="y", then_branch=branches[0], else_branch=branches[1])
    net.output("y", dtype=np.int32)
    body = [node("MatMulInteger", ["p", "q"], ["half"]), node("Add", ["half", "half"], ["r"])]
    model = net.plain_model()
    imports = [onnx.helper.make_opsetid("", net.opset)]
    model.functions.append(onnx.helper.make_function("local", "Twice", ["p", "q"], ["r"], body, imports))
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    session = Session(model, threads=1)
    for factor, taken in ((1, True), (2, False)):
        found = session.run(["y"], {"a": a, "c": np.asarray(taken)})["y"]
        np.testing.assert_array_equal(found, factor * centered(a, b, 0, 0))


def test_an_opset_that_is_newer_than_the_kernels() -> None:
    """ONNX Runtime may know of the newest opset's operators before it computes them."""
    net = Net()
    net.input("x", 4)
    net.op("QuantizeLinear", "x", net.const(0.5), net.const(0, np.int8), out="y")
    net.output("y", dtype=np.int8)
    model = net.plain_model()
    x = np.array([-1.0, 0.0, 0.5, 100.0], np.float32)
    for opset in (21, onnx.defs.onnx_opset_version()):
        model.opset_import[0].version = opset
        assert Session(model).run(["y"], {"x": x})["y"].tolist() == [-2, 0, 1, 127]
        assert model.opset_import[0].version == opset


def test_what_has_no_kernel_at_any_opset_is_told_as_of_its_own() -> None:
    net = Net()
    net.input("x", 4, dtype=np.int8)
    net.op("Sin", "x", out="y")
    net.output("y", dtype=np.int8)
    with pytest.raises(VerificationError, match="Sin"):
        Session(net.plain_model())


@pytest.mark.parametrize("fails", [(), ("ORT_ENABLE_ALL",), ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")])
def test_a_model_that_fusions_break_runs_without_them(fails: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.32 loses an output of some networks where it fuses; a model that never runs is refused."""
    tried, create = [], session._session

    def created(model: onnx.ModelProto, options: onnxruntime.SessionOptions, *, relabels: bool) -> object:
        tried.append(options.graph_optimization_level.name)
        if tried[-1] in fails:
            raise RuntimeError("Failed to find node output")
        return create(model, options, relabels=relabels)

    monkeypatch.setattr(session, "_session", created)
    net = Net()
    net.output(net.op("Relu", net.input("x", 3), out="y"))
    if len(fails) == 2:
        with pytest.raises(VerificationError, match="Failed to find node output"):
            Session(net.plain_model(), literal=False)
        return
    found = Session(net.plain_model(), literal=False).run(["y"], {"x": np.float32([-1, 0, 2])})
    np.testing.assert_array_equal(found["y"], [0, 0, 2])
    assert tried == ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL"][: 1 + len(fails)]
