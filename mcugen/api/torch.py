# SPDX-License-Identifier: Apache-2.0
"""The module `mcugen.torch` for PyTorch programs; PyTorch itself is imported at the first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcugen.core.packages import optional_package

if TYPE_CHECKING:
    from mcugen.quantization.qat.module import QatModule, prepare_qat

__all__ = ["QatModule", "prepare_qat"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mcugen.torch' has no attribute '{name}'")
    with optional_package("torch", f"mcugen.torch.{name}"):
        return getattr(import_module("mcugen.quantization.qat.module"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
