# SPDX-License-Identifier: Apache-2.0
"""mcugen: an ahead-of-time compiler from ONNX neural networks to C for microcontrollers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcugen.core.version import __version__

if TYPE_CHECKING:
    from mcugen.api.compilation import Compilation
    from mcugen.core.board import Board, load_board
    from mcugen.core.errors import McugenError
    from mcugen.core.options import CompileOptions, LibraryFiles, Places
    from mcugen.deploy.linking import Linking
    from mcugen.driver.compiled import CompiledModel
    from mcugen.driver.compiler import compile_model
    from mcugen.driver.tasks import Judging, Quantizing

__all__ = [
    "Board",
    "Compilation",
    "CompileOptions",
    "CompiledModel",
    "Judging",
    "LibraryFiles",
    "Linking",
    "McugenError",
    "Places",
    "Quantizing",
    "__version__",
    "compile_model",
    "load_board",
]

_HOMES = {
    "Board": "core.board",
    "Compilation": "api.compilation",
    "CompileOptions": "core.options",
    "CompiledModel": "driver.compiled",
    "Judging": "driver.tasks",
    "LibraryFiles": "core.options",
    "Linking": "deploy.linking",
    "McugenError": "core.errors",
    "Places": "core.options",
    "Quantizing": "driver.tasks",
    "compile_model": "driver.compiler",
    "load_board": "core.board",
}
"""Module of each public name. Modules are imported at the first access, as importing the compiler takes a while."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mcugen' has no attribute '{name}'")
    return getattr(import_module(f"mcugen.{_HOMES[name]}"), name)
