# SPDX-License-Identifier: Apache-2.0
"""One arena for several models, against trying all orders; and loops as boards reward them."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.lir.kernel import MEMORY_FOR_SPEED, PAIRED_LOADS, SEPARATE_SUMS, SHORT_LOOPS, WORD_WEIGHTS
from mcugen.memory.loop_tuning import tuning_flags
from mcugen.memory.shared_arena import SharedArena, join, verify_shared_arena

SIZES = (100, 48, 16, 33)
PAIRS = list(combinations(range(4), 2))


def least(sizes: tuple[int, ...], exclusive: set[tuple[int, int]]) -> int:
    """Return the least arena that any order gives, each model as low as those before it allow."""
    best = 1 << 30
    for order in permutations(range(len(sizes))):
        starts: dict[int, int] = {}
        for model in order:
            room = -(-sizes[model] // 16) * 16
            others = [o for o in starts if tuple(sorted((o, model))) not in exclusive]
            ends = [starts[o] + -(-sizes[o] // 16) * 16 for o in others]
            free = [
                s
                for s in sorted({0, *ends})
                if all(s + room <= starts[o] or s >= e for o, e in zip(others, ends, strict=True))
            ]
            starts[model] = free[0]
        best = min(best, max(start + -(-sizes[m] // 16) * 16 for m, start in starts.items()))
    return best


@pytest.mark.parametrize("number", range(0, 64, 5))
def test_the_least_arena_is_found(number: int):
    exclusive = {pair for at, pair in enumerate(PAIRS) if number >> at & 1}
    found = join(SIZES, exclusive)
    assert found.nbytes == found.bound == least(SIZES, exclusive)
    verify_shared_arena(found, SIZES, exclusive)


def test_models_alone_and_empty_ones():
    assert join([40], []) == SharedArena((0,), 48, 48)
    assert join([0, 0], [(0, 1)]).nbytes == 16


@pytest.mark.parametrize(
    ("offsets", "nbytes", "found"),
    [
        ((0, 32), 64, "share bytes"),
        ((0, 47), 96, "not aligned, or outside"),
        ((-16, 48), 96, "not aligned, or outside"),
        ((0, 48), 64, "not aligned, or outside"),
    ],
)
def test_damage_to_a_joint_arena_is_found(offsets: tuple[int, int], nbytes: int, found: str):
    with pytest.raises(VerificationError) as error:
        verify_shared_arena(SharedArena(offsets, nbytes, 0), (40, 20), [])
    assert found in str(error.value.found)
    verify_shared_arena(SharedArena((0, 48), 80, 0), (40, 20), [])
    verify_shared_arena(SharedArena((0, 32), 64, 0), (40, 20), [(0, 1)])


@pytest.mark.parametrize("goal", ["balanced", "speed", "ram", "flash"])
@pytest.mark.parametrize(
    ("name", "is_dual", "parts_sums"),
    [("rt1060", True, False), ("nrf52840", False, True), ("rp2040", False, False), ("rp2350", False, True)],
)
def test_which_loops_a_board_rewards(name: str, is_dual: bool, parts_sums: bool, goal: str):
    board = load_board(name)
    found = tuning_flags(board, board.memory(board.weights_memory), goal) - {WORD_WEIGHTS}
    assert (PAIRED_LOADS in found) is (is_dual and goal in ("balanced", "speed"))
    assert (SEPARATE_SUMS in found) is (parts_sums and goal == "speed")
    assert (SHORT_LOOPS in found) is (goal == "flash")
    assert (MEMORY_FOR_SPEED in found) is (goal == "speed")


def test_words_are_read_of_weights_that_are_waited_for_without_a_cache():
    for name in ("nrf52840", "rp2040", "rp2350", "rt1060", "stm32f103"):
        board = load_board(name)
        for memory in board.memories:
            waited = board.wait_cycles(memory, 1) > 0 and board.cache(memory, "data") is None
            assert (WORD_WEIGHTS in tuning_flags(board, memory, "balanced")) is waited
