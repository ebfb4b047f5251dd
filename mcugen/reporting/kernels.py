# SPDX-License-Identifier: Apache-2.0
"""All declared kernels of the package, for documents and tests; they are found by importing all modules."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from functools import cache

import mcugen.kernels
import mcugen.ops
from mcugen.kernels.common.declared import kernels_of
from mcugen.lir.kernel import CHECKED, UPDATABLE, Kernel
from mcugen.ops.onnx_node import BUILT_IN


@cache
def declared_kernels() -> tuple[Kernel, ...]:
    """Return all declared kernels, sorted by name, each once."""
    rooms = (mcugen.kernels, mcugen.ops)
    modules = [m.name for room in rooms for m in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    by_name = {kernel.name: kernel for name in modules for kernel in kernels_of(importlib.import_module(name))}
    return tuple(by_name[name] for name in sorted(by_name))


def kernel_table() -> str:
    """Return a Markdown table of all declared kernels: what they compute, needed CPU features, and operators."""
    operators = defaultdict(set)
    for (_, operator), support in BUILT_IN.support.items():
        for name in support.kernels:
            operators[name].add(operator)
    rows = (_row(kernel, operators[kernel.name]) for kernel in declared_kernels())
    return "\n".join(["| kernel | computes | needs | operators |", "|---|---|---|---|", *rows]) + "\n"


def _row(kernel: Kernel, operators: set[str]) -> str:
    needs = [kernel.library] * bool(kernel.library) + sorted(kernel.needs)
    needs += [f"no {'--' * (feature in (CHECKED, UPDATABLE))}{feature}" for feature in sorted(kernel.lacks)]
    cells = (f"`{kernel.name}`", kernel.what, ", ".join(needs), ", ".join(sorted(operators)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
