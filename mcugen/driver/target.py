# SPDX-License-Identifier: Apache-2.0
"""The board as kernels see it: CPU features, and tuning flags that follow from options and memories."""

from __future__ import annotations

from dataclasses import replace

from mcugen.core.board import Board
from mcugen.core.options import PORTABLE, CompileOptions
from mcugen.lir.kernel import CHECKED, FLOAT16_WEIGHTS, HARD_FLOATS, UPDATABLE
from mcugen.memory.loop_tuning import tuning_flags
from mcugen.memory.place import memory_of_weights


def target_of(board: Board, options: CompileOptions) -> Board:
    """Return the board with tuning flags added to its CPU features, from which kernels are chosen.

    Tuning flags are names by which variants of kernels are selected, such as "updatable" for weights that may be
    replaced. They follow from the options (goal, updatable weights, checked indices, float16 weights, kernels in
    plain C), from the speed of the memory that holds the weights, and from the FPU.
    """
    flags = {
        UPDATABLE: options.updatable,
        CHECKED: options.checked_indices,
        FLOAT16_WEIGHTS: options.float16_weights,
        HARD_FLOATS: options.family == PORTABLE and "fpu" in board.features,
    }
    requested = frozenset(flag for flag, is_set in flags.items() if is_set)
    tuned = tuning_flags(board, memory_of_weights(board, options.place), options.optimize)
    return replace(board, features=_cpu_features(board, options) | requested | tuned)


def features_of_cores(board: Board, options: CompileOptions) -> frozenset[str]:
    """Return the CPU features of the board and, if the options use a second core of another kind, of that core."""
    other = board.other_kind if options.cores > 1 else None
    return _cpu_features(board, options) | (_cpu_features(other, options) if other else frozenset())


def _cpu_features(board: Board, options: CompileOptions) -> frozenset[str]:
    """Return the CPU features of the board that kernels may use: none for kernels in plain C."""
    return frozenset() if options.family == PORTABLE else board.features
