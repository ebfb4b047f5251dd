# SPDX-License-Identifier: Apache-2.0
"""Detection of layers whose number of instructions depends on data."""

from __future__ import annotations

from mcugen.core.board import Board
from mcugen.lir.layer_titles import layer_names, titles_of
from mcugen.lir.program import Control, Instr, Program

_SATURATES = frozenset({"dsp", "thumb2"})
"""Features of CPUs that limit a number without a branch, unless the code is plain C."""
_PLAIN = "-DMCUGEN_PLAIN_C"
COPYING_KERNELS = frozenset(
    {"bitcast", "copy", "fill", "gather", "gather_elements", "move", "one_hot", "resize_nearest", "reverse_sequence"}
    | {"slice_at", "transpose", "transpose_inplace", "trilu"}
)
"""Names of kernels that only copy elements, so that their number of instructions does not depend on data."""
_BRANCHES = "numbers are limited by branches: a few instructions an output more or less"


def variations(program: Program, board: Board) -> tuple[str, ...]:
    """Return a sentence for each layer whose number of instructions depends on its data; empty if there is none.

    All loops have bounds, so the instructions of such a layer are limited, too.
    """
    saturates = bool(_SATURATES & board.features) and not any(flag.startswith(_PLAIN) for flag in board.cflags)
    titles, reasons = titles_of(program), dict[str, str]()
    for name, layer in zip(layer_names(program), program.layers(), strict=True):
        is_block = program.head(layer).control is not Control.NONE
        for instr in (program.instrs[i] for i in layer):
            reason = _reason(instr, saturates=saturates)
            if reason:
                reasons.setdefault(titles[instr.name] if is_block else name, reason)
    return tuple(f"{name}: {reason}" for name, reason in reasons.items())


def _reason(instr: Instr, *, saturates: bool) -> str:
    if instr.control is Control.IF:
        return "one of two branches runs"
    if instr.control is Control.FOR and any(operand.role == "cond" for operand in instr.operands):
        return "a loop may end before its last round"
    if instr.control is not Control.NONE:
        return ""
    if instr.declaration is None or instr.library:
        return "a library computes it" * bool(instr.library)
    types = [operand.buffer.dtype for operand in instr.operands]
    if instr.declaration.varies:
        return instr.declaration.varies
    if any(dtype.is_float or dtype.is_narrow_float for dtype in types):
        return "floating-point comparisons and functions of the C library"
    computes = any(dtype.is_integer for dtype in types) and instr.kernel not in COPYING_KERNELS
    return _BRANCHES if computes and not saturates else ""


def max_loop_rounds(program: Program) -> tuple[int, str]:
    """Return an upper bound of the total number of iterations, in one run, of loops that depend on data.

    Returns:
        The bound and ""; or 0 and the reason why there is no bound.
    """
    total = 0
    for instr in program.instrs:
        kernel = instr.declaration
        decides = _reason(instr, saturates=True) if instr.control is not Control.NONE or instr.library else ""
        rounds = kernel.rounds(instr) if kernel and kernel.rounds else None
        if decides or (kernel and kernel.varies and rounds is None):
            return 0, f"{titles_of(program)[instr.name]}: {decides or (kernel.varies if kernel else '')}"
        total += rounds or 0
    return total, ""
