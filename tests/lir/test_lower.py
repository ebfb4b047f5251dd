# SPDX-License-Identifier: Apache-2.0
"""From graphs to programs, without a kernel's details: the order of instructions, endpoints, states, what learns."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.lesson import Lesson
from mcugen.hir.types import DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.copies import CopyRange
from mcugen.lir.kernel import Call, Kernel, Site, reads, writes
from mcugen.lir.lesson import phases, training_port_names
from mcugen.lir.lower import lower
from mcugen.lir.program import Access, Control, Operand, Overlap, Program, Space
from mcugen.ops.pointwise import Binary, Unary

NONE = frozenset[str]()
VECTOR = TensorType((4,))


def graph_of(*inputs: str) -> tuple[Graph, dict[str, Value]]:
    graph = Graph("net")
    return graph, {name: graph.add_input(name, VECTOR) for name in inputs}


def op(graph: Graph, kind: str, *inputs: Value, name: str) -> Value:
    made = Unary(kind) if len(inputs) == 1 else Binary(kind)
    return graph.add(made, list(inputs), [f"node {name}"], names=[name]).output


def steps(program: Program) -> list[str]:
    """Each instruction: what it writes, or its kernel if that is no call or a copy."""
    return [f"{i.kernel} {i.name}" if i.kernel in ("copy", "stop") else i.name for i in program.instrs]


def ends(program: Program) -> dict[str, tuple[str, str]]:
    """Names of endpoints, with their buffers and where these are."""
    return {e.name: (e.buffer.name, e.buffer.space.value) for e in (*program.inputs, *program.outputs, *program.states)}


def test_nodes_in_order_and_buffers_that_are_used():
    graph, values = graph_of("x", "unused")
    y = op(graph, "Exp", op(graph, "Neg", values["x"], name="t"), name="y")
    graph.add_output("result", y)
    program = lower(graph, NONE)
    assert steps(program) == ["t", "y"]
    assert ends(program) == {"x": ("x", "input"), "unused": ("unused", "input"), "result": ("y", "output")}
    assert [buffer.name for buffer in program.buffers] == ["x", "unused", "t", "y"]
    assert program.instrs[0].macs == 0
    assert program.instrs[0].origin == ("node t",)
    assert program.instrs[0].note == f"{VECTOR} -> {VECTOR}"


def accumulating(external: bool = False) -> Graph:
    """s ← s + x; y = s · x, by the old state."""
    graph, values = graph_of("x", "s")
    graph.external_io = external
    graph.add_output("y", op(graph, "Mul", values["s"], values["x"], name="product"))
    graph.add_output("new", op(graph, "Add", values["s"], values["x"], name="sum"))
    return graph


def test_an_output_that_becomes_a_state_is_none():
    program = lower(accumulating(), NONE, {"new": "s"})
    assert steps(program) == ["product", "sum"]
    assert ends(program) == {"x": ("x", "input"), "y": ("product", "output"), "s": ("s", "state")}
    assert program.instrs[1].operand("y").buffer is program.states[0].buffer
    assert lower(accumulating(), NONE).states == []


def test_a_state_that_is_read_later_is_renewed_at_the_end():
    graph, values = graph_of("x", "s")
    new = op(graph, "Add", values["s"], values["x"], name="sum")
    graph.add_output("y", op(graph, "Mul", values["s"], new, name="product"))
    graph.add_output("new", new)
    program = lower(graph, NONE, {"new": "s"})
    assert steps(program) == ["sum", "product", "copy s"]
    assert [o.buffer.name for o in program.instrs[-1].operands] == ["sum", "s"]


def test_states_that_change_places():
    graph, values = graph_of("a", "b")
    graph.add_output("x", values["a"])
    graph.add_output("y", values["b"])
    program = lower(graph, NONE, {"x": "b", "y": "a"})
    held = {buffer: buffer.name for buffer in program.buffers}
    for instr in program.instrs:
        held[instr.operand("y").buffer] = held[instr.operand("x").buffer]
    assert [held[e.buffer] for e in program.states] == ["b", "a"]
    assert len(program.instrs) == 3


def test_an_output_that_is_an_old_state_is_rescued():
    graph, values = graph_of("x", "s")
    graph.add_output("old", values["s"])
    graph.add_output("new", op(graph, "Neg", values["x"], name="t"))
    program = lower(graph, NONE, {"new": "s"})
    assert ends(program)["old"] == ("old.kept", "output")
    at = {name: number for number, name in enumerate(steps(program))}
    assert at["copy old.kept"] < max(at.get("t", -1), at.get("copy s", -1))
    held = {"s": "old"}
    for instr in program.instrs:
        x, y = instr.operand("x" if instr.kernel == "copy" else "x0").buffer.name, instr.operand("y").buffer.name
        held[y] = held.get(x, x) if instr.kernel == "copy" else "new"
    assert (held["old.kept"], held["s"]) == ("old", "new")


def test_a_graph_whose_caller_lends_buffers():
    program = lower(accumulating(external=True), NONE, {"new": "s"})
    assert ends(program) == {"x": ("x", "given"), "y": ("product", "taken"), "s": ("s", "state")}


def test_portions_of_a_layer_are_one():
    graph, values = graph_of("x")
    value = values["x"]
    for number, name in enumerate("abcde"):
        value = op(graph, "Neg", value, name=name)
        graph.nodes[-1].layer = ["", "p", "p", "q", ""][number]
    graph.add_output("y", value)
    program = lower(graph, NONE)
    assert [instr.group for instr in program.instrs] == [0, 1, 1, 2, 0]


def emit(layer: Node, site: Site) -> Call:
    return Call(site.kernel, {"x0": site.x, "y": site.y})


OTHERS = Kernel("others", operands=(reads("x0", "what"), writes("y", "what")), library="others", emit=emit)
OURS = replace(OTHERS, name="ours", library="")


def test_a_kernel_of_a_library_is_taken_where_it_was_chosen():
    graph, values = graph_of("x")
    y = op(graph, "Neg", op(graph, "Exp", values["x"], name="t"), name="y")
    graph.add_output("y", y)
    first, second = graph.nodes
    program = lower(graph, NONE, choices={first: OTHERS, second: OURS})
    assert [(i.kernel, i.library) for i in program.instrs] == [("others", "others"), ("elementwise", "")]


def test_an_operator_without_a_kernel_is_refused():
    graph, values = graph_of("x")
    graph.add_output("y", op(graph, "Neg", values["x"], name="t"))
    graph.nodes[0].op = SimpleNamespace(name="vanishing")  # type: ignore[assignment]
    with pytest.raises(VerificationError, match=r"every operator must have a kernel.*vanishing 'node t'"):
        lower(graph, NONE)


# ------------------------------------------------------------------------------------------------------ lessons


def learning(loss: str = "loss") -> Graph:
    """y = w · x; the loss is |y − target|; w ← w − rate · loss. One node more is of no use to a run or the loss."""
    graph, values = graph_of("x", "w", "target", "rate")
    y = op(graph, "Mul", values["w"], values["x"], name="y")
    moved = op(graph, "Mul", values["rate"], values["w"], name="early")
    error = op(graph, "Sub", y, values["target"], name="error")
    judged = {"loss": lambda: op(graph, "Abs", error, name="abs"), "y": lambda: y, "w": lambda: values["w"]}[loss]()
    change = op(graph, "Mul", judged, moved, name="change")
    new = op(graph, "Sub", values["w"], change, name="new")
    graph.add_output("y", y)
    graph.add_output("loss", judged)
    graph.add_output("w_new", new)
    first = {"w": np.asarray([1, 2, 3, 4], np.float32)}
    graph.lesson = Lesson("target", "rate", "loss", {"w_new": "w"}, ("layer",), first, 3, "what", "learning")
    return graph


def test_a_run_comes_first_then_the_loss_then_what_learns():
    graph = learning()
    assert graph.lesson is not None
    assert [[node.output.name for node in part] for part in phases(graph, graph.lesson)] == [
        ["y"],
        ["error", "abs"],
        ["early", "change", "new"],
    ]
    program = lower(graph, NONE, {"w_new": "w"})
    assert steps(program) == ["y", "stop net.stop0", "error", "abs", "stop net.stop1", "early", "change", "new"]
    assert [dict(i.params) for i in program.instrs if i.kernel == "stop"] == [{"phase": 0}, {"phase": 1}]
    assert [[o.buffer.name for o in i.operands] for i in program.instrs if i.kernel == "stop"] == [[], ["abs"]]
    assert ends(program) == {"x": ("x", "input"), "y": ("y", "output"), "w": ("w", "state")}
    ports = program.lesson
    assert ports is not None
    told = [(e.name, e.buffer.name, e.buffer.space.value) for e in (ports.target, ports.rate, ports.loss)]
    assert told == [("target", "target", "given"), ("rate", "rate", "given"), ("loss", "abs", "taken")]
    assert (ports.classes, ports.what, ports.learning, ports.layers) == (3, "what", "learning", ("layer",))
    (first,) = ports.first.values()
    assert list(ports.first) == ["w"]
    np.testing.assert_array_equal(first.data, [1, 2, 3, 4])
    assert set(ports.buffers) <= set(program.buffers)
    assert ports.buffers == [ports.target.buffer, ports.rate.buffer, ports.loss.buffer, first]


@pytest.mark.parametrize(("loss", "source"), [("y", "y"), ("w", "w")])
def test_a_loss_that_a_run_has_or_that_is_a_state_is_copied(loss: str, source: str):
    """The caller's buffer is there only in calls that judge."""
    program = lower(learning(loss), NONE, {"w_new": "w"})
    assert program.lesson is not None
    at = steps(program).index(f"copy {source}")
    copy = program.instrs[at]
    assert [o.buffer.name for o in copy.operands] == [source, f"{source}.loss"]
    assert program.lesson.loss.buffer is copy.operand("y").buffer
    assert steps(program)[:2] == ["y", "stop net.stop0"]
    assert steps(program)[at + 1] == "stop net.stop1"
    change = next(i for i in program.instrs if i.name == "change")
    assert source in [o.buffer.name for o in change.operands], "others go on with what was computed"


