# SPDX-License-Identifier: Apache-2.0
"""What operators with a sliding window over space share: the window, and where the channels are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcugen.hir.operator import Operator, Permutation, Signature
from mcugen.hir.types import Shape, TensorType
from mcugen.ops.movement import to_channels_last
from mcugen.ops.window import Window


@dataclass(frozen=True)
class Spatial(Operator):
    """An operator with a window. Channels first: x [N, C, *space]; channels last: x [N, *space, C].

    Weights, where there are any, are [O, C, *kernel] or [O, *kernel, C] likewise.
    """

    window: Window
    is_channels_last: bool = False

    @property
    def wants_channels_last(self) -> bool:
        """Kernels exist for channels-last tensors."""
        return not self.is_channels_last

    def _last(self, t: TensorType) -> Shape:
        """A shape in channels-last order."""
        return t.shape if self.is_channels_last else tuple(t.shape[a] for a in to_channels_last(t.rank))

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """To channels last, once; a bias stays."""
        if self.is_channels_last or perm != to_channels_last(len(perm)):
            return None
        turned = tuple(perm if t is not None and t.rank == len(perm) else None for t in sig.inputs)
        return replace(self, is_channels_last=True), turned
