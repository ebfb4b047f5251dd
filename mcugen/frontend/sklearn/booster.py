# SPDX-License-Identifier: Apache-2.0
"""Converters of XGBoost and LightGBM models for skl2onnx, and a check of what they convert.

onnxmltools converts some models to others without an error, for example random forests of several classes. So each
converted model is compared with its estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mcugen.core.errors import ModelError
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import conversion_error
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array

_PACKAGES = ("xgboost", "lightgbm")
_REMEDY = "train with gradient-boosted trees, a usual objective, one tree per round and class, and one target"

NUM_CHECK_SAMPLES = 64
"""Number of samples on which a converted model is compared with its estimator."""

MAX_DIFFERING_FRACTION = 0.05
"""Largest accepted share of differing samples: float32 may take another branch at a threshold that was a double."""

CHECK_TOLERANCE = 1e-4
"""Largest accepted difference of a prediction, as a share of the largest prediction."""


def prepare_booster(part: Any, target_opset: dict[str, int]) -> None:
    """Register the converter of an estimator of XGBoost or LightGBM, and check it; other estimators are left out.

    Args:
        part: The estimator; one that is not fitted is not checked.
        target_opset: Versions of the operator sets of the converted model.

    Raises:
        ModelError: The estimator cannot be converted, or the converted model computes other predictions.
        ToolMissingError: A converter is not installed.
    """
    package = type(part).__module__.partition(".")[0]
    if package not in _PACKAGES:
        return
    with optional_package("sklearn", f"a model of {package}"):
        _register(part, package)
    if getattr(part, "n_features_in_", None) is None:
        return
    name = type(part).__name__
    try:
        error = _largest_common_error(part, target_opset)
    except Exception as failure:  # The converters raise any type.
        raise conversion_error(f"the {name}", failure, _REMEDY) from failure
    if error > CHECK_TOLERANCE:
        rule = f"{name}: the converter of onnxmltools must keep the predictions"
        fault = f"a difference of {error:.1%} of the largest prediction" if np.isfinite(error) else "another shape"
        raise ModelError(rule, fault, _REMEDY)


def _register(part: Any, package: str) -> None:
    """Tell skl2onnx about the converter of an estimator's class."""
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )
    from sklearn.base import is_classifier

    is_class = is_classifier(part)
    update_registered_converter(
        type(part),
        f"{package}{type(part).__name__}",
        calculate_linear_classifier_output_shapes if is_class else calculate_linear_regressor_output_shapes,
        convert_xgboost if package == "xgboost" else convert_lightgbm,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]} if is_class else {"split": None},
    )


def _largest_common_error(part: Any, target_opset: dict[str, int]) -> float:
    """Return the largest error of the converted predictions without the worst samples, as a share of the largest.

    The worst samples are a share of MAX_DIFFERING_FRACTION. The error is infinite if the shapes differ.
    """
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.base import is_classifier

    is_class = is_classifier(part)
    inputs = [("X", FloatTensorType([NUM_CHECK_SAMPLES, int(part.n_features_in_)]))]
    options = {id(part): {"zipmap": False, "nocl": True}} if is_class else None
    proto = to_onnx(part, initial_types=inputs, options=options, target_opset=target_opset)
    samples = _samples_between_thresholds(proto.graph.node, int(part.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.asarray(part.predict_proba(samples) if is_class else part.predict(samples), np.float64)
    *_, converted = interpret(import_model(load(proto).proto, "booster"), {"X": samples}).values()
    if converted.size != expected.size:
        return np.inf
    errors = np.abs(converted.reshape(expected.shape) - expected).reshape(len(samples), -1).max(1)
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.quantile(errors, 1 - MAX_DIFFERING_FRACTION)) / scale


def _samples_between_thresholds(nodes: Sequence[onnx.NodeProto], num_features: int) -> Array:
    """Return samples whose features are random numbers between neighbouring thresholds of the trees."""
    thresholds: list[set[float]] = [set() for _ in range(num_features)]
    for node in nodes:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        for feature, value in zip(
            attributes.get("nodes_featureids", ()), attributes.get("nodes_values", ()), strict=True
        ):
            thresholds[feature].add(value)
    random, columns = np.random.default_rng(0), []
    for values in thresholds:
        known = np.sort(np.asarray([*values] or [0.0]))
        between = np.concatenate([[known[0] - 1], (known[1:] + known[:-1]) / 2, [known[-1] + 1]])
        columns.append(random.choice(between, NUM_CHECK_SAMPLES))
    return np.stack(columns, 1).astype(np.float32)
