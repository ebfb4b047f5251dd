# SPDX-License-Identifier: Apache-2.0
"""`mcugen profile`, and its file in place of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples
from PIL import Image
from test_quantize_command import FLOAT, SAMPLES


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the digits example."""
    path = tmp_path_factory.mktemp("profile") / "digits.json"
    done = mcugen("profile", FLOAT, "--calibration", SAMPLES, "-o", path, "--quiet")
    assert done.code == 0 and not done.out + done.err
    return path


def test_a_profile_serves_every_scheme(tmp_path: Path, profile: Path) -> None:
    target = tmp_path / "out.onnx"
    for arguments in (("--method", "mse"), ("--symmetric", "--power-of-two"), ("--precision", "int16x8")):
        done = mcugen("quantize", FLOAT, "--profile", profile, *arguments, "-o", target)
        assert done.code == 0, done.err
        assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in onnx.load(target).graph.node}


def test_a_profile_gives_the_ranges_of_its_samples(tmp_path: Path) -> None:
    """Of so few that none is held out to judge by."""
    samples, profile = tmp_path / "few.npz", tmp_path / "few.json"
    np.savez(samples, image=np.load(SAMPLES)["image"][:15])
    assert mcugen("profile", FLOAT, "--calibration", samples, "-o", profile, "--quiet").code == 0
    scales = []
    for source in ("--profile", profile), ("--calibration", samples):
        done = mcugen("quantize", FLOAT, *source, "--method", "percentile", "-o", tmp_path / "out.onnx")
        assert done.code == 0, done.err
        stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
        codes = {n for node in onnx.load(tmp_path / "out.onnx").graph.node if node.op_type == "QuantizeLinear"
                 for n in node.input[1:]}  # fmt: skip
        scales.append({name: float(stored[name]) for name in codes})
    assert scales[0] == scales[1] and len(scales[0]) > 4


def test_a_profile_of_another_model_is_refused(tmp_path: Path, profile: Path) -> None:
    onnx.save(conv_net(), tmp_path / "net.onnx")
    done = mcugen("quantize", tmp_path / "net.onnx", "--profile", profile, "-o", tmp_path / "out.onnx")
    assert done.code == 2 and "must be of the model to quantize" in done.err
    assert not (tmp_path / "out.onnx").exists()


def test_pictures_calibrate_as_the_archive_of_their_pixels_does(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "net.onnx")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    pixels = np.stack([np.clip(s["x"][0] * 60 + 128, 0, 255) for s in normal_samples(conv_net(), 6)]).astype(np.uint8)
    np.savez(tmp_path / "pixels.npz", x_uint8=pixels)
    for index, image in enumerate(pixels):
        Image.fromarray(np.moveaxis(image, 0, -1)).save(pictures / f"{index}.png")
    written = []
    for source in (pictures, tmp_path / "pixels.npz"):
        target = tmp_path / f"{source.stem}.json"
        done = mcugen("profile", tmp_path / "net.onnx", "--calibration", source, "--preprocess",
                      "scale=1/255, mean=0.5, std=0.2;0.25;0.3", "-o", target)  # fmt: skip
        assert done.code == 0, done.err
        written.append(target.read_bytes())
    assert written[0] == written[1]


def test_a_wrong_line_is_one_message(tmp_path: Path) -> None:
    done = mcugen("profile", FLOAT, "--calibration", SAMPLES, "--preprocess", "scale=two", "-o", tmp_path / "p.json")
    assert done.code == 2 and "'scale' must be as in scale=1/255" in " ".join(done.err.split())
    assert not (tmp_path / "p.json").exists()
