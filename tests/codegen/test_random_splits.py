# SPDX-License-Identifier: Apache-2.0
"""Layers divided anywhere, in any way, computed by two threads under ThreadSanitizer: the integers of one core.

So are branches side by side, and pipelines over frames that are cut anywhere. The fast tests have some hundred splits;
the sweep has 10,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from compilers import run
from onnx_models import Net
from two_core_boards import two_cores

from mcugen.backends.cpu import pipeline
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Partition
from mcugen.hir.traits import partitions
from mcugen.kernels.choose import fitting_kernels
from mcugen.lir.frames import crossing, cut, may_cut, update_states_early
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.ops.branches import side_by_side
from mcugen.ops.fork import Forked, fork_layer
from mcugen.search import candidates, core_assignment, core_partition, frame_pipeline, two_core_program
from mcugen.search.plan import BuiltProgram
from mcugen.search.problem import SearchProblem

CHAINS = 24
"""Of a model: three layers each, every one divided if it can be."""
LEVELS = 3
"""Layers of a chain."""
PROGRAMS = 170
"""Of the sweep: some 60 splits each."""
LINES = 0.25
"""Of chains, those of one spatial dimension: shards begin within words there."""
FRAMES = 4
"""Of a pipeline."""
BRANCHES = 0.3
"""Of pairs of chains, those that are side by side."""


class Pipelines:
    """Takes the place of the search for the best cut: one at random, and kernels at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def pipelined_program(
        self,
        graph: Graph,
        whole: Program,
        forms: core_partition.PartitionSearch,
        lower: frame_pipeline.Lower,
        limit: int,
        time: float,
    ) -> Program:
        fitting_ones = {n: fitting_kernels(n, forms.first.features, any_size=False) for n in graph.nodes}
        program = lower({node: self.random.choice(found) for node, found in fitting_ones.items() if found})
        update_states_early(program)
        places = [i for i in range(1, len(program.instrs)) if may_cut(program, i) and crossing(program, i)]
        cut(program, self.random.choice(places))
        plan_memory(program)
        verify_plan(program)
        return program


