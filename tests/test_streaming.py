# SPDX-License-Identifier: Apache-2.0
"""The streaming example: one frame a call gives what the whole window gives."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from float_models import sqnr
from shared_models import MODELS

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.frontend.onnx.load import load
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

EXAMPLE = Path(__file__).parents[1] / "examples" / "streaming"
AXIS = 2
MORE = 4
"""Frames after the first full window."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(window: onnx.ModelProto, board: str = "host") -> tuple[CompiledModel, CompiledModel]:
    stream, states = script("make_streaming").make_streaming(window, AXIS)
    return compile_model(window, board), compile_model(stream, board, CompileOptions(name="stream", states=states))


def assert_stream_equals_window(window: CompiledModel, stream: CompiledModel) -> None:
    (entry,), (last,) = window.program.inputs, window.program.outputs
    span = entry.shape[AXIS]
    shape = [*entry.shape[:AXIS], span + MORE, *entry.shape[AXIS + 1 :]]
    random = np.random.default_rng(3)
    values = random.standard_normal(shape) if entry.dtype.is_float else random.integers(-128, 128, shape)
    signal = values.astype(entry.dtype.numpy)
    frames = np.stack([signal.take([i], AXIS) for i in range(span + MORE)])
    windows = np.stack([signal.take(range(i, i + span), AXIS) for i in range(MORE + 1)])
    found = stream.run({entry.name: frames}, sanitize=not stream.board.qemu)[last.name][span - 1 :]
    np.testing.assert_array_equal(found, window.run({entry.name: windows})[last.name])


def test_the_example_and_what_it_saves():
    window, stream = both(onnx.load(EXAMPLE / "window.onnx"))
    assert_stream_equals_window(window, stream)
    assert stream.report.model.macs * 5 < window.report.model.macs
    assert stream.program.state_size > 0


@pytest.mark.qemu
def test_the_example_on_the_target():
    assert_stream_equals_window(*both(onnx.load(EXAMPLE / "window.onnx"), "rt1060"))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["streaming_wakeword_f32", "streaming_wakeword_int8_qdq"])
def test_the_wake_word_model(name: str):
    assert_stream_equals_window(*both(onnx.load(MODELS / f"{name}.onnx")))


def test_the_example_model_is_what_its_script_writes():
    assert script("make_window").make_window() == onnx.load(EXAMPLE / "window.onnx")


def test_the_script_prints_the_options_of_its_readme(tmp_path: Path):
    command = [sys.executable, EXAMPLE / "make_streaming.py", EXAMPLE / "window.onnx", tmp_path / "stream.onnx"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    readme = (EXAMPLE / "README.md").read_text().replace("\\\n   ", "")
    assert " ".join(printed.split()) in " ".join(readme.split())


def test_padding_over_time_is_refused():
    model = onnx.load(EXAMPLE / "window.onnx")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 0, 1, 0]))
    with pytest.raises(SystemExit, match="no padding along the time axis"):
        script("make_streaming").make_streaming(model, AXIS)


def test_a_quantized_stream_keeps_its_states_as_integers() -> None:
    """Calibrated on a stream; no state is converted between calls; outputs are near those of the float stream."""
    stream, states = script("make_streaming").make_streaming(onnx.load(EXAMPLE / "window.onnx"), AXIS)
    source, scheme, options = load(stream), Scheme(), CompileOptions(name="stream", states=states)
    model = import_float_model(source, options, scheme)
    (entry,) = [v for v in model.graph.inputs if v.name not in states.values()]
    random = np.random.default_rng(5)
    frames = random.standard_normal((80, *entry.type.shape)).astype(np.float32)
    result = create_quantizer(source, model, scheme, [{entry.name: f} for f in frames[:40]]).quantize()
    compiled = compile_model(result, "host", options)
    exact = compile_model(stream, "host", options)
    assert {e.dtype.value for e in compiled.program.states} == {"int8"}
    assert compiled.program.state_size * 3 < exact.program.state_size
    wanted, found = (next(iter(c.run({entry.name: frames}).values())) for c in (exact, compiled))
    assert sqnr([wanted[40:]], [found[40:]]) > 20
    twin = run_onnxruntime(result.proto, [{entry.name: f} for f in frames], fixed=compiled.first_states, states=states)
    step = np.abs(found - np.stack([next(iter(o.values())) for o in twin])).max()
    assert step <= 1.01 * max(s.quant.scale[0] for s in result.plan.activations.values())
