# SPDX-License-Identifier: Apache-2.0
"""With `--match tflite`, results have the bits of TensorFlow Lite Micro; operators without that are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import Net, numpy_outputs
from plain_c import with_portable_twins
from test_tflite_models import SAMPLES, arranged, samples_of
from tflite_cases import CASES, EXPECTED, Case, expected_outputs
from tflite_matching import EXPECTED_BITS, MODELS, make_model
from tflite_models import LiteModel, converted, shared_tflite, tflm_outputs

from mcugen.core.board import load_board
from mcugen.core.errors import UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.tflite.convert import convert_tflite
from mcugen.frontend.tflite.schema import TfliteReading
from mcugen.hir.types import Array, Rounding

RECORDED = expected_outputs(EXPECTED_BITS)
BY_TFLM = {line.split("\t")[0] for line in EXPECTED.read_text().splitlines() if line.split("\t")[1] == "tflm"}
OUTPUTS = expected_outputs()


def matching(data: bytes) -> onnx.ModelProto:
    return convert_tflite(data, "model.tflite", reading=TfliteReading(Rounding.TFLITE))


def feeds_of(model: onnx.ModelProto, made: Case) -> dict[str, Array]:
    return {info.name: array for info, array in zip(model.graph.input, made.feeds, strict=True)}


def assert_equal(found: list[Array], expected: list[Array]) -> None:
    for index, (got, want) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(got, want, err_msg=f"output {index}", strict=True)


@pytest.mark.parametrize("name", MODELS)
def test_layers_have_the_bits_of_tensorflow_lite_micro(name: str):
    made = make_model(name)
    model = matching(made.data)
    assert_equal(list(numpy_outputs(model, feeds_of(model, made)).values()), RECORDED[name])


@pytest.mark.parametrize("name", MODELS)
def test_generated_code_has_these_bits_too(name: str):
    made = make_model(name)
    model = matching(made.data)
    feeds = {name: array[None] for name, array in feeds_of(model, made).items()}
    found = compile_model(model).run(feeds, sanitize=True)
    assert_equal([array[0] for array in found.values()], RECORDED[name])


@pytest.mark.parametrize("name", sorted(BY_TFLM & CASES.keys()))
def test_operators_are_refused_or_have_these_bits(name: str):
    made = CASES[name]()
    try:
        model = matching(made.data)
    except UnsupportedError:
        return
    assert_equal(list(numpy_outputs(model, feeds_of(model, made)).values()), OUTPUTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_random_layers_against_the_interpreter(name: str):
    for seed in range(1, 10):
        made = make_model(name, seed)
        model = matching(made.data)
        assert_equal(list(numpy_outputs(model, feeds_of(model, made)).values()), tflm_outputs(made.data, made.feeds))


BOARDS = {
    "rp2040": load_board("rp2040"),
    "nrf52840": load_board("nrf52840"),
    "corstone300": load_board("corstone300"),
    "nrf52840 in plain C": with_portable_twins(load_board("nrf52840")),
    "corstone300 in plain C": with_portable_twins(load_board("corstone300")),
}


@pytest.mark.qemu
@pytest.mark.spread(3)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", ["convolutions", "depthwise_convolutions", "dense_layers"])
def test_bits_on_boards(name: str, board: str):
    made = make_model(name)
    model = matching(made.data)
    feeds = {name: array[None] for name, array in feeds_of(model, made).items()}
    found = compile_model(model, BOARDS[board]).run(feeds)
    assert_equal([array[0] for array in found.values()], RECORDED[name])


@pytest.mark.shared
@pytest.mark.parametrize("name", [*SAMPLES, "tflm_hello_world_int8", "tflm_micro_speech_int8"])
def test_shared_models_have_the_bits_of_tensorflow_lite_micro(name: str):
    path = shared_tflite(name)
    if "lstm" in name:
        with pytest.raises(UnsupportedError, match="UNIDIRECTIONAL_SEQUENCE_LSTM"):
            compile_model(path, options=CompileOptions(match="tflite"))
        return
    compiled = compile_model(path, options=CompileOptions(match="tflite"))
    (given,) = compiled.graph.inputs
    feeds = np.stack([arranged(name, sample, given.type.shape) for sample in samples_of(name, 20)])
    (found,) = compiled.run({given.name: feeds}).values()
    expected = [tflm_outputs(path.read_bytes(), [feed])[0] for feed in feeds]
    np.testing.assert_array_equal(found, np.stack(expected))


def test_all_operators_without_these_bits_are_listed_by_name():
    model = LiteModel()
    x = model.graph.input(1, 4, dtype="int8", scale=0.1)
    kept, swish, ratio = (model.graph.tensor(1, 4, dtype="int8", scale=0.1, name=n) for n in ("kept", "swish", "ratio"))
    model.graph.op("RELU", [x], [kept])
    model.graph.op("HARD_SWISH", [kept], [swish])
    model.graph.op("ELU", [swish], [ratio])
    model.graph.output(ratio)
    with pytest.raises(UnsupportedError, match=r"--match tflite: .*2 nodes have not") as error:
        matching(model.data())
    assert "operator 1, HARD_SWISH 'swish'" in str(error.value)
    assert "operator 2, ELU 'ratio'" in str(error.value)
    assert "RELU 'kept'" not in str(error.value)


def test_float_models_are_refused():
    with pytest.raises(UnsupportedError, match=r"FULLY_CONNECTED 't\d+': input and output are not int8"):
        matching(CASES["dense_plain_float32"]().data)


def test_models_that_are_no_tflite_files_are_refused(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", 1, 4)))
    path = tmp_path / "net.onnx"
    onnx.save(net.model(), path)
    for source in (path, net.model(), converted(make_model("pools").data)):
        with pytest.raises(UsageError, match=r"--match tflite is for \.tflite models"):
            compile_model(source, options=CompileOptions(match="tflite"))


def test_unknown_reference_implementations_are_refused():
    with pytest.raises(UsageError, match="--match must name a reference implementation"):
        compile_model(matching(make_model("pools").data), options=CompileOptions(match="tensorrt"))