def test_names_that_no_run_has():
    graph, _ = graph_of("x")
    assert training_port_names(graph) == set()
    assert training_port_names(learning()) == {"target", "rate", "loss"}
    assert lower(graph, NONE).lesson is None


# ------------------------------------------------------------------------------------------------------ builder


def builder() -> tuple[Builder, Node]:
    graph, values = graph_of("x")
    op(graph, "Neg", values["x"], name="y")
    return Builder(Program("net"), NONE), graph.nodes[0]


def test_the_first_move_to_a_buffer_begins_its_life_and_the_next_ones_go_on():
    make, node = builder()
    a, b = (make.scratch(name, VECTOR.dtype, count) for name, count in (("a", 4), ("b", 8)))
    make.move(node, a, b, "first")
    make.move(node, a, b, "second", part=CopyRange(0, 16))
    make.move(node, b, a, "back", part=CopyRange(8))
    make.move(node, a, a, "whole")
    told = [(dict(i.params), i.operand("y").access.value, i.inplace, i.variant) for i in make.program.instrs]
    assert told == [
        ({"nbytes": 16, "x_at": 0, "y_at": 0}, "out", (), "f32_part"),
        ({"nbytes": 16, "x_at": 0, "y_at": 16}, "inout", (), "f32_part"),
        ({"nbytes": 16, "x_at": 8, "y_at": 0}, "inout", (), "f32_part"),
        ({"nbytes": 16}, "out", (("y", "x"),), "f32"),
    ]
    assert [i.code["within"] for i in make.program.instrs] == [False, False, False, True]
    assert [i.note for i in make.program.instrs] == ["first", "second", "back", "whole"]


