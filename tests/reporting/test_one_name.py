# SPDX-License-Identifier: Apache-2.0
"""A layer has one name in report, C code, hook, memory map, search and options."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import onnx
import pytest
from onnx_models import Net

from mcugen import Compilation, CompileOptions, Quantizing, compile_model
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import Training
from mcugen.driver.compiled import CompiledModel
from mcugen.reporting.memory import memory_map


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.3, shape).astype(np.float32)


def network() -> onnx.ModelProto:
    """Return a network with fused nodes, a recurrent layer, and names as exporters write them."""
    net = Net(17)
    for out, op, inputs, attributes in (
        ("c", "Conv", (net.input("x", 1, 2, 8, 8), net.const(weights(4, 2, 3, 3))), {"strides": [2, 2]}),
        ("r", "Relu", ("c",), {}),
        ("s", "Reshape", ("r", net.const([9, 1, 4], np.int64)), {}),
        ("h", "LSTM", ("s", net.const(weights(1, 32, 4)), net.const(weights(1, 32, 8))), {"hidden_size": 8}),
        ("f", "Reshape", ("h", net.const([1, 72], np.int64)), {}),
        ("z", "Gemm", ("f", net.const(weights(72, 5)), net.const(weights(5))), {}),
    ):
        net.op(op, *inputs, out=out, **attributes)
        net.nodes[-1].name = f"/model/{op.lower()}_{out if op == 'Reshape' else 1}/{op}"
    net.output("z")
    return net.model()


@cache
def compiled(quantized: bool) -> CompiledModel:
    return (compilation() if quantized else Compilation(network(), "nrf52840")).compiled


def compilation(**layers: str) -> Compilation:
    samples = {"x": weights(12, 1, 2, 8, 8)}
    return Compilation(network(), "nrf52840", quantizing=Quantizing(calibration=samples, layers=layers))


@pytest.mark.parametrize("quantized", [False, True])
def test_report_hook_header_and_memory_map_agree(quantized: bool) -> None:
    made = compiled(quantized)
    names = [layer.name for layer in made.report.layers]
    assert len(set(names)) == len(names)
    assert {"/model/conv_1/Conv", "/model/lstm_1/LSTM", "/model/gemm_1/Gemm"} <= set(names)
    assert list(made.bundle.layers) == names
    code = made.bundle.files["net.c"]
    hooked = re.search(r"layer_names\[\w+\] = \{\n(.*?)\n\};", code, re.S)
    assert hooked is not None and re.findall(r'"(.*)"', hooked[1]) == names
    for number, name in enumerate(names):
        assert re.search(rf"^ \* +{number}  {re.escape(name)} ", made.bundle.files["net.h"], re.M)
        assert re.search(rf"/\* {number}: \S+ {re.escape(name)}\n", code)
    assert [row.name for row in memory_map(made.program, "nrf52840").rows] == names
    assert made.report.other_precisions == ()


@pytest.mark.parametrize("quantized", [False, True])
def test_c_names_come_from_layers_and_do_not_repeat_themselves(quantized: bool) -> None:
    made = compiled(quantized)
    code = made.bundle.files["net.c"] + made.bundle.files["net_weights.c"]
    names = set(re.findall(r"\bconst \w+ (?:net_)?(\w+)(?:\[\d+\])? = [{]", code))
    names |= set(re.findall(r"\*const (\w+) =", code))
    assert any(name.startswith("model_conv_1_conv") for name in names)
    assert any(name.startswith("model_lstm_1_lstm") for name in names)
    for name in names:
        base = re.sub(r"_\d+$", "", name)
        assert len(base) <= 40, name
        assert not re.search(r"_([a-z]{3,}.*)_\1(_|$)", base.replace("model_lstm_1_lstm", "L")), name


def test_equal_models_give_equal_names() -> None:
    again = Compilation(network(), "nrf52840").compiled
    assert again.bundle.files["net.h"] == compiled(False).bundle.files["net.h"]


@pytest.mark.parametrize("name", ["/model/gemm_1/Gemm", "z", "gemm_1", "Gemm", "GEMM"])
def test_layer_takes_any_unambiguous_part(name: str) -> None:
    (layer,) = compilation(**{name: "float32"}).quantized.other_precisions
    assert (layer.name, layer.precision) == ("/model/gemm_1/Gemm", "float32")


@pytest.mark.parametrize(("name", "told"), [("model", "/model/conv_1/Conv"), ("nowhere", "/model/gemm_1/Gemm")])
def test_layer_lists_the_candidates(name: str, told: str) -> None:
    with pytest.raises(UsageError, match="--layer") as refused:
        _ = compilation(**{name: "float32"}).quantized
    assert f"'{told}'" in str(refused.value)


def test_layer_names_a_layer_once() -> None:
    with pytest.raises(UsageError, match="once"):
        _ = compilation(**{"gemm_1": "float32", "z": "int8"}).quantized


def test_train_takes_any_unambiguous_part() -> None:
    options = [CompileOptions(training=Training(name)) for name in ("gemm_1", "/model/gemm_1/Gemm")]
    part, whole = (compile_model(network(), "host", each).bundle.files["net.c"] for each in options)
    assert part.partition("\n#")[2] == whole.partition("\n#")[2]
    with pytest.raises(UsageError, match="'model' must be part of one layer's name"):
        compile_model(network(), "host", CompileOptions(training=Training("model")))


def wide_input(limit: int | None = None) -> Compilation:
    """Return a network whose float input of 16,384 bytes is more than all that it computes."""
    net = Net(17)
    y = net.op("Conv", net.input("x", 1, 1, 64, 64), net.const(weights(4, 1, 3, 3)), strides=[4, 4], out="c")
    net.output(net.op("GlobalAveragePool", net.op("Relu", y)))
    samples = {"x": weights(12, 1, 1, 64, 64)}
    options = CompileOptions(optimize="ram", max_ram=limit)
    return Compilation(net.model(), "nrf52840", options, Quantizing(calibration=samples))


def test_a_float_input_that_decides_the_peak_is_told_with_what_integers_save() -> None:
    made = wide_input().compiled
    (note,) = [note for note in made.report.notes if note.startswith("--integer-io")]
    floats = made.program.arena_size
    match = re.search(r"the arena takes ([\d,]+) bytes, and ([\d,]+) with it, ([\d,]+) less", note)
    assert match is not None and "'x' decides the arena's peak" in note
    shown, left, saved = (int(text.replace(",", "")) for text in match.groups())
    assert (shown, saved) == (floats, floats - left) and 2 * left < floats


def test_a_limit_that_only_integers_meet_names_the_option() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        _ = wide_input(8192).compiled
    assert refused.value.remedy.startswith("--integer-io")
    with pytest.raises(DoesNotFitError) as refused:
        _ = wide_input(64).compiled
    assert "--integer-io" not in refused.value.remedy
