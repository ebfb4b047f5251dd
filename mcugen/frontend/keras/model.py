# SPDX-License-Identifier: Apache-2.0
"""Conversion of Keras models and .keras files to ONNX by PyTorch's exporter, whatever the backend of Keras is."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from mcugen.core.errors import ModelError, UsageError, shortened
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import require_no_examples
from mcugen.frontend.keras.archive import SAVE_REMEDY, check_archive, foreign_objects
from mcugen.frontend.keras.child import convert_in_child
from mcugen.frontend.onnx.nodes import rename

_BACKEND_VARIABLE = "KERAS_BACKEND"
"""Environment variable that chooses the backend when Keras is imported."""

_OWN_CLASSES_REMEDY = f'set the environment variable {_BACKEND_VARIABLE} to "torch" before Keras is imported'


def convert(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Return a Keras 3 model as ONNX.

    With another backend than PyTorch, the model is saved and a child process with the PyTorch backend converts it.

    Args:
        model: A `keras.Model`.
        example_inputs: Must be None: a model that was built knows its inputs.

    Raises:
        UsageError: The object is not a Keras model, or has no inputs yet.
        ModelError: PyTorch cannot export the model, or it has classes of its own and another backend than PyTorch.
        ToolMissingError: PyTorch or onnxscript is not installed.
    """
    import keras

    if not isinstance(model, keras.Model):
        fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
        raise UsageError("a Keras model must be a keras.Model of Keras 3", fault)
    require_no_examples(example_inputs, "a Keras model")
    if not getattr(model, "inputs", None):
        raise UsageError("a Keras model must be built", "no inputs", "call the model once, or begin with keras.Input")
    return _export(model) if _has_torch() else _convert_saved(model)


def _has_torch() -> bool:
    """Return whether Keras, which is imported, has the PyTorch backend."""
    import keras

    return bool(keras.backend.backend() == "torch")


def _export(model: Any) -> onnx.ModelProto:
    """Return a model with the PyTorch backend as ONNX, with the names of its layers and inputs."""
    import keras

    with optional_package("keras", "a Keras model"):
        from mcugen.frontend.keras.named_layers import NamedLayers
        from mcugen.frontend.torch.program import export_module
    zeros = [keras.ops.zeros([size or 1 for size in value.shape], value.dtype) for value in model.inputs]
    examples = zeros[0] if len(zeros) == 1 else zeros
    named = NamedLayers(model)
    named(examples)  # Some layers make their variables at the first call.
    proto = export_module(named, (examples,), {}, re.sub(r"\W+", "_", str(model.name)) or "model")
    named.complete_names(proto)
    _name_inputs(proto.graph, [str(value.name) for value in model.inputs])
    return proto


def _name_inputs(graph: onnx.GraphProto, names: list[str]) -> None:
    """Give the inputs the names of the model's inputs, unless other tensors have these names."""
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    if len(names) != len(graph.input) or len({*names}) < len(names) or used.intersection(names):
        return
    renamed = dict(zip((value.name for value in graph.input), names, strict=True))
    for node in graph.node:
        rename(node, renamed)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def _convert_saved(model: Any) -> onnx.ModelProto:
    """Return a model of any backend as ONNX, by a temporary .keras file.

    Raises:
        ModelError: The model has classes that are not of Keras, which the child process does not know.
    """
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        keras.saving.save_model(model, path)
        for foreign_object in foreign_objects(path):
            rule = f"a Keras model with the {keras.backend.backend()} backend must have only layers of Keras"
            raise ModelError(rule, foreign_object, _OWN_CLASSES_REMEDY)
        return convert_in_child(path)


def convert_file(path: Path) -> onnx.ModelProto:
    """Return the model in a .keras file as ONNX; no code of the file runs.

    Keras loads the file in a child process, unless Keras has the PyTorch backend in this process.

    Raises:
        ModelError: The file is not a .keras file, names classes that are not of Keras, or cannot be exported.
        ToolMissingError: Keras, PyTorch or onnxscript is not installed.
    """
    check_archive(path)
    if os.environ.get(_BACKEND_VARIABLE) != "torch" and not ("keras" in sys.modules and _has_torch()):
        return convert_in_child(path)
    with optional_package("keras", f"{path}: a Keras model"):
        import keras
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises any type for an inconsistent file.
        fault = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        raise ModelError(
            f"{path}: the model must be valid for Keras {keras.__version__}", fault, SAVE_REMEDY
        ) from error
    return convert(model)
