# SPDX-License-Identifier: Apache-2.0
"""Layers in portions of channels whose weights stay in a cache, before which lies slow memory."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, outputs_in_c, random_feeds

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.lir.program import Program
from mcugen.memory.constant_stalls import constant_stall_cycles
from mcugen.search import refinements

RT1060 = load_board("rt1060")
FLASH = CompileOptions("net", place=Places(weights="flash"))
HOST = replace(
    load_board("host"),
    clock_hz=RT1060.clock_hz,
    memories=RT1060.memories,
    caches=RT1060.caches,
    **{f"{part}_memory": getattr(RT1060, f"{part}_memory") for part in ("arena", "weights", "code", "data")},
)
"""This computer, if its memories and caches were those of the board: weights lie in flash on a serial bus."""
RANDOM = np.random.default_rng(7)


def quantized_layer(net: Net, x: str, weights: np.ndarray, op: str, **attributes: object) -> str:
    """Codes of int8, with a scale for each output channel."""
    axis = 0 if op == "Conv" else 1
    scales = net.const(RANDOM.uniform(0.002, 0.004, weights.shape[axis]))
    zeros = net.const(np.zeros(weights.shape[axis]), np.int8)
    w = net.op("DequantizeLinear", net.const(weights, np.int8), scales, zeros, axis=axis)
    return net.fake(net.op(op, x, w, **attributes), 0.05)


def convolution(channels: int = 130, side: int = 12) -> onnx.ModelProto:
    """64 channels to so many: 576 bytes of weights each."""
    net = Net()
    x = net.fake(net.input("x", 1, 64, side, side), 0.02)
    weights = RANDOM.integers(-127, 128, (channels, 64, 3, 3))
    net.output(quantized_layer(net, x, weights, "Conv", pads=[1] * 4, strides=[2, 2]))
    return net.model()


def rows(count: int = 12) -> onnx.ModelProto:
    """So many rows by a matrix of 256 by 320."""
    net = Net()
    x = net.fake(net.input("x", count, 256), 0.02)
    net.output(quantized_layer(net, x, RANDOM.integers(-127, 128, (256, 320)), "MatMul"))
    return net.model()


def float_convolution() -> onnx.ModelProto:
    net = Net()
    weights = net.const(RANDOM.normal(size=(64, 32, 3, 3)))
    net.output(net.op("Relu", net.op("Conv", net.input("x", 1, 32, 7, 7), weights, net.const(RANDOM.normal(size=64)))))
    return net.model()


def layers(program: Program) -> int:
    """Calls that multiply."""
    return sum(instr.macs > 0 for instr in program.instrs)


def whole(model: onnx.ModelProto, board: Board | str, monkeypatch: pytest.MonkeyPatch) -> CompiledModel:
    """Compiled without portions."""
    with monkeypatch.context() as patch:
        patch.setattr(refinements, "tile_output_channels", lambda *_: None)
        return compile_model(model, board, FLASH)


def waits(compiled: CompiledModel) -> float:
    return constant_stall_cycles(compiled.program, RT1060, RT1060.memory("flash"))


MODELS = {"convolution": convolution(), "rows": rows(), "floats": float_convolution()}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_each_weight_comes_from_slow_flash_once(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = whole(model, RT1060, monkeypatch), compile_model(model, RT1060, FLASH)
    assert layers(before.program) == 1 < layers(found.program)
    assert waits(found) < 0.5 * waits(before)
    assert found.program.weights_size < 1.1 * before.program.weights_size
    assert found.program.instructions_estimate < 1.25 * before.program.instructions_estimate


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_portions_compute_what_the_layer_does(model: onnx.ModelProto) -> None:
    compiled, feeds = compile_model(model, HOST, FLASH), random_feeds(model)
    assert layers(compiled.program) > 1
    assert_close(outputs_in_c(compiled, feeds), interpret(compiled.graph, feeds))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_before_people_portions_are_one_layer(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name, the shape and the products of the whole."""
    before, found = whole(model, RT1060, monkeypatch), compile_model(model, RT1060, FLASH)

    def computed(compiled: CompiledModel) -> list[tuple[str, int]]:
        return [(layer.name, layer.macs) for layer in compiled.report.layers if layer.macs]

    def listed(compiled: CompiledModel) -> list[str]:
        return re.findall(
            r"^ \*  +\d+  (\S+ +\d[\dx]* \w+) ",
            next(text for name, text in compiled.bundle.files.items() if name.endswith("net.h")),
            re.MULTILINE,
        )

    assert computed(found) == computed(before)
    assert set(listed(found)) == set(listed(before)) != set()


def test_channels_of_a_group_are_no_layer_of_their_own() -> None:
    """They read some of the input only."""
    net = Net()
    x = net.fake(net.input("x", 1, 128, 12, 12), 0.02)
    weights = RANDOM.integers(-127, 128, (128, 64, 3, 3))
    net.output(quantized_layer(net, x, weights, "Conv", pads=[1] * 4, strides=[2, 2], group=2))
    assert layers(compile_model(net.model(), RT1060, FLASH).program) <= 2


def test_portions_fit_the_cache() -> None:
    program = compile_model(convolution(), RT1060, FLASH).program
    (cache,) = (c for c in RT1060.caches if c.holds == "data")
    sizes = [
        sum(o.buffer.nbytes for o in i.operands if o.buffer.space.name == "CONST") for i in program.instrs if i.macs
    ]
    assert len(sizes) > 2 and all(cache.evicted_share(nbytes) == 0 for nbytes in sizes)


def test_one_row_reads_its_weights_once_anyway() -> None:
    assert layers(compile_model(rows(1), RT1060, FLASH).program) == 1


def test_without_a_cache_nothing_would_stay() -> None:
    bare = replace(RT1060, caches=tuple(c for c in RT1060.caches if c.holds != "data"))
    assert layers(compile_model(convolution(), bare, FLASH).program) == 1


def test_weights_that_a_cache_holds_whole_stay_whole() -> None:
    assert layers(compile_model(convolution(32), RT1060, FLASH).program) == 1


def test_weights_in_fast_memory_stay_whole() -> None:
    options = replace(FLASH, place=Places(weights="ocram2"))
    assert layers(compile_model(convolution(), RT1060, options).program) == 1
