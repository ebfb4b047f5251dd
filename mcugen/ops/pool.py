# SPDX-License-Identifier: Apache-2.0
"""Pooling: fast kernels for one or two spatial axes, plain loops for all others; and unpooling."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from typing import ClassVar, Self

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import (
    Channels,
    FunctionFamily,
    IntegerForm,
    Operator,
    Partition,
    Permutation,
    RowForm,
    Shard,
    Signature,
)
from mcugen.hir.traits import (
    Channelwise,
    Columnwise,
    Croppable,
    Paddable,
    Partitionable,
    Quantizable,
    Rowwise,
    Windowed,
    clamp_of,
)
from mcugen.hir.types import Array, DType, Layout, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import WindowWalk, dense_strides, numbered
from mcugen.kernels.portable.pool import (
    POOL_DIRECT,
    UNPOOL,
    AverageSpec,
    CountedPadding,
    DirectParams,
    DirectPoolOptions,
    PoolPlanes,
    PoolSpec,
    UnpoolParams,
    call_average_pool,
    call_max_pool,
    first_taps,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import real_param
from mcugen.lir.spec import HasKernels
from mcugen.lir.traversal import Traversal, nested_positions, overlap
from mcugen.numerics.fixedpoint import Requantizer, has_same_quantization, is_quantized, max_code_magnitude
from mcugen.numerics.tflite_arithmetic import AwayMean, rounds_as_tflite
from mcugen.numerics.window import Window
from mcugen.ops.movement import Pad, Permuted, Reshape, Slice, inverse, to_channels_last
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary
from mcugen.ops.reduce import emit_reduce
from mcugen.ops.spatial import CHANNEL_SHARD_MULTIPLE, Spatial, check_reach, shard_channels, window_of

_MAX_TYPES = (DType.FLOAT32, DType.INT8, DType.UINT8)  # of ONNX; int16 comes by quantization
_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class Pool(HasKernels, Channelwise, Croppable, Windowed, Spatial):
    """Base of functions of the elements under a sliding window, channel by channel.

    Padding elements are not part of a window, and every window contains at least one element of the input.

    Attributes:
        kernel: Spatial sizes of the window.
        whole: If one core computes only some channels by this operator, the number of channels that a pixel of the
            whole layer has in memory; else None.
    """

    kernel: Shape = ()
    whole: int | None = field(default=None, kw_only=True)

    def reads(self, sig: Signature) -> int:
        """Return the number of elements that all windows of one inference read, padding included."""
        return sig.output.count * math.prod(self.kernel)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: its size follows from the window, element type and quantization from the input."""
        (x,) = required(inputs)
        batch, *space, channels = self._last(x)
        if len(space) != len(self.kernel):
            raise ModelError(
                f"{self.name}: the kernel must match the input", f"{self.kernel} on {x.shape}", "repair it"
            )
        out = self.window.output(tuple(space), self.kernel)
        if min(out) < 1:
            raise ModelError(
                f"{self.name}: the kernel must fit the input", f"{self.kernel} on {space}", "use a larger input"
            )
        shape = (batch, *out, channels) if self.is_channels_last else (batch, channels, *out)
        layout = Layout.CHANNELS_LAST if self.is_channels_last else Layout.CHANNELS_FIRST
        return (replace(x, shape=shape, layout=layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the pool's output in numpy, on channels-last arrays."""
        (x,) = arrays
        if self.is_channels_last:
            return (self._pool(sig, x),)
        perm = to_channels_last(x.ndim)
        return (self._pool(sig, x.transpose(perm)).transpose(inverse(perm)),)

    def _pool(self, sig: Signature, x: Array) -> Array:
        """Evaluate the pool on [N, *space, C] by numpy."""
        raise NotImplementedError

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel of the same index, for channel pruning.

        Return None for channels-first tensors.
        """
        return Channels((np.arange(sig.input(0).shape[-1]),), lambda _: self) if self.is_channels_last else None

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return how to compute only the pools under some windows; whose strides count input positions.

        The read positions are contiguous, since kernels of pools are fastest without dilation.
        """
        window, writes, reads = self._cropped(node.sig, self.kernel, region, dilates=False)
        return Crop(replace(self, window=window), writes, (reads,))

    def _wider(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the pool with more padding, if every window still contains an input element."""
        space = self._around(before, after)
        if space is None:
            return None
        op = replace(self, window=self.window.padded(*space))
        none = (0,) * len(self.kernel)
        return op if all(taps.min() > 0 for taps in op._taps(self._last(x.type)[1:-1], none, none)) else None

    def _rows(self, sig: Signature, fill: float) -> RowForm | None:
        """Return the row form: a pool over one row, with `fill` in rows outside the input."""
        if not self.is_channels_last or sig.input(0).shape[0] != 1:
            return None
        axis = self._axis_of_rows(sig, self.kernel)
        op = replace(self, window=self.window.of_one_row(axis))
        return RowForm(op, (self.window.rows(self.kernel[axis], fill, axis),), 1 + axis)

    def _taps(self, space: Shape, before: Shape, after: Shape) -> list[Array]:
        """Per axis and output position, how many taps lie in the input widened by `before` and `after`."""
        w, counts = self.window, []
        out = w.output(space, self.kernel)
        for axis, (size, k) in enumerate(zip(space, self.kernel, strict=True)):
            start = np.arange(out[axis]) * w.strides[axis] - w.before[axis]
            at = start[:, None] + np.arange(k) * w.dilations[axis]
            counts.append(((at >= -before[axis]) & (at < size + after[axis])).sum(1))
        return counts

    def spec(self, node: Node) -> PoolSpec:
        """Return the types, window and kernel size of the pool, from which kernels are chosen."""
        x, y = node.input(0).type, node.output.type
        return PoolSpec(x, y, self.window, self.kernel, self.is_channels_last, self.whole)

    def channel_partitions(self, sig: Signature) -> list[Partition]:
        """Return the way to split the output over cores by channels, in a list; empty if there are too few channels."""
        channels = sig.output.shape[-1]
        if not self.is_channels_last or channels < 2 * CHANNEL_SHARD_MULTIPLE or channels % CHANNEL_SHARD_MULTIPLE:
            return []

        def shard(start: int, stop: int) -> Shard:
            reads, writes = (shard_channels(t, start, stop) for t in (sig.input(0), sig.output))
            return Shard(replace(self, whole=channels), (reads,), writes)

        return [Partition(channels // CHANNEL_SHARD_MULTIPLE, shard)]


class MaxPool(Quantizable, Rowwise, Columnwise, Partitionable, Paddable, Pool):
    """y = the largest element under the window, for any element type whose order is that of the reals."""

    mnemonic: ClassVar[str] = "max_pool"
    moves_data: ClassVar[bool] = True

    def _pool(self, sig: Signature, x: Array) -> Array:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        patches = self.window.patches(x, self.kernel, lowest)
        result: Array = patches.max(tuple(range(x.ndim, patches.ndim)))
        return result

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the pool with a larger padding, which replaces a separate padding of x by zeros.

        The separate zeros take part in maxima, but the pool's own padding does not; so x must not have negative
        elements.

        Args:
            x: The tensor without the separate padding.
            before: Zeros before x along each axis.
            after: Zeros behind x along each axis.

        Returns:
            The pool; None if x may have negative elements, or if a window would contain padding only.
        """
        return self._wider(x, before, after) if _is_positive(x) else None

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the integer form of the layer: the same operator, as the largest integer stands for the maximum.

        Return None if scale or zero point of input and output differ, so that results would have to be requantized.
        """
        return (self, inputs) if has_same_quantization(sig.input(0), sig.output) else None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the pool row by row (for line-buffer fusion); None if impossible.

        Rows outside of the image hold the lowest value of the element type.
        """
        dtype = sig.output.dtype
        return self._rows(sig, -math.inf if dtype.is_float else dtype.limits[0])

    def some_columns(self, sig: Signature, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """Return the pool that computes only the output columns `start` to before `stop`, for spatial tiling.

        Returns:
            The pool, with the padding that its windows reach; the first input column that it reads; and the column
            after the last one. None if the columns cannot be computed alone.
        """
        return self._columns(sig, self.kernel, start, stop)

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the ways to split the output over cores: by rows and by channels."""
        return (*([self._bands(sig, self.kernel)] if self.by_rows(sig) else []), *self.channel_partitions(sig))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that computes four channels at a time."""
        call_max_pool(node, builder, self.spec(node))


class AveragePool(Quantizable, Rowwise, Partitionable, Paddable, Pool):
    """y = sum of the elements under the window ÷ number of counted kernel taps.

    Taps in the input count, and taps in the first `counted_before` and `counted_after` padding elements of each axis.

    Attributes:
        counted_before: Padding elements per spatial axis before the input whose taps count (as zeros).
        counted_after: Padding elements per spatial axis behind the input whose taps count; fewer than the window's with
            ONNX's ceil_mode.
        most: If this is a part of a pool that one core computes, and the windows of the whole pool have different
            counts, the largest of these counts; else 0.
    """

    mnemonic: ClassVar[str] = "average_pool"
    counted_before: Shape = ()
    counted_after: Shape = ()
    most: int = field(default=0, kw_only=True)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: shape and element type of a pool, not quantized (a mean has its own scale)."""
        (out,) = super().infer(*inputs)
        return (out.with_quant(None),)

    @property
    def rises(self) -> bool:
        """Return True: increasing an element never decreases a mean."""
        return True

    def _counts(self, sig: Signature) -> list[Array]:
        """Return the divisors as one factor per spatial axis and output position."""
        return self._taps(self._last(sig.input(0))[1:-1], self.counted_before, self.counted_after)

    def _requantizer(self, sig: Signature) -> Requantizer:
        """Return the requantizer whose multiplier n − 1 divides by n, up to the largest number of taps."""
        counts = self._counts(sig)
        divisors = np.arange(1, (self.most or math.prod(int(c.max()) for c in counts)) + 1)
        if not self.most and math.prod(int(c.min()) for c in counts) == len(divisors):
            divisors = divisors[-1:]
        x, y = sig.input(0), sig.output
        if rounds_as_tflite(y):
            return AwayMean.by(divisors, y.q.zero_point)
        ratio = x.q.scale[0] / y.q.scale[0]
        sums = divisors * max_code_magnitude(x.dtype) if x.dtype is DType.INT16 else None
        return Requantizer.of(ratio / divisors, y.q.zero_point, ties_to_even=True, sums=sums)

    def _pool(self, sig: Signature, x: Array) -> Array:
        quant = sig.input(0).quant if sig.output.quant is not None else None
        x = x if quant is None else x.astype(np.int64) - quant.zero_point
        patches = self.window.patches(x, self.kernel, 0)
        total: Array = patches.sum(tuple(range(x.ndim, patches.ndim)))
        count: Array = self._counts(sig)[0]
        for factor in self._counts(sig)[1:]:
            count = count[:, None] * factor
        count = count[..., None]
        if quant is None:
            return (total / count.astype(np.float32)).astype(np.float32)
        requantize = self._requantizer(sig)
        by_count = requantize.multiplier if len(requantize.multiplier) == 1 else requantize.multiplier[count - 1]
        limited = replace(requantize, multiplier=by_count)(total, *sig.output.dtype.limits)
        return limited.astype(sig.output.dtype.numpy)

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the pool with a larger padding, which replaces a separate padding of x by zeros.

        The added zeros count in the averages. Return None if the pool already has padding before x that does not count:
        it would lie outside of the added zeros, but kernels count from the start of the window.

        Args:
            x: The tensor without the separate padding.
            before: Zeros before x along each axis.
            after: Zeros behind x along each axis.

        Returns:
            The pool; None if the paddings cannot be merged.
        """
        space, op = self._around(before, after), self._wider(x, before, after)
        if space is None or op is None:
            return None
        counted = replace(self.window, before=self.counted_before, after=self.counted_after).padded(*space)
        if counted.before != op.window.before:
            return None
        return replace(op, counted_before=counted.before, counted_after=counted.after)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the pool row by row (for line-buffer fusion); None if impossible.

        Every row of each window must count, so that all rows of the output have the same divisors.
        """
        x, axis = sig.input(0), self._axis_of_rows(sig, self.kernel)
        form = self._rows(sig, x.quant.zero_point if x.quant else 0)
        if form is None or (self._counts(sig)[axis] != self.kernel[axis]).any():
            return None
        assert isinstance(form.op, AveragePool)
        counted = replace(self.window, before=self.counted_before, after=self.counted_after).of_one_row(axis)
        return replace(form, op=replace(form.op, counted_before=counted.before, counted_after=counted.after))

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return how to compute only some averages, whose divisors stay the same.

        Divisors of quantized averages are rounded in the way that the largest divisor of the whole pool allows.
        """
        crop = super().cropped(node, region)
        assert crop is not None and isinstance(crop.op, AveragePool)
        window = crop.op.window
        before = tuple(map(min, self.counted_before, window.before))
        after = tuple(map(min, self.counted_after, window.after))
        max_count = self.most if node.output.type.quant is None else self._max_count(node.sig)
        return replace(crop, op=replace(crop.op, counted_before=before, counted_after=after, most=max_count))

    def _max_count(self, sig: Signature) -> int:
        """Return the largest divisor of any window if divisors differ; else 0."""
        counts = self._counts(sig)
        varies = any((c != c[0]).any() for c in counts)
        return math.prod(int(c.max()) for c in counts) if varies else self.most

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the ways to split the output over cores: by rows and by channels."""
        if not self.is_channels_last or sig.input(0).shape[0] != 1:
            return self.channel_partitions(sig)
        bands = replace(self, most=self._max_count(sig))._bands(sig, self.kernel)

        def shard(start: int, stop: int) -> Shard:
            """Return the shard; its window has no padding on sides where the shard does not reach the padding."""
            part = bands.shard(start, stop)
            assert isinstance(part.op, AveragePool)
            window = part.op.window
            before = tuple(map(min, self.counted_before, window.before))
            after = tuple(map(min, self.counted_after, window.after))
            return replace(part, op=replace(part.op, counted_before=before, counted_after=after))

        return (Partition(bands.length, shard), *self.channel_partitions(sig))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the average on quantized tensors, which divides exact int32 sums; None if there is no integer form."""
        x = sig.input(0)
        fits = math.prod(self.kernel) < 2 ** (31 - 8 * x.dtype.nbytes)
        return (self, inputs) if fits and is_quantized(x) and is_quantized(sig.output) else None

    def spec(self, node: Node) -> AverageSpec:
        """Return the types, window and divisors of the average, from which kernels are chosen.

        The divisor of a window is constant, or follows from the number of its taps in the input.
        """
        sig = node.sig
        sizes: list[int] | list[None] = [None, None]
        counts = self._counts(sig)
        fixed = not self.most and all((c == c[0]).all() for c in counts)
        counts_padding = any(self.counted_before + self.counted_after)
        if counts_padding and not fixed:
            assert self.counted_before == self.window.before, "kernels count from where the window begins"
            rows = zip(self._last(sig.input(0))[1:-1], self.counted_before, self.counted_after, strict=True)
            sizes = [1] * (2 - len(counts)) + [n + b + a for n, b, a in rows]
        return AverageSpec(
            sig.input(0),
            sig.output,
            self.window,
            self.kernel,
            self.is_channels_last,
            self.whole,
            divisor="fixed" if fixed else "padded" if counts_padding else "inside",
            requantize=self._requantizer(sig) if sig.output.quant is not None else None,
            counted=CountedPadding(counted_height=sizes[0], counted_width=sizes[1]),
            taps=math.prod(int(c[0]) for c in counts),
            counts_padding=counts_padding,
        )

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that computes four channels at a time."""
        call_average_pool(node, builder, self.spec(node))


def _is_positive(x: Value) -> bool:
    """Return whether no element can be below zero: by its type, or since its producer clamps it."""
    if x.type.quant is not None:
        return x.type.quant.zero_point == x.type.dtype.limits[0]
    clamp = clamp_of(x.producer.op) if x.producer is not None else None
    return clamp is not None and clamp[0] >= 0


# --------------------------------------------------------------------------------------------------- direct


class DirectPool(FunctionFamily, Pool):
    """A channels-first pool with any number of spatial axes and any element type, computed by a plain loop.

    `function` is max, average or lp, which is (Σ |x|^p)^(1/p). Averages divide by the number of taps in the input and
    in those padding elements that count. With `order`, a second output has the position of each maximum in x.

    Attributes:
        counted: Numbers of padding elements per spatial axis, before and after the input, that averages count.
        p: Exponent of the lp pool.
        order: "row" for row-major positions in x, "column" for column-major positions within a channel, "" for no
            second output.
    """

    spelling: ClassVar[str] = "direct_{}_pool"
    functions: ClassVar[Collection[str]] = ("max", "average", "lp")
    counted: tuple[Shape, Shape] = ((), ())
    p: float = 2.0
    order: str = ""

    @property
    def moves_data(self) -> bool:  # type: ignore[override]
        """Return whether each result is an element of the input, as it is for a maximum."""
        return self.function == "max"

    @property
    def wants_channels_last(self) -> bool:
        """Return False: the only kernel is written for channels-first tensors, so channels last is not faster."""
        return False

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return None: no transposition can be moved across the operator, which has no channels-last form."""
        return None

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs: values (quantized only for a maximum), and positions if `order` is set."""
        (out,) = super().infer(*inputs)
        out = out if self.moves_data else out.with_quant(None)
        return (out, replace(out, dtype=DType.INT64, quant=None)) if self.order else (out,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: reduce an array of the elements under each window, [N, *out, C, window size]."""
        x = arrays[0].transpose(to_channels_last(arrays[0].ndim))
        inside = self._patches(np.ones(x.shape, np.bool_))
        patches = self._patches(x)
        results = [self._reduced(sig, patches, inside)]
        if self.order:
            at = self._patches(self._positions(sig.input(0).shape).transpose(to_channels_last(x.ndim)))
            best = (inside & (patches == results[0][..., None])).argmax(-1)
            results.append(np.take_along_axis(at, best[..., None], -1)[..., 0])
        return tuple(r.transpose(inverse(to_channels_last(x.ndim))) for r in results)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return how to compute only some pools; None for pools with positions, and for averages."""
        return None if self.order or self.function == "average" else super().cropped(node, region)

    def _patches(self, x: Array) -> Array:
        """0 where there is no element."""
        patches = self.window.patches(x, self.kernel, 0)
        return patches.reshape(*patches.shape[: x.ndim], -1)

    def _reduced(self, sig: Signature, patches: Array, inside: Array) -> Array:
        result: Array
        if self.function == "max":
            lowest = -np.inf if patches.dtype.kind == "f" else np.iinfo(patches.dtype).min
            result = np.where(inside, patches, patches.dtype.type(lowest)).max(-1)
        elif self.function == "lp":
            power = patches.dtype.type(self.p)
            result = (np.abs(patches) ** power).sum(-1) ** (1 / power)
        else:
            count: Array = np.ones((), patches.dtype)
            for factor in self._taps(sig.input(0).shape[2:], *self.counted):
                count = count[..., None] * factor
            result = patches.sum(-1) / count[..., None].astype(patches.dtype)
        return result

    def _positions(self, shape: Shape) -> Array:
        """Return the flat position of each element of a tensor, in the wanted order."""
        index = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        if self.order == "row":
            return index
        planes = (*shape[:2], *shape[:1:-1])
        return index.reshape(planes).transpose(0, 1, *range(len(shape) - 1, 1, -1))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that computes the bounds of each window once for all elements under it."""
        x, y = node.input(0).type, node.outputs[0].type
        space, rank = x.shape[2:], len(self.kernel)
        operands = builder.operands(node, "x")
        if self.order:
            operands["indices"] = builder.buffer(node.outputs[1])
        options = DirectPoolOptions(
            rank=rank,
            function=self.function,
            t=x.dtype.c,
            f="" if x.dtype is DType.FLOAT64 else "f",
            widens=self._widens,
            indices=bool(self.order),
            p_norm=0 if self._is_general else int(self.p),
        )
        call = Call(
            POOL_DIRECT,
            operands,
            [
                PoolPlanes(planes=math.prod(x.shape[:2]), x_plane_size=math.prod(space)),
                WindowWalk.of(self.window, space, y.shape[2:], self.kernel),
                self._direct_params(space, x.dtype),
            ],
            [options],
            overlaps=overlap(x, y, self._order(x.shape, y.shape)),
            variant=f"{self.function}_{rank}d_{x.dtype.tag}",
        )
        builder.call(node, call)

    @property
    def _widens(self) -> bool:
        """Return whether taps in the padding count."""
        return any(self.counted[0] + self.counted[1])

    @property
    def _is_general(self) -> bool:
        """Return whether an Lp norm takes powers."""
        return self.function == "lp" and self.p not in (1, 2)

    def _direct_params(self, space: Shape, dtype: DType) -> DirectParams:
        """Return the parameters of the C function other than the sizes."""
        before: Shape = ()
        end: Shape = ()
        steps: Sequence[int] = ()
        if self.function == "average" and self._widens:
            before, end = self.counted[0], tuple(n + a for n, a in zip(space, self.counted[1], strict=True))
        if self.order:
            steps = dense_strides(space) if self.order == "row" else dense_strides(space[::-1])[::-1]
        powers = [real_param(p, dtype) for p in (self.p, 1 / self.p)] if self._is_general else [None, None]
        return DirectParams(
            counted_before=numbered("counted_before", before),
            counted_end=numbered("counted_end", end),
            index_stride=numbered("index_stride", steps),
            power=powers[0],
            root=powers[1],
        )

    def _order(self, x: Shape, y: Shape) -> Traversal:
        """Return the order in which elements of x are read and elements of y are written: one by one."""
        w = self.window
        walks = zip(y[2:], w.strides, w.before, w.dilations, dense_strides(x)[2:], strict=True)
        axes = [first_taps(*walk) * pitch for *walk, pitch in walks]
        return Traversal.runs(nested_positions(np.arange(math.prod(x[:2])) * math.prod(x[2:]), *axes), 1)


class Unpool(Operator):
    """y = zeros of `shape`, except y[indices[i]] = x[i]; x and y are seen as flat, indices outside are ignored."""

    mnemonic: ClassVar[str] = "unpool"
    shape: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the target shape with the input's element type."""
        x, indices = required(inputs)
        if indices.shape != x.shape or min(self.shape) < 1:
            shapes = f"{x.shape} at {indices.shape} in {self.shape}"
            raise ModelError("unpool: every element must have an index", shapes, "repair the model")
        return (TensorType(self.shape, x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: write each element at its index; the last of equal indices wins."""
        x, at = (a.reshape(-1) for a in arrays)
        y = np.zeros(math.prod(self.shape), x.dtype)
        valid = (at >= 0) & (at < y.size)
        y[at[valid]] = x[valid]
        return (y.reshape(self.shape),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a fill with zeros and a loop that writes the elements."""
        x, y = node.input(0).type, node.output.type
        operands = builder.operands(node, "x", "indices")
        sizes = UnpoolParams(count=x.count, y_size=y.count)
        builder.call(node, Call(UNPOOL, operands, [sizes], variant=x.dtype.tag))


# --------------------------------------------------------------------------------------------------- import


def _window(node: OnnxNode, space: Shape, kernel: Shape) -> tuple[Window, Shape]:
    """Return the window, and the declared padding at the end of each axis.

    ceil_mode adds padding at the end: enough for the last window that starts in the input or before it.
    """
    window = window_of(node, space, kernel)
    declared = window.after
    if not node.attr("ceil_mode", 0):
        return window, declared
    after = []
    for n, k, s, b, a, d in zip(space, kernel, window.strides, window.before, declared, window.dilations, strict=True):
        extent = d * (k - 1) + 1
        last = -(-(n + b + a - extent) // s)
        last -= last * s >= n + b
        after.append(max(a, last * s + extent - n - b))
    return replace(window, after=tuple(after)), declared


def _geometry(node: OnnxNode) -> tuple[Shape, Shape, Window, Shape]:
    """Space, kernel, window, declared padding at the end."""
    x = node.input(0).type
    kernel = tuple(node.integers("kernel_shape"))
    space = x.shape[2:]
    if not space or len(kernel) != len(space) or min(kernel) < 1:
        raise ModelError(f"{node.op_type}: kernel_shape must have one entry an axis", f"{kernel}", "repair the model")
    window, declared = _window(node, space, kernel)
    pool = Pool(window, kernel=kernel)
    if min(window.output(space, kernel)) < 1:
        raise ModelError(f"{node.op_type}: the kernel must fit the input", f"{kernel} on {space}", "use a larger input")
    none = (0,) * len(kernel)
    if min(int(c.min()) for c in pool._taps(space, none, none)) < 1:
        mismatch = f"kernel {kernel}, padding {window.before} and {window.after}"
        raise Refusal(f"{node.op_type}: every window must meet the input", mismatch, "use less padding")
    return space, kernel, window, declared


@onnx_operator(
    "MaxPool",
    types=(*_MAX_TYPES, DType.FLOAT64),
    kernels=("max_pool_f32", "max_pool_s8", "max_pool_s16", "max_pool_u8", "max_pool_u16", "pool_direct"),
    limits="every window must meet the input",
)
def _import_max_pool(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_MAX_TYPES, DType.FLOAT64)
    _, kernel, window, _ = _geometry(node)
    if len(node.outputs) > 1 and node.outputs[1]:
        order = "column" if node.attr("storage_order", 0) else "row"
        op = DirectPool(window, kernel=kernel, function="max", order=order)
        return list(node.graph.add(op, [x], (node.name or node.outputs[0],), names=node.outputs[:2]).outputs)
    if len(kernel) > 2 or x.type.dtype is DType.FLOAT64:
        return [node.emit(DirectPool(window, kernel=kernel, function="max"), x)]
    return [node.emit(MaxPool(window, kernel=kernel), x)]


@onnx_operator(
    "AveragePool",
    types=_FLOATS,
    kernels=("average_pool_f32", "average_pool_s8", "reduce", "pool_direct"),
    limits="every window must meet the input",
)
def _import_average_pool(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_FLOATS)
    space, kernel, window, declared = _geometry(node)
    if kernel == space and not any(window.before + window.after) and max(window.dilations) == 1:
        return [emit_reduce(node, x, "mean", range(2, x.type.rank))]
    none = (0,) * len(kernel)
    counted = (window.before, declared) if node.attr("count_include_pad", 0) else (none, none)
    if len(kernel) > 2 or x.type.dtype is DType.FLOAT64:
        return [node.emit(DirectPool(window, kernel=kernel, function="average", counted=counted), x)]
    return [node.emit(AveragePool(window, False, kernel, *counted), x)]


@onnx_operator("LpPool", types=_FLOATS, kernels=("pool_direct",), limits="every window must meet the input")
def _import_lp_pool(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), *_FLOATS)
    _, kernel, window, _ = _geometry(node)
    return [node.emit(DirectPool(window, kernel=kernel, function="lp", p=_order(node)), node.input(0))]


def _order(node: OnnxNode) -> float:
    """Return the p of an Lp norm."""
    p = float(node.attr("p", 2))
    if not 0 < p < math.inf:
        raise ModelError(f"{node.op_type}: p must be positive", f"{p}", "repair the model")
    return p


@onnx_operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", types=_FLOATS, kernels=("reduce", "pool_direct"))
def _import_global_pool(node: OnnxNode) -> list[Value]:
    """Import a global pool as a reduction over all spatial axes."""
    x = node.input(0)
    if x.type.rank < 3:
        raise ModelError(f"{node.op_type}: the input must have spatial axes", f"rank {x.type.rank}", "repair the model")
    node.require_dtype(x, *_FLOATS)
    if node.op_type != "GlobalLpPool":
        function = "mean" if node.op_type == "GlobalAveragePool" else "max"
        return [emit_reduce(node, x, function, range(2, x.type.rank))]
    kernel, none = x.type.shape[2:], (0,) * (x.type.rank - 2)
    window = Window((1,) * len(kernel), none, none, (1,) * len(kernel))
    return [node.emit(DirectPool(window, kernel=kernel, function="lp", p=_order(node)), x)]


@onnx_operator("MaxUnpool", types=_FLOATS, kernels=("unpool",))
def _import_max_unpool(node: OnnxNode) -> list[Value]:
    """Import MaxUnpool. Indices refer to the shape by the pool's attributes; a larger output is padded with zeros."""
    x = node.input(0)
    node.require_dtype(x, *_FLOATS)
    node.require_dtype(node.input(1), DType.INT64)
    space = x.type.shape[2:]
    kernel = tuple(node.integers("kernel_shape"))
    if not space or len(kernel) != len(space):
        raise ModelError("MaxUnpool: kernel_shape must have one entry an axis", f"{kernel}", "repair the model")
    w = window_of(node, space, kernel)
    rows = zip(space, kernel, w.strides, w.before, w.after, strict=True)
    shape = (*x.type.shape[:2], *((n - 1) * s + k - b - a for n, k, s, b, a in rows))
    values = node.emit(Unpool(shape), x, node.input(1), suffix="placed" if node.has(2) else "")
    if not node.has(2):
        return [values]
    declared = node.declared[0] if node.declared else None
    known = declared is not None and node.input(2).data is None
    output_shape = declared.shape if known and declared is not None else tuple(node.ints("output_shape", 2) or ())
    more = tuple(w - n for w, n in zip(output_shape, shape, strict=True))
    kept = tuple(min(w, n) for w, n in zip(output_shape, shape, strict=True))
    if min(output_shape) < 1:
        raise ModelError("MaxUnpool: the output must not be empty", f"{output_shape}", "repair the model")
    none = (0,) * len(shape)
    part = node.emit(Slice(none, kept, (1,) * len(shape)), values, suffix="part")
    return [node.emit(Pad(none, tuple(max(m, 0) for m in more)), part)]


@onnx_operator("LRN", types=_FLOATS, kernels=("average_pool_f32", "pool_direct", "elementwise"))
def _import_lrn(node: OnnxNode) -> list[Value]:
    """x / (bias + alpha · mean of x² over neighbouring channels)^beta: the mean is a pool with channels as its rows."""
    x = node.input(0)
    node.require_dtype(x, *_FLOATS)
    size = int(node.attr("size", 1))
    if x.type.rank < 2 or size < 1:
        raise ModelError("LRN: there must be channels to sum over", f"{size} of {x.type.shape}", "repair the model")
    check_reach(node, (size,))
    batch, channels = x.type.shape[:2]
    rows = node.emit(Reshape((batch, 1, channels, math.prod(x.type.shape[2:]))), x, suffix="rows")
    squares = node.emit(Binary("Mul"), rows, rows, suffix="squares")
    pads = (((size - 1) // 2, 0), (size // 2, 0))
    window = Window((1, 1), *pads, (1, 1))
    plain = x.type.dtype is DType.FLOAT32
    pool = AveragePool(window, False, (size, 1), *pads)
    direct = DirectPool(window, kernel=(size, 1), function="average", counted=pads)
    mean = node.emit(pool if plain else direct, squares, suffix="mean")

    def scalar(key: str, default: float) -> Value:
        return node.constant(key, np.asarray(node.attr(key, default), x.type.dtype.numpy))

    scaled = node.emit(Binary("Mul"), mean, scalar("alpha", 1e-4), suffix="scaled")
    base = node.emit(Binary("Add"), scaled, scalar("bias", 1.0), suffix="base")
    divisor = node.emit(Binary("Pow"), base, scalar("beta", 0.75), suffix="divisor")
    quotient = node.emit(Binary("Div"), rows, divisor, suffix="quotient")
    return [node.emit(Reshape(x.type.shape), quotient)]
