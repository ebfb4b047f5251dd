# SPDX-License-Identifier: Apache-2.0
"""Importers of attention operators of domain com.microsoft, composed of products, masks, caches and a softmax.

Shapes: B samples, N heads, S queries, T keys (P of them from earlier calls, L new), H elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array
from mcugen.ops.microsoft.common import axes, composed, joined, merge_heads, shaped, sliced, split_heads
from mcugen.ops.microsoft.rotary import rotate
from mcugen.ops.onnx_node import OnnxNode, Refusal, not_constant

LOWEST = np.finfo(np.float32).min
"""Lowest float32 number, which masks add to scores instead of minus infinity."""


# ----------------------------------------------------------------------------------------------------- masks


def mask_sum(node: OnnxNode, index: int, length: int, keys: int) -> Value | None:
    """Return the terms that masks add to the scores (B, N, S, T); None if nothing is masked.

    Args:
        node: The node that is imported.
        index: Index of the optional input with a mask, or with the positions where valid keys begin and end.
        length: Number of queries S.
        keys: Number of keys T.
    """
    hidden = float(node.attr("mask_filter_value", -10000.0))
    causal = _causal(node, length, keys)
    padding_term = _padding(node, index, keys, hidden) if node.has(index) else None
    if causal is None or padding_term is None:
        return padding_term if causal is None else node.call("Identity", causal)
    return node.call("Add", padding_term, causal)


def _causal(node: OnnxNode, length: int, keys: int) -> Array | None:
    """Return the mask term that hides later keys; None without causality."""
    if not node.attr("unidirectional", 0) or length == 1:
        return None
    later = np.arange(keys) > np.arange(length)[:, None] + (keys - length)
    return np.where(later, np.float32(LOWEST), np.float32(0))[None, None]


def _padding(node: OnnxNode, index: int, keys: int, hidden: float) -> Value | None:
    mask, batch = node.input(index), node.input(0).type.shape[0]
    shape = mask.type.shape
    if shape in ((1, 1), (batch, 1)) and keys != 1:
        return None  # a dummy
    if len(shape) == 1:
        return _ends(node, mask, batch, keys, hidden)
    if shape not in ((batch, keys), (batch, node.input(0).type.shape[1], keys)):
        mask_shape = f"{shape}"
        raise Refusal(
            f"{node.op_type}: a mask must be one of samples (and queries) by keys", mask_shape, "export another"
        )
    visible = node.call("Greater", mask, np.int32(0))
    added = node.call("Where", visible, np.float32(0), np.float32(hidden))
    return shaped(node, added, batch, 1, shape[1] if len(shape) == 3 else 1, keys)


def _ends(node: OnnxNode, mask: Value, batch: int, keys: int, hidden: float) -> Value:
    """Return the mask term of an input that holds the end of each sample's valid keys, then optionally their start."""
    if mask.type.count not in (batch, 2 * batch):
        mask_shape = f"{mask.type.shape}"
        raise Refusal(
            f"{node.op_type}: a mask index must be one or two positions a sample", mask_shape, "export a mask"
        )
    positions = np.arange(keys).astype(np.int32)[None]
    end = shaped(node, sliced(node, mask, 0, 0, batch), batch, 1)
    visible = node.call("Less", positions, end)
    if mask.type.count == 2 * batch:
        first = shaped(node, sliced(node, mask, 0, batch, 2 * batch), batch, 1)
        visible = node.call("And", visible, node.call("Not", node.call("Less", positions, first)))
    added = node.call("Where", visible, np.float32(0), np.float32(hidden))
    return shaped(node, added, batch, 1, 1, keys)


# ---------------------------------------------------------------------------------------------------- scores


def scores(node: OnnxNode, q: Value, k: Value) -> Value:
    """Return the attention scores scale · q kᵀ, (B, N, S, T), where the scale is the attribute `scale`, or 1 / √H.

    Args:
        node: The node that is imported.
        q: Queries, (B, N, S, H): batch, heads, number of queries, size of a head.
        k: Keys, (B, N, T, H), with the number of keys T.
    """
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(max(q.type.shape[-1], 1))
    product = node.call("MatMul", q, node.call("Transpose", k, perm=[0, 1, 3, 2]))
    return node.call("Mul", product, np.float32(scale))


