# SPDX-License-Identifier: Apache-2.0
"""What kernels say of cycles beyond instructions is what their loops take by the timings of the cores."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.kernels.dsp.dsp_conv import STALLS
from mcugen.reporting.kernels import declared_kernels

BOARDS = {"cortex-m4": "stm32l4r5", "cortex-m33": "stm32u575", "cortex-m7": "stm32h7a3"}
KERNELS = {kernel.name: kernel for kernel in declared_kernels()}


def layer(kernel: str, depth: int) -> Net:
    """A layer of int8 that the kernel takes: a row, or pixels."""
    net, random = Net(21), np.random.default_rng(1)
    is_row, most = kernel.startswith("dense"), 7 if "s4" in kernel else 60
    shape = (1, depth) if is_row else (1, depth, 4, 5)
    x = net.dequantize(net.input("x", *shape, dtype=np.int8), 0.05, 3)
    codes = random.integers(-most, most, (64, depth) if is_row else (64, depth, 1, 1))
    w = net.dequantize(net.const(codes, np.int8), 0.01)
    y = net.op("Gemm", x, w, transB=1) if is_row else net.op("Conv", x, w)
    net.output(net.quantize(y, 0.4, 5, np.int8, out="y"), dtype=np.int8)
    return net


def figures(kernel: str, depth: int, board: str, goal: str) -> tuple[int, int, int]:
    """Cycles without waits, instructions, steps."""
    model = layer(kernel, depth).model()
    on = load_board(board).with_flash_waits(0)  # nothing is copied then, nor waited for
    compiled = compile_model(model, on, CompileOptions(kernels=(kernel,), optimize=goal))
    (node,) = [n for n in compiled.graph.nodes if n.op.macs(n.sig)]
    run = compiled.simulate([random_feeds(model)], cycles=True)
    assert run.cycles is not None and run.cycles.without_waits is not None and run.instructions is not None
    return run.cycles.without_waits, run.instructions, KERNELS[kernel].extra_of(node)


@pytest.mark.spread(5)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", STALLS)
@pytest.mark.parametrize("core", BOARDS)
def test_stalls_are_those_of_the_loops(kernel: str, core: str):
    """By two layers, whose difference is steps: cycles for speed, beside instructions of loops that were measured."""
    few, many = (figures(kernel, depth, BOARDS[core], "ram") for depth in (32, 64))
    fast_few, fast_many = few, many
    if core == "cortex-m7":  # which has other loops where time counts
        fast_few, fast_many = (figures(kernel, depth, BOARDS[core], "speed") for depth in (32, 64))
    beyond = (fast_many[0] - fast_few[0]) - (many[1] - few[1])
    assert beyond / (many[2] - few[2]) == pytest.approx(STALLS[kernel][core], abs=0.6)
