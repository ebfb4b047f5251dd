# SPDX-License-Identifier: Apache-2.0
"""C functions and arrays that the models of one firmware share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugen.codegen.functions import FunctionKey, KernelFunction
from mcugen.hir.types import Array

ArrayKey = tuple[str, str, bytes]
"""Key of a constant array that can be shared: C type of the elements, memory ("" for the default), and bytes."""


def array_key(ctype: str, data: Array, memory: str = "") -> ArrayKey:
    """Return a key that is equal for two constant arrays if they can be shared: equal type, memory and bytes.

    Args:
        ctype: C type of the elements.
        data: The elements.
        memory: Name of the memory that holds the array; "" for the default.
    """
    return ctype, memory, np.ascontiguousarray(data).tobytes()


@dataclass(frozen=True)
class SharedCode:
    """Functions and arrays that a firmware defines once for several models; empty for a single model."""

    name: str = ""
    """C name of the firmware; "" for a single model."""
    functions: Mapping[FunctionKey, KernelFunction] = field(default_factory=dict)
    """The C functions that models share, by key."""
    arrays: Mapping[ArrayKey, str] = field(default_factory=dict)
    """C names of the shared arrays, by key."""

    @property
    def names(self) -> set[str]:
        """Return all C names that shared arrays, functions and parameter structs use."""
        functions = [function.name for function in self.functions.values()]
        return {*self.arrays.values(), *functions, *(f"{name}_params" for name in functions)}


NO_SHARED_CODE = SharedCode()
"""Shared code of a folder with a single model: none."""
