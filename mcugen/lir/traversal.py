# SPDX-License-Identifier: Apache-2.0
"""The order in which a kernel reads its input and writes its output, and how far both may overlap in memory.

A traversal is a sequence of steps, each of which reads its inputs before it writes. Elements that are read, but do not
affect the result, do not count: they may be overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.types import Array, TensorType
from mcugen.lir.program import Overlap


@dataclass(frozen=True)
class Traversal:
    """The order in which a kernel reads its input x and writes its output y, as a sequence of steps.

    It tells how far y may overlap x in memory (`overlap`).

    Attributes:
        reads: For each step, the index of the first (lowest) element of x that it reads; beyond the end of x if it
            reads none.
        writes: For each step, the index after the last element of y that it writes.
    """

    reads: Array
    writes: Array

    def __add__(self, other: Traversal) -> Traversal:
        """Return the traversal that runs this one and then `other`."""
        return Traversal(np.concatenate([self.reads, other.reads]), np.concatenate([self.writes, other.writes]))

    @staticmethod
    def forward(count: int) -> Traversal:
        """Return the traversal of `count` steps in which step i reads element i of x and writes element i of y."""
        return Traversal.pixels(np.zeros(1, np.int64), count)

    @staticmethod
    def runs(reads: Array, length: int) -> Traversal:
        """Return the traversal of steps that each write the next `length` adjacent elements of y.

        Args:
            reads: Index of the first element of x that each step reads.
            length: Elements of y that a step writes.
        """
        reads = np.asarray(reads).reshape(-1)
        return Traversal(reads, (np.arange(len(reads)) + 1) * length)

    @staticmethod
    def rereading(reads: Array, length: int) -> Traversal:
        """Return the traversal of steps that write some of their outputs before they have read all of their inputs.

        It has two entries for each step, so that the outputs of a step must not overwrite the step's own inputs.

        Args:
            reads: Index of the first element of x that each step reads.
            length: Number of elements of y that each step writes; they follow those of the step before.
        """
        once = Traversal.runs(reads, length)
        return Traversal(np.repeat(once.reads, 2), np.repeat(once.writes, 2))

    @staticmethod
    def pixels(reads: Array, channels: int, block: int = 1) -> Traversal:
        """Return the traversal of output pixels one by one, in steps of `block` channels.

        Channels that remain in a pixel after whole blocks are read and written one by one.

        Args:
            reads: For each output pixel, the index of the first channel of the first pixel of x that it reads.
            channels: Number of channels of a pixel.
            block: Number of channels that the kernel reads and writes in one step.
        """
        ends = {min(block, channels), channels - block if channels % block == 0 else channels - 1, channels}
        ends_in_pixel = np.array(sorted(end for end in ends if end > 0))  # Positions grow evenly between them.
        first = np.asarray(reads).reshape(-1, 1) + np.append(0, ends_in_pixel[:-1])
        pixel = np.arange(len(first))[:, None] * channels
        return Traversal(first.reshape(-1), (pixel + ends_in_pixel).reshape(-1))


def nested_positions(*axes: Array) -> Array:
    """Return the element offsets that nested loops visit, in their order.

    An offset is the sum of one entry of each argument.

    Args:
        *axes: Offsets of each loop, the outermost loop first.
    """
    total: Array = np.zeros(1, np.int64)
    for axis in axes:
        total = (total[:, None] + np.asarray(axis, np.int64)).reshape(-1)
    return total


def overlap(x: TensorType, y: TensorType, *orders: Traversal, out: str = "y", into: str = "x") -> list[Overlap]:
    """Return how far output y may overlap input x in memory, given the orders in which the kernel may access them.

    Args:
        x: Type of the input.
        y: Type of the output.
        *orders: The kernel's traversals; several if its fast path has another order than plain C.
        out: Role of the output.
        into: Role of the input.

    Returns:
        One Overlap; an empty list if an overlap is not allowed or saves nothing.
    """
    if x.dtype is not y.dtype and 1 not in (x.dtype.nbytes, y.dtype.nbytes):
        return []  # C lets a compiler store elements of one type before it loads those of another, but for characters
    lead = -x.nbytes  # Everything is read before the first write.
    for order in orders:
        written = np.maximum.accumulate(order.writes[:-1]) * y.dtype.nbytes
        unread = np.minimum.accumulate(order.reads[:0:-1])[::-1] * x.dtype.nbytes
        matters = (written > 0) & (unread < x.nbytes)
        lead = int(np.max(written - unread, where=matters, initial=lead))
    return [Overlap(out, into, lead)] if lead < y.nbytes else []


def collapse(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge adjacent dimensions along which the same operands are broadcast, so that a kernel needs fewer loops.

    Dimensions of size 1 are dropped.

    Args:
        shape: Sizes of the dimensions, outermost first.
        operands: Shape of each operand, which may be broadcast to `shape`.

    Returns:
        The remaining sizes, outermost first (at least one), and each operand's strides in elements (0 where broadcast).
    """
    padded = [[1] * (len(shape) - len(o)) + list(o) for o in operands]
    dims: list[int] = []
    walks: list[tuple[bool, ...]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        walk = tuple(o[axis] != 1 for o in padded)
        if dims and walks[-1] == walk:
            dims[-1] *= size
        else:
            dims.append(size)
            walks.append(walk)
    if not dims:
        return [1], [[0] for _ in operands]
    strides = []
    for index in range(len(operands)):
        row, step = [0] * len(dims), 1
        for axis in reversed(range(len(dims))):
            if walks[axis][index]:
                row[axis] = step
                step *= dims[axis]
        strides.append(row)
    return dims, strides
