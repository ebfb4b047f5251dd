# SPDX-License-Identifier: Apache-2.0
"""Attention of new tokens to the filled positions of a cache of keys and values, as decoders compute it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Signature
from mcugen.hir.traits import Quantizable
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.kernels.portable.attention import CACHED_ATTENTION, AttentionSpec, CacheLayout
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.spec import HasKernels
from mcugen.numerics.attention import FixedAttention


class CachedAttention(HasKernels, Quantizable, Operator):
    """y[n, s] = Σ_t p[t] · v[n // g, t], where p is the softmax over t of scale · q[n, s] · k[n // g, t].

    The inputs are q (heads n, queries s, size of a head), the caches of keys k and of values v, and, unless all
    positions of the caches are filled, `past`: one integer. g = heads / heads of the caches. Only positions t from
    max(0, e − window) to before e take part, where e = past + offset + s + 1, limited to 1 … positions of the cache;
    without `past`, e is the number of positions. No other position is read.

    Attributes:
        scale: Factor of the scores.
        keys_by_head: Whether the axes of k are (heads, positions, size); else they are (positions, heads, size).
        values_by_head: The same of v, whose size may be another one than that of q and k.
        offset: Position of the first query, less `past`.
        window: Number of positions that a query sees; 0 for all positions before the end.
    """

    mnemonic: ClassVar[str] = "cached_attention"
    kernels: ClassVar[tuple[Kernel, ...]] = CACHED_ATTENTION
    scale: float = 1.0
    keys_by_head: bool = True
    values_by_head: bool = True
    offset: int = 0
    window: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: (heads, queries, size of a value)."""
        q, k, v = inputs[:3]
        past = inputs[3] if len(inputs) > 3 else None
        assert q is not None and k is not None and v is not None
        keys, values = _by_head(k.shape, self.keys_by_head), _by_head(v.shape, self.values_by_head)
        fits = q.rank == 3 and keys[:2] == values[:2] and q.shape[2] == keys[2] and keys[1] > 0 and keys[0] > 0
        if not fits or q.shape[0] % keys[0] or (past is not None and past.count != 1):
            shapes = f"{q.shape}, {k.shape}, {v.shape}"
            raise ModelError("cached_attention: heads, positions and sizes must agree", shapes, "repair the model")
        return (TensorType((*q.shape[:2], values[2]), q.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in floats, or in fixed point, head by head."""
        q, k, v = arrays[:3]
        keys = k if self.keys_by_head else k.swapaxes(0, 1)
        values = v if self.values_by_head else v.swapaxes(0, 1)
        fixed = self.fixed(sig) if sig.output.quant is not None else None
        y = np.zeros(sig.output.shape, sig.output.dtype.numpy)
        for s in range(q.shape[1]):
            seen = slice(*self.visible(s, keys.shape[1], arrays[3] if len(arrays) > 3 else None))
            rows = q[:, s].reshape(len(keys), -1, q.shape[2])
            heads = zip(rows, keys[:, seen], values[:, seen], strict=True)
            y[:, s] = np.concatenate([fixed(*head) if fixed else self._real(*head) for head in heads])
        return (y,)

    def _real(self, q: Array, k: Array, v: Array) -> Array:
        """Return the attention of queries (n, size) to the keys and values of one head (t, size)."""
        scores = (q * q.dtype.type(self.scale)) @ k.T
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(e @ v / e.sum(-1, keepdims=True))

    def fixed(self, sig: Signature) -> FixedAttention | None:
        """Return the attention in integers; None if there is none for the types."""
        return FixedAttention.of(sig, self.scale, _by_head(sig.input(1).shape, self.keys_by_head)[1])

    def visible(self, query: int, positions: int, past: Array | None) -> tuple[int, int]:
        """Return the first position of the cache that a query sees, and the position behind the last one.

        Args:
            query: Index of the query.
            positions: Number of positions of the cache.
            past: The input `past`; None if all positions are filled.
        """
        last = positions - 1 if past is None else int(past.reshape(-1)[0]) + self.offset + query
        end = min(max(last + 1, 1), positions)
        return (max(end - self.window, 0) if self.window else 0), end

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates for a full cache: heads · queries · positions · (sizes of key and value)."""
        q, positions = sig.input(0), _by_head(sig.input(1).shape, self.keys_by_head)[1]
        return q.shape[0] * q.shape[1] * positions * (q.shape[2] + sig.output.shape[2])

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the attention of int8 tensors; None for other types, or scales out of range."""
        return (self, inputs) if self.fixed(sig) is not None else None

    def spec(self, node: Node) -> AttentionSpec:
        """Return types and layouts of the tensors, from which kernels are chosen and emitted."""
        q, k, v = (node.input(i).type for i in range(3))
        past = node.input(3).type.dtype if len(node.inputs) > 3 else None
        layouts = [
            CacheLayout.of(t.shape, by_head)
            for t, by_head in zip((k, v), (self.keys_by_head, self.values_by_head), strict=True)
        ]
        fixed = self.fixed(node.sig) if node.output.type.quant is not None else None
        return AttentionSpec(
            q, k, v, node.output.type, past, self.scale, layouts[0], layouts[1], self.offset, self.window, fixed
        )

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a call of the kernel that was chosen."""
        builder.lower(self.kernels, node)


def _by_head(shape: Shape, by_head: bool) -> Shape:
    """Return the shape of a cache as (heads, positions, size)."""
    return shape if by_head else (shape[1], shape[0], shape[2])


POSITION_TYPES = (DType.INT32, DType.INT64)
"""Element types of the input `past`."""
