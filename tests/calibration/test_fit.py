# SPDX-License-Identifier: Apache-2.0
"""Boards that differ from their file in a known way are found again from the cycles of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mcugen.calibration.fit import Calibration, Estimate, MeasuredLayer, calibrate
from mcugen.core.board import Board, ParallelTiming, SerialTiming, load_board
from mcugen.core.errors import UsageError

WORK = [(90_000, 400), (20_000, 5_000), (50_000, 1_000), (4_000, 2_500), (120_000, 90)]
"""Of layers: cycles of the core, and lines that they read from flash."""


def estimates(board: Board, work: Sequence[tuple[int, int]] = WORK, hidden: int = 0) -> list[Estimate]:
    """`hidden` cycles of each wait pass while instructions run."""
    flash = board.memory("flash")
    waited = max((board.wait_cycles(flash, 16) or 0) - hidden, 0)
    return [Estimate(round(core * board.core_factor), {"flash": lines * waited}) for core, lines in work]


def measured(board: Board, noise: Sequence[float] = (), **how: object) -> list[MeasuredLayer]:
    """The layers as they would take on `board`."""
    cycles = [estimate.cycles(1.0) for estimate in estimates(board, **how)]  # type: ignore[arg-type]
    found = [round(c * (1 + n)) for c, n in zip(cycles, noise or [0.0] * len(cycles), strict=True)]
    return [MeasuredLayer("net", f"layer{i}", c, c / sum(found)) for i, c in enumerate(found)]


def other(name: str, overhead: int, factor: float) -> Board:
    board = load_board(name)
    flash = board.memory("flash")
    assert flash.access is not None
    key = "overhead_clocks" if isinstance(flash.access, SerialTiming) else "wait_states"
    access = replace(flash.access, **{key: overhead})
    if isinstance(access, ParallelTiming):
        access = replace(access, burst_wait_states=overhead)
    memories = tuple(replace(m, access=access) if m.name == "flash" else m for m in board.memories)
    return replace(board, memories=memories, core_factor=factor)


def same(found: Calibration, wanted: Board) -> bool:
    return found.board.memories == wanted.memories and found.board.core_factor == pytest.approx(wanted.core_factor)


@pytest.mark.parametrize(
    ("name", "overhead", "factor"),
    [("stm32l4r5", 9, 1.08), ("stm32l4r5", 3, 0.9), ("stm32f446", 5, 1.25), ("rp2350", 40, 1.1), ("rp2350", 12, 0.95)],
)
def test_other_memory_and_another_core_are_told_apart(name: str, overhead: int, factor: float):
    wanted = other(name, overhead, factor)
    found = calibrate(load_board(name), measured(wanted), estimates)
    assert same(found, wanted)
    assert found.after < 1e-3
    assert found.kept == ()


def test_wait_states_that_reading_ahead_hides_are_found_nevertheless():
    def estimator(board: Board) -> list[Estimate]:
        return estimates(board, hidden=3)

    wanted = other("stm32l4r5", 9, 1.05)
    assert same(calibrate(load_board("stm32l4r5"), measured(wanted, hidden=3), estimator), wanted)


def test_noise_is_left_as_a_residual():
    wanted = other("rp2350", 40, 1.1)
    found = calibrate(load_board("rp2350"), measured(wanted, noise=[0.01, -0.01, 0.01, -0.01, 0.01]), estimates)
    assert found.board.core_factor == pytest.approx(1.1, abs=0.02)
    assert 0.004 < found.after < 0.012 < found.before
    assert [r.layer.name for r in found.residuals] == [f"layer{i}" for i in range(5)]


def test_what_layers_do_not_tell_apart_stays_as_it_is():
    alike = [(10_000 * n, 100 * n) for n in range(1, 6)]

    def estimator(board: Board) -> list[Estimate]:
        return estimates(board, alike)

    board = load_board("stm32l4r5")
    found = calibrate(board, measured(other("stm32l4r5", 5, 1.2), work=alike), estimator)
    assert (found.kept, found.board.memories) == (("flash",), board.memories)
    assert found.board.core_factor == pytest.approx(1.2, abs=0.02)


def test_a_board_that_is_right_stays_as_it_is():
    board = load_board("stm32l4r5")
    assert calibrate(board, measured(board), estimates).board == board


def test_too_few_layers():
    board, few = load_board("rp2350"), WORK[:2]
    with pytest.raises(UsageError, match="more layers than what is fitted: the core, flash"):
        calibrate(board, measured(board, work=few), lambda board: estimates(board, few))


@pytest.mark.parametrize("times", [0.01, 30])
def test_cycles_of_something_else(times: float):
    board = load_board("rp2350")
    layers = [replace(layer, cycles=max(round(layer.cycles * times), 1)) for layer in measured(board)]
    with pytest.raises(UsageError, match=r"measured cycles must be of a cortex-m33.*times the estimate"):
        calibrate(board, layers, estimates)
