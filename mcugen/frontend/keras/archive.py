# SPDX-License-Identifier: Apache-2.0
"""Checks of .keras files before Keras reads them: a file may name only classes and functions of Keras."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcugen.core.errors import DoesNotFitError, ModelError
from mcugen.core.limits import MAX_MODEL_BYTES

SAVE_REMEDY = 'save it again by model.save("model.keras")'
_REFUSED_REMEDY = "if you trust the file, load it in Python with its own classes and call mcugen.compile(model, …)"

_CONFIGURATION = "config.json"
"""Name of the entry of a .keras file that describes the layers."""


def check_archive(path: Path) -> None:
    """Raise ModelError unless all classes and functions that a .keras file names are Keras' own.

    Raises:
        ModelError: The file is not a .keras file, or names other classes.
        DoesNotFitError: The file is too large.
    """
    for foreign_object in foreign_objects(path):
        raise ModelError(f"{path}: a .keras file must hold only layers of Keras", foreign_object, _REFUSED_REMEDY)


def foreign_objects(path: Path) -> Iterator[str]:
    """Yield the classes and functions that a .keras file names and that are not Keras' own.

    The losses and metrics that the model was trained with do not count, as they are not loaded.
    """
    todo = [_layers(_configuration(path))]
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


def _layers(configuration: Any) -> Any:
    """Return the part of a configuration that Keras reads if it does not compile the model."""
    if not isinstance(configuration, dict):
        return configuration
    return {key: value for key, value in configuration.items() if key != "compile_config"}


def _configuration(path: Path) -> Any:
    """Return the description of the layers in a .keras file."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MAX_MODEL_BYTES:
                limit = f"{path}: a model must have at most {MAX_MODEL_BYTES:,} bytes"
                raise DoesNotFitError(limit, f"{size:,} unpacked")
            return json.loads(archive.read(_CONFIGURATION))
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as error:
        raise ModelError(f"{path}: the file must be a .keras file", str(error), SAVE_REMEDY) from error
