# SPDX-License-Identifier: Apache-2.0
"""Layers divided anywhere, in any way, computed by two threads under ThreadSanitizer: the integers of one core.

The fast test has some hundred splits; the sweep has 10,000.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from compilers import run
from onnx_models import Net
from two_cores import two_cores

from mcugen import fitting
from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.fitting import cores
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Division
from mcugen.hir.traits import divisions
from mcugen.kernels.choose import fitting_kernels
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.ops.fork import Forked, forked
from mcugen.options import CompileOptions

CHAINS = 24
"""Of a model: three layers each, every one divided if it can be."""
PROGRAMS = 170
"""Of the sweep: some 60 splits each."""


class Splits:
    """Takes the place of the search for what pays: each layer is divided at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0

    def shared_program(self, graph: Graph, whole: Program, forms: cores.Forms, build: fitting.sharing.Build) -> Program:
        other, kernels = graph.copy(), dict[Node, Kernel]()
        for node in list(other.nodes):
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

    def fork(self, node: Node) -> Forked | None:
        ways = divisions(node.op, node.sig, node.inputs) if len(node.outputs) == 1 and not node.op.bodies else ()
        found = (self.split(node, self.random.choice(ways)) for _ in range(8) if ways)
        return next((fork for fork in found if fork is not None), None)

    def split(self, node: Node, division: Division) -> Forked | None:
        """In two portions, with borders of any width made aside, or in stages."""
        length, pick = division.length, self.random.randint
        if length < 2:
            return None
        cut, kind = pick(1, length - 1), pick(0, 2)
        if kind == 1:
            before, behind = pick(1, 3), pick(1, 3)
            aside = ((cut - before, cut, True), (cut, cut + behind, True))
            return forked(node, division, [aside, ((0, cut - before, False), (cut + behind, length, False))])
        ends = sorted({0, length, *(pick(1, length - 1) for _ in range(kind))})
        stages = [(start, pick(start + 1, max(stop - 1, start + 1)), stop) for start, stop in pairwise(ends)]
        return forked(node, division, [((a, b, False), (b, c, False)) for a, b, c in stages])


def model_of(seed: int) -> Net:
    """Chains of int8 layers, each from an input to an output."""
    random, numbers, net = Random(seed), np.random.default_rng(seed), Net(opset=17)
    for chain in range(CHAINS):
        channels = random.choice((4, 8, 12, 16, 20))
        size = (random.randint(5, 12), random.randint(5, 12))
        x = net.input(f"x{chain}", 1, channels, *size, dtype=np.int8)
        y, quant = net.dequantize(x, 0.05, random.randint(-20, 20)), (0.07, random.randint(-20, 20))
        for last in (False, False, True):
            y, channels = layer(net, random, numbers, y, channels)
            codes = net.quantize(y, *quant, out=f"y{chain}" if last else "")
            y = net.dequantize(codes, *quant)
        net.output(codes, dtype=np.int8)
    return net


def layer(net: Net, random: Random, numbers: np.random.Generator, x: str, channels: int) -> tuple[str, int]:
    """A convolution of some kind, a pool, or a sum; on small images pads keep what there is."""
    kind = random.choice(("conv", "conv", "pointwise", "depthwise", "depthwise", "max", "average", "add"))
    if kind in ("max", "average"):
        op = {"max": "MaxPool", "average": "AveragePool"}[kind]
        return net.op(op, x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[random.choice((1, 2)), 1]), channels
    if kind == "add":
        return net.op("Add", x, weights(net, numbers, (1, channels, 1, 1))), channels
    groups = channels if kind == "depthwise" else 1
    out = channels if kind == "depthwise" else random.choice((4, 8, 10, 16))
    size = 1 if kind == "pointwise" else 3
    pads = [random.randint(size // 2, size - 1) for _ in range(4)]
    window = {"pads": pads, "strides": [random.choice((1, 1, 2))] * 2} if size > 1 else {}
    w = weights(net, numbers, (out, channels // groups, size, size))
    return net.op("Conv", x, w, net.const(numbers.normal(size=out)), group=groups, **window), out


def weights(net: Net, numbers: np.random.Generator, shape: tuple[int, ...]) -> str:
    scale = float(2 / np.sqrt(np.prod(shape[1:]))) / 127
    return net.dequantize(net.const(numbers.integers(-127, 128, shape), np.int8), scale)


def on_two_threads(model: CompiledModel, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """What the generated C gives under ThreadSanitizer, whose findings end it."""
    model.write(folder)
    bundle = model.bundle
    read = [f"(void)!fread({port.accessor}(arena), 1, {port.nbytes}, input);" for port in bundle.inputs]
    write = [f"fwrite({port.accessor}(arena), 1, {port.nbytes}, output);" for port in bundle.outputs]
    text = Path(__file__).with_name("two_threads.c.in").read_text()
    (folder / "main.c").write_text(
        text.replace("@inputs@", "\n    ".join(read)).replace("@outputs@", "\n    ".join(write))
    )
    (folder / "input.bin").write_bytes(b"".join(feeds[port.name].tobytes() for port in bundle.inputs))
    flags = ("-O1", "-fsanitize=thread", "-DMCUGEN_CORES_POSIX", "-D_POSIX_C_SOURCE=200809L")
    run(["gcc", "-std=c99", *flags, "main.c", "net_weights.c", "-lpthread", "-lm", "-o", "two"], folder)
    run(["./two"], folder)
    given = np.frombuffer((folder / "output.bin").read_bytes(), np.int8)
    ends = np.cumsum([port.nbytes for port in bundle.outputs])
    parts = np.split(given, ends[:-1])
    return {port.name: part.reshape(port.shape) for port, part in zip(bundle.outputs, parts, strict=True)}


def check(seed: int, board: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many layers were divided."""
    splits = Splits(seed)
    monkeypatch.setattr(
        fitting,
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


@pytest.mark.parametrize("board", ["rp2040", "rp2350"])
def test_some_random_splits(board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(0, board, tmp_path, monkeypatch) > CHAINS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + PROGRAMS))
def test_random_splits(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(seed, ("rp2040", "rp2350", "rp2350_riscv")[seed % 3], tmp_path, monkeypatch) > CHAINS