def plus(node: OnnxNode, x: Value, *terms: Value | None) -> Value:
    """Add the terms that are present (not None) to `x`, and return the sum."""
    for term in terms:
        x = x if term is None else node.call("Add", x, term)
    return x


@dataclass(frozen=True)
class Attended:
    """The results of an attention layer for a batch B, N heads of size H, S queries and T keys.

    Attributes:
        output: The output (B, S, N · H).
        scores: The scores before the softmax, (B, N, S, T).
    """

    output: Value
    scores: Value


def attend(node: OnnxNode, q: Value, k: Value, v: Value, *added: Value | None) -> Attended:
    """Add softmax(scale · q kᵀ + added terms) v to the graph.

    Args:
        node: The node that is imported.
        q: Queries, (B, N, S, H): batch, heads, number of queries, size of a head.
        k: Keys, (B, N, T, H), with the number of keys T.
        v: Values, (B, N, T, H').
        added: Terms that are added to the scores, such as masks; None is left out.
    """
    raw = plus(node, scores(node, q, k), *added)
    shares = node.call("Softmax", raw, axis=-1)
    return Attended(merge_heads(node, node.call("MatMul", shares, v)), raw)


def refuse(node: OnnxNode, inputs: Sequence[int], attributes: Sequence[str], what: str) -> None:
    """Raise a Refusal if the node has one of these inputs, or one of these attributes with a value other than 0.

    Args:
        node: The node that is imported.
        inputs: Indices of inputs that are not supported.
        attributes: Names of attributes that must be 0.
        what: Text of the rule that is violated.
    """
    unsupported = [f"input {i}" for i in inputs if node.has(i)] + [a for a in attributes if node.attr(a, 0)]
    if unsupported:
        raise Refusal(f"{node.op_type}: {what}", unsupported[0], "export without it")


@dataclass(frozen=True)
class AttentionInputs:
    """The queries of an attention layer, and the keys and values of the new tokens.

    B is the batch, N the number of heads, S and L the numbers of tokens, H the size of a head.

    Attributes:
        q: Queries, (B, N, S, H).
        k: Keys, (B, N, L, H).
        v: Values, (B, N, L, H).
    """

    q: Value
    k: Value
    v: Value


def _heads(node: OnnxNode, key: str = "num_heads") -> int:
    count = int(node.attr(key, 0))
    node.require(count >= 1, f"{key} must be at least 1", f"{count}")
    return count


# ------------------------------------------------------------------------------------------------- Attention


@composed("Attention", limits="no rotation, no buffer for past and present")
@axes("B S D", "D W", "W", "*", "2 B N P E", "_ _ S T")
def _import_attention(node: OnnxNode) -> Sequence[Value | None]:
    """Import Attention. Queries, keys and values are products of one input with slices of the weights."""
    refuse(node, [6], ["do_rotary", "past_present_share_buffer"], "past and present must be tensors of their own")
    x, weights, heads = node.input(0), node.input(1), _heads(node)
    width = weights.type.shape[1]
    sizes = node.integers("qkv_hidden_sizes") or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width:
        raise Refusal("Attention: the weights must be those of q, k and v", f"{sizes} of {width}", "repair the model")
    starts = np.cumsum([0, *sizes])
    q, k, v = (split_heads(node, _projected(node, x, int(start), int(end)), heads) for start, end in pairwise(starts))
    return attend_with_past(node, AttentionInputs(q, k, v), node.optional(4), 3, node.optional(5))