class Splits:
    """Takes the place of the search for what pays: each layer is divided at random, and some are in branches."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0

    def shared_program(
        self, graph: Graph, whole: Program, forms: core_partition.PartitionSearch, build: core_assignment.Build
    ) -> Program:
        other, kernels = graph.copy(), dict[Node, Kernel]()
        for made in self.side_by_side(other):
            self.count += 1
            for node in (n for body in made.op.bodies for n in body.nodes):
                if fitting_ones := fitting_kernels(node, forms.first.features, any_size=False):
                    kernels[node] = self.random.choice(fitting_ones)
        for node in [n for n in other.nodes if not n.op.bodies]:
            fork = self.fork(node)
            if fork is not None:
                self.count += 1
                inputs = [v for v in node.inputs if v is not None and not v.is_constant]
                other.rewrite(node, fork, inputs, types=[node.output.type])
            parts = [n for body in fork.bodies for n in body.nodes] if fork else [node]
            for part in parts:
                if fitting_ones := fitting_kernels(part, forms.first.features, any_size=False):
                    kernels[part] = self.random.choice(fitting_ones)
        return build(other, kernels, 0)

    def side_by_side(self, graph: Graph) -> list[Node]:
        """Of some chains the ends, or all, beside the beginnings of the next ones."""
        chains = chains_of(graph)
        made = []
        for first, second in zip(chains[::2], chains[1::2], strict=False):
            if self.random.random() < BRANCHES:
                ends, begins = first[self.random.randrange(len(first)) :], second[: self.random.randint(1, len(second))]
                made.append(side_by_side(graph, ends, begins))
        return made

    def fork(self, node: Node) -> Forked | None:
        ways = partitions(node.op, node.sig, node.inputs) if len(node.outputs) == 1 and not node.op.bodies else ()
        found = (self.split(node, self.random.choice(ways)) for _ in range(8) if ways)
        return next((fork for fork in found if fork is not None), None)

    def split(self, node: Node, partition: Partition) -> Forked | None:
        """In two shards, of which the second may be made aside; with borders of any width aside, which the first
        thread may make alone; or in stages.
        """
        length, pick = partition.length, self.random.randint
        if length < 2:
            return None
        cut, kind = pick(1, length - 1), pick(0, 4)
        if kind == 3:
            return fork_layer(node, partition, [((0, cut, False), (cut, length, True))])
        if kind == 4:
            start = cut - pick(1, 4)
            return fork_layer(node, partition, [((start, cut, True),), ((0, start, False), (cut, length, False))])
        if kind == 1:
            before, behind = pick(1, 3), pick(1, 3)
            aside = ((cut - before, cut, True), (cut, cut + behind, True))
            return fork_layer(node, partition, [aside, ((0, cut - before, False), (cut + behind, length, False))])
        ends = sorted({0, length, *(pick(1, length - 1) for _ in range(kind))})
        stages = [(start, pick(start + 1, max(stop - 1, start + 1)), stop) for start, stop in pairwise(ends)]
        return fork_layer(node, partition, [((a, b, False), (b, c, False)) for a, b, c in stages])


def chains_of(graph: Graph) -> list[list[Node]]:
    """The nodes by the input that they come from."""
    inputs = {value: [value] for value in graph.inputs}
    chains: dict[object, list[Node]] = {value: [] for value in graph.inputs}
    begun = {value: value for value in inputs}
    for node in graph.nodes:
        (start,) = {begun[v] for v in node.inputs if v is not None and v in begun}
        chains[start].append(node)
        begun |= dict.fromkeys(node.outputs, start)
    return list(chains.values())


def model_of(seed: int, chains: int = CHAINS, *, in_turn: bool = False) -> Net:
    """Chains of int8 layers, each from an input to an output; one after the other, or a layer of each in turn."""
    random, numbers, net = Random(seed), np.random.default_rng(seed), Net(opset=17)
    reached = dict[int, tuple[str, tuple[int, int], tuple[float, int]]]()
    steps = [(chain, level) for chain in range(chains) for level in range(LEVELS)]
    for chain, level in sorted(steps, key=lambda step: step[::-1]) if in_turn else steps:
        if level == 0:
            is_line = random.random() < LINES
            channels = random.choice((3, 5, 8, 11) if is_line else (4, 8, 12, 16, 20))
            size = (random.randint(12, 40),) if is_line else (random.randint(5, 12), random.randint(5, 12))
            x = net.input(f"x{chain}", 1, channels, *size, dtype=np.int8)
            y, quant = net.dequantize(x, 0.05, random.randint(-20, 20)), (0.07, random.randint(-20, 20))
            reached[chain] = y, (channels, len(size)), quant
        y, shape, quant = reached[chain]
        y, shape = layer(net, random, numbers, y, *shape)
        codes = net.quantize(y, *quant, out=f"y{chain}" if level == LEVELS - 1 else "")
        reached[chain] = net.dequantize(codes, *quant), shape, quant
        if level == LEVELS - 1:
            net.output(codes, dtype=np.int8)
    return net


def layer(
    net: Net, random: Random, numbers: np.random.Generator, x: str, channels: int, rank: int
) -> tuple[str, tuple[int, int]]:
    """A convolution of some kind, a pool, or a sum, of images or lines; on small ones pads keep what there is."""
    kind = random.choice(("conv", "conv", "pointwise", "depthwise", "depthwise", "max", "average", "add"))
    if kind in ("max", "average"):
        op = {"max": "MaxPool", "average": "AveragePool"}[kind]
        window = {"kernel_shape": [3] * rank, "pads": [1, 1] * rank, "strides": [random.choice((1, 2)), 1][:rank]}
        return net.op(op, x, **window), (channels, rank)
    ones = (1,) * rank
    if kind == "add":
        return net.op("Add", x, weights(net, numbers, (1, channels, *ones))), (channels, rank)
    groups = channels if kind == "depthwise" else 1
    out = channels if kind == "depthwise" else random.choice((4, 8, 10, 16) if rank == 2 else (3, 8, 11))
    size = 1 if kind == "pointwise" else 3
    apart = random.choice((1, 2, 3)) if rank == 1 else 1
    pads = [random.randint(size // 2 * apart, (size - 1) * apart) for _ in range(2 * rank)]
    window = {"pads": pads, "strides": [random.choice((1, 1, 2))] * rank, "dilations": [apart] * rank}
    w = weights(net, numbers, (out, channels // groups, *(size,) * rank))
    biased = (x, w, net.const(numbers.normal(size=out)))
    return net.op("Conv", *biased, group=groups, **(window if size > 1 else {})), (out, rank)


def weights(net: Net, numbers: np.random.Generator, shape: tuple[int, ...]) -> str:
    scale = float(2 / np.sqrt(np.prod(shape[1:]))) / 127
    return net.dequantize(net.const(numbers.integers(-127, 128, shape), np.int8), scale)


def on_two_threads(model: CompiledModel, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """What the generated C gives under ThreadSanitizer, whose findings end it."""
    (found,) = frames_on_two_threads(model, [feeds], folder)
    return found


def frames_on_two_threads(
    model: CompiledModel, frames: Sequence[dict[str, np.ndarray]], folder: Path
) -> list[dict[str, np.ndarray]]:
    """The same of several frames; those of a pipeline, where the model is one."""
    model.write(folder)
    bundle = model.bundle
    read = [f"(void)!fread({port.accessor}(arena), 1, {port.nbytes}, input);" for port in bundle.inputs]
    write = [f"fwrite({port.accessor}(arena), 1, {port.nbytes}, output);" for port in bundle.outputs]
    text = Path(__file__).with_name("two_threads.c.in").read_text()
    for place, lines in (("@inputs@", read), ("@outputs@", write)):
        text = text.replace(place, "\n    ".join(lines))
    (folder / "main.c").write_text(text)
    (folder / "input.bin").write_bytes(b"".join(feeds[p.name].tobytes() for feeds in frames for p in bundle.inputs))
    flags = ["-O0", "-fsanitize=thread", "-DMCUGEN_CORES_POSIX", "-D_POSIX_C_SOURCE=200809L", f"-DFRAMES={len(frames)}"]
    flags += ["-DPIPELINE"] * (model.program.handover is not None)
    run(["gcc", "-std=c99", *flags, "main.c", "net_weights.c", "-lpthread", "-lm", "-o", "two"], folder)
    run(["./two"], folder)
    given = np.frombuffer((folder / "output.bin").read_bytes(), np.int8).reshape(len(frames), -1)
    ends = np.cumsum([port.nbytes for port in bundle.outputs])
    return [
        {
            p.name: part.view(p.dtype).reshape(p.shape)
            for p, part in zip(bundle.outputs, np.split(each, ends[:-1]), strict=True)
        }
        for each in given
    ]


def without_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers stay in their order, and one core's program is of any kernels: nothing here asks for the best ones."""
    monkeypatch.setattr(pipeline, "reorder", lambda program: None)

    def build(problem: SearchProblem) -> BuiltProgram:
        program = pipeline.lowered(problem.graph, problem.board, problem.options, kernels={})
        return BuiltProgram(pipeline.plan_program(program))

    monkeypatch.setattr(candidates, "build_for_goal", build)


