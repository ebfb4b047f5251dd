# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions for Helium: patches of one channel in a vector, or channels in lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.helium.layer import VECTOR, blocks_of, emit, strip_params
from mcugen.kernels.reading_order import by_image, rows
from mcugen.kernels.weighted import weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Param
from mcugen.lir.traversal import Traversal

COLUMNS = 2048
"""Bytes of transposed columns, unless one row takes more."""


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Channels in lanes, two taps at a time; an odd last one is paired with a weight of zero."""
    shape = ConvShape.of(node)
    params = strip_params(shape)
    ky, kx = np.divmod(np.arange(shape.k_h * shape.k_w), shape.k_w)
    offsets = ky * shape.dilation_h * int(params["pitch"]) + kx * shape.dilation_w * shape.in_c
    even = len(offsets) % 2
    taps = np.pad(weights_of(node).reshape(shape.out_c, -1), [(0, 0), (0, even)])
    packed = np.ascontiguousarray(blocks_of(taps, 8).transpose(0, 2, 1)).reshape(-1)
    emit(
        node,
        builder,
        kernel,
        packed,
        params | {"pairs": taps.shape[1] // 2},
        {},
        block=8,
        channel_order=(0, 2, 4, 6, 1, 3, 5, 7),
        scratch=("strip", int(params["span"]) * int(params["pitch"]) + VECTOR),
        orders=[rows(shape)],
        offsets=np.pad(offsets, (0, even)).astype(np.int32),
    )


def small_window(node: Node) -> bool:
    """a window of at most 4 x 4, stride 1 or 2"""
    shape = ConvShape.of(node)
    if max(shape.k_h, shape.k_w) > 4 or shape.stride_w > 7 or shape.dilation_h > 1:
        return False
    if 4 * (shape.out_w + 1) * shape.out_c >= 2**16:  # results are scattered by offsets of 16 bits
        return False
    return _two_rows(shape) or shape.stride_h == 2 or shape.out_h == 1


def _two_rows(shape: ConvShape) -> bool:
    """Whether a patch of 4 x 4 inputs holds those of 2 x 2 outputs."""
    simple = shape.stride_h == shape.stride_w == shape.dilation_h == shape.dilation_w == 1
    return simple and max(shape.k_h, shape.k_w) <= 3 and shape.out_h > 1


def pack_patches(weights: Array) -> Array:
    """[C, k_h, k_w] → flat [C][4 columns][4 rows], with zeros for what is missing."""
    padded = np.pad(weights, [(0, 0), (0, 4 - weights.shape[1]), (0, 4 - weights.shape[2])])
    return np.ascontiguousarray(padded.transpose(0, 2, 1)).reshape(-1)


@dataclass(frozen=True)
class Plane:
    """An image as the patches' kernel sees it: rows and pixels, perhaps exchanged, and their distances in bytes."""

    shape: ConvShape
    x_row: int
    x_pixel: int
    y_row: int
    y_pixel: int

    @staticmethod
    def of(shape: ConvShape) -> Plane:
        """As it lies."""
        channels = shape.in_c
        return Plane(shape, shape.in_w * channels, channels, shape.out_w * channels, channels)

    def turned(self) -> Plane:
        """Rows and columns exchanged."""
        s = self.shape
        names = ("in", "out", "k", "stride", "dilation", "pad")
        swapped = {f"{name}_h": getattr(s, f"{name}_w") for name in names}
        swapped |= {f"{name}_w": getattr(s, f"{name}_h") for name in names}
        return Plane(replace(s, **swapped), self.x_pixel, self.x_row, self.y_pixel, self.y_row)


