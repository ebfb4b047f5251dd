# SPDX-License-Identifier: Apache-2.0
"""Conversion of fitted estimators and pipelines of scikit-learn, XGBoost and LightGBM to ONNX."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx

from mcugen.core.errors import UsageError, shortened
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import conversion_error

TARGET_OPSETS = {"": 18, "ai.onnx.ml": 3}
"""Operator sets of the converted model, which all converters write."""

_REMEDY = "convert the steps one by one with skl2onnx.to_onnx to find the one that has no converter"

_ONE_OUTPUT_OPTIONS = {"zipmap": False, "nocl": True}
"""Options of classifiers: scores as one tensor without the names of classes."""


def convert(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Return a fitted estimator or pipeline as ONNX, for one sample of float32 features named "X".

    Args:
        model: An estimator or pipeline of scikit-learn, in which estimators of XGBoost and LightGBM may be.
        example_inputs: Samples, for models that do not know their number of features.

    Raises:
        UsageError: The estimator is not fitted.
        ModelError: A step has no converter.
        ToolMissingError: A converter is not installed.
    """
    with optional_package("sklearn", "a scikit-learn model"):
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType
        from sklearn.base import BaseEstimator, is_classifier
    _register_boosters(model)
    if not isinstance(model, BaseEstimator):
        fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
        raise UsageError("a model of scikit-learn, XGBoost or LightGBM must be an estimator", fault)
    inputs = [("X", FloatTensorType([1, _num_features(model, example_inputs)]))]
    options = {id(model): _ONE_OUTPUT_OPTIONS} if is_classifier(model) else None
    try:
        proto: onnx.ModelProto = to_onnx(model, initial_types=inputs, options=options, target_opset=TARGET_OPSETS)
    except Exception as error:  # skl2onnx raises about ten types without a common base.
        raise conversion_error(f"a {type(model).__name__}", error, _REMEDY) from error
    proto.graph.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(model).__name__).lower()
    return proto


def _num_features(model: Any, example_inputs: Any) -> int:
    """Return the number of features that a fitted estimator takes.

    Raises:
        UsageError: It is unknown.
    """
    if example_inputs is not None:
        return int(np.asarray(example_inputs).shape[-1])
    number = getattr(model, "n_features_in_", None)
    if number is None:
        raise UsageError("the estimator must be fitted", "no n_features_in_", "call fit first")
    return int(number)


def _register_boosters(model: Any) -> None:
    """Tell skl2onnx about the converters of XGBoost and LightGBM, if a part of the model is of one of them."""
    for part in _parts(model):
        package = type(part).__module__.partition(".")[0]
        if package not in ("xgboost", "lightgbm"):
            continue
        with optional_package("sklearn", f"a model of {package}"):
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


def _parts(model: Any) -> list[Any]:
    """Return an estimator and the estimators in it."""
    parameters = model.get_params(deep=True).values() if hasattr(model, "get_params") else ()
    return [model, *(value for value in parameters if hasattr(value, "fit"))]
