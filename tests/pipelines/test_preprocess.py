# SPDX-License-Identifier: Apache-2.0
"""What `--preprocess` says becomes C: samples that it makes, and those that the firmware makes, are the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from onnx_models import Net
from PIL import Image

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.hir.types import Array
from mcugen.pipelines import with_preprocessing

SIDES = (9, 14)
LINES = {
    "colors, each with numbers of its own": (3, "rgb, scale=1/255, mean=0.485;0.456;0.406, std=0.229;0.224;0.225"),
    "gray": (1, "gray, scale=1/127.5, mean=1"),
    "numbers as they are": (3, "rgb"),
}


def model(channels: int) -> Net:
    net = Net()
    net.output(net.op("ReduceMax", net.input("x", 1, channels, *SIDES), axes=[1], out="y"))
    return net


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PNG files of the model's size, in colors."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (3, *SIDES, 3), dtype=np.uint8)):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def samples(net: Compilation, data: Path) -> list[Array]:
    return [sample["x"] for sample in net.samples(data, net.compiled.program.inputs).inputs]


@pytest.mark.parametrize("name", LINES)
def test_the_firmware_does_what_calibrated_it(name: str, pictures: Path):
    """The samples by --preprocess alone, those of the pipeline, and what the C makes of the pictures' bytes."""
    channels, line = LINES[name]
    quantizing, judging = Quantizing(preprocess=line), Judging(data=pictures)
    options = CompileOptions("net", input_pipeline="image=rgb888, preprocess")
    made = Compilation(model(channels).model(), "host", options, quantizing, judging)
    plain = Compilation(model(channels).model(), "host", CompileOptions("net"), quantizing)
    for one, other in zip(samples(made, pictures), samples(plain, pictures), strict=True):
        assert one.tobytes() == other.astype(np.float32).tobytes()
    found = made.report().input_pipeline
    assert found is not None
    assert (found.pipeline, found.verified) == (f"image=rgb888, {line}", 3)


def test_the_command_calibrates_and_generates_by_one_line(pictures: Path, tmp_path: Path):
    (tmp_path / "net.onnx").write_bytes(model(3).model().SerializeToString())
    (tmp_path / "camera.txt").write_text("image=rgb888\npreprocess # as it was trained\n")
    options = ["--input-pipeline", tmp_path / "camera.txt", "--preprocess", "rgb, scale=1/255", "--integer-io"]
    options += ["--calibration", pictures, "--data", pictures, "--board", "host", "--json", "-", "--quiet"]
    done = mcugen("report", tmp_path / "net.onnx", *options)
    assert done.code == 0, done.err
    assert json.loads(done.out)["input_pipeline"]["pipeline"] == "image=rgb888, rgb, scale=1/255"


@pytest.mark.parametrize(
    ("pipeline", "line", "said"),
    [
        ("image=rgb888, preprocess", "resize=96x96, gray", "same bits.*resize=96x96.*say resize=96x96 in the pipeline"),
        ("image=rgb888, gray", "scale=2", "alone.*write `preprocess`"),
        ("sound=8000, frame=64/64, preprocess", "scale=2", "behind image=FORMAT"),
        ("image=rgb888, preprocess", "sharpen", "known keys"),
    ],
)
def test_what_has_no_form_in_c_is_refused_by_name(pipeline: str, line: str, said: str):
    with pytest.raises(UsageError, match=said):
        with_preprocessing(pipeline, line)


def test_the_word_needs_what_it_stands_for():
    options = CompileOptions(input_pipeline="image=rgb888, preprocess")
    with pytest.raises(UsageError, match="no steps of --preprocess"):
        _ = Compilation(model(3).model(), "host", options).compiled