@pytest.mark.parametrize(
    ("x_at", "y_at", "nbytes", "is_right"),
    [
        (0, 0, 16, True),
        (0, 16, 16, True),
        (0, 0, 0, True),
        (0, 0, 17, False),
        (4, 0, 13, False),
        (0, 20, 13, False),
        (-4, 0, 4, False),
        (0, -4, 4, False),
        (0, 0, -1, False),
    ],
)
def test_a_move_beyond_its_buffers_is_none(x_at: int, y_at: int, nbytes: int, is_right: bool):
    make, node = builder()
    a, b = (make.scratch(name, VECTOR.dtype, count) for name, count in (("a", 4), ("b", 8)))
    if is_right:
        make.move(node, a, b, "", part=CopyRange(x_at, y_at, nbytes))
        assert make.program.instrs[0].params["nbytes"] == nbytes
        return
    with pytest.raises(AssertionError, match="a move beyond a or b"):
        make.move(node, a, b, "", part=CopyRange(x_at, y_at, nbytes))


@pytest.mark.parametrize("stays", [False, True])
def test_a_move_may_have_to_stay(stays: bool):
    make, node = builder()
    make.move(node, make.scratch("a", VECTOR.dtype, 4), make.scratch("b", VECTOR.dtype, 4), "", stays=stays)
    assert make.program.instrs[0].stays is stays


