# SPDX-License-Identifier: Apache-2.0
"""All kernels of the package: for documents and tests, which know new ones without being told."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

import mcugen.kernels
from mcugen.lir.kernel import Kernel


@cache
def declared_kernels() -> tuple[Kernel, ...]:
    """By name, each once."""
    modules = pkgutil.walk_packages(mcugen.kernels.__path__, "mcugen.kernels.")
    found = {kernel.name: kernel for m in modules for kernel in kernels_of(importlib.import_module(m.name))}
    return tuple(found[name] for name in sorted(found))


def kernels_of(module: ModuleType) -> Iterator[Kernel]:
    """Those in its variables."""
    for value in list(vars(module).values()):
        yield from _kernels(value)


def _kernels(value: object) -> Iterator[Kernel]:
    """Those in a module's constant: one, or a table of them."""
    if isinstance(value, Kernel):
        yield value
    elif isinstance(value, dict):
        yield from _kernels(tuple(value.values()))
    elif isinstance(value, Iterable) and isinstance(value, tuple):
        for each in value:
            yield from _kernels(each)
