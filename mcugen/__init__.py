# SPDX-License-Identifier: Apache-2.0
"""mcugen: an ahead-of-time compiler from ONNX neural networks to C for microcontrollers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcugen.version import __version__

if TYPE_CHECKING:
    from mcugen.board import Board, load_board
    from mcugen.compilation import Compilation
    from mcugen.compiled import CompiledModel
    from mcugen.compiler import compile_model
    from mcugen.errors import McugenError
    from mcugen.linked import Linking
    from mcugen.options import CompileOptions, LibraryFiles, Places
    from mcugen.tasks import Judging, Quantizing

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
    "Board": "board",
    "Compilation": "compilation",
    "CompileOptions": "options",
    "CompiledModel": "compiled",
    "Judging": "tasks",
    "LibraryFiles": "options",
    "Linking": "linked",
    "McugenError": "errors",
    "Places": "options",
    "Quantizing": "tasks",
    "compile_model": "compiler",
    "load_board": "board",
}
"""The modules of what the package offers, which are imported when it is asked for: the compiler takes a while."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mcugen' has no attribute '{name}'")
    return getattr(import_module(f"mcugen.{_HOMES[name]}"), name)
