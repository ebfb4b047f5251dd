# SPDX-License-Identifier: Apache-2.0
"""Conversion of a .keras file in a process of its own, in which Keras has the PyTorch backend.

Keras chooses its backend when it is imported. A .keras file does not depend on the backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

from mcugen.core.errors import DoesNotFitError, ModelError, ToolMissingError, UsageError, shortened

_ERRORS = {kind.exit_code: kind for kind in (UsageError, ModelError, DoesNotFitError, ToolMissingError)}
"""Errors that pass from the child to its parent, by the exit code of the child."""

_CRASH_REMEDY = 'set the environment variable KERAS_BACKEND to "torch", and load the file in Python to see the error'


def convert_in_child(path: Path) -> onnx.ModelProto:
    """Return the model in a .keras file as ONNX, converted in a child process.

    Raises:
        McugenError: The file cannot be converted; the error is that of the child.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        environment = os.environ | {"KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", __package__, str(path), str(result)]
        child = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if child.returncode in _ERRORS and result.is_file():
            raise _ERRORS[child.returncode](*json.loads(result.read_text()))
        if child.returncode or not result.is_file():
            *_, fault = ["", *child.stderr.strip().splitlines()]
            fault = shortened(fault or f"exit code {child.returncode}", 300)
            raise ModelError(f"{path}: a Keras model must be convertible to ONNX", fault, _CRASH_REMEDY)
        return onnx.load(result)
