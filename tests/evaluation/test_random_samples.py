# SPDX-License-Identifier: Apache-2.0
"""A report warns of the user's samples beyond the calibrated range of an input, and not of its own random sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mcugen
from mcugen.evaluation.samples import random_samples

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module", params=["digits_int8.onnx", "digits_f32.onnx"])
def model(request: pytest.FixtureRequest) -> mcugen.Model:
    """Return a model that is quantized already, and one that samples quantize; both take images from 0 to 1."""
    is_quantized = request.param == "digits_int8.onnx"
    return mcugen.compile(
        DIGITS / request.param, board="host", calibration=None if is_quantized else DIGITS / "calibration.npz"
    )


def warnings_about_ranges(warnings: tuple[str, ...]) -> list[str]:
    return [warning for warning in warnings if "range that it was calibrated for" in warning]


def test_a_report_without_samples_does_not_blame_the_samples(model: mcugen.Model) -> None:
    assert warnings_about_ranges(model.report().warnings) == []


@pytest.mark.parametrize("scale", [1, 16])
def test_a_report_names_samples_of_another_scale(model: mcugen.Model, scale: int) -> None:
    with np.load(DIGITS / "eval.npz") as file:
        images = file["image"][:2] * np.float32(scale)
    warnings = warnings_about_ranges(model.report(data={"image": images}).warnings)
    assert len(warnings) == (scale > 1)
    assert all("'image'" in warning and "--pixel-scale" in warning for warning in warnings)


def test_a_selection_of_random_samples_is_random() -> None:
    samples = random_samples([])
    assert samples.is_random and samples.only(samples.inputs).is_random