def groups_of(shape: ConvShape, group: int) -> dict[str, Param]:
    """How the pixels of a row are grouped by `group`.

    For what is left there are one or two halves. The last half overlaps what is before, or is masked if there is
    nothing.
    """
    half = group // 2
    groups, rest = divmod(shape.out_w, group)
    halves = -(-rest // half)
    covered = groups * group + halves * half
    overlap = covered - shape.out_w if shape.out_w > half else 0
    mask = (1 << min(shape.out_w, half) * 16 // half) - 1
    params: dict[str, Param] = {"group": group, "groups": groups, "halves": halves, "half_mask": mask}
    return params | {"overlap": overlap, "covered": covered - overlap}


def emit_small_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Columns of four rows by channels: a patch is one vector. Narrow images are turned."""
    shape = ConvShape.of(node)
    plane, weights = Plane.of(shape), weights_of(node).reshape(shape.out_c, shape.k_h, shape.k_w)
    same = (shape.in_h, shape.in_w) == (shape.out_h, shape.out_w)
    if same and _two_rows(shape) and 1 < shape.out_w < min(12, shape.out_h):
        plane, weights = plane.turned(), weights.transpose(0, 2, 1)
    s = plane.shape
    params = s.params() | groups_of(s, 4 if _two_rows(s) else 8)
    sections, scratch = sections_of(s, int(params["covered"]))
    params |= sections | distances(plane, params | sections)
    params["image"] = shape.in_h * shape.in_w * shape.in_c
    full = s.out_w >= int(params["group"])
    masked = s.out_h % int(params["steps"]) > 0 or not full
    flags = {"both_rows": _two_rows(s), "full": full, "masked": masked, "stride_w": s.stride_w}
    flags |= {"dilation_w": s.dilation_w, "back": not full or int(params["overlap"]) > 0}
    forward = s is shape and shape.in_c <= VECTOR
    emit(
        node,
        builder,
        kernel,
        pack_patches(weights),
        params,
        flags,
        block=1,
        scratch=("columns", scratch),
        orders=[_sections_in_turn(shape, int(params["steps"]), int(params["sections"]))] if forward else [],
        inplace=not forward and _patches_may_overwrite_input(shape),
    )


def half_groups(node: Node) -> int:
    """How many half groups are computed, for the cost."""
    shape = ConvShape.of(node)
    two = _two_rows(shape)
    rows = -(-shape.out_h // 2) if two else shape.out_h
    return shape.batch * shape.out_c * rows * -(-shape.out_w // (2 if two else 4))


def sections_of(shape: ConvShape, covered: int) -> tuple[dict[str, Param], int]:
    """The columns under one or two rows of output are a section; as many as COLUMNS hold. And the scratch for all."""
    steps = 2 if _two_rows(shape) else 1
    extent = shape.stride_w * (shape.out_w - 1) + shape.dilation_w * (shape.k_w - 1) + 1
    width = max(extent, shape.pad_w + shape.in_w)
    read = max(width, (covered - 1) * shape.stride_w + 3 * shape.dilation_w + 1)
    sections = max(1, min(COLUMNS // (64 * width), shape.out_h // steps))
    padding = 64 * (width * (sections - 1) + read)
    params: dict[str, Param] = {"steps": steps, "sections": sections, "section": 64 * width, "padding": padding}
    return params, padding + VECTOR


def distances(plane: Plane, params: Mapping[str, Param]) -> dict[str, Param]:
    """Bytes from one thing to the next: in the columns (x) and in the output (y)."""
    two, step = _two_rows(plane.shape), 64 * plane.shape.stride_w
    overlap, covered, group, steps, section = (
        int(params[name]) for name in ("overlap", "covered", "group", "steps", "section")
    )
    down_x, down_y = section - step * covered, steps * plane.y_row - plane.y_pixel * covered
    return {
        "x_row": plane.x_row,
        "x_pixel": plane.x_pixel,
        "y_row": plane.y_row,
        "y_pixel": plane.y_pixel,
        "y_next": group * plane.y_pixel,
        "back_x": -step * overlap,
        "back_y": -plane.y_pixel * overlap,
        "down_x": down_x,
        "down_y": down_y,
        "rewind_x": 4 + down_x,
        "rewind_y": 1 + down_y,
        "place_step": plane.y_pixel * (1 if two else 2),
        "place_second": plane.y_row if two else plane.y_pixel,
    }


def _sections_in_turn(shape: ConvShape, steps: int, sections: int) -> Traversal:
    """Sections of `steps` output rows: two more input rows are transposed for each, up to `sections` at a time."""
    reads, taken = [0], 0
    ends: list[int] = []
    while not ends or ends[-1] < shape.out_h:
        left = shape.out_h - (ends[-1] if ends else 0)
        taken += min(max(left // steps, 1), sections)
        ends.append(min(taken * steps, shape.out_h))
        reads.append(min(max(2 + 2 * taken - shape.pad_h, 0), shape.in_h))
    row_in, row_out = shape.in_w * shape.in_c, shape.out_w * shape.out_c
    return by_image(shape, np.array(reads[:-1]) * row_in, np.array(ends) * row_out)


def _patches_may_overwrite_input(shape: ConvShape) -> bool:
    """Whether output always ends before the first input row that has not been transposed."""
    steps = 2 if _two_rows(shape) else 1
    ends = [
        (2 * step + 4 - shape.pad_h, min((step + 1) * steps, shape.out_h)) for step in range(-(-shape.out_h // steps))
    ]
    return all(min(unread, shape.in_h) * shape.in_w >= end * shape.out_w for unread, end in ends)


def large_window(node: Node) -> bool:
    """a window of at most 8 x 8"""
    shape = ConvShape.of(node)
    if max(shape.k_h, shape.k_w) > 8 or shape.stride_w > 7 or max(shape.dilation_h, shape.dilation_w) > 1:
        return False
    return 8 * shape.out_c < 2**16  # results are scattered by offsets of 16 bits


def large_patches(node: Node) -> int:
    """How many patches are multiplied, for the cost."""
    shape = ConvShape.of(node)
    return node.output.type.count * -(-shape.k_h // 4) * -(-shape.k_w // 4)


def emit_large_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Up to 2 x 2 patches of 4 x 4 inputs for a sum."""
    shape = ConvShape.of(node)
    bands, blocks = -(-shape.k_h // 4), -(-shape.k_w // 4)
    params = strip_params(shape) | groups_of(shape, 8)
    span, pitch, covered, overlap = (int(params[name]) for name in ("span", "pitch", "covered", "overlap"))
    step, columns = 64 * shape.stride_w, pitch // shape.in_c
    read = max(columns, (covered - 1) * shape.stride_w + 4 * blocks)
    params |= {"columns_at": span * pitch + -(span * pitch) % VECTOR + VECTOR, "band": 64 * read}
    params |= {"y_next": 8 * shape.out_c, "place_step": 2 * shape.out_c}
    params |= {"back_x": -step * overlap, "back_y": -shape.out_c * overlap}
    params |= {"rewind_x": 4 - step * covered, "rewind_y": 1 - shape.out_c * covered}
    weights = weights_of(node).reshape(shape.out_c, shape.k_h, shape.k_w)
    padded = np.pad(weights, [(0, 0), (0, 4 * bands - shape.k_h), (0, 4 * blocks - shape.k_w)])
    patches = padded.reshape(-1, bands, 4, blocks, 4).transpose(0, 1, 3, 4, 2)
    packed = np.ascontiguousarray(patches).reshape(-1)
    flags = {"bands": bands, "blocks": blocks, "stride_w": shape.stride_w}
    strip = ("strip", int(params["columns_at"]) + 64 * read * bands)
    emit(node, builder, kernel, packed, params, flags, block=1, scratch=strip, orders=[rows(shape)])
