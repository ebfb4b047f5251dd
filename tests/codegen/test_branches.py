# SPDX-License-Identifier: Apache-2.0
"""Branches of networks that two cores compute side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx_models import Net
from test_random_splits import on_two_threads
from two_core_boards import two_cores

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.traits import partitions
from mcugen.lir.program import Control, Program
from mcugen.memory.verify_plan import verify_plan
from mcugen.ops.fork import fork_layer
from mcugen.search import core_partition, two_core_program
from mcugen.search.core_assignment import Build
from mcugen.simulation.both_cores import run_on_both_cores


def towers(net: Net, x: str, count: int, numbers: np.random.Generator) -> list[str]:
    """A layer of many inputs, and branches behind it: layers so narrow that shards of them hardly pay."""
    w = net.dequantize(net.const(numbers.integers(-127, 128, (1024, 12)), np.int8), 0.001)
    stem = net.quantize(net.op("MatMul", net.dequantize(x, 0.05, 3), w), 0.05, 3)
    found = []
    for _ in range(count):
        y = net.dequantize(stem, 0.05, 3)
        for _ in range(4):
            w = net.dequantize(net.const(numbers.integers(-127, 128, (12, 12)), np.int8), 0.004)
            y = net.dequantize(net.quantize(net.op("MatMul", y, w), 0.06, -2), 0.06, -2)
        found.append(y)
    return found


def inception() -> Net:
    """Three branches of one input, which meet."""
    net, numbers = Net(opset=17), np.random.default_rng(0)
    x = net.input("x", 1, 1024, dtype=np.int8)
    joined = net.op("Concat", *towers(net, x, 3, numbers), axis=1)
    net.output(net.quantize(joined, 0.06, -2, out="y"), dtype=np.int8)
    return net


def two_heads() -> Net:
    """A layer, and two heads that end as outputs."""
    net, numbers = Net(opset=17), np.random.default_rng(1)
    x = net.input("x", 1, 1024, dtype=np.int8)
    for index, y in enumerate(towers(net, x, 2, numbers)):
        net.output(net.quantize(y, 0.06, -2, out=f"y{index}"), dtype=np.int8)
    return net


def compiled(net: Net) -> CompiledModel:
    return compile_model(net.model(), two_cores("rp2040"), CompileOptions("net", cores=2))


@pytest.mark.parametrize("net", [inception, two_heads])
def test_branches_side_by_side(net: object, tmp_path: Path) -> None:
    """The bits of the reference under ThreadSanitizer, within a tenth more RAM."""
    model = compiled(net())  # type: ignore[operator]
    forks = [instr for instr in model.program.instrs if instr.control is Control.FORK]
    assert [fork.op for fork in forks].count("branches") == 1
    one = compile_model(model.model, two_cores("rp2040"), CompileOptions("net"))
    assert model.program.arena_size <= 1.1 * (one.program.arena_size + 300)
    assert model.report.model.macs == one.report.model.macs
    feeds = {"x": np.random.default_rng(2).integers(-128, 128, (1, 1024)).astype(np.int8)}
    found = on_two_threads(model, feeds, tmp_path)
    for name, expected in interpret(model.graph, feeds).items():
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.qemu
def test_branches_on_both_cores_of_a_chip(tmp_path: Path) -> None:
    """The bits of one core, and two heads that are alike take both cores as long."""
    model = compiled(two_heads())
    feeds = {"x": np.random.default_rng(2).integers(-128, 128, (1, 1024)).astype(np.int8)}
    run = run_on_both_cores(model.bundle, load_board("rp2040"), feeds, tmp_path)
    for name, expected in interpret(model.graph, feeds).items():
        np.testing.assert_array_equal(run.together[name], expected)
    sides = run.forks[-1]
    assert abs(sides.first - sides.other) < 0.02 * sides.first


def test_branches_share_no_memory() -> None:
    program = compiled(two_heads()).program
    middle = next(n for n, i in enumerate(program.instrs) if i.control is Control.ELSE)
    ours, theirs = (program.instrs[n].operand("y").buffer for n in (middle - 1, middle + 1))
    theirs.offset = ours.offset
    with pytest.raises(VerificationError):
        verify_plan(program)


@pytest.mark.parametrize("op", ["Reshape", "Unsqueeze", "Squeeze", "Flatten"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_branch_that_only_renames_a_tensor_needs_no_core(op: str, is_first: bool) -> None:
    """One core would wait while the other computes everything."""
    net, numbers = Net(opset=11), np.random.default_rng(0)
    y = net.op("Relu", net.op("MatMul", net.input("x", 1, 8, 64), net.const(numbers.normal(size=(64, 64)))))
    sizes = {"Reshape": [net.const([8, 64], np.int64)]}.get(op, [])
    axes = {"Unsqueeze": {"axes": [0]}, "Squeeze": {"axes": [0]}, "Flatten": {"axis": 2}}.get(op, {})
    ends = [net.op(op, y, *sizes, **axes), net.op("MatMul", y, net.const(numbers.normal(size=(64, 64))))]
    for end in ends if is_first else reversed(ends):
        net.output(end)
    for goal in ("balanced", "speed", "ram", "flash"):
        model = compile_model(net.model(), two_cores("rp2350"), CompileOptions("net", cores=2, optimize=goal))
        verify_plan(model.program)
        assert "branches" not in [i.op for i in model.program.instrs]
        assert model.report.layers


STATE_READERS = ("none", "before", "same head", "other head")
"""Which layers read the state that one of two heads computes anew."""


def two_heads_and_a_state(reader: str) -> Net:
    """Two heads behind a layer; the first one's result is the state of the next call."""
    net, numbers = Net(opset=17), np.random.default_rng(1)
    x = net.input("x", 1, 1024, dtype=np.int8)
    state = net.dequantize(net.input("state", 1, 12, dtype=np.int8), 0.05, 3)
    first, second = towers(net, x, 2, numbers)
    if reader == "same head":
        first = net.op("Add", first, state)
    if reader == "other head":
        second = net.op("Add", second, state)
    if reader == "before":
        net.output(net.quantize(net.op("Relu", state), 0.06, -2, out="y0"), dtype=np.int8)
    net.output(net.quantize(first, 0.06, -2, out="after"), dtype=np.int8)
    net.output(net.quantize(second, 0.06, -2, out="y1"), dtype=np.int8)
    return net


