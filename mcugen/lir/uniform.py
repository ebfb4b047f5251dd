# SPDX-License-Identifier: Apache-2.0
"""Baking of uniform parameters: those that are equal in all layers of a C function become literals in the function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from mcugen.lir.program import Instr, Program

FOLDABLE_PARAMETERS = frozenset({"batch"})
"""Names of parameters that may become literals even if they are 0 or 1: no template multiplies or adds them.

Other parameters stay members of the struct if they are 0 or 1: a product with 1 or a sum with 0 would be code without
effect (MISRA C:2012, rule 2.2).
"""


def bake_uniform_parameters(programs: Sequence[Program]) -> list[Program]:
    """Return copies of programs in which uniform parameters (Kernel.uniform) are literals in the code.

    A parameter becomes a literal if it is equal in all layers of all programs that share the C function.

    Args:
        programs: The programs, which share C functions.
    """
    alike: dict[tuple[object, ...], list[Instr]] = defaultdict(list)
    for instr in (instr for program in programs for instr in program.instrs):
        if instr.declaration is not None and instr.declaration.uniform:
            alike[instr.function_key].append(instr)
    baked = {id(instr): instr.baked | _equal_parameters(group) for group in alike.values() for instr in group}
    return [
        replace(program, instrs=[replace(i, baked=baked[id(i)]) if id(i) in baked else i for i in program.instrs])
        for program in programs
    ]


def _equal_parameters(instrs: Sequence[Instr]) -> set[str]:
    """Return the names of the uniform parameters that are equal in all instructions."""
    first = instrs[0]
    assert first.declaration is not None, "only declared kernels have uniform parameters"
    declared = first.declaration.uniform
    known = [k for k in declared if k in first.params and (k in FOLDABLE_PARAMETERS or first.params[k] not in (0, 1))]
    sized = {name for instr in instrs for name in instr.formulas}
    return {k for k in known if k not in sized and all(instr.params[k] == first.params[k] for instr in instrs)}
