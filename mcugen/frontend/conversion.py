# SPDX-License-Identifier: Apache-2.0
"""Conversion of models of other frameworks to ONNX, by the type of an object or the format of a file.

The package of a framework is imported only when one of its models is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

from mcugen.core.errors import ModelError, UsageError, shortened

_CONVERTERS = {
    "keras": "keras.model",
    "torch": "torch.program",
    "xgboost": "sklearn.estimator",
    "lightgbm": "sklearn.estimator",
    "sklearn": "sklearn.estimator",
}
"""Module of mcugen.frontend that converts objects whose classes are of a package.

The order matters: a Keras model may be a PyTorch module too.
"""


def convert_object(model: Any, example_inputs: Any = None) -> onnx.ModelProto | None:
    """Return a model of another framework as ONNX; None if the object is of no known framework.

    Args:
        model: The object.
        example_inputs: Inputs of one inference: an array or tensor, a tuple of these, or a dictionary by name.

    Raises:
        UsageError: The object is of a known framework, but not a model; or the conversion needs example inputs.
        ModelError: The framework cannot convert the model.
        ToolMissingError: A package that converts the model is not installed.
    """
    framework = framework_of(model)
    if framework is None:
        return None
    convert: Callable[[Any, Any], onnx.ModelProto] = _converter(_CONVERTERS[framework]).convert
    return convert(model, example_inputs)


def framework_of(model: Any) -> str | None:
    """Return the package whose model an object is; None if it is of no known framework."""
    packages = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return next((package for package in _CONVERTERS if package in packages), None)


def needs_examples(model: Any) -> bool:
    """Return whether the shapes of a model's inputs come from example inputs: a PyTorch module does not know them."""
    return framework_of(model) == "torch" and not hasattr(model, "graph_signature")


def convert_file(path: Path, framework: str) -> onnx.ModelProto:
    """Return the model in a file of another framework as ONNX.

    Args:
        path: The file.
        framework: The package that the file is of; a key of _CONVERTERS.

    Raises:
        ModelError: The file is not valid, may run code, or cannot be converted.
        ToolMissingError: A package that converts the model is not installed.
    """
    convert: Callable[[Path], onnx.ModelProto] = _converter(_CONVERTERS[framework]).convert_file
    return convert(path)


def _converter(name: str) -> Any:
    return import_module(f"mcugen.frontend.{name}")


def conversion_error(what: str, error: Exception, remedy: str) -> ModelError:
    """Return the error for a model that its framework cannot convert.

    Args:
        what: The model, as "a PyTorch module".
        error: The error of the framework; its last cause is shown.
        remedy: Advice for the user.
    """
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    fault = f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
    return ModelError(f"{what} must be convertible to ONNX", shortened(fault, 500), remedy)


def require_no_examples(example_inputs: Any, what: str) -> None:
    """Raise UsageError if example inputs are given for a model whose inputs are known.

    Args:
        example_inputs: The value of the keyword.
        what: The model, as "an ONNX model".
    """
    if example_inputs is not None:
        raise UsageError("example_inputs is for models without fixed inputs", what, "leave it out")
