# SPDX-License-Identifier: Apache-2.0
"""mcugen: an ahead-of-time compiler from neural networks to C for microcontrollers.

import mcugen

model = mcugen.compile("model.onnx", board="rt1060", calibration="samples.npz")
model.write("firmware/model")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

from mcugen.core.version import __version__

if TYPE_CHECKING:
    from mcugen.api import torch  # noqa: F401 - not in __all__: a star import would hide PyTorch.
    from mcugen.api.model import Model, compile
    from mcugen.api.quantized import QuantizedModel, quantize
    from mcugen.core.board import Board
    from mcugen.core.errors import McugenError
    from mcugen.deploy.linking import Linking

__all__ = ["Board", "Linking", "McugenError", "Model", "QuantizedModel", "__version__", "compile", "quantize"]

_HOMES = {
    "Board": "core.board",
    "Linking": "deploy.linking",
    "McugenError": "core.errors",
    "Model": "api.model",
    "QuantizedModel": "api.quantized",
    "compile": "api.model",
    "quantize": "api.quantized",
}
"""Module of each public name. Modules are imported at the first access, as importing the compiler takes a while."""

_DEPRECATED = {
    "Compilation": ("api.compilation", "mcugen.compile, or mcugen.quantize"),
    "CompileOptions": ("core.options", "keywords of mcugen.compile"),
    "CompiledModel": ("driver.compiled", "mcugen.Model"),
    "Judging": ("driver.tasks", "keywords of mcugen.compile"),
    "LibraryFiles": ("core.options", "the keywords cmsis_nn_include and cmsis_nn_lib of mcugen.compile"),
    "Places": ("core.options", "the keyword place of mcugen.compile"),
    "Quantizing": ("driver.tasks", "keywords of mcugen.compile"),
    "compile_model": ("driver.compiler", "mcugen.compile"),
    "load_board": ("core.board", "mcugen.Board.load"),
}
"""Module of each former public name, and its replacement. The next minor version removes the names."""


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        module, replacement = _DEPRECATED[name]
        warn(f"mcugen.{name} is deprecated: use {replacement}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"mcugen.{module}"), name)
    if name == "torch":
        return import_module("mcugen.api.torch")
    if name not in _HOMES:
        raise AttributeError(f"module 'mcugen' has no attribute '{name}'")
    return getattr(import_module(f"mcugen.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