def test_equal_constants_are_one():
    make, _ = builder()
    one = make.const("a", np.arange(4, dtype=np.int8))
    assert make.const("b", np.arange(4, dtype=np.int8)) is one
    others = [np.arange(4, dtype=np.uint8), np.arange(4, dtype=np.int8).reshape(2, 2), np.ones(4, np.int8)]
    assert len({make.const("c", other) for other in others} | {one}) == 4
    assert [b.name for b in make.program.buffers][:2] == ["a", "c"]
    strided = np.arange(8, dtype=np.int8)[::2]
    assert make.const("d", strided) is make.const("e", np.asarray([0, 2, 4, 6], np.int8))


def test_a_constant_that_may_go_on_is_one_with_those_that_begin_like_it():
    make, _ = builder()
    short, long = np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)
    one = make.growing_const("a", short)
    assert make.growing_const("b", long) is one
    np.testing.assert_array_equal(one.data, long)
    assert one.count == 5
    assert make.growing_const("c", short) is one
    assert one.count == 5
    apart = [make.growing_const("d", long + 1), make.growing_const("e", long.astype(np.int8))]
    assert len({one, *apart}) == 3
    assert make.growing_const("f", (long + 1)[:2]) is apart[0]
    assert len(make.program.buffers) == 3


def test_layers_and_units_nest_in_the_outermost():
    make, node = builder()
    groups, units = [], []

    def emit_one() -> None:
        make.mark(node, Control.END)
        groups.append(make.program.instrs[-1].group)
        units.append(make.program.instrs[-1].unit)

    emit_one()
    with make.one_layer(), make.one_unit():
        emit_one()
        with make.one_unit(), make.one_layer():
            emit_one()
        emit_one()
    emit_one()
    with make.one_layer():
        emit_one()
    with make.one_unit():
        emit_one()
    assert groups == [0, 1, 1, 1, 0, 2, 0]
    assert units == [0, 1, 1, 1, 0, 0, 2]


def test_buffers_of_values():
    make, node = builder()
    x, y = node.input(0), node.output
    assert make.placed(x) is None
    buffer = make.buffer(x)
    assert make.placed(x) is buffer is make.buffer(x)
    make.alias(y, x)
    assert make.buffer(y) is buffer
    make.forget([y])
    assert make.placed(y) is None
    assert make.buffer(y) is not buffer
    make.bind(y, buffer)
    assert make.buffer(y) is buffer
    assert (buffer.count, buffer.dtype, buffer.space.value) == (4, VECTOR.dtype, "arena")


