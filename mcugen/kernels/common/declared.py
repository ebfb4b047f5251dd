# SPDX-License-Identifier: Apache-2.0
"""Enumeration of the kernels that a module declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from mcugen.lir.kernel import Kernel


def kernels_of(module: ModuleType) -> Iterator[Kernel]:
    """Yield the kernels that a module's variables hold, also those in tuples and dictionaries, perhaps nested."""
    for value in list(vars(module).values()):
        yield from _kernels(value)


def _kernels(value: object) -> Iterator[Kernel]:
    """Yield the kernels in one value: a kernel, or a possibly nested tuple or dictionary of kernels."""
    if isinstance(value, Kernel):
        yield value
    elif isinstance(value, dict):
        yield from _kernels(tuple(value.values()))
    elif isinstance(value, Iterable) and isinstance(value, tuple):
        for member in value:
            yield from _kernels(member)