def attend_with_past(
    node: OnnxNode, new: AttentionInputs, past: Value | None, mask: int, bias: Value | None = None
) -> Sequence[Value | None]:
    """Add attention to the keys and values of earlier calls and of this call.

    B is the batch, N the number of heads, H the size of a head, P the number of earlier tokens, and T that of all
    tokens.

    Args:
        node: The node that is imported.
        new: Queries, and the keys and values of this call.
        past: Keys and values of earlier calls, (2, B, N, P, H); None if there are none.
        mask: Index of the input that holds the mask.
        bias: Terms that are added to the scores; None for no terms.

    Returns:
        The output and, if another output is used, the keys and values of all calls for the next call, (2, B, N, T, H).
    """
    k, v = new.k, new.v
    if past is not None:
        k, v = (
            joined(node, [shaped(node, sliced(node, past, 0, i, i + 1), *past.type.shape[1:]), part], 2)
            for i, part in enumerate((k, v))
        )
    result = attend(node, new.q, k, v, mask_sum(node, mask, new.q.type.shape[2], k.type.shape[2]), bias)
    if not any(node.outputs[1:]):
        return [result.output]
    return [result.output, joined(node, [shaped(node, part, 1, *part.type.shape) for part in (k, v)], 0)]


def _projected(node: OnnxNode, x: Value, start: int, end: int) -> Value:
    """Return x times some columns of the weights, plus their bias."""
    product = node.call("MatMul", x, sliced(node, node.input(1), 1, start, end))
    return plus(node, product, sliced(node, node.input(2), 0, start, end) if node.has(2) else None)


# --------------------------------------------------------------------------------------- MultiHeadAttention


def _operands(node: OnnxNode, bias: int, heads: int) -> AttentionInputs:
    """Return q, k and v from inputs 0 to 2: separate tensors, one packed tensor, or keys and values split by heads."""
    query = node.input(0)
    if not node.has(1):
        third = query.type.shape[2] // 3
        parts = [sliced(node, query, 2, i * third, (i + 1) * third) for i in range(3)]
    else:
        parts = [query, node.input(1), node.input(2)]
    packed_bias = node.optional(bias)
    biases = [sliced(node, packed_bias, 0, *span) for span in _spans(query, packed_bias)] if packed_bias else [None] * 3
    q, k, v = (
        part if part.type.rank == 4 else split_heads(node, plus(node, part, added), heads)
        for part, added in zip(parts, biases, strict=True)
    )
    return AttentionInputs(q, k, v)


def _spans(query: Value, bias: Value) -> list[tuple[int, int]]:
    """Return the ranges of the biases of q, k and v; q and k have the same width."""
    width = query.type.shape[2]
    return [(0, width), (width, 2 * width), (2 * width, bias.type.count)]


@dataclass(frozen=True)
class _Places:
    """Input indices, for operators whose inputs have different orders."""

    bias: int
    mask: int
    added: int
    past: int
    """Of keys; that of values follows."""
    count: int
    """How many keys of a buffer are past."""


@composed("MultiHeadAttention", limits="no beams")
@axes("B S D", "B L D|B N L E", "B L V|B N L F", "W", "*", "_ _ S T", "B N P E", "B N P F", "1|", "*")
def _import_multi_head(node: OnnxNode) -> Sequence[Value | None]:
    return _multi_head(node, _Places(bias=3, mask=4, added=5, past=6, count=8))


@composed("DecoderMaskedMultiHeadAttention", limits="no beams")
@axes("B 1 _", "B L D|B N L E", "B L V|B N L F", "_ _", "_ _ 1 T", "B N P E", "B N P F", "1|", "*", "*", "W")
def _import_decoder(node: OnnxNode) -> Sequence[Value | None]:
    """One query."""
    return _multi_head(node, _Places(bias=10, mask=3, added=4, past=5, count=7))


def _multi_head(node: OnnxNode, at: _Places) -> Sequence[Value | None]:
    """Output, keys and values of past and present together, and the scores."""
    refuse(node, [9], [], "there must be one beam")
    new = _operands(node, at.bias, _heads(node))
    if node.has(at.count) and node.has(at.past):
        return _in_buffer(node, new, at)
    k, v = (joined(node, [node.optional(i), part], 2) for i, part in ((at.past, new.k), (at.past + 1, new.v)))
    result = attend(node, new.q, k, v, *_added(node, at, new.q, k))
    return [result.output, k, v, result.scores]