def check(seed: int, board: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many layers were divided."""
    without_searches(monkeypatch)
    splits = Splits(seed)
    monkeypatch.setattr(
        two_core_program,
        "shared_program",
        lambda graph, whole, forms, build, room: splits.shared_program(graph, whole, forms, build),
    )
    model = compile_model(model_of(seed).model(), two_cores(board), CompileOptions("net", cores=2))
    numbers = np.random.default_rng(seed)
    feeds = {v.name: numbers.integers(-128, 128, v.type.shape).astype(np.int8) for v in model.graph.inputs}
    found = on_two_threads(model, feeds, folder)
    for name, expected in interpret(model.graph, feeds).items():
        np.testing.assert_array_equal(found[name], expected)
    return splits.count


def check_pipeline(seed: int, board: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame is that of the reference, wherever the model is cut."""
    without_searches(monkeypatch)
    monkeypatch.setattr(two_core_program, "share_layers", lambda graph, whole, *args: (whole, 0.0))
    monkeypatch.setattr(two_core_program, "pipelined_program", Pipelines(seed).pipelined_program)
    options = CompileOptions("net", cores=2, optimize="throughput")
    model = compile_model(model_of(seed, chains=4, in_turn=True).model(), two_cores(board), options)
    assert model.program.handover is not None
    numbers = np.random.default_rng(seed)
    frames = [
        {v.name: numbers.integers(-128, 128, v.type.shape).astype(np.int8) for v in model.graph.inputs}
        for _ in range(FRAMES)
    ]
    for feeds, found in zip(frames, frames_on_two_threads(model, frames, folder), strict=True):
        for name, expected in interpret(model.graph, feeds).items():
            np.testing.assert_array_equal(found[name], expected)


class EveryCut(Splits):
    """Takes the place of the search: each layer is divided into two shards, at the place of its number."""

    def fork(self, node: Node) -> Forked | None:
        """Return the layer with a first shard of `count + 1` parts, modulo the number of places."""
        (partition, *_) = partitions(node.op, node.sig, node.inputs)
        cut = 1 + self.count % (partition.length - 1)
        return fork_layer(node, partition, [((0, cut, False), (cut, partition.length, False))])

    def side_by_side(self, graph: Graph) -> list[Node]:
        """Return no branches."""
        return []


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int16, np.int8])
def test_columns_of_matrices_are_transposed(dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of one column is a row of the result, whose elements lie apart in the input."""
    without_searches(monkeypatch)
    splits, net = EveryCut(0), Net(opset=17)
    unit = 4 // np.dtype(dtype).itemsize
    shapes = [(rows, parts * unit) for rows in (2, 3, 5, 104) for parts in (2, 3, 4, 7) for _ in range(1, parts)]
    for number, shape in enumerate(shapes):
        net.output(net.op("Transpose", net.input(f"x{number}", *shape, dtype=dtype), perm=[1, 0]), dtype=dtype)
    monkeypatch.setattr(
        two_core_program,
        "shared_program",
        lambda graph, whole, forms, build, room: splits.shared_program(graph, whole, forms, build),
    )
    model = compile_model(net.model(), two_cores("rp2350"), CompileOptions("net", cores=2))
    assert splits.count == len(shapes)
    numbers = np.random.default_rng(1)
    feeds = {v.name: numbers.integers(-100, 100, v.type.shape).astype(dtype) for v in model.graph.inputs}
    found = on_two_threads(model, feeds, tmp_path)
    for array, name in zip(feeds.values(), model.graph.output_names, strict=True):
        np.testing.assert_array_equal(found[name], array.T)


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["rp2350", "rp2040"])
def test_some_random_splits(board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(0, board, tmp_path, monkeypatch) > CHAINS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + PROGRAMS))
def test_random_splits(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(seed, ("rp2040", "rp2350", "rp2350_riscv")[seed % 3], tmp_path, monkeypatch) > CHAINS


def test_a_random_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_pipeline(0, "rp2040", tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + PROGRAMS))
def test_random_pipelines(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_pipeline(seed, ("rp2040", "rp2350", "rp2350_riscv")[seed % 3], tmp_path, monkeypatch)
