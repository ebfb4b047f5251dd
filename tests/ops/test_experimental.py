# SPDX-License-Identifier: Apache-2.0
"""Operators from before ONNX's version 1: as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np
import pytest
from node_cases import Case, Fixed, agrees, real, whole
from onnx_models import imported

from mcugen.core.errors import UnsupportedError

X, IMAGE = real(2, 3, 4), real(1, 3, 6, 7)


def old(op_type: str, *operands: object, opset: int = 9, **attributes: object) -> Case:
    return Case(op_type, operands or [X], attributes, domain="", opset=opset)  # type: ignore[arg-type]


CASES = {
    "affine": old("Affine", alpha=2.0, beta=0.5),
    "affine, plain": old("Affine"),
    "scale": old("Scale", scale=0.3),
    "scale, plain": old("Scale"),
    "image scaler": old("ImageScaler", IMAGE, bias=[0.1, -0.2, 0.3], scale=2.0),
    "image scaler, opset 7": old("ImageScaler", IMAGE, bias=[0.1, -0.2, 0.3], opset=7),
    "parametric softplus": old("ParametricSoftplus", alpha=0.5, beta=2.0),
    "scaled tanh": old("ScaledTanh", alpha=0.5, beta=2.0),
    "crop": old("Crop", IMAGE, border=[1, 2, 0, 1]),
    "crop to a size": old("Crop", IMAGE, border=[1, 2, 0, 1], scale=[2, 3]),
    "dynamic slice": old(
        "DynamicSlice",
        X,
        Fixed(whole([1, 0], dtype=np.int64)),
        Fixed(whole([3, 2], dtype=np.int64)),
        Fixed(whole([1, 2], dtype=np.int64)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_agrees_with_onnxruntime(case: Case) -> None:
    agrees(case)


def test_what_lies_outside_the_image_is_not_cropped() -> None:
    with pytest.raises(UnsupportedError, match="what is left must lie in the image"):
        imported(old("Crop", IMAGE, border=[1, 2, 0, 1], scale=[9, 3]).model())
