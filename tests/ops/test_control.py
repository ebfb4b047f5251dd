# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan: onnxruntime, numpy and C agree; what is known is gone, the rest are loops and branches of C."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import onnx
import pytest
from checks import check_c
from onnx import TensorProto, helper
from onnx_models import Feeds, Net, assert_close, imported, onnxruntime_outputs, operators, random_feeds

from mcugen.core.errors import DoesNotFitError, McugenError, ModelError, UnsupportedError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.printer import print_graph
from mcugen.lir.printer import print_program

RANDOM = np.random.default_rng(5)


def scoped(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The graph with names of its own, so that it may stand anywhere; what it captures keeps its name."""
    own = [v.name for v in graph.input] + [t.name for t in graph.initializer]
    own += [name for node in graph.node for name in node.output]
    number = next(NUMBERS)
    _rename(graph, {name: f"g{number}_{name}" for name in own})
    return graph


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = f"{node.op_type}_{node.output[0]}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)


NUMBERS = count()


def loop_body(
    write: Callable[[Net, list[str]], tuple[list[str], list[str]]], *states: tuple[int, ...]
) -> onnx.GraphProto:
    """A Loop's body: `write` gets the states' names, and gives (condition or nothing) + next states, scan outputs."""
    net = Net()
    net.input("i", dtype=np.int64)
    net.input("going", dtype=np.bool_)
    names = [net.input(f"state{k}", *shape) for k, shape in enumerate(states)]
    after, rows = write(net, names)
    if len(after) == len(states):
        after = [net.op("Identity", "going", out="go_on"), *after]
    net.output(after[0], dtype=np.bool_)
    results = [net.op("Identity", v, out=f"result{k}") for k, v in enumerate([*after[1:], *rows])]
    net.output(*results)
    return scoped(helper.make_graph(net.nodes, "body", net.inputs, net.outputs, net.constants))


def scan_body(
    write: Callable[[Net, list[str], list[str]], tuple[list[str], list[str]]],
    states: list[tuple[int, ...]],
    parts: list[tuple[int, ...]],
) -> onnx.GraphProto:
    net = Net()
    names = [net.input(f"state{k}", *shape) for k, shape in enumerate(states)]
    pieces = [net.input(f"part{k}", *shape) for k, shape in enumerate(parts)]
    after, rows = write(net, names, pieces)
    net.output(*(net.op("Identity", v, out=f"result{k}") for k, v in enumerate([*after, *rows])))
    return scoped(helper.make_graph(net.nodes, "body", net.inputs, net.outputs, net.constants))


def check(net: Net | onnx.ModelProto, feeds: Feeds | None = None, relative: float = 1e-5) -> CompiledModel:
    """onnxruntime ≈ numpy = C under the sanitizers; gcc, clang and g++ are content."""
    model = net if isinstance(net, onnx.ModelProto) else net.model()
    feeds = random_feeds(model) if feeds is None else feeds
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds), relative)
    check_c(compiled, feeds, found, relative)
    return compiled


def branches(net: Net, cond: str, then: Callable[[Net], str], other: Callable[[Net], str], out: str = "y") -> str:
    sides = []
    for side, write in (("then", then), ("else", other)):
        inner = Net()
        inner.output(inner.op("Identity", write(inner), out="result"))
        sides.append(scoped(helper.make_graph(inner.nodes, side, [], inner.outputs, inner.constants)))
    return net.op("If", cond, out=out, then_branch=sides[0], else_branch=sides[1])


# ------------------------------------------------------------------------------------------------------- if


def branching() -> Net:
    """y = cond ? relu(x) @ w : x - 2, then squared."""
    net = Net()
    net.input("cond", dtype=np.bool_)
    net.input("x", 3, 4)
    w = net.const(RANDOM.standard_normal((4, 4)), name="w")
    picked = branches(
        net,
        "cond",
        lambda n: n.op("MatMul", n.op("Relu", "x"), w),
        lambda n: n.op("Sub", "x", n.const(2.0, name="two")),
    )
    net.output(net.op("Mul", picked, picked, out="z"))
    return net


@pytest.mark.parametrize("cond", [True, False])
def test_a_branch_at_run_time(cond: bool):
    feeds = {"cond": np.asarray(cond), "x": RANDOM.standard_normal((3, 4)).astype(np.float32)}
    compiled = check(branching(), feeds)
    assert operators(compiled.graph) == ["branch", "mul"]
    text = compiled.bundle.files["net.c"]
    assert "    if (*cond != 0) {\n" in text and "    } else {\n" in text
    assert "dense" in print_graph(compiled.graph)  # the weights are constants inside, too


@pytest.mark.parametrize("cond", [True, False])
def test_a_known_condition_leaves_one_branch(cond: bool):
    model = branching().model()
    compiled = compile_model(model, options=CompileOptions(bound={"cond": np.asarray(cond)}))
    assert not any(node.op.bodies for node in compiled.graph.nodes)
    feeds = {"x": RANDOM.standard_normal((3, 4)).astype(np.float32)}
    expected = onnxruntime_outputs(model, {"cond": np.asarray(cond), **feeds})
    assert_close(interpret(compiled.graph, feeds), expected)


def test_branches_of_captured_values_and_constants():
    """One branch is a value of the graph around, the other a constant; both have two results."""
    net = Net()
    net.input("cond", 1, dtype=np.bool_)
    net.input("x", 2, 3)
    shifted = net.op("Add", "x", net.const(1.0))
    sides = []
    for side in ("then", "else"):
        n = Net()
        first = shifted if side == "then" else n.const(np.ones((2, 3)), name="ones")
        names = [n.op("Identity", first, out=f"a_{side}"), n.op("Neg", shifted, out=f"b_{side}")]
        n.output(*names)
        sides.append(helper.make_graph(n.nodes, side, [], n.outputs, n.constants))
    net.ops("If", "cond", outs=["a", "b"], then_branch=sides[0], else_branch=sides[1])
    net.output("a", "b", net.op("Exp", shifted, out="c"))
    for cond in (True, False):
        check(net, {"cond": np.asarray([cond]), "x": RANDOM.standard_normal((2, 3)).astype(np.float32)})


def test_branches_of_different_shapes_are_refused():
    net = Net()
    net.input("cond", dtype=np.bool_)
    net.input("x", 4)
    branches(net, "cond", lambda n: "x", lambda n: n.op("Concat", "x", "x", axis=0))
    net.output("y", shape=[None])
    with pytest.raises(UnsupportedError, match="both branches must give results of one type and shape"):
        compile_model(net.plain_model())


@pytest.mark.parametrize("bound", [{}, {"cond": np.asarray(True)}], ids=["at run time", "known"])
def test_a_branch_has_no_inputs(bound: dict[str, np.ndarray]):
    net = Net()
    net.input("cond", dtype=np.bool_)
    net.input("x", 4)
    branches(net, "cond", lambda n: n.op("Neg", "x"), lambda n: n.op("Abs", "x"))
    net.output("y")
    model = net.plain_model()
    for attribute in next(node for node in model.graph.node if node.op_type == "If").attribute:
        attribute.g.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [4]))
    with pytest.raises(UnsupportedError, match=r"as many inputs as it is given values: 0\. found: 1"):
        compile_model(model, options=CompileOptions(bound=bound))


def test_results_of_branches_are_written_in_place():
    compiled = compile_model(branching().model())
    moves = [i for i in compiled.program.instrs if i.kernel == "move"]
    assert len(moves) == 2
    assert all(i.moves_nothing for i in moves)
    assert "move" not in compiled.bundle.files["net.c"]


# ----------------------------------------------------------------------------------------------------- loop


def looping(
    steps: int, write: Callable[[Net, list[str]], tuple[list[str], list[str]]], *shapes: tuple[int, ...], outputs: int
) -> Net:
    """A Loop of `steps` steps over states x0, x1, … of these shapes, with as many outputs."""
    net = Net()
    states = [net.input(f"x{k}", *shape) for k, shape in enumerate(shapes)]
    inner = loop_body(write, *shapes)
    outs = [f"y{k}" for k in range(outputs)]
    net.ops("Loop", net.const(steps, np.int64), net.const(True, np.bool_), *states, outs=outs, body=inner)
    net.output(*outs)
    return net


def test_a_sum_with_scan_outputs():
    """Each step adds its number; the partial sums are stacked."""

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        total = n.op("Add", s[0], n.op("Cast", "i", to=1))
        return [total], [n.op("Mul", total, total), s[0]]

    compiled = check(looping(7, write, (2, 3), outputs=3))
    (node,) = compiled.graph.nodes
    assert node.op.name == "repeat"
    assert "steps=7" in print_graph(compiled.graph)
    assert loops(compiled) == 1


def loops(compiled: CompiledModel) -> int:
    """Loops of the run function."""
    return compiled.bundle.files["net.c"].count("for (int32_t at")


def test_swapped_states():
    """Neither of two states that change places may be overwritten before it is read; nor of three."""
    net = Net()
    for k, size in enumerate((2, 3)):
        states = [net.input(f"x{k}{j}", 5) for j in range(size)]
        inner = loop_body(lambda n, s: ([*s[1:], s[0]], []), *[(5,)] * size)
        outs = [f"y{k}{j}" for j in range(size)]
        net.ops("Loop", net.const(7, np.int64), "", *states, outs=outs, body=inner)
        net.output(*outs)
    check(net)


def test_states_that_read_each_other():
    """Fibonacci: (a, b) → (b, a + b); and (a, b) → (a·b, a) needs the old a."""
    net = Net()
    a, b = net.input("a", 3), net.input("b", 3)
    first = loop_body(lambda n, s: ([s[1], n.op("Add", *s)], []), (3,), (3,))
    second = loop_body(lambda n, s: ([n.op("Mul", *s), s[0]], []), (3,), (3,))
    net.ops("Loop", net.const(9, np.int64), "", a, b, outs=["f0", "f1"], body=first)
    net.ops("Loop", net.const(4, np.int64), "", a, b, outs=["g0", "g1"], body=second)
    net.output("f0", "f1", "g0", "g1")
    check(net)


def test_a_state_is_renewed_in_place():
    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        return [n.op("Tanh", n.op("MatMul", s[0], n.const(RANDOM.standard_normal((8, 8)) / 4, name="w")))], []

    compiled = check(looping(40, write, (1, 8), outputs=1))
    assert all(i.moves_nothing for i in compiled.program.instrs if i.kernel == "move")
    assert compiled.program.arena_size <= 2 * 32 + 16  # the state, the product, the counter


def test_early_exit():
    """Doubles until the sum exceeds 100, at most 50 times."""
    net = Net()
    net.input("x", 4)

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        doubled = n.op("Add", s[0], s[0])
        total = n.op("ReduceSum", doubled, keepdims=0)
        return [
            n.op("Less", total, n.const(100.0, name="limit"), out="go_on"),
            doubled,
            n.op("Add", s[1], n.const(1.0, name="one")),
        ], []

    start = net.const(np.zeros(1))
    inner = loop_body(write, (4,), (1,))
    net.ops("Loop", net.const(2**40, np.int64), net.const(True, np.bool_), "x", start, outs=["y", "count"], body=inner)
    net.output("y", "count")
    with pytest.raises(UnsupportedError, match="operators run in all"):
        compile_model(net.model())
    net.constants[-1].CopyFrom(onnx.numpy_helper.from_array(np.asarray(True), net.constants[-1].name))
    steps = next(c for c in net.constants if c.data_type == onnx.TensorProto.INT64)
    steps.CopyFrom(onnx.numpy_helper.from_array(np.asarray(50), steps.name))
    for first in (1.0, 30.0, 0.0):
        compiled = check(net, {"x": np.full(4, first, np.float32)})
    assert " && *" in compiled.bundle.files["net.c"]


@pytest.mark.parametrize("cond", [True, False])
def test_a_loop_that_may_not_begin(cond: bool):
    net = Net()
    net.input("cond", dtype=np.bool_)
    net.input("x", 3)
    inner = loop_body(lambda n, s: ([n.op("Add", s[0], s[0])], []), (3,))
    net.ops("Loop", net.const(3, np.int64), "cond", "x", outs=["y"], body=inner)
    net.output("y", net.op("Neg", "x", out="z"))
    check(net, {"cond": np.asarray(cond), "x": np.asarray([1, 2, 3], np.float32)})


def test_nested_loops_with_values_of_both_around():
    """The inner loop reads the outer state, a value of the outer step and one of the graph around both."""
    net = Net()
    x, shift = net.input("x", 2, 3), net.op("Exp", net.input("e", 3), out="shift")

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        half = n.op("Mul", s[0], n.const(0.5), out="half")

        def write_inner(m: Net, inner: list[str]) -> tuple[list[str], list[str]]:
            total = m.op("Add", m.op("Add", inner[0], half), m.op("Mul", shift, s[0]))
            return [m.op("Tanh", total)], [m.op("Neg", inner[0])]

        nested = loop_body(write_inner, (2, 3))
        n.ops("Loop", n.const(3, np.int64), "", s[0], outs=["last", "all"], body=nested)
        return ["last"], [n.op("ReduceSum", "all", n.const([0], np.int64), keepdims=0)]

    net.ops("Loop", net.const(4, np.int64), "", x, outs=["y", "rows"], body=loop_body(write, (2, 3)))
    net.output("y", "rows", net.op("Add", x, shift, out="z"))
    compiled = check(net)
    assert loops(compiled) == 2
    assert len(compiled.bundle.layers) == len(compiled.program.layers()) == 3


def test_a_branch_inside_a_loop():
    """Even steps add, odd ones double; the bound is captured."""
    net = Net()
    x, b = net.input("x", 6), net.input("b", 6)

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        half = n.op("Div", n.op("Cast", "i", to=1), n.const(2.0))
        odd = n.op("Less", n.op("Floor", half), half)
        picked = branches(n, odd, lambda m: m.op("Add", s[0], s[0]), lambda m: m.op("Sub", s[0], b), out="picked")
        return [picked], [picked]

    net.ops("Loop", net.const(5, np.int64), "", x, outs=["y", "rows"], body=loop_body(write, (6,)))
    net.output("y", "rows")
    check(net)


def test_a_state_whose_shape_changes_is_unrolled():
    net = Net()
    net.input("x", 1, 3)
    inner = loop_body(lambda n, s: ([n.op("Concat", s[0], n.op("Exp", s[0]), axis=0)], []), ("n", 3))
    inner.output[1].type.tensor_type.ClearField("shape")
    net.ops("Loop", net.const(3, np.int64), "", "x", outs=["y"], body=inner)
    net.output("y", shape=[None, 3])
    compiled = check(net.plain_model(), {"x": np.array([[-1.0, 0.25, 0.5]], np.float32)})
    assert "repeat" not in operators(compiled.graph)
    assert compiled.program.outputs[0].shape == (8, 3)


def test_few_or_no_steps():
    """One step is no loop; without any the states stay and the rows are empty."""

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        return [n.op("Neg", s[0])], [n.op("Exp", s[0])]

    one = check(looping(1, write, (3,), outputs=2))
    assert "repeat" not in operators(one.graph)
    none = compile_model(looping(0, write, (3,), outputs=2).model())
    found = interpret(none.graph, {"x0": np.asarray([1, 2, 3], np.float32)})
    assert found["y0"].tolist() == [1, 2, 3]
    assert found["y1"].shape == (0, 3)


def test_weights_that_pass_through_as_states_are_constants():
    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        return [n.op("MatMul", s[0], s[1]), s[1]], []

    net = Net()
    net.input("x", 1, 4)
    w = net.const(RANDOM.standard_normal((4, 4)) / 2)
    net.ops("Loop", net.const(5, np.int64), "", "x", w, outs=["y", "w_out"], body=loop_body(write, (1, 4), (4, 4)))
    net.output("y")
    compiled = check(net)
    assert "dense" in print_graph(compiled.graph)


def test_a_loop_over_constants_is_a_constant():
    net = Net()
    net.input("x", 3)
    inner = loop_body(lambda n, s: ([n.op("Add", s[0], n.const(0.5, name="half"))], [s[0]]), ())
    net.ops("Loop", net.const(3, np.int64), "", net.const(1.0), outs=["last", "range"], body=inner)
    net.output(net.op("Add", "x", "range", out="y"))
    assert operators(check(net).graph) == ["add"]


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8, np.uint8, np.int64])
def test_element_types(dtype: type):
    net, n = Net(), Net()
    net.input("x", 5, dtype=dtype)
    n.input("i", dtype=np.int64)
    n.input("going", dtype=np.bool_)
    n.input("s", 5, dtype=dtype)
    n.output(n.op("Identity", "going", out="on"), dtype=np.bool_)
    n.output(n.op("Add", "s", "x", out="t"), n.op("Identity", "s", out="row"), dtype=dtype)
    inner = helper.make_graph(n.nodes, "body", n.inputs, n.outputs, n.constants)
    net.ops("Loop", net.const(3, np.int64), "", "x", outs=["y", "rows"], body=inner)
    net.output("y", "rows", dtype=dtype)
    model = net.model()
    feeds = {"x": np.asarray([1, 2, 3, 4, 5], dtype)}
    compiled = compile_model(model)
    expected = {"y": feeds["x"] * dtype(4), "rows": np.stack([feeds["x"] * dtype(k) for k in (1, 2, 3)])}
    assert_close(interpret(compiled.graph, feeds), expected)
    assert_close({k: v[0] for k, v in compiled.run({"x": feeds["x"][None]}).items()}, expected)


def test_quantized_bodies():
    """Scales are the business of each side."""
    net = Net()
    q = net.quantize(net.input("x", 8), 0.05)
    n = Net()
    n.input("i", dtype=np.int64)
    n.input("going", dtype=np.bool_)
    n.input("s", 8, dtype=np.int8)
    n.output(n.op("Identity", "going", out="on"), dtype=np.bool_)
    real = n.op("Sigmoid", n.op("DequantizeLinear", "s", n.const(0.05, name="s0"), n.const(0, np.int8, name="z0")))
    n.output(
        n.op("QuantizeLinear", real, n.const(0.05, name="s1"), n.const(0, np.int8, name="z1"), out="t"), dtype=np.int8
    )
    inner = helper.make_graph(n.nodes, "body", n.inputs, n.outputs, n.constants)
    net.ops("Loop", net.const(3, np.int64), "", q, outs=["y"], body=inner)
    net.output(net.dequantize("y", 0.05, out="real"))
    compiled = check(net, relative=0.06)
    assert "lookup" in print_graph(compiled.graph)


# ----------------------------------------------------------------------------------------------------- scan


def rnn(steps: int, hidden: int = 6, inputs: int = 4, **attributes: object) -> Net:
    """h' = softsign(x·W + h·R + b), which is no layer of ONNX's, as a Scan over x [steps, 1, inputs]."""
    net = Net()
    net.input("h", 1, hidden)
    net.input("x", steps, 1, inputs)

    def write(n: Net, s: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
        w = n.const(RANDOM.standard_normal((inputs, hidden)) / 2, name="W")
        r = n.const(RANDOM.standard_normal((hidden, hidden)) / 2, name="R")
        b = n.const(RANDOM.standard_normal(hidden), name="b")
        gates = n.op("Add", n.op("Add", n.op("MatMul", parts[0], w), n.op("MatMul", s[0], r)), b)
        state = n.op("Softsign", gates)
        return [state], [state]

    inner = scan_body(write, [(1, hidden)], [(1, inputs)])
    net.ops("Scan", "h", "x", outs=["last", "all"], body=inner, num_scan_inputs=1, **attributes)
    net.output("last", "all")
    return net


def test_an_rnn_over_fifty_steps():
    compiled = check(rnn(50))
    (node,) = compiled.graph.nodes
    assert node.op.macs(node.sig) == 50 * (4 * 6 + 6 * 6)
    report = compiled.report
    assert report.model.macs == 50 * 60
    assert report.precision == "float32"
    assert report.model.parameters == 4 * 6 + 6 * 6
    (layer,) = report.layers
    assert (layer.op, layer.kernel, layer.macs) == ("repeat", "for", 3000)
    assert layer.flash == compiled.program.weights_size


def test_a_reverse_scan():
    check(rnn(5, scan_input_directions=[1], scan_output_directions=[1]))


def test_axes_and_directions():
    """Two scanned inputs and outputs, along all axes and both ways, one of them negative."""
    net = Net()
    net.input("s", 3, 2)
    net.input("a", 3, 5, 2)
    net.input("b", 2, 3, 5)

    def write(n: Net, s: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
        total = n.op("Add", n.op("Add", s[0], parts[0]), n.op("Transpose", parts[1], perm=[1, 0]))
        return [total], [total, n.op("Neg", parts[1]), n.op("ReduceSum", total, keepdims=0)]

    inner = scan_body(write, [(3, 2)], [(3, 2), (2, 3)])
    axes = {"scan_input_axes": [1, -1], "scan_input_directions": [0, 1]}
    out = {"scan_output_axes": [1, -1, 0], "scan_output_directions": [1, 0, 1]}
    net.ops("Scan", "s", "a", "b", outs=["t", "p", "q", "r"], body=inner, num_scan_inputs=2, **axes, **out)
    net.output("t", "p", "q", "r")
    check(net)


def test_one_scanned_step_is_no_loop():
    compiled = check(rnn(1))
    assert "repeat" not in operators(compiled.graph)


def test_a_scan_without_states():
    net = Net()
    net.input("x", 4, 3)
    inner = scan_body(lambda n, s, p: ([], [n.op("Exp", p[0])]), [], [(3,)])
    net.ops("Scan", "x", outs=["y"], body=inner, num_scan_inputs=1)
    net.output("y")
    check(net)


def test_convolutions_in_a_loop():
    """Layout passes work inside, and keep the body's signature."""

    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        w = n.const(RANDOM.standard_normal((3, 3, 3, 3)) / 6, name="w")
        return [n.op("Relu", n.op("Conv", s[0], w, pads=[1, 1, 1, 1]))], []

    check(looping(3, write, (1, 3, 5, 5), outputs=1))


# ------------------------------------------------------------------------------------------------- refusals


def refusal(model: onnx.ModelProto, error: type[McugenError] = UnsupportedError) -> str:
    with pytest.raises(error) as found:
        imported(model)
    return str(found.value)


def test_unbounded_loops_are_refused():
    net = Net()
    net.input("x", 3)
    inner = loop_body(lambda n, s: ([n.op("Neg", s[0])], []), (3,))
    net.ops("Loop", "", "", "x", outs=["y"], body=inner)
    net.output("y", shape=[3])
    assert "needs a static bound" in refusal(net.plain_model())


def test_a_trip_count_at_run_time_names_the_remedy():
    net = Net()
    net.input("m", dtype=np.int64)
    net.input("x", 3)
    inner = loop_body(lambda n, s: ([n.op("Neg", s[0])], [s[0]]), (3,))
    net.ops("Loop", "m", "", "x", outs=["y", "rows"], body=inner)
    net.output("y", shape=[3])
    model = net.plain_model()
    assert "--bind 'm=" in refusal(model)
    compiled = compile_model(model, options=CompileOptions(bound={"m": np.asarray(4)}))
    assert operators(compiled.graph) == ["repeat"]


def test_growing_outputs_with_an_unknown_end_are_refused():
    def write(n: Net, s: list[str]) -> tuple[list[str], list[str]]:
        small = n.op("Less", n.op("ReduceSum", s[0], keepdims=0), n.const(1.0, name="one"), out="go_on")
        return [small, n.op("Neg", s[0])], [s[0]]

    assert "the condition must be constant" in refusal(looping(5, write, (3,), outputs=2).model())


def test_operators_of_a_body_that_are_not_supported_are_named():
    net = Net()
    net.input("x", 3)
    inner = loop_body(lambda n, s: ([n.op("Mystery", s[0], domain="com.microsoft")], []), (3,))
    net.ops("Loop", net.const(200, np.int64), "", "x", outs=["y"], body=inner)
    net.output("y", shape=[3])
    net.op("Gelu", "x", domain="com.microsoft")  # for the domain to be imported
    message = refusal(net.plain_model())
    assert "Mystery" in message and "every operator of its body must be supported" in message


def wrapping(inner: onnx.GraphProto) -> Callable[[Net, list[str]], tuple[list[str], list[str]]]:
    """A body that runs another as often as a constant `steps` of the graph says."""
    return lambda n, s: ([n.op("Loop", "steps", "", s[0], body=inner)], [])


def test_bodies_that_nest_too_deeply_are_refused():
    inner = loop_body(lambda n, s: ([n.op("Neg", s[0])], []), (3,))
    for _ in range(14):
        inner = loop_body(wrapping(inner), (3,))
    net = Net()
    net.input("x", 3)
    net.const(2, np.int64, name="steps")
    net.ops("Loop", "steps", "", "x", outs=["y"], body=inner)
    net.output("y", shape=[3])
    assert "nest at most" in refusal(net.plain_model())


def test_unrolling_has_an_end():
    """Loops that must be unrolled, in a loop that must be unrolled: 100³ copies."""
    inner = loop_body(lambda n, s: ([n.op("Slice", s[0], "i1", "i1")], []), (3,))
    for node in inner.node:  # starts at the step's number: it must be known
        if node.op_type == "Slice":
            node.input[1] = node.input[2] = inner.input[0].name
    net = Net()
    net.input("x", 3)
    for _ in range(2):
        inner = loop_body(wrapping(inner), (3,))
    net.const(100, np.int64, name="steps")
    net.ops("Loop", "steps", "", "x", outs=["y"], body=inner)
    net.output("y", shape=[None])
    with pytest.raises((DoesNotFitError, UnsupportedError, ModelError)):
        imported(net.plain_model())


def test_dumps_show_bodies():
    compiled = compile_model(rnn(3).model())
    hir, lir = print_graph(compiled.graph), print_program(compiled.program)
    assert "= repeat(" in hir and "taken=(Walk(),)" in hir and "\n      input %last.step : scalar int64" in hir
    assert " for @out index=" in lir and ":   copy @in x=" in lir and ": end @inout index=" in lir


@pytest.mark.qemu
def test_loops_on_a_microcontroller():
    """One layer to the report, however often it calls kernels; the C gives what it gives here."""
    net = rnn(50)
    chosen = net.op("ReduceSum", "last", keepdims=0)
    positive = net.op("Greater", chosen, net.const(0.0))
    branches(net, positive, lambda n: n.op("Exp", "last"), lambda n: n.op("Neg", "last"))
    net.output("y")
    model = net.model()
    feeds = random_feeds(model)
    compiled = compile_model(model, "nrf52840")
    run = compiled.simulate([feeds], per_layer=True)
    assert_close(run.outputs[0], onnxruntime_outputs(model, feeds))
    assert run.layer_instructions is not None and run.instructions is not None
    assert len(run.layer_instructions) == len(compiled.report.layers)
    assert abs(sum(run.layer_instructions) - run.instructions) < 0.05 * run.instructions


def test_a_branch_that_cannot_be_compiled_tells_how_to_go_without_it():
    """Silero's networks for speech are a branch for each rate of samples."""
    net = Net()
    net.input("x", 3)
    net.input("rate", dtype=np.int64)
    good, bad = Net(), Net()
    good.output(good.op("Neg", "x", out="negative"), shape=[3])
    bad.output(bad.op("Mystery", "x", domain="com.microsoft", out="unknown"), shape=[3])
    cond = net.op("Equal", "rate", net.const(16000, np.int64))
    net.output(net.op("If", cond, then_branch=good.graph("good"), else_branch=bad.graph("bad")), shape=[3])
    net.op("Gelu", "x", domain="com.microsoft")  # for the domain to be imported
    assert "Mystery" in refusal(net.plain_model()) and "--bind 'rate=...'" in refusal(net.plain_model())
    bound = compile_model(net.plain_model(), options=CompileOptions(bound={"rate": np.int64(16000)}))
    assert bound.graph.outputs
