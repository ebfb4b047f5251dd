# SPDX-License-Identifier: Apache-2.0
"""How little RAM the MLPerf Tiny models take, at which price: bytes of arena, and instructions under QEMU.

`pytest -s tests/test_memory.py` prints the figures of docs/explanation/memory.md.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from shared_models import MODELS, recorded, roomy

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

pytestmark = pytest.mark.shared

INT8 = ("resnet8_cifar10", "ds_cnn_kws", "mobilenet_v1_025_vww", "autoencoder_ad")
BOARD = "nrf52840"

MAX_ARENA_BYTES = {"balanced": (44_000, 14_000, 50_000, 2_100), "ram": (20_500, 6_000, 31_000, 768)}
"""Bytes of arena by goal: inputs, outputs and scratch included."""

MILLIONS = (18.0, 4.6, 14.4, 0.35)
"""Instructions with the least RAM on a Cortex-M4: 0.6 of TensorFlow Lite Micro with CMSIS-NN."""

OTHERS = {"rp2040": (20_500, 6_500, 31_000, 768), "corstone300": (20_500, 6_000, 31_000, 768)}
"""Bytes of arena with the least RAM on a Cortex-M0+ and M55."""


@cache
def compiled(name: str, board: str, goal: str, rows: bool = False) -> CompiledModel:
    """Channels last or first, as the file has it."""
    options = CompileOptions(optimize=goal, stream_input=rows)
    return compile_model(MODELS / f"{name}.onnx", roomy(board), options)


def measured(name: str, goal: str, rows: bool = False) -> float:
    """Millions of instructions; the outputs are those of numpy to the last bit."""
    model = compiled(name, BOARD, goal, rows)
    inputs, _ = recorded(name, model)
    run = model.simulate(inputs[:1])
    assert run.instructions is not None
    for output, expected in interpret(model.graph, inputs[0]).items():
        np.testing.assert_array_equal(run.outputs[0][output], expected)
    millions = run.instructions / 1e6
    print(f"{name}: {goal}{', input row by row' * rows}: arena {model.program.arena_size:,} bytes, {millions:.3f} M")
    return millions


def layouts(name: str) -> list[str]:
    """The model with its image channels first, and last."""
    both = [f"{name}_int8_qdq", f"{name}_int8_qdq_nhwc"]
    return [n for n in both if (MODELS / f"{n}.onnx").is_file()]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("name", "goal", "most"),
    [(n, goal, m) for goal, limits in MAX_ARENA_BYTES.items() for n, m in zip(INT8, limits, strict=True)],
)
def test_arena(name: str, goal: str, most: int) -> None:
    for variant in layouts(name):
        program = compiled(variant, BOARD, goal).program
        assert program.arena_size <= most
        assert program.arena_bound == program.arena_size  # proven


@pytest.mark.spread(3)
@pytest.mark.parametrize(("name", "most"), [*zip(INT8, MILLIONS, strict=True)])
def test_instructions_with_the_least_ram(name: str, most: float) -> None:
    assert max(measured(variant, "ram") for variant in layouts(name)) <= most


def test_dead_channels_cost_nothing() -> None:
    """Of 7.5 million multiply-accumulates, half compute what nobody reads."""
    for variant in layouts("mobilenet_v1_025_vww"):
        nodes = compiled(variant, BOARD, "balanced").graph.nodes
        macs = sum(node.op.macs(node.sig) for node in nodes)
        assert macs <= 3.9e6
        assert measured(variant, "balanced") <= 1.25e-6 * macs


@pytest.mark.spread(2)
@pytest.mark.parametrize("variant", layouts("mobilenet_v1_025_vww"))
def test_an_image_that_comes_row_by_row(variant: str) -> None:
    assert measured(variant, "ram", True) <= MILLIONS[2]
    assert compiled(variant, BOARD, "ram", True).program.arena_size <= 16_000


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    ("board", "name", "most"), [(b, n, m) for b, limits in OTHERS.items() for n, m in zip(INT8, limits, strict=True)]
)
def test_arena_of_other_cpus(board: str, name: str, most: int) -> None:
    assert compiled(f"{name}_int8_qdq", board, "ram").program.arena_size <= most
