# SPDX-License-Identifier: Apache-2.0
"""Models on two cores: the bits of one, in two threads; and what becomes of workers that die, come late or twice."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compilers import assert_accepted, run
from onnx_models import Net, optimized
from shared_models import MODELS
from two_core_boards import two_cores

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import run as interpret
from mcugen.hir.operator import Partition
from mcugen.hir.traits import partitions
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import Control
from mcugen.memory.verify_plan import verify_plan
from mcugen.ops.fork import ShardRange, Stages, fork_layer
from mcugen.search.core_assignment import MIN_STACK_BYTES
from mcugen.search.core_partition import CoreCostModel, PartitionSearch
from mcugen.search.objective import TOLERANCES

DEAD = 11  # MCUGEN_ERROR_CORE
TOLD = {
    "alone": 1,  # no worker: one core computes all
    "portions": 0,
    "dead": DEAD,
    "still dead": DEAD,
    "late": 1,
    "twice": DEAD,
    "same": 20,
    "stopped": 0,
    "alone again": 1,
    "selftest": 0,
}


@cache
def compiled(model: str, board: str) -> CompiledModel:
    return anew(model, board)


def anew(model: str, board: str) -> CompiledModel:
    return compile_model(MODELS / f"{model}_int8_qdq.onnx", two_cores(board), CompileOptions("net", cores=2))


@pytest.mark.parametrize("name", ["ds_cnn_kws", pytest.param("resnet8_cifar10", marks=pytest.mark.slow)])
@pytest.mark.parametrize("signals", [0, 1, 2], ids=["sent", "lost", "doubled"])
def test_two_threads_compute_what_one_does(signals: int, name: str, tmp_path: Path) -> None:
    """Under ThreadSanitizer, with every fault of a worker that the header names."""
    model = compiled(name, "rp2040")
    assert sum(i.control is Control.FORK for i in model.program.instrs) > 1
    model.write(tmp_path)
    for file in ("two_cores.c", "signals.h"):
        shutil.copy(Path(__file__).with_name(file), tmp_path)
    flags = ("-O1", "-g", "-fsanitize=thread", f"-DSIGNALS={signals}", "-D_POSIX_C_SOURCE=200809L")
    files = ("two_cores.c", "net_weights.c", "net_selftest.c")
    run(["gcc", "-std=c99", *flags, *files, "-lpthread", "-lm", "-o", "two"], tmp_path)
    lines = dict(line.rsplit(" ", 1) for line in run(["./two"], tmp_path).splitlines())
    assert {key: int(value) for key, value in lines.items()} == TOLD


def test_two_models_at_once(tmp_path: Path) -> None:
    """Each on a core of its own: neither has anything that the other touches, as ThreadSanitizer sees it."""
    for name, model in (("first", "resnet8_cifar10"), ("second", "ds_cnn_kws")):
        compile_model(MODELS / f"{model}_int8_qdq.onnx", "rp2040", CompileOptions(name)).write(tmp_path / name)
    shutil.copy(Path(__file__).with_name("two_models.c"), tmp_path)
    flags = ("-O1", "-g", "-fsanitize=thread", "-D_POSIX_C_SOURCE=200809L")
    files = ("two_models.c", *(f"{name}/{name}{part}.c" for name in ("first", "second") for part in ("", "_weights")))
    run(["gcc", "-std=c99", *flags, "-Ifirst", "-Isecond", *files, "-lpthread", "-lm", "-o", "two"], tmp_path)
    assert run(["./two"], tmp_path).splitlines() == ["same 1", "empty 0"]


def test_code_is_clean(tmp_path: Path) -> None:
    compiled("ds_cnn_kws", "rp2040").write(tmp_path)
    assert_accepted(tmp_path, "net.c")
    flags = ["-DMCUGEN_CORES_POSIX", "-D_POSIX_C_SOURCE=200809L"]
    assert_accepted(tmp_path, "net.c", by=["gcc", "clang"], flags=flags)


def test_code_is_the_same_again() -> None:
    assert anew("ds_cnn_kws", "rp2040").bundle.files == compiled("ds_cnn_kws", "rp2040").bundle.files


def test_portions_that_are_alike_share_their_parameters() -> None:
    """Of which the compiler knows as much then as of those of a layer that one core computes."""
    text = str(compiled("ds_cnn_kws", "rp2040").bundle.files["net.c"])
    found = re.findall(r"static const (\w+_params) \w+ = \{(.*?)\};", text, re.DOTALL)
    assert len(set(found)) == len(found)
    shards = re.findall(r"&(\w+_params)", text)
    assert len(set(shards)) < len(shards)


def test_codes_that_lie_over_the_floats_they_are_made_of_are_shared() -> None:
    """The second shard is made over its own floats, and copied behind the first one's codes then."""
    net, rng = Net(), np.random.default_rng(3)
    x = net.fake(net.input("x", 1, 8, 32, 32), 0.05, 3)
    w = net.dequantize(net.const(rng.integers(-127, 128, (4, 8, 1, 1)), np.int8), 0.004)
    net.output(net.quantize(net.op("Conv", x, w), 0.06, -2, out="y"), dtype=np.int8)
    one, two = (compile_model(net.model(), two_cores("rp2040"), CompileOptions("net", cores=n)) for n in (1, 2))
    assert one.program.arena_size < 1.1 * 4 * 8 * 32 * 32
    assert two.program.arena_size <= 1.1 * one.program.arena_size + 30
    (first,) = (user for user in two.graph.inputs[0].users)
    assert any(i.control is Control.FORK and i.name == first.output.name for i in two.program.instrs)


