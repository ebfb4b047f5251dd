# SPDX-License-Identifier: Apache-2.0
"""Other programs get the model as the user gave it: a fault of the importer shows in what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mcugen.api.compilation import Compilation
from mcugen.core.errors import VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.metrics import sqnr_db
from mcugen.evaluation.oracle import (
    REFERENCE_EVALUATOR,
    OracleModel,
    run_oracle,
    start_onnx_runtime,
    start_reference_evaluator,
)
from mcugen.evaluation.samples import random_samples
from mcugen.frontend.onnx import load
from mcugen.hir.types import Array
from tests.onnx_models import MICROSOFT, Net

NEWEST = onnx.defs.onnx_opset_version()
RIGHT_DB = 90.0
"""Least SQNR in dB of results that differ by rounding alone."""
WRONG_DB = 40.0
"""Largest SQNR in dB of results of a faulty importer."""


def softmax_net(opset: int = 17, rows: int | str = 2, dtype: type = np.float32) -> Net:
    """A network whose importer can be made to lose its Sigmoid."""
    net = Net(opset, ir_version=8 if opset < 21 else 10)
    x = net.input("x", rows, 6, dtype=dtype)
    net.output(net.op("Softmax", net.op("Sigmoid", x), out="y", axis=1), shape=[rows, 6])
    return net


def plain(opset: int) -> onnx.ModelProto:
    return softmax_net(opset).plain_model()


def with_bound_input() -> onnx.ModelProto:
    net = softmax_net()
    net.nodes[0].input[0] = net.op("Add", "x", net.input("offset", 6), out="moved")
    net.nodes = [net.nodes[-1], *net.nodes[:-1]]
    return net.plain_model()


def quantized() -> onnx.ModelProto:
    net = Net(17)
    x = net.fake(net.input("x", 2, 6), 0.02)
    net.output(net.fake(net.op("Sigmoid", x), 1 / 256, -128, out="y"), shape=[2, 6])
    return net.plain_model()


def with_state() -> onnx.ModelProto:
    net = Net(17)
    x, kept = net.input("x", 2, 6), net.input("kept", 2, 6)
    net.output(net.op("Sigmoid", net.op("Add", x, kept), out="after"), shape=[2, 6])
    net.output(net.op("Softmax", "after", out="y"), shape=[2, 6])
    return net.plain_model()


def in_a_branch() -> onnx.ModelProto:
    net = Net(11)
    net.input("x", 2, 6)
    bodies = []
    for name, op_type in (("yes", "Identity"), ("no", "Neg")):
        body = Net(11, prefix=name)
        body.output(body.op("Sigmoid", body.op(op_type, "x"), out=f"{name}_y"), shape=[2, 6])
        bodies.append(body.graph(name))
    condition = net.input("condition", dtype=np.bool_)
    net.output(net.op("If", condition, out="y", then_branch=bodies[0], else_branch=bodies[1]), shape=[2, 6])
    return net.plain_model()


def in_a_function() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("Sigmoid", ["a"], ["b"])]
    function = helper.make_function("own", "Curve", ["a"], ["b"], nodes, opsets[:1])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 6]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Curve", ["x"], ["y"], domain="own")], "net", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


@dataclass(frozen=True)
class Given:
    """A model with options that change what its importer makes of it."""

    make: Callable[[], onnx.ModelProto]
    options: CompileOptions = field(default_factory=CompileOptions)


OFFSET = np.arange(6, dtype=np.float32)
CASES: Mapping[str, Given] = {
    **{f"opset {opset}": Given(lambda opset=opset: plain(opset)) for opset in (6, 7, 9, 11, 12, 13, 21, NEWEST)},
    "bind": Given(with_bound_input, CompileOptions(bound={"offset": OFFSET})),
    "dim": Given(lambda: softmax_net(rows="rows").plain_model(), CompileOptions(dims={"rows": 2})),
    "range of sizes": Given(lambda: softmax_net(rows="rows").plain_model(), CompileOptions(dims={"rows": (1, 3)})),
    "input type": Given(lambda: plain(17), CompileOptions(input_types={"x": "uint8"})),
    "integer io": Given(quantized, CompileOptions(integer_io=True)),
    "quantized": Given(quantized),
    "state": Given(with_state, CompileOptions(states={"after": "kept"})),
    "branch": Given(in_a_branch),
    "function": Given(in_a_function),
    "float64": Given(lambda: softmax_net(12, dtype=np.float64).plain_model()),
}


def samples_of(compiled: CompiledModel) -> list[dict[str, Array]]:
    """Two samples, positive where integers are asked for."""
    draw = np.random.default_rng(5)
    return [
        {
            e.name: (
                draw.normal(size=e.shape).astype(e.dtype.numpy)
                if e.dtype.is_float
                else draw.integers(0, 2 if e.dtype.value == "bool" else 9, e.shape).astype(e.dtype.numpy)
            )
            for e in compiled.program.inputs
        }
        for _ in range(2)
    ]


def sqnr_of(compiled: CompiledModel) -> float:
    """How near numpy's results for the imported model are to another program's for the given one."""
    samples, ends = samples_of(compiled), compiled.program.outputs
    run = compiled.reference_run(samples)
    assert "converted" not in run.note
    found = compiled.interpret_samples(samples, None)
    pairs = [(a[e.name], b[e.name]) for a, b in zip(found, run.outputs, strict=True) for e in ends]
    assert all(a.dtype == b.dtype for a, b in pairs)
    flat = [np.concatenate([pair[i].reshape(-1).astype(np.float64) for pair in pairs]) for i in (0, 1)]
    return sqnr_db(*flat)


@pytest.mark.parametrize("name", CASES)
def test_a_faulty_importer_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever options change in the model, another program computes what the user gave."""
    case = CASES[name]
    assert sqnr_of(compile_model(case.make(), options=case.options)) > RIGHT_DB
    plant_fault(monkeypatch)
    assert sqnr_of(compile_model(case.make(), options=case.options)) < WRONG_DB


