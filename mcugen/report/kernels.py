# SPDX-License-Identifier: Apache-2.0
"""The table of kernels that docs/kernels.md shows."""

from __future__ import annotations

from collections import defaultdict

from mcugen.kernels.declared import declared_kernels
from mcugen.lir.kernel import Kernel
from mcugen.ops.onnx_node import BUILT_IN


def kernel_table() -> str:
    """Every declared kernel, as Markdown: what it computes, the CPU features that it needs, operators that name it."""
    operators = defaultdict(set)
    for (_, operator), support in BUILT_IN.support.items():
        for name in support.kernels:
            operators[name].add(operator)
    rows = (_row(kernel, operators[kernel.name]) for kernel in declared_kernels())
    return "\n".join(["| kernel | computes | needs | operators |", "|---|---|---|---|", *rows]) + "\n"


def _row(kernel: Kernel, operators: set[str]) -> str:
    needs = [kernel.library] * bool(kernel.library) + sorted(kernel.needs)
    needs += [f"no {feature}" for feature in sorted(kernel.lacks)]
    cells = (f"`{kernel.name}`", kernel.what, ", ".join(needs), ", ".join(sorted(operators)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
