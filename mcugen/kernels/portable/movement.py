# SPDX-License-Identifier: Apache-2.0
"""Kernels that move elements without computing: copies, fills, transpositions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Permutation
from mcugen.hir.types import Array, DType, Shape, TensorType, as_stored
from mcugen.kernels.common.strided_loops import dense_strides, merge_walks, numbered
from mcugen.lir.builder import Builder
from mcugen.lir.copies import COPY_KERNEL, MOVE_KERNEL, CopiedRunParams, CopyOptions, CopyRange, CopyWalk, Offsets
from mcugen.lir.kernel import SHORT_LOOPS, Call, Kernel, Options, Params, Real, Site, reads, scratch, writes
from mcugen.lir.program import Access, Buffer, Gathered, element_param
from mcugen.lir.traversal import Traversal, nested_positions, overlap

# ---------------------------------------------------------------------------------------------- copies, fills

MOVE, COPY = MOVE_KERNEL, COPY_KERNEL
"""Kernels that copy one contiguous run (move), and that copy elements or runs with strides (copy)."""


@dataclass(frozen=True)
class CopySide:
    """One of the two tensors of a strided copy, the source or the target: its strides, and its first element.

    Attributes:
        strides: Stride of each axis of the copy, in elements.
        offset: Index of the first element that is copied.
    """

    strides: Sequence[int]
    offset: int = 0

    @staticmethod
    def dense(shape: Shape) -> CopySide:
        """Return the side of a copy that covers a whole dense tensor of this shape: row-major strides, and offset 0."""
        return CopySide(dense_strides(shape))


@dataclass(frozen=True)
class CopyLoops:
    """The loop nest of a copy of elements from x to y.

    Attributes:
        outer: (trip count, stride in x, stride in y) of each loop, from the outermost; strides are in elements.
        run: Number of elements that each innermost iteration copies as one contiguous run; None if it copies single
            elements.
    """

    outer: Sequence[tuple[int, int, int]]
    run: int | None

    @staticmethod
    def of(shape: Shape, source: Sequence[int], target: Sequence[int]) -> CopyLoops:
        """Return the loops over all indices of `shape`, with as few loops as possible.

        Args:
            shape: Trip count of each axis.
            source: Strides in x, in elements.
            target: Strides in y, in elements.
        """
        dims = merge_walks(shape, source, target)
        size, *steps = dims[-1]
        return CopyLoops(dims[:-1], size) if steps == [1, 1] else CopyLoops(dims, None)

    def params(self, dtype: DType) -> tuple[CopyWalk, CopiedRunParams]:
        """Return the parameters of the copy kernel for elements of type `dtype`: loops, and bytes of a contiguous copy.

        The innermost iteration copies this number of adjacent bytes, or a single element (None).
        """
        sizes, xs, ys = zip(*self.outer, strict=True) if self.outer else ((), (), ())
        walk = CopyWalk(
            count=numbered("count", sizes), x_stride=numbered("x_stride", xs), y_stride=numbered("y_stride", ys)
        )
        return walk, CopiedRunParams(run=None if self.run is None else self.run * dtype.nbytes)

    def options(self, dtype: DType, stepped: bool = False) -> CopyOptions:
        """Return the template options of the copy kernel for elements of type `dtype`.

        Args:
            dtype: Element type.
            stepped: Whether the copy is in a loop of the model, each iteration of which copies another part of the
                tensor.
        """
        return CopyOptions(rank=len(self.outer), contiguous=self.run is not None, x_t=dtype.c, stepped=stepped)

    def variant(self, dtype: DType) -> str:
        """Return the part of the C function's name that describes the loops for elements of type `dtype`."""
        return f"{'runs' if self.run is not None else 'b' + str(8 * dtype.nbytes)}_{len(self.outer)}d"

    def order(self, source: int, target: int) -> Traversal:
        """Return the order of reads and writes of a copy, from which the allowed overlap of x and y in memory follows.

        Args:
            source: Index of the first element of x that is copied.
            target: Index of the first element of y that is written.
        """
        reads = source + nested_positions(*(np.arange(size) * stride for size, stride, _ in self.outer))
        starts = target + nested_positions(*(np.arange(size) * stride for size, _, stride in self.outer))
        if self.run is None:
            return Traversal(reads, starts + 1)
        return Traversal(np.repeat(reads, 2), np.repeat(starts + self.run, 2))  # A run must not overlap its own source.


