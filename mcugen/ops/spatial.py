# SPDX-License-Identifier: Apache-2.0
"""Common base of operators with a sliding window, such as convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box
from mcugen.hir.operator import ElementRun, Operator, Partition, Permutation, Shard, Signature
from mcugen.hir.traits import Permutable, run_along
from mcugen.hir.types import Shape, TensorType
from mcugen.numerics.window import Window
from mcugen.ops.movement import to_channels_last
from mcugen.ops.onnx_node import OnnxNode

_FARTHEST = 2**24
"""Strides, dilations and paddings from there on are refused: positions must fit 32 bits."""

MAX_AXIS_TAPS = 2**24
"""Largest number of kernel taps of all windows together along one axis; larger models are refused."""


CHANNEL_SHARD_MULTIPLE = 4
"""Number of channels that each channel shard is a multiple of, so that kernels can load whole 32-bit words."""


def shard_channels(t: TensorType, start: int, stop: int) -> ElementRun:
    """Return the elements of a channels-last tensor that hold a range of its channels, for all pixels.

    Args:
        t: Type of the tensor.
        start: First channel, in units of CHANNEL_SHARD_MULTIPLE channels.
        stop: End of the range, in the same units.
    """
    return ElementRun(
        start * CHANNEL_SHARD_MULTIPLE, (*t.shape[:-1], (stop - start) * CHANNEL_SHARD_MULTIPLE), t.shape[-1]
    )


class Spatial(Permutable, Operator):
    """Base of operators with a sliding window. Channels first: x [N, C, *space]; channels last: x [N, *space, C].

    Weights, if there are any, are [O, C, *kernel] or [O, *kernel, C].

    Attributes:
        window: Strides, padding and dilations.
        is_channels_last: Whether tensors are channels last; else channels first.
    """

    window: Window
    is_channels_last: bool = False

    @property
    def wants_channels_last(self) -> bool:
        """Return whether the operator is channels first, since its kernels for channels-last tensors are faster."""
        return not self.is_channels_last

    def _last(self, t: TensorType) -> Shape:
        """Return a shape in channels-last order."""
        return t.shape if self.is_channels_last else tuple(t.shape[a] for a in to_channels_last(t.rank))

    def _axis_of_rows(self, sig: Signature, kernel: Shape) -> int:
        """Return the spatial axis that counts rows: the second one for images of one line, whose pixels are rows."""
        x, y = sig.input(0).shape, sig.output.shape
        is_line = len(x) == 4 and x[1] == y[1] == kernel[0] == 1 and not self.window.before[0] + self.window.after[0]
        return int(is_line)

    def _bands(self, sig: Signature, kernel: Shape) -> Partition:
        """Return the partition of channels-last tensors by rows. Input rows of adjacent shards overlap."""
        x, y = sig.input(0).shape, sig.output.shape
        axis = self._axis_of_rows(sig, kernel)

        def shard(start: int, stop: int) -> Shard:
            window, first, last = self.window.band(axis, start, stop, x[1 + axis], kernel[axis])
            read, written = run_along(x, 1 + axis, first, last), run_along(y, 1 + axis, start, stop)
            return Shard(replace(self, window=window), (read, *(None,) * (len(sig.inputs) - 1)), written)

        return Partition(y[1 + axis], shard)

    def _columns(self, sig: Signature, kernel: Shape, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """See Columnwise."""
        if not self.is_channels_last or len(kernel) != 2:
            return None
        window, first, last = self.window.band(1, start, stop, sig.input(0).shape[2], kernel[1])
        return replace(self, window=window), first, last

    def _cropped(self, sig: Signature, kernel: Shape, region: Box, dilates: bool) -> tuple[Window, Box, Box]:
        """Return the window for some elements of the output, what it computes of the output, and reads of the input.

        Channels are those that are wanted, also in the input.

        Args:
            sig: Types of inputs and output.
            kernel: Spatial sizes of the kernel.
            region: The wanted elements of the output.
            dilates: Whether input positions between the taps may be left out.
        """
        window, writes, reads = self.window, list(region), list(region)
        for axis, taps in enumerate(kernel):
            at = axis + (1 if self.is_channels_last else 2)
            size = sig.input(0).shape[at]
            crop = window.cropped(axis, region[at], size, taps, dilates)
            if crop is None:
                writes[at], reads[at] = range(sig.output.shape[at]), range(size)
            else:
                window, reads[at] = crop
        return window, tuple(writes), tuple(reads)

    def _around(self, before: Shape, after: Shape) -> tuple[Shape, Shape] | None:
        """Return the padding of the spatial axes; None if another axis is padded."""
        space = slice(1, -1) if self.is_channels_last else slice(2, None)
        other_axes = slice(0, 1) if self.is_channels_last else slice(0, 2)
        sums = [b + a for b, a in zip(before, after, strict=True)]
        is_beside = any(sums[other_axes]) or (self.is_channels_last and sums[-1])
        return None if is_beside else (before[space], after[space])

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the channels-last form of a channels-first operator, and the permutation of each input.

        It computes the output transposed from NCHW to NHWC; a bias needs no permutation. Return None for every other
        `perm`, and if the operator is channels last already.
        """
        if self.is_channels_last or perm != to_channels_last(len(perm)):
            return None
        turned = tuple(perm if t is not None and t.rank == len(perm) else None for t in sig.inputs)
        return replace(self, is_channels_last=True), turned


def window_of(node: OnnxNode, space: Shape, kernel: Shape) -> Window:
    """Return the window (strides, padding, dilations) that the attributes of an ONNX node describe.

    The attributes are strides, pads, auto_pad and dilations.

    Args:
        node: The node.
        space: Spatial sizes of the input.
        kernel: Spatial sizes of the kernel.
    """
    rank = len(kernel)
    strides = tuple(node.integers("strides") or (1,) * rank)
    dilations = tuple(node.integers("dilations") or (1,) * rank)
    pads = tuple(node.integers("pads") or (0,) * 2 * rank)
    auto = node.attr("auto_pad", "NOTSET")
    check_reach(node, (*strides, *dilations, *pads))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or min(strides + dilations) < 1:
        raise ModelError(f"{node.op_type}: attributes must have one entry an axis", node.name, "repair the model")
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        pads = (0,) * 2 * rank if auto == "VALID" else pads
        window = Window(strides, pads[:rank], pads[rank:], dilations)
        if max((n * k for n, k in zip(window.output(space, kernel), kernel, strict=True)), default=0) > MAX_AXIS_TAPS:
            raise ModelError(f"{node.op_type}: the kernel must be smaller", f"{kernel} on {space}", "repair it")
        return window
    total = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, k, s, d in zip(space, kernel, strides, dilations, strict=True)
    ]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return Window(strides, *((small, large) if auto == "SAME_UPPER" else (large, small)), dilations)


def check_reach(node: OnnxNode, entries: Sequence[int]) -> None:
    """Check that strides, dilations and paddings of an ONNX node are non-negative and not absurdly large.

    Raises:
        ModelError: A number is negative or too large.
    """
    if entries and not 0 <= min(entries) <= max(entries) < _FARTHEST:
        entry_range = f"{min(entries)} to {max(entries)}"
        raise ModelError(
            f"{node.op_type}: strides, dilations and pads must lie in 0 to 2^24 - 1", entry_range, "repair the model"
        )
