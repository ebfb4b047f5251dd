# SPDX-License-Identifier: Apache-2.0
"""Image pipelines: C against numpy to the bit, and numpy against what a person would expect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from folder_programs import build_and_run
from PIL import Image
from pipeline_models import CODES, assert_same_bits, fed, feed_of

from mcugen.core.errors import UsageError
from mcugen.hir.types import Array
from mcugen.pipelines import parse_pipeline
from mcugen.pipelines.image import PIXEL_FORMATS, ImageStages

NUMBERS = "scale=1/255, mean=0.5;0.4;0.3, std=0.25"


def images(stages_format: str, *sizes: tuple[int, int]) -> list[Array]:
    """Random ones of (height, width), one of zeros, one of ones; then stripes."""
    random, nbytes = np.random.default_rng(0), PIXEL_FORMATS[stages_format].nbytes
    made = [random.integers(0, 256, (*size, nbytes), dtype=np.uint8) for size in sizes]
    return [*made, np.zeros_like(made[0]), np.full_like(made[0], 255), np.full_like(made[0], 255) * (made[0] > 99)]


@pytest.mark.parametrize("camera", PIXEL_FORMATS)
def test_each_format_is_read_alike_in_c_and_numpy(camera: str):
    """To sizes that do not divide, from images larger and smaller, in float and in codes."""
    sizes = [(21, 30), (7, 6), (9, 64)]
    assert_same_bits(fed(f"image={camera}, rgb, {NUMBERS}", 1, 3, 9, 11), images(camera, *sizes))
    assert_same_bits(fed(f"image={camera}, gray, nearest, scale=1/64", 1, 9, 11, 1, coded=True), images(camera, *sizes))


@pytest.mark.parametrize("crop", ["crop=center", "crop=5x7", "crop=5x7+1+3", "resize=8x8"])
@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_each_crop(crop: str, method: str):
    model = fed(f"image=bgr888, {crop}, {method}, bgr, {NUMBERS}", 1, 8, 8, 3, coded=True)
    assert_same_bits(model, images("bgr888", (13, 17), (17, 13), (10, 6)))


def real(stages: ImageStages, raw: Array, *shape: int) -> Array:
    return stages.reals("raw", raw, shape)


def stages(text: str) -> ImageStages:
    made = parse_pipeline(text)
    assert isinstance(made, ImageStages)
    return made


def test_an_image_of_the_right_size_stays_as_it_is():
    raw = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    for method in ("nearest", "bilinear"):
        np.testing.assert_array_equal(real(stages(f"image=rgb888, {method}"), raw, 1, 8, 6, 3)[0], raw)
    planes = real(stages("image=rgb888, bgr"), raw, 1, 3, 8, 6)[0]
    np.testing.assert_array_equal(planes, np.moveaxis(raw[..., ::-1], -1, 0))


def test_bilinear_is_what_floats_give():
    """Between pixel centers, rounded to nearest: no more than one of 255 off, and hardly ever that."""
    raw = np.random.default_rng(1).integers(0, 256, (37, 53, 1), dtype=np.uint8)
    found = real(stages("image=gray, resize=20x30"), raw, 1, 30, 20, 1)[0, :, :, 0]

    def along(size: int, wanted: int) -> tuple[Array, Array, Array]:
        at = np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, size - 1), at - low

    top, bottom, v = along(37, 30)
    left, right, u = along(53, 20)
    p = raw[..., 0].astype(float)
    above = p[top][:, left] * (1 - u) + p[top][:, right] * u
    below = p[bottom][:, left] * (1 - u) + p[bottom][:, right] * u
    expected = above * (1 - v[:, None]) + below * v[:, None]
    assert np.abs(found - expected).max() <= 1
    assert np.abs(found - expected).mean() < 0.3


def test_colors_are_those_of_others():
    """Gray as Pillow makes it, YUV as JPEG means it, 5 and 6 bits spread over 8."""
    rgb = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    gray = np.asarray(Image.fromarray(rgb).convert("L"))
    np.testing.assert_array_equal(real(stages("image=rgb888, gray"), rgb, 1, 16, 16, 1)[0, :, :, 0], gray)
    image = Image.fromarray(np.repeat(rgb[:, ::2], 2, axis=1))  # two neighbours of one color
    y, u, v = np.moveaxis(np.asarray(image.convert("YCbCr")), -1, 0)
    yuyv = np.stack([y, np.where(np.arange(16) % 2 == 0, u, v)], -1)
    back = np.asarray(Image.fromarray(np.stack([y, u, v], -1), "YCbCr").convert("RGB")).astype(int)
    assert np.abs(real(stages("image=yuyv"), yuyv, 1, 16, 16, 3)[0] - back).max() <= 1
    white = np.full((2, 2), 0xFFFF, np.uint16)
    assert (real(stages("image=rgb565"), white, 1, 2, 2, 3) == 255).all()
    red = np.full((2, 2), 0xF800, np.uint16)
    assert real(stages("image=rgb565be"), red, 1, 2, 2, 3)[0, 0, 0].tolist() == [255, 0, 0]


def test_codes_are_those_of_the_reals():
    model = fed(f"image=gray, {NUMBERS.replace('0.5;0.4;0.3', '0.5')}", 1, 1, 4, 4, coded=True)
    raw = np.arange(16, dtype=np.uint8).reshape(4, 4) * 17
    scale, zero = CODES
    expected = np.clip(np.rint((raw / 255 - 0.5) / 0.25 / scale) + zero, -128, 127)
    np.testing.assert_array_equal(feed_of(model).sample("raw", raw)[0, 0], expected)


PROGRAM = """
    #include <stdio.h>
    #include "net_input.h"

    int main(void)
    {
        static uint8_t pixels[5 * 20];
        static float x[NET_INPUT_COUNT];
        int i;
        for (i = 0; i < 100; ++i) {
            pixels[i] = (uint8_t)(i % 20 < 12 ? i / 20 * 10 + i % 20 / 3 : 250); /* nobody reads between rows */
        }
        printf("%d\\n", net_put_image(x, pixels, 4, 4, 20));
        for (i = 0; i < 16; ++i) {
            printf("%g ", (double)x[i]);
        }
        printf("\\n%d %d %d ", net_put_image(NULL, pixels, 4, 4, 20), net_put_image(x, NULL, 4, 4, 20),
            net_put_image(x, pixels, 0, 4, 20));
        printf("%d %d %d\\n", net_put_image(x, pixels, 4, 8193, 20), net_put_image(x, pixels, 4, 4, 11),
            net_put_image(x, pixels, 3, 4, 20));
        return 0;
    }
    """


def test_rows_may_lie_apart_and_what_is_wrong_is_refused(tmp_path: Path):
    model = fed("image=rgb888, crop=4x4, rgb", 1, 3, 4, 4)
    null, size = 1, 4
    lines = build_and_run(PROGRAM, model.write(tmp_path / "net")).splitlines()
    assert lines[0] == "0"
    assert lines[1].split() == [str(10 * row + column) for row in range(4) for column in range(4)]
    assert lines[2] == f"{null} {null} {size} {size} {size} {size}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        ("rgb, image=rgb888", "'rgb'"),
        ("image=jpeg", "'jpeg'"),
        ("image=rgb888, blur=3", "'blur=3'"),
        ("image=rgb888, rgb=1", "'rgb=1'"),
        ("image=rgb888, crop=0x3", "'0x3'"),
        ("image=rgb888, scale=0", "'0'"),
        ("image=rgb888, gray, rgb", "'rgb'"),
        ("image=rgb888, nearest, bilinear", "'bilinear'"),
        ("image=rgb888" + "," * 5000, "5,012"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, found: str):
    with pytest.raises(UsageError, match="pipeline") as error:
        parse_pipeline(text)
    assert found in str(error.value)


def test_a_folder_of_pictures_is_raw_data(tmp_path: Path):
    random = np.random.default_rng(5)
    pictures = random.integers(0, 256, (2, 9, 7, 3), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    feed = feed_of(fed("image=rgb888, scale=1/255", 1, 3, 8, 8))
    found = feed.samples(tmp_path)
    np.testing.assert_array_equal(np.stack(found.raw or ()), pictures)
    for sample, picture in zip(found.inputs, pictures, strict=True):
        np.testing.assert_array_equal(sample["x"], feed.sample("raw", picture))


def test_an_image_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="must give the type and shape of the model's input"):
        fed("image=rgb888", 1, 1, 8, 8)
    with pytest.raises(UsageError, match="one a channel"):
        fed("image=rgb888, mean=1;2", 1, 3, 8, 8)
    stage = stages("image=rgb888, crop=9x9")
    for raw in (np.zeros((8, 8, 3), np.uint8), np.zeros((9, 9, 3), np.float32), np.zeros((9, 9, 2), np.uint8)):
        with pytest.raises(UsageError, match="raw must be"):
            real(stage, raw, 1, 3, 8, 8)