def _added(node: OnnxNode, at: _Places, q: Value, k: Value) -> tuple[Value | None, Value | None]:
    added_bias = node.inputs[at.added] if node.has(at.added) else None
    return added_bias, mask_sum(node, at.mask, q.type.shape[2], k.type.shape[2])


def _in_buffer(node: OnnxNode, new: AttentionInputs, at: _Places) -> Sequence[Value | None]:
    """Write the new keys and values into buffers (B, N, T, H) behind the past ones, and attend."""
    past, held, length = node.input(at.count), node.input(at.past).type.shape[2], new.k.type.shape[2]
    pairs = ((at.past, new.k), (at.past + 1, new.v))
    if past.data is not None:
        count = node.whole(at.count, "the past's length")
        k, v = (joined(node, [_part(node, i, 0, count), part], 2) for i, part in pairs)
        result = attend(node, new.q, k, v, *_added(node, at, new.q, k))
        whole = (
            joined(node, [part, _part(node, i, count + length, held)], 2)
            for i, part in ((at.past, k), (at.past + 1, v))
        )
        return [result.output, *whole, result.scores]
    if length > 1 or node.has(at.mask) or node.has(at.added) or any(node.outputs[3:]):
        raise not_constant(
            f"{node.op_type}: but for a single token without mask, the past's length must be constant", past
        )
    k, v = (written(node, node.input(i), part, past) for i, part in pairs)
    place = np.arange(held).astype(np.int32)
    later = node.call("Greater", place.reshape(1, 1, 1, -1), shaped(node, past, 1, 1, 1, 1))
    result = attend(node, new.q, k, v, node.call("Where", later, np.float32(LOWEST), np.float32(0)))
    return [result.output, k, v]


def written(node: OnnxNode, cache: Value, new: Value, past: Value) -> Value:
    """Return a cache with new entries behind the past ones.

    Passes turn the scatter of one sample into a TensorScatter, which writes in place and needs opset 24 in ONNX.

    Args:
        node: The node that is imported.
        cache: The cache, (B, N, T, H).
        new: The new entries, (B, N, L, H).
        past: Number of past entries, (B,) or (1,).
    """
    batch, heads, length, _ = new.type.shape
    grid = np.stack(np.meshgrid(*map(np.arange, (batch, heads, length)), indexing="ij"), -1)
    start = node.call("Cast", shaped(node, past, past.type.count, 1, 1, 1), to=7)
    index = node.call("Add", grid, node.call("Mul", start, np.array([0, 0, 1], np.int64)))
    return node.call("ScatterND", cache, index, new)


def _part(node: OnnxNode, index: int, start: int, end: int) -> Value | None:
    """Return a range of keys or values of a buffer (B, N, T, H); None if the range is empty."""
    return sliced(node, node.input(index), 2, start, end) if start < end else None


# -------------------------------------------------------------------------------------- GroupQueryAttention


@dataclass(frozen=True)
class KeyValueCache:
    """The position in a cache of keys and values at which those of new tokens are written.

    Attributes:
        past: Number of keys that are cached already: an int, or a value of shape (B,) for a batch B.
        keys: Capacity of the cache in keys.
    """

    past: int | Value
    keys: int


@composed(
    "GroupQueryAttention",
    limits="float caches that do not slide; total_sequence_length constant, or at most the past's length",
)
@axes("B S _", "B S K", "B S K", "B N P E", "B N P E", "B", "1|", "M R", "M R", "_ S", "_ _ S T", "Q")
def _import_group_query(node: OnnxNode) -> Sequence[Value | None]:
    """Several heads of queries share one of keys and values; those of the past come in a buffer or as they are."""
    refuse(node, [12, 13], ["sliding_window_cache"], "the cache must hold float32 and not slide")
    refuse(node, [14, 15], [], "queries and keys must be normalized before it")
    heads, shared = _heads(node), _heads(node, "kv_num_heads")
    q, k, v = _grouped(node, heads, shared)
    cache = _cache(node, q.type.shape[2])
    if node.attr("do_rotary", 0):
        positions = node.input(9) if node.has(9) else _positions(node, cache, q.type.shape[2])
        q, k = (rotate(node, x, positions, node.input(7), node.input(8), "rotary_interleaved") for x in (q, k))
    k, v = (_stored(node, cache, node.optional(i), x) for i, x in ((3, k), (4, v)))
    result = _attend_groups(node, q, k, v, cache, shared)
    return [result.output, k, v, result.scores]