@pytest.mark.parametrize("dilation", [1, 2])
def test_lines_whose_pixels_are_no_words_are_shared(dilation: int) -> None:
    """Seven channels: with a dilation of 1 a shard's input begins within a word wherever its output does not."""
    net, rng = Net(), np.random.default_rng(3)
    x = net.dequantize(net.input("x", 1, 7, 60, dtype=np.int8), 0.05, 3)
    w = net.dequantize(net.const(rng.integers(-127, 128, (7, 7, 5)), np.int8), 0.004)
    y = net.op("Conv", x, w, pads=[2 * dilation, 2 * dilation], dilations=[dilation])
    net.output(net.quantize(net.op("Relu", y), 0.06, -2, out="y"), dtype=np.int8)
    graph, board = optimized(net.model()), two_cores("rp2350")
    (node,) = (node for node in graph.nodes if node.op.name == "conv")
    side = CoreCostModel(board.features, cost_table(board.cpu))
    _, partitions = PartitionSearch(side, side).of(node, side.preferred_or_fastest(node, None))
    assert {len(partition.fork.shards[0].writes.shape) for partition in partitions} == {3, 4}  # as it is, and upright
    assert all(partition.fork.shards[-1].is_copied_later for partition in partitions) == (dilation == 1)
    assert min(partition.time for partition in partitions) < 0.6 * side.time(
        node, side.preferred_or_fastest(node, None)
    )


def test_speed_takes_ram_for_both_cores() -> None:
    """Six pixels at a time on both of them beside a residual, which a tenth more RAM has no room for."""
    net, rng = Net(), np.random.default_rng(3)
    x = y = net.fake(net.input("x", 1, 11, 1, 140), 0.05, 3)
    for _ in range(2):
        w = net.dequantize(net.const(rng.integers(-127, 128, (11, 11, 1, 11)), np.int8), 0.004)
        y = net.fake(net.op("Conv", y, w, pads=[0, 20, 0, 20], dilations=[1, 4]), 0.06, -2)
    net.output(net.quantize(net.op("Add", x, y), 0.1, 0, out="y"), dtype=np.int8)
    board = two_cores("rp2040")

    def arena(cores: int, **options: Any) -> int:
        return compile_model(net.model(), board, CompileOptions("net", cores=cores, **options)).program.arena_size

    one, within = arena(1, optimize="speed"), arena(2, optimize="balanced")
    assert within + MIN_STACK_BYTES <= TOLERANCES.max_shared_ram_ratio * (arena(1) + MIN_STACK_BYTES)
    most = arena(2, optimize="speed")
    assert most + MIN_STACK_BYTES > TOLERANCES.max_shared_ram_ratio * (one + MIN_STACK_BYTES)
    assert arena(2, optimize="speed", max_ram=most - 1) < most


