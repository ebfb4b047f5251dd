# SPDX-License-Identifier: Apache-2.0
"""Softmax of int8 rows with the DSP extension, where each exponential is looked up once; of rows of one element."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import load_board
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.simulation import Setup, simulate

DEPTHS = (8, 9, 15, 16, 31, 32, 64, 100, 255, 256)
"""Few and many, with and without elements beside eights."""
CODES = ((1 / 256, -128), (0.0071, 127), (2.0**-21, -128))
"""Of outputs: as exporters have them; that is limited; that takes no shift behind a product's upper word."""


def rows(net: Net, depth: int, code: tuple[float, int] = CODES[0], number: int = 12) -> Net:
    """A softmax of rows between an input and an output of its own."""
    name = f"{depth}_{len(net.inputs)}"
    real = net.dequantize(net.input(f"x{name}", number, depth, dtype=np.int8), 0.05, 3)
    net.output(net.quantize(net.op("Softmax", real, axis=1), *code, out=f"y{name}"), dtype=np.int8)
    return net


def extreme(model: CompiledModel, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Some rows of one code, small differences, one element far above or among the last."""
    for x in feeds.values():
        half = x.shape[1] // 2
        x[0], x[1], x[2] = -128, 127, -1
        x[3:6] //= 16
        x[4], x[4, half], x[5, -1] = -128, 127, 127
    return feeds


@pytest.mark.parametrize(("board", "target"), [("nrf52840", "nrf52840"), ("nrf5340", "nrf5340"), ("nrf52840", "host")])
def test_bit_exact(board: str, target: str):
    net = Net(21)
    for depth in DEPTHS:
        for code in CODES if depth in (9, 32, 256) else CODES[:1]:
            rows(net, depth, code)
    model = compile_model(net.model(), board)
    assert {i.kernel for i in model.program.instrs} == {"softmax_s8_dsp"}
    feeds = extreme(model, random_feeds(net.model()))
    wanted = interpret(model.graph, feeds)
    run = simulate(model.bundle, load_board(target), [feeds], measure=False, setup=Setup(sanitize=target == "host"))
    for name, codes in wanted.items():
        np.testing.assert_array_equal(run.outputs[0][name], codes, name)


@pytest.mark.parametrize(("depth", "most"), [(256, 9.1), (64, 11.0), (16, 18.0)])
def test_instructions(depth: int, most: float):
    """An element of a long row took twelve where each exponential was looked up twice."""
    net = rows(Net(21), depth, number=64)
    run = simulate(compile_model(net.model(), "nrf52840").bundle, load_board("nrf52840"), [random_feeds(net.model())])
    assert run.instructions < most * 64 * depth


@pytest.mark.parametrize(
    ("board", "depth", "number"),
    [("nrf52840", 7, 12), ("nrf52840", 257, 12), ("nrf52840", 64, 3), ("rp2040", 64, 12), ("corstone300", 64, 12)],
)
def test_others_keep_nothing(board: str, depth: int, number: int):
    """Rows that are short, long or few: what is kept is no more than the tensor."""
    model = compile_model(rows(Net(21), depth, number=number).model(), board)
    assert {i.kernel for i in model.program.instrs} == {"softmax_s8"}


@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "rv32imc"])
def test_attention_that_sees_one_place(board: str):
    """Its scores are not computed: what they choose from goes on as it is."""
    net = Net(21)
    zeros = {"q": 3, "k": -5, "v": 0}
    q, k, v = (net.dequantize(net.input(n, 6, 1, 8, dtype=np.int8), 0.04, zero) for n, zero in zeros.items())
    product = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
    scores = net.dequantize(net.quantize(product, 0.1, 0), 0.1, 0)
    shares = net.dequantize(net.quantize(net.op("Softmax", scores, axis=-1), 1 / 256, -128), 1 / 256, -128)
    net.output(net.quantize(net.op("MatMul", shares, v), 0.04, 0, out="y"), dtype=np.int8)
    model, feeds = compile_model(net.model(), board), random_feeds(net.model())
    assert not any("softmax" in i.kernel for i in model.program.instrs)
    assert all(i.operands[0].buffer.name not in ("q", "k") for i in model.program.instrs if i.operands)
    (found,) = simulate(model.bundle, load_board("host"), [feeds], measure=False).outputs
    np.testing.assert_array_equal(found["y"], interpret(model.graph, feeds)["y"])
    assert np.abs(found["y"].astype(int) - feeds["v"]).max() <= 1  # the largest code says 255 / 256