def emit_copy(
    node: Node,
    builder: Builder,
    index: int,
    shape: Shape,
    source: CopySide,
    target: CopySide | None = None,
    access: Access = Access.OUT,
) -> None:
    """Emit a strided copy of one input to the output: y[target at i] = x[source at i] for all indices i of `shape`.

    The element of a side at index i is `offset` + Σ i · strides. A copy of a single contiguous run becomes a move,
    which vanishes if the planner places x and y at one address.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        index: Number of the node's input that is copied.
        shape: Trip count of each axis.
        source: Strides and offset in x.
        target: Strides and offset in y; None: y is dense.
        access: Access to y: OUT, or INOUT if y keeps elements that are not copied.
    """
    target = target or CopySide.dense(shape)
    loops = CopyLoops.of(shape, source.strides, target.strides)
    x, y = node.input(index).type, node.output.type
    x_buffer, y_buffer = builder.buffer(node.input(index)), builder.buffer(node.output)
    if loops.run is not None and not loops.outer and not builder.any_size:
        x_at, y_at = source.offset * x.dtype.nbytes, target.offset * y.dtype.nbytes
        nbytes = math.prod(shape) * y.dtype.nbytes
        builder.move(node, x_buffer, y_buffer, "", part=CopyRange(x_at, y_at, nbytes))
        return
    may_overlap = access is Access.OUT and not node.input(index).is_constant
    call = Call(
        COPY,
        {"x": x_buffer, "y": y_buffer},
        [Offsets(x_offset=source.offset, y_offset=target.offset), *loops.params(y.dtype)],
        [loops.options(x.dtype)],
        access={"y": access},
        overlaps=overlap(x, y, loops.order(source.offset, target.offset)) if may_overlap else [],
        variant=loops.variant(x.dtype),
    )
    builder.call(node, call)


class WholeFillParams(Params):
    """Kernel parameters of a fill of a whole tensor: number of elements, and their value."""

    count: Annotated[int, "elements of y"]
    fill_value: Annotated[Real, "value of each element, converted to the type of y"]


class FillOptions(Options):
    """Template option of a fill: the C type of the elements."""

    ctype: Annotated[str, "C type of the elements"]


FILL = Kernel(
    "fill",
    what="sets every element to one value",
    operands=(writes("y", "tensor to fill"),),
    params=(WholeFillParams,),
    options=(FillOptions,),
)
"""Kernel that sets every element of a tensor to one value."""


def emit_fill(node: Node, builder: Builder, buffer: Buffer, value: Array) -> None:
    """Emit the call that sets every element of a buffer to one value.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        buffer: The buffer to fill.
        value: The value, an array of one element.
    """
    dtype = DType.of(value)
    params = WholeFillParams(count=buffer.count, fill_value=element_param(as_stored(value)[0].item(), dtype))
    options = FillOptions(ctype=dtype.c)
    builder.call(node, Call(FILL, {"y": buffer}, [params], [options], variant=dtype.tag))


class Bytes(Params):
    """Kernel parameter of a reinterpretation as another type: the size of x in bytes."""

    x_bytes: Annotated[int, "bytes of x"]


BITCAST = Kernel(
    "bitcast",
    what="the bytes of x as elements of another type of the same width",
    operands=(reads("x", "input"), writes("y", "output, as many bytes")),
    params=(Bytes,),
)
"""Kernel that reinterprets the bytes of a tensor as another type of the same width."""

# --------------------------------------------------------------------------------------------- transpositions

MAX_UNROLLED_PLANES = 4
"""Largest number of planes that are interleaved by unrolled code, with one pointer for each plane."""

TRANSPOSE_BLOCK = 4
"""Number of rows, and of columns, of a block that is transposed at a time: the bytes of a word."""