def test_stages_are_whole_groups_of_pixels() -> None:
    """64 pixels, of which a kernel takes six at a time: 60 and 4, or equal stages; all have one core's integers."""
    net, rng = Net(), np.random.default_rng(4)
    x = net.dequantize(net.input("x", 1, 32, 64, dtype=np.int8), 0.05, 3)
    w = net.dequantize(net.const(rng.integers(-127, 128, (32, 32, 3)), np.int8), 0.004)
    y = net.op("Conv", x, w, pads=[16, 0], dilations=[8])
    net.output(net.quantize(y, 0.6, -2, out="y"), dtype=np.int8)
    graph, board = optimized(net.model()), two_cores("rp2040")
    (node,) = (node for node in graph.nodes if node.op.name == "conv")
    side = CoreCostModel(board.features, cost_table(board.cpu))
    kernel = side.preferred_or_fastest(node, None)
    time = side.time(node, kernel)
    _, partitions = PartitionSearch(side, side).of(node, kernel)
    (feed,) = (rng.integers(-128, 128, v.type.shape).astype(np.int8) for v in node.inputs[:1] if v)
    whole = node.op.evaluate(node.sig, feed, *(v.data for v in node.inputs[1:] if v and v.data is not None))[0]
    pixels = {
        tuple(shard.writes.count // 32 for shard in partition.fork.shards): partition
        for partition in reversed(partitions)
    }
    for wanted in ((30, 30, 2, 2), (4,) * 16):
        assert pixels[wanted].time < 0.62 * time
        np.testing.assert_array_equal(pixels[wanted].fork.evaluate(node.sig, feed)[0], whole)
    rest, even = (min(f.time for cut, f in pixels.items() if len(cut) == n) for n in (4, 2))
    assert rest < even < time


def test_one_core_is_as_ever() -> None:
    files = compile_model(MODELS / "ds_cnn_kws_int8_qdq.onnx", "rp2040", CompileOptions("net")).bundle.files
    assert "mcugen_cores.h" not in files and "run_cores" not in str(files["net.c"])


def test_other_boards_are_refused() -> None:
    with pytest.raises(UsageError, match=r"must list a second core.*'stm32f446' lists 1"):
        compile_model(MODELS / "ds_cnn_kws_int8_qdq.onnx", "stm32f446", CompileOptions(cores=2))


@pytest.mark.parametrize("options", [CompileOptions(cores=2, steps=True), CompileOptions(cores=2, family="auto")])
def test_what_does_not_go_together_is_refused(options: CompileOptions) -> None:
    with pytest.raises(UsageError, match="leave one out"):
        compile_model(MODELS / "ds_cnn_kws_int8_qdq.onnx", "rp2040", options)


def layers() -> Net:
    """Every kind of layer that has divisions, with odd sizes, strides, dilations and padding on some sides only."""
    rng = np.random.default_rng(7)
    net = Net()
    x = net.input("x", 1, 4, 13, 7)
    y = net.op("Conv", x, net.const(rng.normal(size=(8, 4, 3, 3))), pads=[1, 1, 1, 1], strides=[2, 1])
    y = net.op("Relu", y)
    y = net.op("Conv", y, net.const(rng.normal(size=(8, 1, 3, 3))), group=8, pads=[2, 2, 2, 2], dilations=[2, 2])
    y = net.op("Add", y, net.op("Conv", y, net.const(rng.normal(size=(8, 8, 1, 1)))))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], pads=[1, 0, 0, 0], strides=[1, 2])
    y = net.op("AveragePool", y, kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    y = net.op("AveragePool", y, kernel_shape=[2, 2], pads=[0, 1, 1, 0], count_include_pad=1)
    y = net.op("Flatten", y)
    y = net.op("Gemm", y, net.const(rng.normal(size=(8 * 6 * 3, 12))), net.const(rng.normal(size=12)))
    net.output(net.op("Softmax", y, out="y"))
    return net


def lines() -> Net:
    """Layers of one spatial dimension."""
    rng = np.random.default_rng(8)
    net = Net()
    y = net.op("Conv", net.input("x", 1, 3, 19), net.const(rng.normal(size=(5, 3, 3))), pads=[4, 0], dilations=[2])
    y = net.op("Conv", net.op("Relu", y), net.const(rng.normal(size=(4, 5, 4))), pads=[1, 2], strides=[2])
    net.output(net.op("Relu", y, out="y"))
    return net


@pytest.mark.parametrize("net", [layers, lines])
def test_portions_compute_what_whole_layers_do(net: Callable[[], Net]) -> None:
    """Every layer, every cut: in numpy, whose floats differ only where sums are added in another order."""
    graph = optimized(net().model())
    feeds = [np.random.default_rng(1).normal(size=v.type.shape).astype(np.float32) for v in graph.inputs]
    expected = interpret(graph, feeds)
    cut = set()
    for number, node in enumerate(graph.nodes):
        for partition in partitions(node.op, node.sig, node.inputs):
            for stages in ways(partition.length):
                other = with_fork(graph, number, partition, stages)
                if other is not None:
                    cut.add(node.op.name)
                    for found, wanted in zip(interpret(other, feeds), expected, strict=True):
                        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    images = {"dense", "max_pool", "average_pool"} if net is layers else set()
    assert {"conv", "transpose"} | images <= cut


def ways(length: int) -> Iterator[list[tuple[ShardRange, ...]]]:
    """Two halves at every cut, the second one in place or aside, with borders aside, and two stages."""
    for at in range(1, length):
        yield [((0, at, False), (at, length, False))]
        yield [((0, at, False), (at, length, True))]
        if at > 1:
            yield [((at - 1, at, True),), ((0, at - 1, False), (at, length, False))]
        if 1 < at < length - 1:
            aside: tuple[ShardRange, ShardRange] = ((at - 1, at, True), (at, at + 1, True))
            yield [aside, ((0, at - 1, False), (at + 1, length, False))]
        if at > 1 and length - at > 1:
            yield [((0, 1, False), (1, at, False)), ((at, at + 1, False), (at + 1, length, False))]


def with_fork(graph: Graph, number: int, partition: Partition, stages: Stages) -> Graph | None:
    other = graph.copy()
    node: Node = other.nodes[number]
    partition = fork_layer(node, partition, stages)
    if partition is not None:
        inputs = [v for v in node.inputs if v is not None and not v.is_constant]
        other.rewrite(node, partition, inputs, types=[node.output.type])
    return other if partition is not None else None


SEVERAL_OUTPUTS = {
    "Scan": """
        last, each = Scan <num_scan_inputs = 1, body = step (float[64] h, float[64] v) => (float[64] n, float[64] e) {
            n = Add(h, v)
            e = Tanh(n)
        }> (h0, p)
        y = Relu(each)
        z = Relu(last)""",
    "Loop": """
        count = Constant <value = int64 {5}> ()
        yes = Constant <value = bool {1}> ()
        y, sums = Loop <body = step (int64 i, bool c, float[8, 64] s) => (bool d, float[8, 64] n, float[64] e) {
            d = Identity(c)
            n = Tanh(s)
            e = ReduceSum <keepdims = 0> (n, zero)
        }> (count, yes, p)
        z = Relu(sums)""",
    "TopK": """
        k = Constant <value = int64[1] {3}> ()
        y, where = TopK(p, k)
        z = Cast <to = 1> (where)""",
    "Split": """
        y, rest = Split <num_outputs = 2, axis = 1> (p)
        z = Relu(rest)""",
    "If": """
        most = ReduceMax <keepdims = 0> (p)
        is_more = Greater(most, high)
        y, z = If <then_branch = one () => (float[8, 64] a, float[8, 64] b) {
            a = Relu(p)
            b = Neg(p)
        }, else_branch = two () => (float[8, 64] a, float[8, 64] b) {
            a = Tanh(p)
            b = Identity(p)
        }> (is_more)""",
}


@pytest.mark.parametrize("goal", ["balanced", "speed", "ram", "flash"])
@pytest.mark.parametrize("op", SEVERAL_OUTPUTS)
def test_layers_of_several_outputs_beside_shared_ones(op: str, goal: str) -> None:
    """Layers that no kernel computes have costs, too."""
    numbers = np.random.default_rng(0)
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    net (float[8, 64] x) => (y, z) <float[64, 64] w, float high, int64[1] zero, float[64] h0> {{
        m = MatMul(x, w)
        p = Relu(m)
        {SEVERAL_OUTPUTS[op]}
    }}"""
    model = onnx.parser.parse_model(text)
    constants = {"w": numbers.normal(size=(64, 64)).astype(np.float32), "high": np.float32(3), "zero": np.int64([0])}
    constants["h0"] = np.zeros(64, np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in constants.items())
    compiled = compile_model(model, two_cores("rp2350"), CompileOptions("net", cores=2, optimize=goal))
    verify_plan(compiled.program)
