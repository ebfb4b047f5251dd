# SPDX-License-Identifier: Apache-2.0
"""Images of few planes are turned where they lie: bit-exact on every CPU, with little scratch and few instructions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Access
from mcugen.simulation import Setup, simulate

IMAGES = ((1, 3, 24, 24), (1, 2, 8, 70), (2, 3, 16, 32), (1, 4, 12, 48), (1, 7, 20, 20), (1, 3, 13, 30), (3, 2, 330))


def transposed(*shapes: tuple[int, ...], dtype: type = np.int8, inverse: bool = False) -> Net:
    """Each image from planes to pixels, or back, between an input and an output."""
    net = Net()
    for number, shape in enumerate(shapes):
        rank = len(shape)
        shape = (shape[0], *shape[2:], shape[1]) if inverse else shape
        perm = (0, rank - 1, *range(1, rank - 1)) if inverse else (0, *range(2, rank), 1)
        x = net.input(f"x{number}", *shape, dtype=dtype)
        net.output(net.op("Transpose", x, out=f"y{number}", perm=perm), dtype=dtype)
    return net


def compiled(net: Net, board: str) -> CompiledModel:
    return compile_model(net.model(), board, CompileOptions(kernels=("transpose_inplace",)))


@pytest.mark.spread(6)
@pytest.mark.parametrize("board", ["host", "nrf52840", "rp2040", "corstone300"])
@pytest.mark.parametrize("inverse", [False, True])
def test_bit_exact(board: str, inverse: bool):
    for dtype in (np.int8, np.int16, np.float32):
        net = transposed(*IMAGES, dtype=dtype, inverse=inverse)
        model, feeds = compiled(net, board), random_feeds(net.model())
        assert {i.kernel for i in model.program.instrs} == {"transpose_inplace"}
        for instr in model.program.instrs:
            assert instr.operand("x").buffer.offset == instr.operand("y").buffer.offset
        run = simulate(model.bundle, load_board(board), [feeds], measure=False, setup=Setup(sanitize=board == "host"))
        axes = {n: (0, n - 1, *range(1, n - 1)) if inverse else (0, *range(2, n), 1) for n in (3, 4)}
        for number in range(len(IMAGES)):
            x = feeds[f"x{number}"]
            np.testing.assert_array_equal(run.outputs[0][f"y{number}"], x.transpose(axes[x.ndim]))


def test_an_input_that_is_used_again_stays():
    net = Net()
    x = net.input("x", 1, 3, 24, 24)
    net.output(net.op("Transpose", x, out="y", perm=[0, 2, 3, 1]))
    net.output(net.op("Relu", x, out="z"))
    model, feeds = compiled(net, "host"), random_feeds(net.model())
    (run,) = simulate(model.bundle, load_board("host"), [feeds], measure=False).outputs
    np.testing.assert_array_equal(run["y"], feeds["x"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(run["z"], np.maximum(feeds["x"], 0))


@pytest.mark.parametrize(("board", "most"), [("nrf52840", 10), ("rp2040", 16)])
@pytest.mark.parametrize("inverse", [False, True])
def test_a_photo_takes_few_instructions_and_little_scratch(board: str, most: int, inverse: bool):
    net = transposed((1, 3, 96, 96), inverse=inverse)
    model = compiled(net, board)
    (instr,) = model.program.instrs
    assert sum(o.buffer.nbytes for o in instr.operands if o.access is Access.SCRATCH) < 700
    assert model.program.arena_size < 3 * 96 * 96 + 700
    run = simulate(model.bundle, load_board(board), [random_feeds(net.model())], per_layer=True)
    assert run.layer_instructions is not None
    print(board, inverse, run.layer_instructions[0] / (3 * 96 * 96))
    assert run.layer_instructions[0] < most * 3 * 96 * 96
