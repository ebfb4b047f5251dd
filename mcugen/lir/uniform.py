# SPDX-License-Identifier: Apache-2.0
"""Baking of parameters on which all layers of a C function agree: literals replace members of the layers' structs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from mcugen.lir.program import Instr, Program

FOLDABLE_PARAMETERS = frozenset({"batch"})
"""Parameters that no template multiplies or adds: others stay members where they are 0 or 1, as a product with the
literal 1, or a sum with 0, were code without effect (MISRA C:2012, rule 2.2).
"""


def with_literals(programs: Sequence[Program]) -> list[Program]:
    """Return the programs with literals for parameters that kernels call uniform, where all programs agree on them.

    The programs share functions.
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
