# SPDX-License-Identifier: Apache-2.0
"""What models of one firmware have together: C functions and arrays that exist once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugen.codegen.functions import Function, FunctionKey
from mcugen.hir.types import Array

ArrayKey = tuple[str, str, bytes]
"""C type of the elements, the memory that holds them ("" for the default), and the bytes."""


def array_key(ctype: str, data: Array, memory: str = "") -> ArrayKey:
    """Equal for arrays of which one will do."""
    return ctype, memory, np.ascontiguousarray(data).tobytes()


@dataclass(frozen=True)
class Shared:
    """Of the firmware `name` what is there already when a model is rendered; nothing, for a model alone."""

    name: str = ""
    functions: Mapping[FunctionKey, Function] = field(default_factory=dict)
    arrays: Mapping[ArrayKey, str] = field(default_factory=dict)
    """Their C names."""

    @property
    def names(self) -> set[str]:
        """All that is taken."""
        functions = [function.name for function in self.functions.values()]
        return {*self.arrays.values(), *functions, *(f"{name}_params" for name in functions)}


ALONE = Shared()
"""No firmware: a folder of one model."""