@pytest.mark.parametrize("reader", STATE_READERS)
def test_a_branch_leaves_the_state_to_the_end(reader: str) -> None:
    """One core of two writes no state: the other may still read it. One core computes it in its own memory."""
    model = two_heads_and_a_state(reader).model()
    options = CompileOptions("net", cores=2, states={"after": "state"})
    program = compile_model(model, two_cores("rp2040"), options).program
    verify_plan(program)
    assert [i.op for i in program.instrs if i.control is Control.FORK].count("branches") == 1
    assert [i.kernel for i in program.instrs if i.op == "state"] == ["copy"]
    one = compile_model(model, two_cores("rp2040"), replace(options, cores=1)).program
    assert reader in ("before", "other head") or not [i for i in one.instrs if i.op == "state"]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("reads_state", [False, True])
def test_portions_of_what_becomes_a_state(number: int, reads_state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a pool by rows or by channels: those by channels write to their places in the whole result."""
    net = Net(opset=17)
    x = net.input("x", 1, 6, 6, 8, dtype=np.int8)
    state = net.input("state", 1, 6, 6, 8, dtype=np.int8)
    y = net.dequantize(state if reads_state else x, 0.05, 3)
    y = net.op("MaxPool", net.op("Transpose", y, perm=[0, 3, 1, 2]), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    y = net.op("Transpose", y, perm=[0, 2, 3, 1])
    net.output(net.quantize(net.op("Relu", net.dequantize(x, 0.05, 3)), 0.05, 3, out="y"), dtype=np.int8)
    net.output(net.quantize(y, 0.05, 3, out="after"), dtype=np.int8)

    def shared(
        graph: Graph, whole: Program, forms: core_partition.PartitionSearch, build: Build, room: object
    ) -> Program:
        other = graph.copy()
        (node,) = (n for n in other.nodes if n.op.name == "max_pool")
        by_rows, by_channels = partitions(node.op, node.sig, node.inputs)
        partition = (by_rows, by_channels)[number]
        fork = fork_layer(node, partition, [((0, 1, False), (1, partition.length, False))])
        assert fork is not None
        other.rewrite(node, fork, [node.input(0)], types=[node.output.type])
        return build(other, {}, 0)

    monkeypatch.setattr(two_core_program, "shared_program", shared)
    options = CompileOptions("net", cores=2, states={"after": "state"})
    program = compile_model(net.model(), two_cores("rp2040"), options).program
    verify_plan(program)
    assert [i.op for i in program.instrs if i.control is Control.FORK] == ["forked"]