def long_reason(layer: Node) -> bool:
    """Because it may.

    Not told."""
    return True


def never(layer: Node) -> bool:
    """Never."""
    return False


def test_the_first_kernel_that_fits_is_taken_and_says_why():
    kernels = (replace(OURS, name="a", when=(never,)), replace(OURS, name="b", when=(long_reason,)), OURS)
    _, node = builder()
    make = Builder(Program("net"), NONE)
    assert make.select(kernels, node) is kernels[1]
    make.lower(kernels, node)
    assert [(i.kernel, i.reason) for i in make.program.instrs] == [("b", "Because it may.")]
    make = Builder(Program("net"), NONE, choices={node: OURS}, remarks={node: "It is small."})
    assert make.select(kernels, node) is OURS
    assert make.chosen_library_kernel(node) is None
    make.lower(kernels, node)
    assert [(i.kernel, i.reason) for i in make.program.instrs] == [("ours", "portable C; It is small.")]
    make = Builder(Program("net"), NONE, remarks={node: "It is small."})
    make.emit_kernel(replace(OURS, when=(never,)), node)
    assert make.program.instrs[0].reason == "Never.; It is small."
    make.call(node, Call(replace(OURS, emit=None), {"x0": make.buffer(node.input(0)), "y": make.buffer(node.output)}))
    assert make.program.instrs[1].reason == "It is small."


@pytest.mark.parametrize(
    ("bodies", "has_way", "macs"), [((), True, 7), ((), False, 7), (("body",), True, 7), (("body",), False, 0)]
)
def test_what_bodies_multiply_is_counted_once(bodies: tuple[str, ...], has_way: bool, macs: int):
    """A call that an operator makes beside its bodies counts nothing; a kernel that computes all of them does."""
    make, node = builder()
    node.op = SimpleNamespace(name="loop", bodies=bodies, macs=lambda sig: 7)  # type: ignore[assignment]
    kernel = OURS if has_way else replace(OURS, emit=None)
    make.call(node, Call(kernel, {"x0": make.buffer(node.input(0)), "y": make.buffer(node.output)}))
    assert make.program.instrs[0].macs == macs


def test_markers_tell_their_block():
    make, node = builder()
    x = make.buffer(node.input(0))
    make.mark(
        node, Control.FOR, [("index", Access.OUT, x)], steps=3, overlaps=[Overlap("y", "x", 0), Overlap("z", "x", 1)]
    )
    make.mark(node, Control.STREAM, events=[0, 1], case=4)
    first, second = make.program.instrs
    assert (first.params, first.kernel, first.control) == ({"steps": 3}, "for", Control.FOR)
    assert first.inplace == (("y", "x"),)
    assert first.operands == (Operand("index", Access.OUT, x),)
    assert (second.params, second.events, second.case) == ({}, (0, 1), 4)


def test_rows_come_from_the_caller():
    make, node = builder()
    value = Value("x", TensorType((1, 6, 5, 2), DType.INT8))
    first, target = make.scratch("next", DType.INT32, 1), make.scratch("rows", DType.INT8, 20)
    make.read_rows(node, value, first, target, 2, 1)
    assert make.buffer(value).space is Space.STREAM
    (instr,) = make.program.instrs
    assert dict(instr.params) == {"rows": 2, "bytes": 10, "axis": 1}
    assert [(o.role, o.buffer) for o in instr.operands] == [("next", first), ("y", target)]


def test_what_is_not_said_to_a_builder_is_the_plain_case():
    builder = Builder(Program("p"), frozenset({"dsp"}))
    assert (builder.features, builder.optimize) == ({"dsp"}, "balanced")
    assert (builder.any_size, builder.widens) == (False, False)
