# SPDX-License-Identifier: Apache-2.0
"""Windows that slide over space, against loops over their elements."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mcugen.hir.operator import RowWindow
from mcugen.numerics.threads import one_thread
from mcugen.numerics.window import Window, height_and_width, pad

WINDOWS = [
    (Window((1, 1), (0, 0), (0, 0), (1, 1)), (3, 2)),
    (Window((2, 1), (1, 0), (1, 2), (1, 1)), (3, 3)),
    (Window((1, 3), (0, 2), (2, 1), (2, 1)), (2, 3)),
    (Window((3, 2), (2, 1), (0, 1), (1, 3)), (1, 2)),
    (Window((1, 1), (1, 0), (0, 0), (1, 1)), (2, 2)),
    (Window((1, 1), (0, 0), (0, 1), (1, 1)), (2, 2)),
    (Window((4, 4), (0, 0), (0, 0), (1, 1)), (2, 2)),
]
SPACE = (9, 8)


def positions(window: Window, kernel: tuple[int, ...], axis: int, size: int) -> list[list[int]]:
    """By position, the elements of an axis under the window; those below 0 and from `size` on are padding."""
    reach = size + window.after[axis]
    starts = range(-window.before[axis], reach, window.strides[axis])
    taps = [[start + tap * window.dilations[axis] for tap in range(kernel[axis])] for start in starts]
    return [each for each in taps if each[-1] < reach]


@pytest.mark.parametrize(("window", "kernel"), WINDOWS)
def test_sizes_and_patches(window: Window, kernel: tuple[int, int]):
    rows, columns = (positions(window, kernel, axis, size) for axis, size in enumerate(SPACE))
    assert window.output(SPACE, kernel) == (len(rows), len(columns))
    x = np.random.default_rng(0).integers(0, 99, (2, *SPACE, 3))
    found = window.patches(x, kernel, -7)
    assert found.shape == (2, len(rows), len(columns), 3, *kernel)
    for n, (r, row), (c, column), channel in product(range(2), enumerate(rows), enumerate(columns), range(3)):
        for (i, y), (j, z) in product(enumerate(row), enumerate(column)):
            inside = 0 <= y < SPACE[0] and 0 <= z < SPACE[1]
            assert found[n, r, c, channel, i, j] == (x[n, y, z, channel] if inside else -7)


@pytest.mark.parametrize(("window", "kernel"), WINDOWS)
def test_whether_it_leaves_the_input(window: Window, kernel: tuple[int, int]):
    for space in product(range(6, 11), range(6, 11)):
        read = [positions(window, kernel, axis, size) for axis, size in enumerate(space)]
        leaves = any(b or each[-1][-1] >= n for b, each, n in zip(window.before, read, space, strict=True))
        assert window.leaves(space, kernel) is leaves


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("window", "kernel"), WINDOWS)
def test_a_band_of_positions(window: Window, kernel: tuple[int, int], axis: int):
    size = SPACE[axis]
    found = positions(window, kernel, axis, size)
    for start, stop in [(0, 1), (0, len(found)), (1, len(found)), (len(found) - 1, len(found))]:
        if start >= stop:
            continue
        part, first, last = window.band(axis, start, stop, size, kernel[axis])
        read = [index for position in found[start:stop] for index in position]
        assert (first, last) == (max(min(read), 0), min(max(read) + 1, size))
        assert (part.before[axis], part.after[axis]) == (max(-min(read), 0), max(max(read) + 1 - size, 0))
        other = 1 - axis
        assert (part.before[other], part.after[other]) == (window.before[other], window.after[other])
        assert (part.strides, part.dilations) == (window.strides, window.dilations)
        rows = [[index - first for index in position] for position in found[start:stop]]
        if all(first + r[0] >= 0 for r in rows):
            assert positions(part, kernel, axis, last - first) == rows


def test_other_forms_of_a_window():
    window = Window((2, 3), (1, 4), (5, 6), (7, 8))
    assert window.padded((10, 20), (30, 40)) == Window((2, 3), (11, 24), (35, 46), (7, 8))
    assert window.rows(3, -1.0) == RowWindow(1, 15, 2, 1, -1.0)
    assert window.rows(3, -1.0, axis=1) == RowWindow(2, 17, 3, 4, -1.0)
    assert window.of_one_row() == Window((2, 3), (0, 4), (0, 6), (7, 8))
    assert window.of_one_row(1) == Window((2, 3), (1, 0), (5, 0), (7, 8))
    assert window.sides == (4, 6)
    line = Window((2,), (1,), (5,), (7,))
    assert line.upright() == Window((2, 1), (1, 0), (5, 0), (7, 1)) and line.sides == (0, 0)
    assert window.upright() == Window((3, 2), (4, 1), (6, 5), (8, 7))
    assert str(window) == "(stride 2x3 pad 1x4x5x6 dilation 7x8)"
    assert (height_and_width([3], 1), height_and_width([3, 4], 1)) == ((1, 3), (3, 4))


@pytest.mark.parametrize("widths", [((0, 0), (0, 0)), ((1, 0), (0, 0)), ((0, 2), (3, 1)), ((0, 0), (0, 1))])
def test_pad(widths: tuple[tuple[int, int], ...]):
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    found = pad(x, widths, 9)
    np.testing.assert_array_equal(found, np.pad(x, widths, constant_values=9), strict=True)
    assert (found is x) is not any(map(any, widths))


def test_products_take_one_thread_within():
    from threadpoolctl import threadpool_info

    with one_thread():
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {1}
