# SPDX-License-Identifier: Apache-2.0
"""How far outputs may lie over inputs, by steps that loops tell one by one; dimensions that all operands walk alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
import pytest

from mcugen.hir.types import DType, TensorType
from mcugen.lir.overlap import extent, min_lead_bytes
from mcugen.lir.program import Overlap
from mcugen.lir.traversal import Traversal, collapse, nested_positions, overlap

Steps = list[tuple[int, int]]
"""Where each begins to read, and where ends what is written by then, in elements."""


def lead_of(steps: Steps, x: TensorType, y: TensorType) -> int:
    """Bytes that y must begin before x, so that no step overwrites what a later one reads."""
    leads = [-x.nbytes]
    for number, (_, end) in enumerate(steps):
        unread = min((begin for begin, _ in steps[number + 1 :]), default=x.count)
        if end > 0 and unread < x.count:
            leads.append(end * y.dtype.nbytes - unread * x.dtype.nbytes)
    return max(leads)


def assert_lead(order: Traversal, steps: Steps, x: TensorType, y: TensorType) -> None:
    lead = lead_of(steps, x, y)
    assert overlap(x, y, order) == ([Overlap("y", "x", lead)] if lead < y.nbytes else [])


def by_pixels(reads: Sequence[int], channels: int, block: int) -> Steps:
    steps, end = Steps(), 0
    for first in reads:
        at = 0
        while at < channels:
            size = block if channels - at >= block else 1
            end += size
            steps.append((first + at, end))
            at += size
    return steps


def byte_tensor(count: int, dtype: DType = DType.INT8) -> TensorType:
    return TensorType((count,), dtype)


@pytest.mark.parametrize("block", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 8])
def test_pixels_by_blocks_of_channels(channels: int, block: int):
    random = Random(channels * 10 + block)
    for _ in range(20):
        reads = [random.randrange(0, 40) for _ in range(random.randint(1, 6))]
        if random.random() < 0.5:
            reads.sort()
        x, y = byte_tensor(random.randint(20, 48)), byte_tensor(channels * len(reads))
        assert_lead(Traversal.pixels(np.asarray(reads), channels, block), by_pixels(reads, channels, block), x, y)


def test_runs_and_those_that_read_once_more():
    random = Random(1)
    for _ in range(50):
        reads, length = [random.randrange(0, 40) for _ in range(random.randint(1, 6))], random.randint(1, 4)
        steps = [(first, (number + 1) * length) for number, first in enumerate(reads)]
        x, y = byte_tensor(40, DType.INT16), byte_tensor(length * len(reads))
        assert_lead(Traversal.runs(np.asarray(reads).reshape(1, -1), length), steps, x, y)
        twice = [step for step in steps for _ in range(2)]
        assert_lead(Traversal.rereading(np.asarray(reads), length), twice, x, y)


def test_one_order_behind_another_and_several_orders():
    x, y = byte_tensor(16), byte_tensor(16)
    forward = Traversal.forward(16)
    assert overlap(x, y, forward) == [Overlap("y", "x", 0)]
    late = Traversal.runs(np.asarray([8]), 8)
    assert_lead(forward + late, [(i, i + 1) for i in range(16)] + [(8, 8)], x, y)
    (found,) = overlap(x, y, forward, Traversal.runs(np.asarray([8, 6]), 8), out="z", into="w")
    assert found == Overlap("z", "w", 2)
    assert overlap(x, y) == [Overlap("y", "x", -16)]


@pytest.mark.parametrize(
    ("x", "y", "may"),
    [
        (DType.INT8, DType.FLOAT32, True),
        (DType.INT16, DType.INT8, True),
        (DType.INT16, DType.INT32, False),
        (DType.FLOAT32, DType.INT32, False),
        (DType.FLOAT32, DType.FLOAT32, True),
    ],
)
def test_elements_of_other_types_lie_over_bytes_alone(x: DType, y: DType, may: bool):
    """A compiler may store elements of one type before it loads those of another."""
    assert bool(overlap(byte_tensor(16, x), byte_tensor(16, y), Traversal.forward(16))) is may


def test_nested_axes():
    axes = ([0, 10, 20], [0, 3], [0, 1, 2])
    assert nested_positions(*map(np.asarray, axes)).tolist() == [a + b + c for a, b, c in product(*axes)]
    assert nested_positions().tolist() == [0]


@pytest.mark.parametrize(
    ("shape", "operands", "dims"),
    [
        ((2, 3, 4), [(2, 3, 4), (2, 3, 4)], [24]),
        ((2, 3, 4), [(2, 3, 4), (3, 1)], [2, 3, 4]),
        ((2, 3, 4), [(2, 3, 4), (3, 4)], [2, 12]),
        ((2, 3, 4), [(2, 1, 4), (1,)], [2, 3, 4]),
        ((2, 1, 4), [(2, 1, 4), (4,)], [2, 4]),
        ((1, 1), [(1, 1), (1,)], [1]),
        ((), [(), ()], [1]),
        ((5, 6), [(5, 1), (1, 6)], [5, 6]),
    ],
)
def test_dimensions_that_all_walk_alike_are_one(
    shape: tuple[int, ...], operands: list[tuple[int, ...]], dims: list[int]
):
    found, strides = collapse(shape, operands)
    assert found == dims
    for operand, row in zip(operands, strides, strict=True):
        wanted = np.broadcast_to(np.arange(int(np.prod(operand))).reshape(operand), shape).reshape(-1)
        walked = [sum(i * step for i, step in zip(at, row, strict=True)) for at in product(*map(range, dims))]
        assert walked == wanted.tolist()


@pytest.mark.parametrize(
    ("into", "out", "lead", "wanted"),
    [
        (32, 32, 0, 32),
        (32, 32, 1, 33),
        (32, 48, 8, 48),
        (32, 48, 20, 52),
        (32, 16, -4, 32),
        (16, 32, -4, 32),
        (9, 9, 40, 18),
    ],
)
def test_bytes_that_both_take(into: int, out: int, lead: int, wanted: int):
    assert extent(into, out, lead) == wanted


def test_the_least_lead():
    assert min_lead_bytes([(4, 0), (8, 7), (12, 20)]) == 4
    assert min_lead_bytes([(1, 3)]) == -2
