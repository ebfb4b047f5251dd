# SPDX-License-Identifier: Apache-2.0
"""Drawing of the memory map as SVG: layers from left to right, addresses upwards, a rectangle for each buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from markupsafe import Markup

from mcugen.hir.layer_names import shorten_name
from mcugen.reporting.memory import BUFFER_KINDS, Block, MemoryMap
from mcugen.reporting.pages import render_template

LEFT, TOP, RIGHT, BOTTOM = 84, 64, 24, 190
"""Margins around the plot, in pixels, for axis labels and names of layers."""

HEIGHT = 400
"""Height of the plot in pixels."""

PLOT_WIDTH = 960
"""Width of the plot in pixels, unless the limits of column widths make it narrower or wider."""

COLUMN = (26, 110)
"""Smallest and largest width of a layer's column in pixels."""

INSTRUCTIONS_PER_EXTRA_COLUMN, MAX_LAYER_COLUMNS = 8, 6
"""Number of instructions by which a layer gets wider by one column, and its largest width in columns."""

CHARACTER = (6.8, 12)
"""Upper bounds of the width and the height of a label's character in pixels."""

MIN_LABEL_CHARACTERS = 3
"""Smallest number of characters that must fit into a rectangle, or it has no label."""

MAX_AXIS_LABEL_CHARACTERS = 22
"""Largest number of characters of a layer's name on the axis; the tooltip has the whole name."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle of the memory map (a buffer or layer), with coordinates in pixels as SVG writes them.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
        kind: CSS class.
        title: Tooltip.
        label: Text inside, as much as fits.
        label_y: Baseline of the text.
    """

    x: str
    y: str
    width: str
    height: str
    kind: str = ""
    title: str = ""
    label: str = ""
    label_y: str = ""


@dataclass(frozen=True)
class Mark:
    """A label of an axis in the drawing of the memory map.

    Attributes:
        at: Position along the axis in pixels, as SVG writes it.
        text: The label.
        title: Tooltip; "" for none.
    """

    at: str
    text: str
    title: str = ""


def draw(memory: MemoryMap) -> Markup:
    """Return a memory map as a self-contained SVG without scripts; equal maps give equal bytes."""
    plot = _Plot(memory)
    peak = memory.peak
    return Markup(
        render_template(
            "memory.svg.j2",
            memory=memory,
            width=_number(plot.width + LEFT + RIGHT),
            height=TOP + HEIGHT + BOTTOM,
            left=LEFT,
            top=TOP,
            right=_number(LEFT + plot.width),
            center=_number(LEFT + plot.width / 2),
            bottom=TOP + HEIGHT,
            kinds=BUFFER_KINDS,
            blocks=plot.blocks(),
            shared=[plot.common(a, b) for a, b in combinations(memory.blocks, 2) if _meet(a, b)],
            addresses=[Mark(plot.y(n), f"{n:,}") for n in _ticks(memory.arena)],
            layers=plot.layers(),
            arena=plot.y(memory.arena),
            areas=[plot.y(sum(memory.areas[:n])) for n in range(1, len(memory.areas))],
            bound=plot.y(memory.bound) if memory.bound < memory.arena else "",
            peak=plot.area(peak.index, peak.index, 0, memory.arena),
            peak_name=shorten_name(peak.name, MAX_AXIS_LABEL_CHARACTERS),
            peak_at=_number(plot.middle(peak.index)),
            peak_anchor="end" if plot.middle(peak.index) > LEFT + plot.width / 2 else "start",
        )
    )


