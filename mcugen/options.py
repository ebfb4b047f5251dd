# SPDX-License-Identifier: Apache-2.0
"""What a user may ask of a compilation: behaviour only; hardware is a Board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompileOptions:
    """`name` prefixes all C symbols (default: from the model's file name); `dims` binds symbolic dimensions."""

    name: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """The options that shape the generated code, for its banner."""
        bound = ", ".join(f"{key}={size}" for key, size in sorted(self.dims.items()))
        return f"dims {bound}" if bound else "default options"