MIN_BLOCK_TRANSPOSE_ELEMENTS = 768
"""Smallest matrix, in elements, that is transposed by blocks: blocks save two to four instructions per element, for
about 120 bytes of code. Under SHORT_LOOPS, the smallest size is twice as large."""


@dataclass(frozen=True, eq=False)
class TransposeSpec:
    """A permutation of axes as its kernels see it: y[i_perm[0], i_perm[1], …] = x[i_0, i_1, …].

    Attributes:
        x: Type of the input.
        y: Type of the output.
        perm: Order of the axes: entry i is the axis of x that becomes axis i of y.
        whole: Elements from row to row of a single matrix in memory, if the transposition covers only some of its
            columns; None if it covers all.
    """

    x: TensorType
    y: TensorType
    perm: Permutation
    whole: int | None = None

    @cached_property
    def matrices(self) -> tuple[int, int, int] | None:
        """Return the sizes of the matrices if the permutation of axes is a transposition of matrices; else None.

        This is so if, after axes that stay adjacent are merged, the last two axes are exchanged.

        Returns:
            (batch, columns, rows) if x can be seen as matrices [batch, rows, columns]; else None.
        """
        strides = dense_strides(self.x.shape)
        dims = merge_walks(self.y.shape, [strides[axis] for axis in self.perm], dense_strides(self.y.shape))
        if not 2 <= len(dims) <= 3:
            return None
        (columns, *column_strides), (rows, *row_strides) = dims[-2:]
        if column_strides != [1, rows] or row_strides != [columns, 1]:
            return None
        return math.prod(size for size, _, _ in dims[:-2]), columns, rows


def transposes_matrices(spec: TransposeSpec) -> bool:
    """Require that two merged axes are exchanged, as in a matrix transposition.

    Return whether, after axes that stay adjacent are merged, the permutation only exchanges the last two axes.
    """
    return spec.matrices is not None


def transposes_few_planes(spec: TransposeSpec) -> bool:
    """Require whole matrices, and scratch memory of at most a quarter of the tensor to transpose them in place.

    Return whether the permutation of axes transposes matrices with all their columns, and an in-place transposition
    (Planes) needs scratch memory of at most a quarter of the tensor's bytes.
    """
    planes = Planes.of(spec) if spec.whole is None else None
    return planes is not None and 4 * planes.scratch(spec.y.dtype) <= spec.y.nbytes


def _strided_elements(spec: TransposeSpec) -> int:
    """Count elements that are not interleaved by unrolled code, for the cost model."""
    matrices = spec.matrices
    assert matrices is not None
    return 0 if matrices[2] <= MAX_UNROLLED_PLANES else spec.y.count


def _elements_of_many_planes(spec: TransposeSpec) -> int:
    """Count elements that are not interleaved by unrolled code, for the cost model."""
    planes = Planes.of(spec)
    assert planes is not None
    return 0 if planes.planes <= MAX_UNROLLED_PLANES else spec.y.count


class TransposeSizes(Params):
    """Kernel parameters of matrix transpositions: number and sizes of the matrices, and distance between their rows."""

    batch: Annotated[int, "matrices"]
    columns: Annotated[int, "elements of a row of x"]
    rows: Annotated[int | None, "rows of x, if the loop over them is not unrolled"] = None
    x_row_stride: Annotated[int | None, "elements from row to row of x, if only some of them are transposed"] = None


class TransposeOptions(Options):
    """Template options of a transposition: the C type of the elements, and whether the loop over rows is unrolled."""

    x_t: Annotated[str, "C type of the elements"]
    inner: Annotated[int, "rows of x if the loop over them is unrolled; 0: a loop"]


class TransposeGatherOptions(TransposeOptions):
    """Template options of a matrix transposition that writes y in memory order: types, unrolling, vectors or blocks.

    `lanes` says how elements of one byte are moved together. "scattered": Helium loads 16 elements of a row of x, and
    scatters them over y. "gathered": Helium gathers an element of each of eight rows. "blocks": the DSP extension
    transposes blocks of four by four. Empty: one element at a time.
    """

    lanes: Annotated[
        str, "scattered: 16 of a row at a time; gathered: of eight rows; blocks: four by four; empty: one by one"
    ]