def _grouped(node: OnnxNode, heads: int, shared: int) -> tuple[Value, Value, Value]:
    """Return queries, keys and values by heads."""
    query = node.input(0)
    if node.has(1):
        parts = [query, node.input(1), node.input(2)]
    else:
        size = query.type.shape[2] // (heads + 2 * shared)
        if not size or size * (heads + 2 * shared) != query.type.shape[2]:
            sizes = f"{query.type.shape[2]} for {heads} and twice {shared}"
            raise Refusal("GroupQueryAttention: packed heads must be of equal size", sizes, "repair the model")
        ends = np.cumsum([0, heads, shared, shared]) * size
        parts = [sliced(node, query, 2, int(a), int(b)) for a, b in pairwise(ends)]
    q, k, v = (split_heads(node, x, n) for x, n in zip(parts, (heads, shared, shared), strict=True))
    return q, k, v


def _cache(node: OnnxNode, length: int) -> KeyValueCache:
    lengths, total = node.input(5), node.input(6)
    node.require(node.has(3) == node.has(4), "past keys must have past values", "one of them")
    held = node.input(3).type.shape[2] if node.has(3) else 0
    if total.data is None and not held:
        raise not_constant("GroupQueryAttention: total_sequence_length must be constant", total)
    keys = max(held, int(total.data.reshape(-1)[0]) if total.data is not None else 0)
    if not held or (total.data is not None and int(total.data.reshape(-1)[0]) == length):
        return KeyValueCache(0, keys)
    if lengths.data is not None and (lengths.data == lengths.data.reshape(-1)[0]).all():
        return KeyValueCache(max(int(lengths.data.reshape(-1)[0]) + 1 - length, 0), keys)
    batch = node.input(0).type.shape[0]
    if batch > 1 and length > 1:
        batch_text = f"{batch} samples of {length} tokens"
        raise Refusal(
            "GroupQueryAttention: tokens of several samples must follow as many", batch_text, "bind seqlens_k"
        )
    past = node.call("Add", shaped(node, lengths, batch), np.int32(1 - length))
    return KeyValueCache(node.call("Max", past, np.int32(0)), keys)


def _positions(node: OnnxNode, cache: KeyValueCache, length: int) -> Value | Array:
    """Return the positions of the new tokens, (B, S) or (1, S)."""
    steps = np.arange(length)[None]
    if isinstance(cache.past, int):
        return (steps + cache.past).astype(np.int64)
    start = node.call("Cast", shaped(node, cache.past, cache.past.type.count, 1), to=7)
    return node.call("Add", start, steps.astype(np.int64))


def _stored(node: OnnxNode, cache: KeyValueCache, past: Value | None, new: Value) -> Value:
    """Return the cache with the new keys or values: (B, N, keys, H).

    Behind the new ones are zeros, or, if the past fills the cache and its length is known at run time only, what the
    past has there, as in ONNX Runtime when past and present share a buffer.
    """
    batch, heads, length, size = new.type.shape

    def filled(x: Value, count: int) -> Value:
        zeros = np.zeros((batch, heads, cache.keys - count, size), np.float32)
        return node.call("Concat", x, zeros, axis=2) if zeros.size else x

    if isinstance(cache.past, int):
        if cache.past + length > cache.keys:
            lengths = f"{cache.past} and {length} in {cache.keys}"
            raise Refusal(
                f"{node.op_type}: the cache must have room for past and new keys", lengths, "repair the model"
            )
        kept = sliced(node, past, 2, 0, cache.past) if past is not None and cache.past else None
        return filled(joined(node, [kept, new], 2), cache.past + length)
    assert past is not None
    if past.type.shape[2] == cache.keys:
        return written(node, past, new, cache.past)
    start = shaped(node, cache.past, batch, 1, 1, 1)
    place = node.call("Sub", np.arange(cache.keys).astype(np.int32).reshape(1, 1, -1, 1), start)
    if length > 1:
        clipped = node.call("Clip", place, np.int32(0), np.int32(length - 1))
        new = node.call("Gather", new, shaped(node, clipped, cache.keys), axis=2)
    behind = node.call("Less", place, np.int32(length))
    tail = node.call("Where", behind, new, np.float32(0))
    return node.call("Where", node.call("Less", place, np.int32(0)), filled(past, past.type.shape[2]), tail)


