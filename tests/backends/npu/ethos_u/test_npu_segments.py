# SPDX-License-Identifier: Apache-2.0
"""Segments of whole networks: a transformer block is one, and a segment that Vela miscompiles is halved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net
from segments import conv, weights

from mcugen.backends.accelerator import SegmentRefused
from mcugen.backends.npu.ethos_u import vela
from mcugen.backends.npu.ethos_u.accelerator import EthosU
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.ops.offload import CompiledSegment, Offloaded

pytestmark = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")
TOKENS, WIDTH, HEADS, HIDDEN = 16, 32, 4, 64


def transformer_block() -> onnx.ModelProto:
    """Return a block with attention, layer normalization before both parts, and residual sums, all of int8."""
    net, random = Net(), np.random.default_rng(9)

    def normalized(x: str) -> str:
        scale, bias = (net.const(random.uniform(0.5, 1.5, WIDTH).astype(np.float32)) for _ in range(2))
        return net.fake(net.op("LayerNormalization", x, scale, bias, axis=-1), 0.03)

    def dense(x: str, depth: int, out: int, scale: float, seed: int) -> str:
        return net.fake(net.op("MatMul", x, net.op("Transpose", weights(net, out, depth, seed=seed))), scale)

    def split(x: str, perm: Sequence[int]) -> str:
        shape = net.const([1, TOKENS, HEADS, WIDTH // HEADS], np.int64)
        return net.op("Transpose", net.op("Reshape", x, shape), perm=perm)

    x = net.dequantize(net.input("x", 1, TOKENS, WIDTH, dtype=np.int8), 0.04, 5)
    first = normalized(x)
    q, k, v = (dense(first, WIDTH, WIDTH, 0.05, seed) for seed in (1, 2, 3))
    scores = net.op("MatMul", split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)))
    scores = net.fake(net.op("Mul", scores, net.const(np.float32(0.35))), 0.06)
    attention = net.fake(net.op("Softmax", scores, axis=-1), 1 / 256, -128)
    mixed = net.fake(net.op("MatMul", attention, split(v, (0, 2, 1, 3))), 0.04)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=(0, 2, 1, 3)), net.const([1, TOKENS, WIDTH], np.int64))
    middle = net.fake(net.op("Add", dense(joined, WIDTH, WIDTH, 0.03, 4), x), 0.05)
    hidden = dense(normalized(middle), WIDTH, HIDDEN, 0.05, 5)
    active = net.fake(net.op("Mul", hidden, net.fake(net.op("Sigmoid", hidden), 1 / 256, -128)), 0.03)
    total = net.op("Add", dense(active, HIDDEN, WIDTH, 0.05, 6), middle)
    net.output(net.quantize(total, 0.07, out="y"), dtype=np.int8)
    return net.model()


def board_with(kind: str) -> Board:
    """Return this computer with an NPU, so that programs run here."""
    board = replace(load_board("corstone320" if "u85" in kind else "corstone300"), qemu="")
    assert board.npu is not None
    return replace(board, npu=replace(board.npu, kind=kind))


def segments_in(compiled: CompiledModel) -> list[Offloaded]:
    """Return the segments of a program."""
    return [node.op for node in compiled.graph.nodes if isinstance(node.op, Offloaded)]


@pytest.mark.parametrize("kind", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_a_transformer_block_is_one_segment(kind: str):
    model, board = transformer_block(), board_with(kind)
    mixed = compile_model(model, board, CompileOptions(npu="only"))
    assert len(segments_in(mixed)) == len(mixed.graph.nodes) == 1
    inputs = [{"x": np.random.default_rng(3).integers(-128, 128, (1, TOKENS, WIDTH)).astype(np.int8)}]
    ours, theirs = (c.interpret_samples(inputs)[0]["y"].astype(int) for c in (mixed, compile_model(model, board)))
    noise = np.square(ours - theirs).mean()  # A step of one layer is some steps of the next one.
    assert 1000 * noise < theirs.var()
    np.testing.assert_array_equal(mixed.simulate(inputs).outputs[0]["y"], ours)
    if "u85" in kind:
        assert mixed.program.cycles_estimate < compile_model(model, board).program.cycles_estimate


def test_exact_keeps_what_would_differ_on_the_cpu():
    model, board = transformer_block(), board_with("ethos-u85-256")
    exact = compile_model(model, board, CompileOptions(npu="exact"))
    on_npu = {node.op.name for op in segments_in(exact) for node in op.body.nodes}
    assert not on_npu & {"softmax", "normalize"}
    inputs = [{"x": np.random.default_rng(4).integers(-128, 128, (1, TOKENS, WIDTH)).astype(np.int8)}]
    np.testing.assert_equal(exact.interpret_samples(inputs), compile_model(model, board).interpret_samples(inputs))


def convolutions() -> onnx.ModelProto:
    """Return a network whose second segment reads results of the first one, and of a pool on the CPU."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 8, 9, 9, dtype=np.int8), 0.05, 3)
    first = net.fake(conv(8, (3, 3), channels=8, pads=[1, 1, 1, 1], relu=True)(net, x), 0.4, -128)
    second = net.fake(conv(8, (1, 1), channels=8)(net, first), 0.9, 4)
    pooled = net.fake(net.op("AveragePool", second, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 0.9, 4)
    third = net.fake(conv(8, (3, 3), channels=8, pads=[1, 1, 1, 1])(net, pooled), 0.8, -7)
    total = net.fake(net.op("Add", third, second), 1.3, 2)
    net.output(net.quantize(conv(4, (1, 1), channels=8)(net, total), 1.7, -9, out="y"), dtype=np.int8)
    return net.model()


@pytest.mark.parametrize("longest", [1, 2, 100])
def test_a_refused_segment_is_halved(monkeypatch: pytest.MonkeyPatch, longest: int):
    whole = EthosU.compile

    def refuse(self: EthosU, bodies: Sequence[Graph], board: Board) -> list[CompiledSegment | SegmentRefused]:
        results = whole(self, bodies, board)
        return [
            SegmentRefused("too long") if len(body.nodes) > longest else result
            for body, result in zip(bodies, results, strict=True)
        ]

    monkeypatch.setattr(EthosU, "compile", refuse)
    model, board = convolutions(), board_with("ethos-u55-128")
    mixed = compile_model(model, board, CompileOptions(npu="only"))
    sizes = [len(op.body.nodes) for op in segments_in(mixed)]
    assert max(sizes) <= longest
    assert sum(sizes) >= 5
    assert len(sizes) == {1: sum(sizes), 2: 3, 100: 2}[longest]
    inputs = [{"x": np.random.default_rng(5).integers(-128, 128, (1, 8, 9, 9)).astype(np.int8)}]
    np.testing.assert_equal(mixed.simulate(inputs).outputs, mixed.interpret_samples(inputs))
