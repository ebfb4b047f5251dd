# SPDX-License-Identifier: Apache-2.0
"""Conversion of fitted estimators and pipelines of scikit-learn, XGBoost and LightGBM to ONNX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mcugen.core.errors import ModelError, UsageError, shortened
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import conversion_error
from mcugen.frontend.sklearn.booster import prepare_booster
from mcugen.frontend.tflite.schema import LABELS_KEY

TARGET_OPSETS: dict[str, int] = {"": 18, "ai.onnx.ml": 3}
"""Operator sets of the converted model, which all converters write."""

_MISSING_CONVERTER = re.compile(r"<class '([\w.]+)'>")
"""The class that skl2onnx has no converter for, in its error."""

_REMEDY = "use another estimator for this step, or compute the step before the model"

_SCORE_OPTIONS: Sequence[Mapping[str, bool]] = (
    {"zipmap": False, "nocl": True},
    {"zipmap": False},
    {"nocl": True},
    {},
)
"""Options of classifiers for scores as one tensor without the names of classes; each classifier knows some of them."""


def convert(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Return a fitted estimator or pipeline as ONNX, for one sample of float32 features named "X".

    The features have the order of the columns that the model was fitted with, also if parts of the model select columns
    by name.

    Args:
        model: An estimator or pipeline of scikit-learn, in which estimators of XGBoost and LightGBM may be.
        example_inputs: Samples, for models that do not know their number of features.

    Raises:
        UsageError: The estimator is not fitted, or takes texts.
        ModelError: A step has no converter.
        ToolMissingError: A converter is not installed.
    """
    with optional_package("sklearn", "a scikit-learn model"):
        from skl2onnx.common.data_types import FloatTensorType
        from sklearn.base import BaseEstimator
    if not isinstance(model, BaseEstimator):
        fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
        raise UsageError("a model of scikit-learn, XGBoost or LightGBM must be an estimator", fault)
    inputs = [("X", FloatTensorType([1, _num_features(model, example_inputs)]))]
    copy = deepcopy(model)
    for part in list(_parts(copy)):
        _require_numbers(part)
        _prepare(part)
        prepare_booster(part, TARGET_OPSETS)
    try:
        proto = _convert(copy, inputs)
    except Exception as error:  # skl2onnx raises about ten types without a common base.
        missing = _MISSING_CONVERTER.search(str(error))
        if missing:
            rule = f"{type(model).__name__}: skl2onnx must have a converter for each step"
            raise ModelError(rule, f"none for {missing[1]}", _REMEDY) from error
        raise conversion_error(f"a {type(model).__name__}", error, _REMEDY) from error
    split_sequences(proto.graph)
    _name_classes(proto, model)
    proto.graph.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(model).__name__).lower()
    return proto


def _convert(model: Any, inputs: Sequence[tuple[str, Any]]) -> onnx.ModelProto:
    """Return a model as ONNX with the first of _SCORE_OPTIONS that skl2onnx has for it."""
    from skl2onnx import to_onnx
    from sklearn.base import is_classifier

    for options in _SCORE_OPTIONS if is_classifier(model) else ({},):
        known = {id(model): options} if options else None
        try:
            proto: onnx.ModelProto = to_onnx(model, initial_types=inputs, options=known, target_opset=TARGET_OPSETS)
            return proto
        except (RuntimeError, NameError) as error:
            if not options or "Option '" not in str(error):
                raise
    raise AssertionError("the last options are empty")


def split_sequences(graph: onnx.GraphProto) -> None:
    """Replace each output that is a sequence of tensors by these tensors, called NAME_0, NAME_1 and so on, in place.

    A MultiOutputClassifier gives a sequence with the probabilities of each target.
    """
    builders = {node.output[0]: node for node in graph.node if node.op_type == "SequenceConstruct"}
    outputs = list(graph.output)
    del graph.output[:]
    for output in outputs:
        builder = builders.get(output.name)
        if builder is None:
            graph.output.append(output)
            continue
        graph.node.remove(builder)
        for index, tensor in enumerate(builder.input):
            name = f"{output.name}_{index}"
            graph.node.append(helper.make_node("Identity", [tensor], [name]))
            graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))


def _name_classes(proto: onnx.ModelProto, model: Any) -> None:
    """Write the names of a classifier's classes to the model, if they are texts and an output has as many elements."""
    classes = getattr(model, "classes_", None)
    names = [] if classes is None else list(classes)
    if not names or not all(isinstance(name, str) for name in names):
        return
    shapes = [[dim.dim_value for dim in output.type.tensor_type.shape.dim] for output in proto.graph.output]
    if [1, len(names)] in shapes:
        proto.metadata_props.add(key=LABELS_KEY, value=json.dumps(list(map(str, names))))


def _require_numbers(part: Any) -> None:
    """Raise UsageError if an encoder has categories that are texts, which C has no inputs for."""
    for categories in getattr(part, "categories_", ()):
        texts = [category for category in categories if isinstance(category, str)]
        if texts:
            raise UsageError(
                "all features of a compiled model must be numbers",
                f"{type(part).__name__} with the category {str(texts[0])!r}",
                "number the categories before the model, and fit the encoder with these numbers",
            )


def _prepare(part: Any) -> None:
    """Change an estimator to what skl2onnx converts, with equal predictions.

    A fitted ColumnTransformer selects columns by position, because the compiled input has no names.
    """
    if hasattr(part, "flatten_transform"):  # Shape of a VotingClassifier's transform, which is not compiled.
        part.flatten_transform = False
    positions = getattr(part, "_transformer_to_input_indices", None)
    if positions:
        part.transformers_ = [(name, step, positions.get(name, columns)) for name, step, columns in part.transformers_]


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


def _parts(model: Any) -> Iterator[Any]:
    """Yield an estimator and the estimators in it, fitted ones included."""
    seen: set[int] = set()
    todo = [model]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if hasattr(item, "fit") and hasattr(item, "get_params"):
            yield item
            todo += vars(item).values()
        elif isinstance(item, list | tuple):
            todo += item
        elif isinstance(item, Mapping):
            todo += item.values()
