# SPDX-License-Identifier: Apache-2.0
"""Comparison of the board's tensors with the reference, and the usual causes of differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.codegen.golden import FLOAT_TOLERANCE
from mcugen.deploy.validation.device import Identity
from mcugen.deploy.validation.figures import Verdict
from mcugen.hir.types import Array

_TINY = 2.0**-126

_LINES = (32, 64)
"""Bytes of a line of usual data caches."""


@dataclass(frozen=True)
class TensorDifference:
    """A difference between a tensor on the board and the same tensor in the reference.

    Attributes:
        element: Index of the first differing element, in memory order.
        board: Value of this element on the board.
        reference: Value of this element in the reference.
        count: Number of differing elements.
        compared: Number of compared elements.
        looks_like_cache: Whether the differing bytes fill a few cache lines, as with missing cache maintenance.
    """

    element: int
    board: float
    reference: float
    count: int
    compared: int
    looks_like_cache: bool


def judge_result(board: Array, reference: Array, tolerates_steps: bool) -> Verdict:
    """Return the verdict on a tensor that the board computed.

    It is EXACT if all bits equal the reference, else CLOSE or DIFFERENT. Floats are close within the self-test's
    tolerance.

    Args:
        board: The tensor of the board.
        reference: The tensor of the reference.
        tolerates_steps: Whether quantized values that differ by at most one are close. This is right if the layer
            computes them from floats.
    """
    if board.tobytes() == reference.tobytes():
        return Verdict.EXACT
    if board.dtype.kind == "f":
        largest = float(np.max(np.abs(reference[np.isfinite(reference)]), initial=_TINY))
        limit = FLOAT_TOLERANCE * largest
        is_close = np.allclose(board, reference, rtol=0.0, atol=limit, equal_nan=True)
        return Verdict.CLOSE if is_close else Verdict.DIFFERENT
    steps = np.abs(board.astype(np.float64) - reference.astype(np.float64)).max(initial=0.0)
    return Verdict.CLOSE if tolerates_steps and steps <= 1 else Verdict.DIFFERENT


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of several verdicts: DIFFERENT before CLOSE before EXACT; UNKNOWN for an empty sequence."""
    order = (Verdict.DIFFERENT, Verdict.CLOSE, Verdict.EXACT)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.UNKNOWN)


def compare_tensors(board: Array, reference: Array) -> TensorDifference:
    """Return the difference between two tensors of equal shape, which are compared bit by bit.

    If all bits are equal, the `count` of the result is 0.
    """
    mine, theirs = board.reshape(-1), reference.reshape(-1)
    differ = np.flatnonzero(_bits(mine) != _bits(theirs))
    first = int(differ[0]) if differ.size else 0
    return TensorDifference(
        first,
        float(mine[first]),
        float(theirs[first]),
        len(differ),
        mine.size,
        any(_in_lines(differ * mine.itemsize, mine.nbytes, line) for line in _LINES),
    )


def _bits(array: Array) -> Array:
    return array.view(np.dtype(f"u{array.itemsize}")) if array.dtype.kind == "f" else array


def _in_lines(offsets: Array, nbytes: int, line: int) -> bool:
    """Return whether the differing bytes fill a few cache lines, while all other lines are equal."""
    if not len(offsets):
        return False
    touched = len(np.unique(offsets // line))
    lines = -(-nbytes // line)
    return lines >= 4 and touched <= lines // 4 and len(offsets) >= touched * line // 4


def likely_causes(
    difference: TensorDifference,
    identity: Identity,
    constants: Sequence[str],
    *,
    is_float: bool,
    is_repeatable: bool,
    is_plain_equal: bool,
) -> list[str]:
    """Return likely causes of a difference between board and reference as sentences, the most likely first.

    Args:
        difference: The difference.
        identity: The firmware's description of itself.
        constants: Names of constants that differ on the board.
        is_float: Whether the layer computes with floats.
        is_repeatable: Whether a second run gave the same results.
        is_plain_equal: Whether a run without measurements (Mode.PLAIN) gave the outputs of the reference.
    """
    texts = []
    if constants:
        texts.append(f"the weights on the board are others ({', '.join(constants[:3])}): compile and flash all files")
    if not is_repeatable:
        texts.append(
            "a second run gave other results: something writes to the arena meanwhile (DMA, an interrupt, a stack that "
            "grows into it), or memory and clock are set beyond what they can do"
        )
    if "fast-math" in identity.flags:
        texts.append("it was compiled with -ffast-math, which changes results: leave it out for the model's files")
    if difference.looks_like_cache:
        texts.append(
            "whole cache lines differ: a DMA's buffer shares lines with the arena, or the data cache is not cleaned or "
            "invalidated around DMA"
        )
    if is_plain_equal:
        texts.append(
            "the outputs of the network without hooks are right: the compiler made other code of the same file, and "
            "has a bug, or the build is damaged; compile everything anew, or try another -O"
        )
    if is_float:
        texts.append("flags of the FPU: flush-to-zero, another rounding mode, or -ffp-contract=fast")
    texts += [
        "the stack is too small, and lies beside the arena",
        "the arena or a buffer is not aligned as NAME_ARENA_ALIGN says, and the CPU does not trap",
        "objects of an earlier compilation were linked: build everything anew",
    ]
    return texts
