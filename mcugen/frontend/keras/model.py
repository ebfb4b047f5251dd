# SPDX-License-Identifier: Apache-2.0
"""Conversion of Keras models and .keras files to ONNX by Keras' exporter."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from mcugen.core.errors import ModelError, UsageError, shortened
from mcugen.core.limits import MAX_MODEL_BYTES
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import conversion_error, require_no_examples
from mcugen.frontend.torch.program import export_module, quiet_exporter, tidy_export

_SAVE_REMEDY = 'save it again by model.save("model.keras")'
_REFUSED_REMEDY = "if you trust the file, load it in Python with its own classes and call mcugen.compile(model, …)"
_EXPORT_REMEDY = 'call model.export("model.onnx", format="onnx"), which shows the whole error'

_CONFIGURATION = "config.json"
"""Name of the entry of a .keras file that describes the layers."""

_BACKENDS = ("torch", "tensorflow", "jax")
"""Backends of Keras that export ONNX, by preference: the export of the first needs no further package."""


def convert(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Return a Keras 3 model as ONNX.

    Args:
        model: A `keras.Model` of any backend that exports ONNX: PyTorch, TensorFlow or JAX.
        example_inputs: Must be None: a model that was built knows its inputs.

    Raises:
        UsageError: The object is not a Keras model.
        ModelError: Keras cannot export the model.
        ToolMissingError: A package that the backend's export needs is not installed.
    """
    import keras

    if not isinstance(model, keras.Model):
        fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
        raise UsageError("a Keras model must be a keras.Model of Keras 3", fault)
    require_no_examples(example_inputs, "a Keras model")
    examples = _zeros(model)
    model(examples)  # Keras exports only models that were called.
    if keras.backend.backend() == "torch":
        return export_module(model, (examples,), {}, _identifier(model))
    with tempfile.TemporaryDirectory() as folder, optional_package("keras", "a Keras model"):
        file = Path(folder) / "model.onnx"
        try:
            with quiet_exporter():
                model.export(file, format="onnx", verbose=False)
        except ImportError:
            raise
        except Exception as error:  # Keras, its backend and the model's own code raise any type.
            raise conversion_error("a Keras model", error, _EXPORT_REMEDY) from error
        proto = onnx.load(file)
    proto.graph.name = _identifier(model)
    tidy_export(proto)
    return proto


def _identifier(model: Any) -> str:
    return re.sub(r"\W+", "_", str(model.name)) or "model"


def _zeros(model: Any) -> Any:
    """Return one tensor of zeros for each input, with 1 in place of sizes that are open.

    Raises:
        UsageError: The model has no inputs yet.
    """
    import keras

    if not getattr(model, "inputs", None):
        raise UsageError("a Keras model must be built", "no inputs", "call the model once, or begin with keras.Input")
    zeros = [keras.ops.zeros([size or 1 for size in value.shape], value.dtype) for value in model.inputs]
    return zeros[0] if len(zeros) == 1 else zeros


def convert_file(path: Path) -> onnx.ModelProto:
    """Return the model in a .keras file as ONNX; no code of the file runs.

    Raises:
        ModelError: The file is not a .keras file, names classes that are not of Keras, or cannot be exported.
        ToolMissingError: Keras or a backend of Keras is not installed.
    """
    _check_configuration(path)
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        available = (name for name in _BACKENDS if importlib.util.find_spec(name) is not None)
        os.environ["KERAS_BACKEND"] = next(available, _BACKENDS[0])
    with optional_package("keras", f"{path}: a Keras model"):
        import keras
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises any type for an inconsistent file.
        fault = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        raise ModelError(
            f"{path}: the model must be valid for Keras {keras.__version__}", fault, _SAVE_REMEDY
        ) from error
    return convert(model)


def _check_configuration(path: Path) -> None:
    """Raise ModelError unless all classes and functions that a .keras file names are Keras' own."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            configuration = json.loads(archive.read(_CONFIGURATION)) if size <= MAX_MODEL_BYTES else None
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as error:
        raise ModelError(f"{path}: the file must be a .keras file", str(error), _SAVE_REMEDY) from error
    if configuration is None:
        raise ModelError(f"{path}: a model must have at most {MAX_MODEL_BYTES:,} bytes", f"{size:,} unpacked")
    for foreign_object in _foreign_objects(configuration):
        raise ModelError(f"{path}: a .keras file must hold only layers of Keras", foreign_object, _REFUSED_REMEDY)


def _foreign_objects(configuration: Any) -> Iterator[str]:
    """Yield the classes and functions in a configuration that are not Keras' own."""
    todo = [configuration]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            todo += item.values()
            module, name, registered = (item.get(key) for key in ("module", "class_name", "registered_name"))
            if name is None:
                continue
            is_own = module in (None, "builtins") or re.fullmatch(r"keras(\.\w+)*", str(module))
            if name in ("__lambda__", "Lambda") or not is_own or ">" in str(registered):
                yield f"{module or 'the class'} {name}"