def plant_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the importer take Sigmoid for Tanh, in nested graphs as well."""
    prepare = load.prepare_model

    def swap(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.op_type = {"Sigmoid": "Tanh"}.get(node.op_type, node.op_type)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    swap(attribute.g)

    def prepare_wrongly(*arguments: object) -> onnx.ModelProto:
        model = prepare(*arguments)  # type: ignore[arg-type]
        swap(model.graph)
        return model

    monkeypatch.setattr(load, "prepare_model", prepare_wrongly)


def test_external_data_is_read_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net = Net(9, ir_version=8)
    weights = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    net.output(net.op("Sigmoid", net.op("MatMul", net.input("x", 2, 6), net.const(weights)), out="y"), shape=[2, 40])
    path = tmp_path / "net.onnx"
    onnx.save_model(net.plain_model(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert sqnr_of(compile_model(path)) > RIGHT_DB
    plant_fault(monkeypatch)
    assert sqnr_of(compile_model(path)) < WRONG_DB


def test_reports_tell_of_a_fault(monkeypatch: pytest.MonkeyPatch):
    right = Compilation(plain(12)).report()
    assert right.accuracy is not None
    assert right.accuracy.reference == "ONNX Runtime"
    assert not [note for note in right.notes if note.startswith("compared with")]
    plant_fault(monkeypatch)
    wrong = Compilation(plain(12)).report()
    assert wrong.accuracy is not None
    assert wrong.accuracy.sqnr_db is not None
    assert wrong.accuracy.sqnr_db < WRONG_DB


def test_quantization_is_judged_by_the_given_model(monkeypatch: pytest.MonkeyPatch):
    """A float model that is imported wrongly is not quantized: both are compared before."""
    calibration = {"x": np.random.default_rng(1).normal(size=(20, 2, 6)).astype(np.float32)}
    net = Compilation(plain(12), quantizing=Quantizing(calibration=calibration))
    assert net.quantized.estimate is not None
    plant_fault(monkeypatch)
    with pytest.raises(VerificationError, match="fused model"):
        _ = Compilation(plain(12), quantizing=Quantizing(calibration=calibration)).quantized


def by_axis(function: Callable[[float, float], float], a: Array, b: Array, axis: int) -> Array:
    """An operator of two tensors as opset 6 has it, element by element."""
    found = np.zeros(a.shape, np.asarray(function(a.flat[0], b.flat[0])).dtype)
    for place in np.ndindex(*a.shape):
        found[place] = function(a[place], b[place[axis : axis + b.ndim]] if b.ndim else b[()])
    return found


BINARY: Mapping[str, tuple[type, Callable[[float, float], float]]] = {
    "Add": (np.float32, lambda a, b: a + b),
    "Sub": (np.float32, lambda a, b: a - b),
    "Mul": (np.float32, lambda a, b: a * b),
    "Div": (np.float32, lambda a, b: a / b),
    "Pow": (np.float32, lambda a, b: np.abs(a) ** b),
    "And": (np.bool_, lambda a, b: a and b),
    "Or": (np.bool_, lambda a, b: a or b),
    "Xor": (np.bool_, lambda a, b: a != b),
    "Greater": (np.float32, lambda a, b: a > b),
    "Less": (np.float32, lambda a, b: a < b),
    "Equal": (np.int32, lambda a, b: a == b),
}


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
@pytest.mark.parametrize("op_type", BINARY)
def test_broadcasting_of_opset_6(op_type: str, axis: int | None):
    """All axes are equally long, so that an axis that is ignored gives other values, not an error."""
    dtype, function = BINARY[op_type]
    draw = np.random.default_rng(3)
    a, b = (draw.normal(size=shape) * 2 for shape in ((3, 3, 3), (3,)))
    a = np.abs(a) if op_type == "Pow" else a
    a, b = ((x > 0) if dtype is np.bool_ else np.rint(x).astype(dtype) if dtype is np.int32 else x for x in (a, b))
    a, b = a.astype(dtype), b.astype(dtype)
    net = Net(6, ir_version=3)
    names = net.input("a", 3, 3, 3, dtype=dtype), net.input("b", 3, dtype=dtype)
    settings = {} if axis is None else {"axis": axis}
    wanted = by_axis(function, a, b, 2 if axis is None else axis % 3)
    net.output(net.op(op_type, *names, out="y", broadcast=1, **settings), dtype=wanted.dtype.type, shape=[3, 3, 3])
    run = run_oracle(OracleModel(net.plain_model()), [{"a": a, "b": b}])
    assert run.name == REFERENCE_EVALUATOR
    np.testing.assert_allclose(run.outputs[0]["y"], wanted, rtol=1e-5)


def test_slopes_of_opset_6_belong_to_channels():
    net = Net(6, ir_version=3)
    x, slope = np.random.default_rng(4).normal(size=(2, 3, 3, 3)).astype(np.float32), np.float32([0.1, 0.2, 0.3])
    net.output(net.op("PRelu", net.input("x", 2, 3, 3, 3), net.input("s", 3), out="y"), shape=[2, 3, 3, 3])
    (found,) = run_oracle(OracleModel(net.plain_model()), [{"x": x, "s": slope}]).outputs
    wanted = [[row if c < 0 else np.where(row > 0, row, row * slope[c]) for c, row in enumerate(one)] for one in x]
    np.testing.assert_allclose(found["y"], np.stack([np.stack(one) for one in wanted]), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_rows_before_opset_13(op_type: str, axis: int | None):
    """The reference evaluator gives what ONNX Runtime does, which has some element types alone."""
    x = np.random.default_rng(6).normal(size=(2, 3, 4)).astype(np.float32)
    settings = {} if axis is None else {"axis": axis}
    net = Net(11, ir_version=8)
    net.output(net.op(op_type, net.input("x", 2, 3, 4), out="y", **settings), shape=[2, 3, 4])
    model = net.plain_model()
    found = [start(model)({"x": x})["y"] for start in (start_onnx_runtime, start_reference_evaluator)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize(("op_type", "opset"), [("Softmax", 12), ("Resize", 10), ("Add", 6)])
def test_the_reference_evaluator_is_not_asked_for_other_definitions(op_type: str, opset: int):
    """In a function, where no implementations of old opsets are given, it would follow the newest definition."""
    settings = {"broadcast": 1} if op_type == "Add" else {}
    operands = ["a"] if op_type == "Softmax" else ["a", "a"]
    node = helper.make_node(op_type, operands, ["b"], **settings)
    function = helper.make_function("own", "F", ["a"], ["b"], [node], [helper.make_opsetid("", opset)])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="own")], "net", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    with pytest.raises(VerificationError, match=f"another version of {op_type}"):
        start_reference_evaluator(model)


def test_the_converted_form_is_told_of():
    """An operator that the importer alone knows."""
    given, converted = plain(9), plain(13)
    given.graph.node[0].domain = "own"
    given.opset_import.append(helper.make_opsetid("own", 1))
    run = run_oracle(OracleModel(given, converted), [{"x": np.zeros((2, 6), np.float32)}])
    assert "on the file converted to opset 13" in run.note
    assert "file converted" in run.name
    with pytest.raises(VerificationError, match="ONNX Runtime must run the model"):
        run_oracle(OracleModel(given), [{"x": np.zeros((2, 6), np.float32)}])


def test_operators_of_onnxruntime_are_compared_with_it():
    net = Net(17)
    net.output(net.op("Gelu", net.input("x", 2, 4), out="y", domain=MICROSOFT), shape=[2, 4])
    compiled = compile_model(net.plain_model())
    run = compiled.reference_run(random_samples(compiled.program.inputs).inputs)
    assert (run.name, run.note) == ("ONNX Runtime", "")
