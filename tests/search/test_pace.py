# SPDX-License-Identifier: Apache-2.0
"""`balanced` beside `speed`: not much slower where both leave most of the board free, elsewhere as small as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net, assert_close, numpy_outputs, random_feeds

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.kernels.choose import MAX_BALANCED_SLOWDOWN


def network() -> Net:
    """Two convolutions of floats."""
    net, random = Net(), np.random.default_rng(4)
    x = net.input("x", 1, 16, 12, 12)
    for _ in range(2):
        weights, bias = random.normal(size=(16, 16, 3, 3)) / 12, random.normal(size=16)
        x = net.op("Relu", net.op("Conv", x, net.const(weights), net.const(bias), pads=[1, 1, 1, 1]))
    net.output(x)
    return net


def made(board: Board, goal: str = "balanced") -> CompiledModel:
    return compile_model(network().model(), board, CompileOptions(optimize=goal, kernels=("conv2d_f32_fpu",)))


def sums_apart(compiled: CompiledModel) -> int:
    """How many there are in the code."""
    return sum(file.count("vadd.f32 s") for file in compiled.bundle.files.values())


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["nrf52840", "rp2350"])
def test_floats_take_a_quarter_more_cycles_at_most(name: str):
    model = network().model()
    feeds, cycles = random_feeds(model), list[int]()
    fast, balanced = made(load_board(name), "speed"), made(load_board(name))
    for compiled in (fast, balanced):
        run = compiled.simulate([feeds], cycles=True)
        assert run.cycles is not None and run.cycles.total is not None
        assert_close(run.outputs[0], numpy_outputs(model, feeds), 2e-5)
        cycles.append(run.cycles.total)
    assert cycles[1] <= MAX_BALANCED_SLOWDOWN * cycles[0]
    assert 0 < sums_apart(balanced) < sums_apart(fast)


def test_what_memory_is_scarce_for_stays_as_small_as_it_is():
    board = load_board("nrf52840")
    (ram,) = (memory for memory in board.memories if memory.name == board.arena_memory)
    narrow = replace(board, memories=tuple(replace(m, size=48 * 1024) if m is ram else m for m in board.memories))
    assert sums_apart(made(board)) > 0
    assert sums_apart(made(narrow)) == 0
    assert made(narrow).program.arena_size <= made(board).program.arena_size


def of_few_bits(bits: int) -> CompiledModel:
    """As a network for digits: weights of the second convolution and of the dense layer have so many bits."""
    net, random = Net(21), np.random.default_rng(5)
    high = 2 ** (bits - 1) - 1

    def weights(*shape: int) -> str:
        return net.dequantize(net.const(random.integers(-high, high + 1, shape), np.int8), 0.3 / high)

    first = net.dequantize(net.const(random.integers(-127, 128, (8, 1, 5, 5)), np.int8), 0.003)
    x = net.fake(net.op("Conv", net.fake(net.input("x", 1, 1, 28, 28), 0.05, 3), first, pads=[2] * 4), 0.1)
    x = net.fake(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 0.1)
    x = net.fake(net.op("Conv", x, weights(16, 8, 5, 5), pads=[2] * 4), 0.2)
    x = net.fake(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[3, 3]), 0.2)
    x = net.op("MatMul", net.op("Reshape", x, net.const([1, 256], np.int64)), weights(256, 10))
    net.output(net.quantize(x, 1.0, 0, out="y"), dtype=np.int8)
    return compile_model(net.model(), "nrf52840")


def test_weights_that_came_in_few_bits_stay_so():
    assert of_few_bits(4).program.weights_size < 0.6 * of_few_bits(8).program.weights_size
