# SPDX-License-Identifier: Apache-2.0
"""All kernels of the package: for documents and tests, which know new ones without being told."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache

import mcugen.kernels
from mcugen.lir.kernel import Kernel


@cache
def declared_kernels() -> tuple[Kernel, ...]:
    """By name, each once."""
    modules = pkgutil.walk_packages(mcugen.kernels.__path__, "mcugen.kernels.")
    found = {k.name: k for m in modules for v in vars(importlib.import_module(m.name)).values() for k in _kernels(v)}
    return tuple(found[name] for name in sorted(found))


def _kernels(value: object) -> Iterator[Kernel]:
    """Those in a module's constant: one, or a table of them."""
    if isinstance(value, Kernel):
        yield value
    elif isinstance(value, dict):
        yield from _kernels(tuple(value.values()))
    elif isinstance(value, Iterable) and isinstance(value, tuple):
        for each in value:
            yield from _kernels(each)
