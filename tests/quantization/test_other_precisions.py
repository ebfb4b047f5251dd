# SPDX-License-Identifier: Apache-2.0
"""Layers that do not compute in the type asked for are named, with reason and remedy, alike by all commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples, random_weights
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.layers import KEEP_INT8_REMEDY, NAMES_IN_LINE, REASON_REMEDIES, OtherPrecision, precision_lines
from mcugen.hir.types import Array


def samples_of(model: onnx.ModelProto) -> dict[str, Array]:
    """Forty samples, as a file has them."""
    return {"x": np.stack([s["x"][0] for s in normal_samples(model, 40)])}


def named_by(model: onnx.ModelProto, **layers: str) -> dict[str, OtherPrecision]:
    """The layers of a quantized model that are named."""
    net = Compilation(model, quantizing=Quantizing(calibration=samples_of(model), layers=layers))
    assert net.quantized.other_precisions == net.compiled.report.other_precisions
    return {each.name: each for each in net.quantized.other_precisions}


def test_a_model_all_in_int8_names_none() -> None:
    assert named_by(conv_net()) == {}


@pytest.mark.parametrize("precision", ["float32", "int16"])
def test_layers_that_were_asked_for_are_named(precision: str) -> None:
    found = named_by(conv_net(), relu=precision, logits=precision)
    asked = {name: each for name, each in found.items() if "as requested" in each.reason}
    assert {"Gemm_logits"} <= set(asked)
    assert all(each.precision == precision and "--layer" in each.remedy for each in asked.values())


def test_layers_without_an_integer_form_are_named() -> None:
    net = Net(17)
    y = net.op("Tanh", net.op("MatMul", net.input("x", 1, 16), net.const(random_weights(1, 16, 16))), out="first")
    y = net.op("Div", y, net.const(np.linspace(1, 2, 16, dtype=np.float32)[None]), out="shares")
    net.output(net.op("MatMul", y, net.const(random_weights(2, 16, 4)), out="last"))
    found = named_by(net.model())
    assert found["Div_shares"].precision == "float32"
    assert found["Div_shares"].remedy == REASON_REMEDIES[found["Div_shares"].reason]


def test_raised_layers_are_named_with_what_was_measured() -> None:
    """Two features, one a thousand times the other."""
    net = Net(17)
    y = net.op("MatMul", net.input("x", 1, 2), net.const(np.array([[1e-3, 2e-3], [1, -2]], np.float32)), out="first")
    net.output(net.op("Tanh", y, out="y"))
    random = np.random.default_rng(0)
    samples = (random.standard_normal((40, 2)) * [1000, 1]).astype(np.float32)
    found = Compilation(net.model(), quantizing=Quantizing(calibration={"x": samples})).quantized
    raised = [each for each in found.other_precisions if " dB so, not " in each.reason]
    assert raised and all(each.remedy == KEEP_INT8_REMEDY for each in raised)
    assert len(found.notes) == len(set(found.notes))


def test_models_that_come_quantized_name_theirs() -> None:
    """A layer between integers, and one that has nothing to do with them."""
    net = Net(21)
    x = net.dequantize(net.input("x", 1, 8, dtype=np.int16), 1 / 64, 0, np.int16)
    net.output(net.quantize(net.op("Round", x), 1 / 16, 0, np.int16, out="between"), dtype=np.int16)
    net.output(net.op("Exp", net.input("z", 1, 8), out="apart"))
    report = compile_model(net.model()).report
    assert {each.precision for each in report.other_precisions} == {"float32"}
    assert len({each.reason for each in report.other_precisions}) == 2
    assert [n for n in report.notes if n.startswith("computed in")] == precision_lines(report.other_precisions)


def test_lines_name_all_and_stay_short() -> None:
    layers = [OtherPrecision(f"layer{i}", "exp", "float32", "reason", "remedy") for i in range(500)]
    lines = precision_lines(layers)
    assert all(sum(f"'{layer.name}'" in line for line in lines) == 1 for layer in layers)
    assert all(len(line) < NAMES_IN_LINE + 100 and line.endswith("; reason; remedy") for line in lines)


def test_commands_say_the_same(tmp_path: Path) -> None:
    model = conv_net()
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", **samples_of(model))
    given = (tmp_path / "net.onnx", "--calibration", tmp_path / "x.npz", "--layer", "pool=float32")
    told = []
    for command, target in (
        ("quantize", ["-o", tmp_path / "q.onnx"]),
        ("compile", ["-o", tmp_path / "out"]),
        ("report", []),
    ):
        board = [] if command == "quantize" else ["-b", "host", "--json", tmp_path / f"{command}.json"]
        page = ["--html", tmp_path / "page.html"] if command == "report" else []
        done = mcugen(command, *given, *board, *target, *page)
        assert done.code == 0, done.err
        told.append([line for line in done.err.splitlines() if "computed in" in line])
        if command == "report":
            assert told[-1][0].removeprefix("note: ") in " ".join(done.out.split())
    assert len(told[0]) == 1 and "'GlobalAveragePool_pool'" in told[0][0]
    assert told[0] == told[1] == told[2]
    for command in ("compile", "report"):
        (row,) = json.loads((tmp_path / f"{command}.json").read_text())["other_precisions"]
        assert row["name"] == "GlobalAveragePool_pool"
    assert "computed in float32" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("width", "is_more"), [(2, True), (256, False)])
def test_a_program_that_takes_more_than_float32_says_so(width: int, is_more: bool) -> None:
    net = Net(17)
    net.output(net.op("MatMul", net.input("x", 1, width), net.const(random_weights(1, width, width)), out="y"))
    model = net.model()
    compiled = Compilation(model, "nrf52840", quantizing=Quantizing(calibration=samples_of(model))).compiled
    told = [note for note in compiled.report.notes if "takes more than the float32 one" in note]
    assert bool(told) == is_more
    assert all("--precision float32" in note for note in told)
