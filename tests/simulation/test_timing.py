# SPDX-License-Identifier: Apache-2.0
"""Instructions are one number whatever the input, but for the layers of which the report says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from model_variants import branching, floats, quantized
from onnx_models import Net
from shared_models import MODELS, QUANTIZED, roomy

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.measurement.extremes import extreme_inputs
from mcugen.reporting.kernels import declared_kernels
from mcugen.reporting.timing import COPYING_KERNELS

pytestmark = pytest.mark.qemu


def counts(compiled: CompiledModel) -> tuple[set[int], dict[str, set[int]]]:
    """Of runs with all kinds of inputs, in all and by layers."""
    kinds = zip(*(extreme_inputs(e) for e in compiled.program.inputs), strict=True)
    samples = [{e.name: x for e, x in zip(compiled.program.inputs, kind, strict=True)} for kind in kinds]
    runs = [compiled.simulate([sample], per_layer=True) for sample in samples]
    names = [layer.name for layer in compiled.report.layers]
    each = zip(*(run.layer_instructions or () for run in runs), strict=True)
    totals = {run.instructions for run in runs if run.instructions is not None}
    return totals, {name: set(found) for name, found in zip(names, each, strict=True)}


QUICK = {("autoencoder_ad_int8_qdq", "nrf52840"), ("autoencoder_ad_int8_qdq", "rp2040")}
CASES = [
    pytest.param(name, board, marks=() if (name, board) in QUICK else pytest.mark.slow)
    for name in QUANTIZED
    for board in ("nrf52840", "corstone300", "rp2040", "esp32c3")
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "board"), CASES)
def test_layers_that_are_not_told_to_vary_take_one_number(name: str, board: str):
    options = CompileOptions(integer_io=True)
    compiled = compile_model(MODELS / f"{name}.onnx", roomy(board), options)
    varying = {text.partition(": ")[0] for text in compiled.report.varies}
    totals, layers = counts(compiled)
    moving = {layer for layer, found in layers.items() if len(found) > 1}
    assert moving <= varying
    assert varying or len(totals) == 1
    assert max(totals) - min(totals) <= 0.005 * max(totals)


def test_kernels_that_copy_exist():
    assert {kernel.name for kernel in declared_kernels()} >= COPYING_KERNELS


@pytest.mark.parametrize("operator", ["Add", "Mul", "AveragePool", "MaxPool", "Transpose"])
def test_layers_of_bytes_alone_take_one_number_or_are_told(operator: str):
    """int8 in, int8 out, and no constants of more bytes: on a CPU that saturates by branches."""
    net = Net(21)
    x = net.dequantize(net.input("x", 1, 4, 6, 6, dtype=np.int8), 0.05, 3)
    if operator in ("Add", "Mul"):
        y = net.op(operator, x, net.dequantize(net.input("z", 1, 4, 6, 6, dtype=np.int8), 0.03, -5))
    elif operator == "Transpose":
        y = net.op(operator, x, perm=[0, 2, 3, 1])
    else:
        y = net.op(operator, x, kernel_shape=[2, 2])
    scale, zero = (0.05, 3) if operator in ("MaxPool", "Transpose") else (0.02, 7)
    net.output(net.quantize(y, scale, zero, np.int8, out="y"), dtype=np.int8)
    compiled = compile_model(net.model(), "rp2040", CompileOptions(integer_io=True))
    varying = {text.partition(": ")[0] for text in compiled.report.varies}
    _, layers = counts(compiled)
    assert {layer for layer, found in layers.items() if len(found) > 1} <= varying
    assert not (operator == "Transpose" and varying)


def test_why_instructions_vary_is_told():
    def reasons(model: onnx.ModelProto, board: str) -> str:
        return " ".join(compile_model(model, roomy(board)).report.varies)

    assert "the time of softmax" in reasons(quantized().model(), "nrf52840")
    assert "branch" in reasons(branching().model(), "nrf52840")
    assert "floating-point" in reasons(floats().model(), "nrf52840")
    assert "limited by branches" in reasons(onnx.load(MODELS / "autoencoder_ad_int8_qdq.onnx"), "rp2040")


@pytest.mark.shared
def test_plain_c_limits_numbers_by_branches():
    """Whatever the CPU's features are that the board's file keeps."""
    board = load_board("nrf52840")
    plain = replace(board, cflags=(*board.cflags, "-DMCUGEN_PLAIN_C"))
    model = onnx.load(MODELS / "autoencoder_ad_int8_qdq.onnx")
    assert compile_model(model, board, CompileOptions(integer_io=True)).report.varies == ()
    assert "limited by branches" in " ".join(compile_model(model, plain).report.varies)


def test_best_and_worst_of_extreme_inputs(tmp_path: Path):
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    command = ("report", tmp_path / "net.onnx", "-b", "rp2040", "--extreme-inputs", "--json", tmp_path / "report.json")
    done = mcugen(*command)
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "report.json").read_text())
    found = told["instruction_range"]
    assert found["best"] <= told["instructions"] <= found["worst"]
    assert found["best"] < found["worst"]
    assert not found["is_bound"]
    assert found["bound"] is None or found["bound"] >= found["worst"]
    assert ("at most" if found["bound"] else "unbounded") in done.out


def test_one_number_is_best_and_worst():
    net = Net()
    x = net.op("DequantizeLinear", net.input("x", 1, 8, dtype=np.int8), net.const(0.1), net.const(0, np.int8))
    w = net.op("DequantizeLinear", net.const(np.ones((8, 4)), np.int8), net.const(0.1), net.const(0, np.int8))
    net.op("QuantizeLinear", net.op("MatMul", x, w), net.const(0.2), net.const(0, np.int8), out="y")
    net.output("y", dtype=np.int8)
    found = Compilation(net.model(), "nrf52840").report().instruction_range
    assert found is not None
    assert found.is_bound
    assert found.best == found.worst


def test_extremes_need_a_simulated_board(tmp_path: Path):
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    done = mcugen("report", tmp_path / "net.onnx", "-b", "host", "--extreme-inputs")
    assert done.code == UsageError.exit_code
    assert "is not simulated" in done.err
