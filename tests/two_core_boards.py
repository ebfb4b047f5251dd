# SPDX-License-Identifier: Apache-2.0
"""Boards with two cores for tests, made from boards with one."""

from __future__ import annotations

from dataclasses import replace

from mcugen.core.board import Board, Core, load_board


def two_cores(name: str) -> Board:
    """Return the board with a second core like its first."""
    board = load_board(name)
    return replace(board, cores=(Core("a", board.cpu, board.clock_hz), Core("b", board.cpu, board.clock_hz)))