def _emit_transpose(spec: TransposeSpec, site: Site) -> Call:
    """Emit a transposition in the order of the output, element by element or several bytes at a time."""
    matrices = spec.matrices
    assert matrices is not None
    batch, columns, rows = matrices
    dtype = spec.y.dtype
    few = 1 < rows <= MAX_UNROLLED_PLANES
    lanes = "" if few or site.any_size or dtype.nbytes > 1 else _lanes(spec, matrices, site)
    form = str(rows) if few else lanes
    walks = (np.arange(batch) * rows * columns, np.arange(columns), np.arange(rows) * columns)
    orders = [Traversal.runs(nested_positions(*walks), 1), *[_by_blocks(*matrices)] * (lanes == "blocks")]
    return site.call(
        {"x": site.x, "y": site.y},
        [TransposeSizes(batch=batch, columns=columns, rows=None if few else rows, x_row_stride=spec.whole)],
        [TransposeGatherOptions(x_t=dtype.c, inner=rows if few else 0, lanes=lanes)],
        overlaps=overlap(spec.x, spec.y, *orders),
        variant="_".join(part for part in (f"b{8 * dtype.nbytes}", form, "some" * (spec.whole is not None)) if part),
        gathers=Gathered((spec.whole or columns) * dtype.nbytes, dtype.nbytes),
    )


def _by_blocks(batch: int, columns: int, rows: int) -> Traversal:
    """Return the traversal by blocks: of four columns, four rows at a time, then the other rows one by one.

    The remaining columns follow element by element.
    """
    last, left = columns - columns % TRANSPOSE_BLOCK, rows - rows % TRANSPOSE_BLOCK
    steps = [(i, TRANSPOSE_BLOCK) for i in range(0, left, TRANSPOSE_BLOCK)] + [(i, 1) for i in range(left, rows)]
    first, size = np.asarray(steps).T
    starts = np.arange(batch) * rows * columns
    blocks = np.arange(0, last, TRANSPOSE_BLOCK)
    turned = (
        nested_positions(blocks, first * columns),
        nested_positions((blocks + TRANSPOSE_BLOCK - 1) * rows, first + size),
    )
    tail_columns = (
        nested_positions(np.arange(last, columns), np.arange(rows) * columns),
        np.arange(last * rows, columns * rows) + 1,
    )
    reads, writes = (np.concatenate(parts) for parts in zip(turned, tail_columns, strict=True))
    return Traversal(nested_positions(starts, reads), nested_positions(starts, writes))


def _lanes(spec: TransposeSpec, matrices: tuple[int, int, int], site: Site) -> str:
    """Return how several bytes are moved at a time: by vectors, by words, or "" if one by one.

    The offsets of vector loads and stores have as many bits as lanes.
    """
    _, columns, rows = matrices
    if "mve" in site.features:
        if 15 * rows < 2**8 and columns >= rows:
            return "scattered"
        return "gathered" if 7 * (spec.whole or columns) < 2**16 else ""
    min_elements = MIN_BLOCK_TRANSPOSE_ELEMENTS * (2 if SHORT_LOOPS in site.features else 1)
    large = spec.whole is None and min(columns, rows) >= TRANSPOSE_BLOCK and spec.y.count >= min_elements
    return "blocks" if "dsp" in site.features and large else ""


