# SPDX-License-Identifier: Apache-2.0
"""mcugen: an ahead-of-time compiler from ONNX neural networks to C for microcontrollers."""

from mcugen.board import Board, load_board
from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.errors import McugenError
from mcugen.options import CompileOptions, LibraryFiles, Places
from mcugen.plugins import load_plugin
from mcugen.version import __version__

__all__ = [
    "Board",
    "CompileOptions",
    "CompiledModel",
    "LibraryFiles",
    "McugenError",
    "Places",
    "__version__",
    "compile_model",
    "load_board",
    "load_plugin",
]
