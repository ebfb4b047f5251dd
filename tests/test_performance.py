# SPDX-License-Identifier: Apache-2.0
"""How fast and how large the code of the MLPerf Tiny models may be: retired instructions and bytes, under QEMU."""

from __future__ import annotations

from functools import cache

import pytest
from shared_models import MODELS, recorded, roomy

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Value
from mcugen.simulation import Execution

pytestmark = pytest.mark.shared

INT8 = ("resnet8_cifar10", "ds_cnn_kws", "mobilenet_v1_025_vww", "autoencoder_ad")
DSP = ("nrf52840", "rt1060", "nrf5340")
"""Cortex-M4, M7 and M33."""
CYCLES = {
    "nrf52840": {"balanced": (11.6, 3.6, 6.7, 0.36), "speed": (11.05, 3.6, 6.6, 0.36)},
    "nrf5340": {"balanced": (10.5, 3.2, 5.95, 0.35), "speed": (10.0, 3.2, 5.9, 0.35)},
    "rt1060": {"balanced": (6.4, 2.1, 4.0, 0.17), "speed": (6.15, 2.1, 3.9, 0.17)},
}
"""Millions of estimated cycles without waits for memory of the INT8 models, by board and goal. Cycles decide, not
instructions: loops that load single words take more of these and less time."""

M55_MILLIONS = (1.9, 0.62, 1.9, 0.050)
M3_OF_TFLM = (41.76, 10.53, 31.96, 0.956)
"""Of TensorFlow Lite Micro with CMSIS-NN on a Cortex-M3."""

PER_MAC_F32 = (1.6, 1.9, 1.6, 1.3)
EMX_PER_MAC_M55 = (7.4, 2.8, 3.5, 1.8)
"""Of emx-onnx-cgen 1.4.0 on a Cortex-M55, float32."""

CODE = {"balanced": 16 * 1024, "flash": 8 * 1024}
"""Bytes of code and constants besides the weights."""


@cache
def ran(name: str, board: str, optimize: str = "balanced") -> tuple[CompiledModel, Execution]:
    """Once for all tests."""
    options = CompileOptions(optimize=optimize)
    model = compile_model(MODELS / f"{name}.onnx", roomy(board), options)
    inputs, _ = recorded(name, model)
    return model, model.simulate(inputs[:1], cycles=board in DSP)


def millions(name: str, board: str, optimize: str = "balanced") -> float:
    instructions = ran(name, board, optimize)[1].instructions
    assert instructions is not None
    return instructions / 1e6


def code(run: Execution) -> int:
    assert run.sizes is not None
    return run.sizes.code


@pytest.mark.spread(8)
@pytest.mark.parametrize(
    ("board", "optimize", "name", "most"),
    [
        (board, goal, name, most)
        for board, goals in CYCLES.items()
        for goal, figures in goals.items()
        for name, most in zip(INT8, figures, strict=True)
    ],
)
def test_estimated_cycles_with_dsp(board: str, optimize: str, name: str, most: float) -> None:
    cycles = ran(f"{name}_int8_qdq", board, optimize)[1].cycles
    assert cycles is not None and cycles.without_waits is not None
    assert cycles.without_waits <= most * 1e6


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "most"), [*zip(INT8, M55_MILLIONS, strict=True)])
def test_instructions_with_helium(name: str, most: float) -> None:
    assert millions(f"{name}_int8_qdq", "corstone300") <= most


@pytest.mark.spread(3)
@pytest.mark.parametrize(("name", "tflm"), [*zip(INT8, M3_OF_TFLM, strict=True)])
def test_instructions_without_dsp(name: str, tflm: float) -> None:
    """A Cortex-M0+ multiplies two pixels by one MULS and adds them by one ADD, where an M3 has MLA for both."""
    m3, m0 = (millions(f"{name}_int8_qdq", board) for board in ("stm32f103", "rp2040"))
    assert m3 <= 0.55 * tflm
    assert m0 <= 2.2 * 0.55 * tflm
    assert m0 <= 2.75 * m3


@pytest.mark.spread(5)
@pytest.mark.parametrize("board", DSP[:2])
@pytest.mark.parametrize(("name", "most"), [*zip(INT8, PER_MAC_F32, strict=True)])
def test_instructions_of_float(name: str, board: str, most: float) -> None:
    model, run = ran(f"{name}_f32", board)
    assert run.instructions is not None
    assert run.instructions <= most * model.report.model.macs


@pytest.mark.spread(3)
@pytest.mark.parametrize(("name", "emx"), [*zip(INT8, EMX_PER_MAC_M55, strict=True)])
def test_instructions_of_float_with_helium(name: str, emx: float) -> None:
    model, run = ran(f"{name}_f32", "corstone300")
    assert run.instructions is not None
    assert run.instructions <= 0.5 * emx * model.report.model.macs


@pytest.mark.spread(11)
@pytest.mark.parametrize("optimize", CODE)
@pytest.mark.parametrize("name", [*(f"{n}_int8_qdq" for n in INT8), *(f"{n}_f32" for n in INT8)])
@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_code_is_small(name: str, board: str, optimize: str) -> None:
    assert code(ran(name, board, optimize)[1]) <= CODE[optimize]


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", INT8)
@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_weights_stay_near_one_byte_each(name: str, board: str) -> None:
    """Biases, multipliers and padding included; tables of other functions are no weights."""
    model, _ = ran(f"{name}_int8_qdq", board)
    assert weights(model) <= 1.25 * sum(v.type.nbytes for v in constants(model))


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", INT8)
@pytest.mark.parametrize("board", ["stm32f103", "rp2040"])
def test_weights_stay_near_those_of_plain_kernels(name: str, board: str) -> None:
    """Of CPUs whose kernels store lengths beside the weights: a multiplier a channel is part of plain ones."""
    model, _ = ran(f"{name}_int8_qdq", board)
    multipliers = sum(4 * v.type.count for v in constants(model) if v.type.rank == 1)
    assert weights(model) <= 1.25 * (sum(v.type.nbytes for v in constants(model)) + multipliers)


def constants(model: CompiledModel) -> list[Value]:
    """What layers read of flash: weights, and biases, one a channel."""
    layers = [n for n in model.graph.nodes if n.op.macs(n.sig)]
    return [v for n in layers for v in n.inputs if v is not None and v.is_constant]


def weights(model: CompiledModel) -> int:
    return sum(layer.flash for layer in model.report.layers if layer.macs)
