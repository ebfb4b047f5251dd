# SPDX-License-Identifier: Apache-2.0
"""State kept between calls: `--state OUTPUT:INPUT`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

SHAPE = (1, 4)


def frames(count: int = 6) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, *SHAPE)).astype(np.float32)


def leaky_sum() -> Net:
    """s' = s / 2 + x; y = s' · 3."""
    net = Net()
    half = net.op("Mul", net.input("s", *SHAPE), net.const([0.5]))
    s_out = net.op("Add", half, net.input("x", *SHAPE), out="s_out")
    net.output(net.op("Mul", s_out, net.const([3.0]), out="y"), s_out)
    return net


def delay_line() -> Net:
    """a' = x, b' = a, c' = b; y = a + 10 b + 100 c."""
    net = Net()
    x, a, b, c = (net.input(name, *SHAPE) for name in "xabc")
    tens = net.op("Add", a, net.op("Mul", b, net.const([10.0])))
    net.output(net.op("Add", tens, net.op("Mul", c, net.const([100.0])), out="y"))
    for source, target in ((x, "a"), (a, "b"), (b, "c")):
        net.output(net.op("Identity", source, out=f"{target}_out"))
    return net


def swap() -> Net:
    """a' = b, b' = a + x (from old values); y = a."""
    net = Net()
    x, a, b = (net.input(name, *SHAPE) for name in "xab")
    net.output(net.op("Identity", a, out="y"))
    net.output(net.op("Identity", b, out="a_out"), net.op("Add", a, x, out="b_out"))
    return net


def exchange() -> Net:
    """a' = b + x, b' = a and back: two states that only trade places, and a third that sums."""
    net = Net()
    x, a, b, s = (net.input(name, *SHAPE) for name in "xabs")
    net.output(net.op("Sub", a, b, out="y"))
    net.output(net.op("Identity", b, out="a_out"), net.op("Identity", a, out="b_out"))
    net.output(net.op("Add", s, x, out="s_out"))
    return net


NETS = {
    "leaky sum": (leaky_sum, {"s_out": "s"}),
    "delay line": (delay_line, {"a_out": "a", "b_out": "b", "c_out": "c"}),
    "swap": (swap, {"a_out": "a", "b_out": "b"}),
    "exchange": (exchange, {"a_out": "a", "b_out": "b", "s_out": "s"}),
}


def compiled(name: str, board: str = "host") -> CompiledModel:
    build, states = NETS[name]
    return compile_model(build().model(), board, CompileOptions(name="net", states=states))


def expected(model: CompiledModel, xs: np.ndarray) -> np.ndarray:
    run = model.reference_run([{"x": x} for x in xs])
    assert run.name == "ONNX Runtime"
    return np.stack([o["y"] for o in run.outputs])


@pytest.mark.parametrize("name", NETS)
def test_a_stream_gives_what_onnxruntime_gives_step_by_step(name: str):
    model = compiled(name)
    xs = frames()
    found = model.run({"x": xs}, sanitize=True)
    assert set(found) == {"y"}
    np.testing.assert_allclose(found["y"], expected(model, xs), rtol=1e-6)


@pytest.mark.qemu
def test_a_stream_on_the_target():
    model = compiled("delay line", "rt1060")
    xs = frames()
    run = model.simulate([{"x": x} for x in xs])
    np.testing.assert_allclose(np.stack([o["y"] for o in run.outputs]), expected(model, xs), rtol=1e-6)


def test_the_new_value_is_computed_where_the_old_one_was():
    program = compiled("leaky sum").program
    assert [i.kernel for i in program.instrs] == ["elementwise", "elementwise"]
    assert program.state_size == 16


def test_the_header_declares_state_and_reset():
    header = compiled("delay line").bundle.files["net.h"]
    assert "} net_state;" in header
    assert "void net_reset(net_state *state);" in header
    assert "int net_run(void *arena, net_state *state);" in header


def test_a_state_leaves_the_ports():
    bundle = compiled("delay line").bundle
    assert [p.name for p in bundle.inputs] == ["x"]
    assert [p.name for p in bundle.outputs] == ["y"]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"nothing": "s"}, "must name an output of the model. found: 'nothing'"),
        ({"s_out": "nothing"}, "must name an input of the model. found: 'nothing'"),
        ({"s_out": "s", "y": "s"}, "each input can keep one output"),
    ],
)
def test_wrong_names_are_refused(states: dict[str, str], message: str):
    with pytest.raises(UsageError, match=message):
        compile_model(leaky_sum().model(), options=CompileOptions(states=states))


def test_types_must_agree():
    net = Net()
    net.output(net.op("Concat", net.input("x", 1, 4), net.input("s", 1, 4), axis=1, out="s_out"))
    with pytest.raises(UsageError, match="both must have one type"):
        compile_model(net.model(), options=CompileOptions(states={"s_out": "s"}))


def test_quantized_state_starts_at_its_zero_point():
    net = Net()
    x = net.dequantize(net.input("x", 1, 4, dtype=np.int8), 0.1, 3)
    s = net.dequantize(net.input("s", 1, 4, dtype=np.int8), 0.1, 3)
    s_out = net.quantize(net.op("Add", x, s), 0.1, 3, out="s_out")
    net.output(s_out, dtype=np.int8)
    net.output(net.op("Relu", net.op("DequantizeLinear", "s_out", *dequantizers(net)), out="y"))
    model = compile_model(net.model(), options=CompileOptions(name="net", states={"s_out": "s"}))
    assert "state->s[i] = 3;" in model.bundle.files["net.c"]
    xs = np.full((3, 1, 4), 13, np.int8)
    np.testing.assert_allclose(model.run({"x": xs}, sanitize=True)["y"][:, 0, 0], [1.0, 2.0, 3.0], rtol=1e-6)


def dequantizers(net: Net) -> list[str]:
    return [net.const(0.1), net.const(3, np.int8)]


def test_the_model_given_is_left_alone():
    model = leaky_sum().model()
    before = onnx.ModelProto.SerializeToString(model)
    compile_model(model, options=CompileOptions(states={"s_out": "s"}))
    assert model.SerializeToString() == before


def test_a_model_may_keep_all_its_outputs():
    net = Net()
    net.output(net.op("Add", net.input("s", *SHAPE), net.input("x", *SHAPE), out="s_out"))
    compiled = compile_model(net.model(), options=CompileOptions(states={"s_out": "s"}))
    assert compiled.run({"x": frames()}, sanitize=True) == {}
