# SPDX-License-Identifier: Apache-2.0
"""Matrices of bytes that are turned by blocks: as numpy says, over their own inputs too, and in few instructions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate

SHAPES = [(1, 5, 311), (1, 311, 5), (2, 47, 17), (3, 24, 28), (1, 16, 99), (1, 99, 16), (2, 17, 60), (1, 100, 52)]
"""Batch, rows, columns: with rows and columns beside the blocks, and without."""


def turned(*shapes: tuple[int, ...], dtype: type) -> Net:
    net = Net()
    for number, shape in enumerate(shapes):
        x = net.input(f"x{number}", *shape, dtype=dtype)
        net.output(net.op("Transpose", x, out=f"y{number}", perm=[0, 2, 1]), dtype=dtype)
    return net


def compiled(net: Net, board: str) -> CompiledModel:
    return compile_model(net.model(), board, CompileOptions(kernels=("transpose",)))


@pytest.mark.spread(4)
@pytest.mark.parametrize("board", ["nrf52840", "nrf5340"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool])
def test_bit_exact(board: str, dtype: type):
    net = turned(*SHAPES, dtype=dtype)
    model, feeds = compiled(net, board), random_feeds(net.model())
    assert {i.code["lanes"] for i in model.program.instrs} == {"blocks"}
    run = simulate(model.bundle, load_board(board), [feeds], measure=False)
    for number in range(len(SHAPES)):
        np.testing.assert_array_equal(run.outputs[0][f"y{number}"], feeds[f"x{number}"].transpose(0, 2, 1))


@pytest.mark.parametrize("target", ["nrf52840", "host"])
def test_an_output_over_its_input(target: str):
    """Blocks, and the plain C that stands beside them on this computer, read what they overwrite before that."""
    for shape in SHAPES:
        net = turned(shape, dtype=np.int8)
        model, feeds = compiled(net, "nrf52840"), random_feeds(net.model())
        assert model.program.instrs[0].overlaps
        setup = Setup(sanitize=target == "host")
        run = simulate(model.bundle, load_board(target), [feeds], measure=False, setup=setup)
        np.testing.assert_array_equal(run.outputs[0]["y0"], feeds["x0"].transpose(0, 2, 1))


def test_instructions():
    """Two an element, where element by element takes three, and five of matrices whose rows end beside words."""
    for shape, most in (((1, 100, 512), 1.9), ((1, 16, 363), 2.2)):
        model = compiled(net := turned(shape, dtype=np.int8), "nrf52840")
        run = simulate(model.bundle, load_board("nrf52840"), [random_feeds(net.model())])
        assert run.instructions < most * np.prod(shape)


@pytest.mark.parametrize(
    ("board", "shape"), [("nrf52840", (1, 16, 33)), ("nrf52840", (1, 3, 999)), ("rp2040", (1, 99, 16))]
)
def test_small_ones_and_other_cpus_keep_to_elements(board: str, shape: tuple[int, ...]):
    model = compiled(turned(shape, dtype=np.int8), board)
    assert model.program.instrs[0].code["lanes"] == ""
