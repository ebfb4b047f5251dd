# SPDX-License-Identifier: Apache-2.0
"""Quantization on the command line: what it writes, and what it says about wrong options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples
from onnx_models import onnxruntime_outputs

from mcugen.driver.compiler import compile_model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
FLOAT = DIGITS / "digits_f32.onnx"
SAMPLES = DIGITS / "calibration.npz"


def test_the_written_model_is_what_compile_compiles(tmp_path: Path) -> None:
    quantized, folders = tmp_path / "digits.onnx", [tmp_path / "direct", tmp_path / "by_file"]
    assert mcugen("quantize", FLOAT, "--calibration", SAMPLES, "-o", quantized, "--quiet").code == 0
    common = ("--board", "nrf52840", "--name", "digits")
    assert mcugen("compile", FLOAT, "--calibration", SAMPLES, *common, "-o", folders[0]).code == 0
    assert mcugen("compile", quantized, *common, "-o", folders[1]).code == 0
    weights = [(folder / "digits_weights.c").read_text().split("*/", 2)[2] for folder in folders]
    assert weights[0] == weights[1]


def test_report_of_a_quantized_model(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    done = mcugen("report", FLOAT, "--calibration", SAMPLES, "--board", "host", "--data", DIGITS / "eval.npz",
                  "--quiet", "--json", target)  # fmt: skip
    assert done.code == 0, done.err
    report = json.loads(target.read_text())
    assert report["precision"] == "int8"
    assert report["accuracy"]["samples"] == 300 and report["accuracy"]["target"] >= 0.985


def test_stdout_stays_parseable() -> None:
    done = mcugen("report", FLOAT, "--calibration", SAMPLES, "--board", "host", "--json", "-")
    assert json.loads(done.out)["precision"] == "int8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "quantization needs samples"),
        (("--precision", "int8"), "quantization needs samples"),
        (("--precision", "int4", "--calibration", SAMPLES), "--precision must be known"),
        (("--method", "guess", "--calibration", SAMPLES), "--method must be known"),
        (("--without", "thinking", "--calibration", SAMPLES), "--without must be known"),
        (("--calibration", SAMPLES, "--layer", "nowhere=int8"), "must name a layer of the model"),
        (("--calibration", SAMPLES, "--layer", "scores"), "--layer must read NAME=PRECISION"),
        (("--calibration", SAMPLES, "--precision", "float32"), "samples are for quantization"),
        (("--calibration", "missing.npz"), "missing.npz"),
    ],
)
def test_wrong_options_get_one_message_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"before")
    done = mcugen("quantize", FLOAT, *arguments, "-o", target)
    assert done.code == 2, done.err
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err and not done.out
    assert target.read_bytes() == b"before"


def test_a_quantized_model_is_not_quantized_again() -> None:
    done = mcugen("compile", DIGITS / "digits_int8.onnx", "--calibration", SAMPLES, "--board", "host")
    assert done.code == 4 and "only a float model can be quantized" in done.err


def test_symbolic_dimensions_are_fixed_in_the_written_model(tmp_path: Path) -> None:
    model = conv_net()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    source, target, samples = tmp_path / "net.onnx", tmp_path / "net8.onnx", tmp_path / "samples.npz"
    onnx.save(model, source)
    feeds = normal_samples(conv_net(), 8)
    np.savez(samples, x=np.stack([f["x"][0] for f in feeds]))
    done = mcugen("quantize", source, "--calibration", samples, "--dim", "N=1", "-o", target)
    assert done.code == 0, done.err
    written = onnx.load(target)
    assert [d.dim_value for d in written.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 8, 8]
    (found,) = compile_model(target).run({"x": feeds[0]["x"][None]}).values()
    assert np.abs(found[0] - onnxruntime_outputs(written, feeds[0])["scores"]).max() <= 1.01 / 256
    ranged = mcugen("quantize", source, "--calibration", samples, "--dim", "N=1..4", "-o", target)
    assert ranged.code == 2 and "--dim N=4" in ranged.err


def test_a_single_sample_does_not_ruin_a_convolutional_network(tmp_path: Path) -> None:
    """Biases and rounding that were fitted to one sample cost most of the accuracy."""
    np.savez(tmp_path / "one.npz", image=np.load(SAMPLES)["image"][7:8])
    done = mcugen("report", FLOAT, "--calibration", tmp_path / "one.npz", "--board", "host",
                  "--data", DIGITS / "eval.npz", "--quiet", "--json", tmp_path / "r.json")  # fmt: skip
    assert done.code == 0, done.err
    accuracy = json.loads((tmp_path / "r.json").read_text())["accuracy"]
    assert accuracy["quantized"] > accuracy["float32"] - 0.02


def test_what_stays_float_is_named(tmp_path: Path) -> None:
    common = ("--calibration", SAMPLES, "--layer", "/pool/GlobalAveragePool_output_0=float32")
    done = mcugen("quantize", FLOAT, *common, "-o", tmp_path / "digits.onnx")
    assert "precision int8 by 100 samples, 1 operator in float32" in " ".join(done.err.split())
    named = "computed in float32: '/pool/GlobalAveragePool'; as requested; leave out its --layer"
    assert named in " ".join(done.err.split())
    assert not mcugen("quantize", FLOAT, *common, "-o", tmp_path / "digits.onnx", "--quiet").err