def _attend_groups(node: OnnxNode, q: Value, k: Value, v: Value, cache: KeyValueCache, shared: int) -> Attended:
    """Attend with the heads of a group stacked as queries of one head; see `attend`."""
    batch, heads, length, size = q.type.shape
    together = shaped(node, q, batch, shared, heads // shared * length, size)
    raw = shaped(node, scores(node, together, k), batch, heads, length, cache.keys)
    softcap = float(node.attr("softcap", 0.0))
    if softcap:
        raw = node.call("Mul", node.call("Tanh", node.call("Mul", raw, np.float32(1 / softcap))), np.float32(softcap))
    if node.has(10):
        raw = plus(node, raw, _wide(node, node.input(10), cache.keys))
    visible = _visible(node, cache, length)
    raw = node.call("Where", visible, raw, np.float32(LOWEST))
    shares = _softmax_with_sink(node, raw)
    by_group = shaped(node, shares, batch, shared, heads // shared * length, cache.keys)
    mixed = node.call("MatMul", by_group, v)
    seen = shares if int(node.attr("qk_output", 0)) == 2 else node.call("Where", visible, raw, np.float32(0))
    return Attended(merge_heads(node, shaped(node, mixed, batch, heads, length, size)), seen)


def _wide(node: OnnxNode, bias: Value, keys: int) -> Value:
    """Return a bias with `keys` columns: padded by zeros, or without further columns."""
    *leading_shape, columns = bias.type.shape
    if columns >= keys:
        return sliced(node, bias, bias.type.rank - 1, 0, keys)
    return node.call("Concat", bias, np.zeros((*leading_shape, keys - columns), np.float32), axis=-1)


def _visible(node: OnnxNode, cache: KeyValueCache, length: int) -> Value | Array:
    """Return which keys (T) each query (S) sees: those before it, within the local window."""
    window = min(int(node.attr("local_window_size", -1)), cache.keys)  # a wider one hides nothing
    steps = np.arange(length).astype(np.int32).reshape(1, 1, length, 1)
    keys = np.arange(cache.keys).astype(np.int32)
    causal = bool(node.attr("causal", 1))
    if isinstance(cache.past, int):
        last = steps + cache.past if causal else np.full_like(steps, cache.past + length - 1)
        return np.asarray((keys <= last) & (keys > last - window) if window > 0 else keys <= last)
    start = shaped(node, cache.past, cache.past.type.count, 1, 1, 1)
    end = node.call("Add", start, steps if causal else np.full_like(steps, length - 1))
    seen = node.call("Not", node.call("Greater", keys, end))
    if window <= 0:
        return seen
    return node.call("And", seen, node.call("Greater", keys, node.call("Sub", end, np.int32(window))))


def _softmax_with_sink(node: OnnxNode, raw: Value) -> Value:
    """Return the softmax over the scores and one further score per head (or 0), whose share is dropped."""
    if not node.has(11) and not node.attr("smooth_softmax", 0):
        return node.call("Softmax", raw, axis=-1)
    *rows, keys = raw.type.shape
    sink = np.zeros((*rows, 1), np.float32)
    column = node.call("Identity", sink)
    if node.has(11):
        column = node.call("Add", sink, shaped(node, node.input(11), 1, node.input(11).type.count, 1, 1))
    shares = node.call("Softmax", node.call("Concat", raw, column, axis=-1), axis=-1)
    return sliced(node, shares, raw.type.rank - 1, 0, keys)