class _Plot:
    """A mapping from instructions and addresses to pixels. The call and the return have half a column each."""

    def __init__(self, memory: MemoryMap) -> None:
        self.memory = memory
        shares = [
            min(1 + (row.last - row.first) / INSTRUCTIONS_PER_EXTRA_COLUMN, MAX_LAYER_COLUMNS) for row in memory.rows
        ]
        column = min(max(PLOT_WIDTH / (sum(shares) + 1), COLUMN[0]), COLUMN[1])
        self.width = (sum(shares) + 1) * column
        self._edges = [0.0, column / 2]
        for row, share in zip(memory.rows, shares, strict=True):
            self._skip(row.first)
            count, start = row.last - row.first + 1, self._edges[-1]
            self._edges += [start + share * column * (i + 1) / count for i in range(count)]
        self._skip(max([memory.peak.index, *(block.last for block in memory.blocks)]))
        self._edges.append(self.width)

    def _skip(self, index: int) -> None:
        """Give no width to the instructions before `index` that belong to no row: moves that vanished."""
        self._edges += [self._edges[-1]] * (index + 2 - len(self._edges))

    def middle(self, index: int) -> float:
        """Return the horizontal middle of an instruction's column."""
        return LEFT + (self._edges[index + 1] + self._edges[index + 2]) / 2

    def y(self, address: int) -> str:
        """Return the vertical position of an address in the drawing, as SVG writes it."""
        return _number(self._y(address))

    def _y(self, address: int) -> float:
        return TOP + HEIGHT * (1 - address / max(self.memory.arena, 1))

    def area(self, first: int, last: int, start: int, end: int, kind: str = "", title: str = "") -> Rectangle:
        """Return the rectangle from address `start` to `end`, while instructions `first` to `last` run."""
        left, width, top, height = self._box(first, last, start, end)
        return Rectangle(_number(left), _number(top), _number(width), _number(height), kind, title)

    def _box(self, first: int, last: int, start: int, end: int) -> tuple[float, float, float, float]:
        """Return left edge, width, upper edge and height of such a rectangle in pixels."""
        left, top = self._edges[first + 1], self._y(end)
        return LEFT + left, self._edges[last + 2] - left, top, max(self._y(start) - top, 1)

    def blocks(self) -> list[Rectangle]:
        """Return the buffers' rectangles, with names where they fit.

        A buffer that overlaps another one has its name below, because the other one has its name above.
        """
        rectangles = []
        below: set[Block] = set()
        for index, block in enumerate(self.memory.blocks):
            hosts = [b for b in self.memory.blocks[:index] if _meet(b, block)]
            if hosts and not any(host in below for host in hosts):
                below.add(block)
            title = f"{block.name} ({block.kind}): {block.nbytes:,} bytes at {block.offset:,}"
            area = self.area(block.first, block.last, block.offset, block.end, block.kind, title)
            _, width, top, height = self._box(block.first, block.last, block.offset, block.end)
            room = int((width - CHARACTER[0]) / CHARACTER[0])
            if room >= MIN_LABEL_CHARACTERS and height >= CHARACTER[1] * (2 if hosts else 1):
                foot = top + height - 4 if block in below else top + CHARACTER[1] - 2
                area = replace(area, label=shorten_name(block.name, room), label_y=_number(foot))
            rectangles.append(area)
        return rectangles

    def common(self, one: Block, other: Block) -> Rectangle:
        """Return the rectangle that two buffers share."""
        first, last = max(one.first, other.first), min(one.last, other.last)
        start, end = max(one.offset, other.offset), min(one.end, other.end)
        title = f"{one.name} and {other.name} share {end - start:,} bytes"
        return self.area(first, last, start, end, "shared", title)

    def layers(self) -> list[Mark]:
        """Return the names below the columns."""
        marks = []
        for index, row in enumerate(self.memory.rows):
            at = LEFT + (self._edges[row.first + 1] + self._edges[row.last + 2]) / 2
            marks.append(
                Mark(
                    _number(at),
                    f"{index} {shorten_name(row.name, MAX_AXIS_LABEL_CHARACTERS)}",
                    f"{index} {row.name}: {row.kernel}",
                )
            )
        return marks


def _meet(one: Block, other: Block) -> bool:
    in_time = one.first <= other.last and other.first <= one.last
    return in_time and one.offset < other.end and other.offset < one.end


def _ticks(arena: int) -> list[int]:
    """Return some six addresses at round distances, and the arena's end; none so near to it that labels would touch."""
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    step = next(s for s in steps if s * 7 > arena)
    return [n for n in range(0, arena, step) if arena - n > step / 3] + [arena]


def _number(value: float) -> str:
    """Return a number of pixels with one digit, which is precise enough, and equal on every machine."""
    return f"{value:.1f}".removesuffix(".0")