@dataclass(frozen=True)
class Planes:
    """Plan of an in-place transposition between planes (channels first) and pixels (channels last).

    Each plane is divided into runs of adjacent elements, which are moved as a whole.

    Attributes:
        batch: Number of images.
        planes: Number of planes of an image, equal to the elements of a pixel: the smaller size of the matrix.
        lines: Number of runs of adjacent elements that a plane is divided into.
        width: Number of elements of one run.
        inverse: Whether pixels become planes; else planes become pixels.
    """

    batch: int
    planes: int
    lines: int
    width: int
    inverse: bool

    MIN_RUN_BYTES: ClassVar[int] = 64
    """Smallest size of a run, in bytes: each run has an overhead of about 60 instructions."""

    @staticmethod
    def of(spec: TransposeSpec) -> Planes | None:
        """Return the plan of an in-place transposition between planes (channels first) and pixels (channels last).

        Planes are divided into runs (adjacent elements that are moved as a whole), which are whole words if possible.

        Returns:
            The plan; None if the permutation of axes is not a transposition of matrices (TransposeSpec.matrices).
        """
        matrices = spec.matrices
        if matrices is None:
            return None
        batch, columns, rows = matrices
        planes, pixels = min(rows, columns), max(rows, columns)
        nbytes = spec.y.dtype.nbytes
        widths = [n for n in range(-(-Planes.MIN_RUN_BYTES // nbytes), pixels // 4 + 1) if pixels % n == 0] or [pixels]
        width = next((n for n in widths if n * nbytes % 4 == 0), widths[0])
        return Planes(batch, planes, pixels // width, width, columns < rows)

    @property
    def runs(self) -> int:
        """Return the number of runs of adjacent elements in all planes of one image; each is moved as a whole."""
        return self.planes * self.lines

    def scratch(self, dtype: DType) -> int:
        """Return the bytes of scratch memory that an in-place transposition needs for elements of type `dtype`.

        The memory holds one run (adjacent elements that are moved as a whole) of each plane, and a bit for each run of
        an image.
        """
        return self.planes * self.width * dtype.nbytes + -(-self.runs // 8)


class PlanesParams(Params):
    """Kernel parameters of a transposition in place between planes and pixels: sizes of images and runs.

    A run is a part of a plane that is moved as a whole.
    """

    batch: Annotated[int, "images"]
    planes: Annotated[int, "planes of an image, or elements of a pixel"]
    runs_per_plane: Annotated[int, "runs of a plane that are moved as a whole"]
    run_size: Annotated[int, "elements of a run"]


class PlanesOptions(TransposeOptions):
    """Template options of a transposition in place between planes (channels first) and pixels (channels last).

    `inverse` says whether pixels become planes, instead of planes pixels.
    """

    inverse: Annotated[bool, "whether pixels become planes"]


def _emit_in_place(spec: TransposeSpec, site: Site) -> Call:
    """Emit a transposition in place: runs change places, then pixels within one run of all planes at a time.

    For the inverse, from pixels to planes, the order is reversed.
    """
    planes, dtype = Planes.of(spec), spec.y.dtype
    assert planes is not None
    few = 1 < planes.planes <= MAX_UNROLLED_PLANES
    return site.call(
        {
            "x": site.x,
            "y": site.y,
            "line": site.scratch("line", dtype, planes.planes * planes.width),
            "done": site.scratch("done", DType.UINT8, -(-planes.runs // 8)),
        },
        [PlanesParams(batch=planes.batch, planes=planes.planes, runs_per_plane=planes.lines, run_size=planes.width)],
        [PlanesOptions(x_t=dtype.c, inner=planes.planes if few else 0, inverse=planes.inverse)],
        inplace=[("y", "x")],
        variant=f"b{8 * dtype.nbytes}" + (f"_{planes.planes}" if few else "") + "_inverse" * planes.inverse,
    )


TRANSPOSE = Kernel(
    "transpose",
    what="transposed matrices, element by element in the order of the output",
    when=(transposes_matrices,),
    emit=_emit_transpose,
    extra=_strided_elements,
    operands=(reads("x", "input"), writes("y", "output")),
    params=(TransposeSizes,),
    options=(TransposeGatherOptions,),
)
"""Kernel of matrix transpositions that writes the output in memory order."""
TRANSPOSE_INPLACE = Kernel(
    "transpose_inplace",
    what="a few planes to pixels, or back, in place: runs are permuted, then pixels within each run",
    when=(transposes_few_planes,),
    emit=_emit_in_place,
    extra=_elements_of_many_planes,
    operands=(
        reads("x", "input"),
        writes("y", "output, which may be x"),
        scratch("line", "a run of all planes"),
        scratch("done", "a bit for each run that has reached its place", DType.UINT8),
    ),
    params=(PlanesParams,),
    options=(PlanesOptions,),
)
"""Kernel of matrix transpositions in place, for matrices with few rows or few columns."""
