# SPDX-License-Identifier: Apache-2.0
"""Attention to a cache, in all forms that exporters write: recognized, and equal to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from onnx_models import MICROSOFT, Net, assert_close, onnxruntime_outputs, operators, optimized

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.simulation import simulate

LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class Sizes:
    """Sizes of an attention, with `heads` of queries, `kv_heads` of the cache and the new tokens of a call."""

    heads: int = 4
    kv_heads: int = 2
    positions: int = 7
    size: int = 8
    value_size: int = 8
    tokens: int = 1
    window: int = 0

    def feeds(self, position: int, seed: int = 0) -> dict[str, Array]:
        """Return queries, new keys and values, and caches that are filled up to a position."""
        random = np.random.default_rng(seed)
        k, v = (random.standard_normal((1, self.kv_heads, self.positions, n)) for n in (self.size, self.value_size))
        k[:, :, position:] = v[:, :, position:] = 0
        return {
            "q": random.standard_normal((1, self.heads, self.tokens, self.size)).astype(np.float32) * 2,
            "nk": random.standard_normal((1, self.kv_heads, self.tokens, self.size)).astype(np.float32),
            "nv": random.standard_normal((1, self.kv_heads, self.tokens, self.value_size)).astype(np.float32),
            "k": k.astype(np.float32),
            "v": v.astype(np.float32),
            "pos": np.array([position], np.int64),
        }


Form = Callable[[Net, Sizes], None]
"""A function that adds an attention with an output `y`, and the updated caches `k_out` and `v_out`, to a net."""


def inputs(net: Net, sizes: Sizes, pos: type = np.int64) -> None:
    for name, array in sizes.feeds(0).items():
        net.input(name, *array.shape, dtype=pos if name == "pos" else np.float32)


def whole(net: Net, *numbers: int) -> str:
    return net.const(numbers, np.int64)


def repeated(net: Net, sizes: Sizes, x: str, size: int) -> str:
    """Each head of the cache as often as heads of queries share it, as PyTorch's models write `repeat_kv`."""
    group = sizes.heads // sizes.kv_heads
    if group == 1:
        return x
    wide = net.op("Unsqueeze", x, whole(net, 2))
    wide = net.op("Expand", wide, whole(net, 1, sizes.kv_heads, group, sizes.positions, size))
    return net.op("Reshape", wide, whole(net, 1, sizes.heads, sizes.positions, size))


def softmax_product(net: Net, sizes: Sizes, k: str, v: str, mask: Callable[[str], str], scale: float) -> None:
    keys, values = (repeated(net, sizes, x, n) for x, n in ((k, sizes.size), (v, sizes.value_size)))
    scores = net.op("MatMul", "q", net.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = mask(net.op("Mul", scores, net.const(scale)))
    net.op("MatMul", net.op("Softmax", scores, axis=-1), values, out="y")
    net.output("y", shape=(1, sizes.heads, sizes.tokens, sizes.value_size))


def last_seen(net: Net, sizes: Sizes) -> str:
    """The position of each new token, as a column."""
    steps = net.const(np.arange(sizes.tokens).reshape(-1, 1), np.int64)
    return net.op("Add", "pos", steps)


def visible(net: Net, sizes: Sizes) -> str:
    places, last = net.const(np.arange(sizes.positions), np.int64), last_seen(net, sizes)
    seen = net.op("LessOrEqual", places, last)
    if not sizes.window:
        return seen
    return net.op("And", seen, net.op("Greater", places, net.op("Sub", last, whole(net, sizes.window))))


def updated(net: Net, sizes: Sizes) -> tuple[str, str]:
    """The caches with the new entries, by ScatterND with an index for each head and token: index_put of PyTorch."""
    heads, tokens = (np.arange(n) for n in (sizes.kv_heads, sizes.tokens))
    grid = np.stack(np.broadcast_arrays(0, heads[:, None], tokens[None]), -1)[None]
    index = net.op("Add", net.const(grid, np.int64), net.op("Mul", "pos", whole(net, 0, 0, 1)))
    k, v = (net.op("ScatterND", cache, index, new, out=f"{cache}_out") for cache, new in (("k", "nk"), ("v", "nv")))
    net.output(k, shape=(1, sizes.kv_heads, sizes.positions, sizes.size))
    net.output(v, shape=(1, sizes.kv_heads, sizes.positions, sizes.value_size))
    return k, v


def added_mask(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    mask = net.op("Where", visible(net, sizes), net.const(0.0), net.const(-1e9))
    softmax_product(net, sizes, *updated(net, sizes), lambda s: net.op("Add", s, mask), 0.3)


def chosen_mask(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    hidden = net.op("Not", visible(net, sizes))
    softmax_product(net, sizes, *updated(net, sizes), lambda s: net.op("Where", hidden, net.const(LOWEST), s), 0.3)


def rows_of_a_table(net: Net, sizes: Sizes) -> None:
    """gpt-fast: rows of a causal table, gathered by the positions of the tokens."""
    inputs(net, sizes)
    table = np.tril(np.ones((sizes.positions, sizes.positions)))
    if sizes.window:
        table -= np.tril(table, -sizes.window)
    rows = net.op("Gather", net.const(table, np.bool_), net.op("Reshape", last_seen(net, sizes), whole(net, -1)))
    mask = net.op("Where", rows, net.const(0.0), net.const(-np.inf))
    softmax_product(net, sizes, *updated(net, sizes), lambda s: net.op("Add", s, mask), 0.3)


def lowest_times_bool(net: Net, sizes: Sizes) -> None:
    """transformers' static cache: the lowest number times whether a key lies behind."""
    inputs(net, sizes)
    behind = net.op("Cast", net.op("Not", visible(net, sizes)), to=onnx.TensorProto.FLOAT)
    mask = net.op("Mul", net.const(np.full((1, sizes.positions), LOWEST)), behind)
    softmax_product(net, sizes, *updated(net, sizes), lambda s: net.op("Add", s, mask), 0.3)


def scatter_elements(net: Net, sizes: Sizes) -> None:
    """index_copy and scatter of PyTorch, with scaled queries and keys as scaled_dot_product_attention exports them."""
    inputs(net, sizes)
    outs = []
    for cache, new, size in (("k", "nk", sizes.size), ("v", "nv", sizes.value_size)):
        index = net.op("Expand", last_seen(net, sizes), whole(net, 1, sizes.kv_heads, sizes.tokens, size))
        outs.append(net.op("ScatterElements", cache, index, new, axis=2, out=f"{cache}_out"))
        net.output(outs[-1], shape=(1, sizes.kv_heads, sizes.positions, size))
    keys, values = (repeated(net, sizes, x, n) for x, n in zip(outs, (sizes.size, sizes.value_size), strict=True))
    turned = net.op("Mul", net.op("Transpose", keys, perm=[0, 1, 3, 2]), net.const(0.5))
    scores = net.op("MatMul", net.op("Mul", "q", net.const(0.5)), turned)
    mask = net.op("Where", visible(net, sizes), net.const(0.0), net.const(-np.inf))
    net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), values, out="y")
    net.output("y", shape=(1, sizes.heads, sizes.tokens, sizes.value_size))


def one_hot_choice(net: Net, sizes: Sizes) -> None:
    """Where(here, new, cache)."""
    inputs(net, sizes)
    here = net.op("Equal", net.const(np.arange(sizes.positions).reshape(-1, 1), np.int64), "pos")
    k, v = (net.op("Where", here, new, cache, out=f"{cache}_out") for cache, new in (("k", "nk"), ("v", "nv")))
    net.output(k, shape=(1, sizes.kv_heads, sizes.positions, sizes.size))
    net.output(v, shape=(1, sizes.kv_heads, sizes.positions, sizes.value_size))
    hidden = net.op("Not", visible(net, sizes))
    softmax_product(net, sizes, k, v, lambda s: net.op("Where", hidden, net.const(LOWEST), s), 0.3)


def onnx_attention(net: Net, sizes: Sizes) -> None:
    """Attention of opset 24 with TensorScatter, and a mask of bools."""
    net.opset = 24
    inputs(net, sizes)
    outs = [net.op("TensorScatter", c, n, "pos", axis=2, out=f"{c}_out") for c, n in (("k", "nk"), ("v", "nv"))]
    for name, size in zip(outs, (sizes.size, sizes.value_size), strict=True):
        net.output(name, shape=(1, sizes.kv_heads, sizes.positions, size))
    net.op("Attention", "q", *outs, visible(net, sizes), scale=0.3, out="y")
    net.output("y", shape=(1, sizes.heads, sizes.tokens, sizes.value_size))


def valid_length(net: Net, sizes: Sizes) -> None:
    """Attention of opset 24 with the number of valid keys."""
    net.opset = 24
    inputs(net, sizes)
    outs = [net.op("TensorScatter", c, n, "pos", axis=2, out=f"{c}_out") for c, n in (("k", "nk"), ("v", "nv"))]
    for name, size in zip(outs, (sizes.size, sizes.value_size), strict=True):
        net.output(name, shape=(1, sizes.kv_heads, sizes.positions, size))
    length = net.op("Add", "pos", whole(net, sizes.tokens))
    net.op("Attention", "q", *outs, "", "", "", length, scale=0.3, out="y")
    net.output("y", shape=(1, sizes.heads, sizes.tokens, sizes.value_size))


def flat(net: Net, sizes: Sizes, name: str, heads: int, size: int) -> str:
    turned = net.op("Transpose", name, perm=[0, 2, 1, 3])
    return net.op("Reshape", turned, whole(net, 1, sizes.tokens, heads * size))


def group_query(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    parts = [
        flat(net, sizes, *part)
        for part in (
            ("q", sizes.heads, sizes.size),
            ("nk", sizes.kv_heads, sizes.size),
            ("nv", sizes.kv_heads, sizes.size),
        )
    ]
    last = net.op("Cast", net.op("Add", "pos", whole(net, sizes.tokens - 1)), to=onnx.TensorProto.INT32)
    total = net.op("Reshape", net.op("Add", last, net.const(1, np.int32)), net.const([], np.int64))
    options = {"num_heads": sizes.heads, "kv_num_heads": sizes.kv_heads, "scale": 0.3}
    if sizes.window:
        options["local_window_size"] = sizes.window
    net.ops(
        "GroupQueryAttention", *parts, "k", "v", last, total, outs=["y", "k_out", "v_out"], domain=MICROSOFT, **options
    )
    net.output("y", shape=(1, sizes.tokens, sizes.heads * sizes.size))
    net.output("k_out", "v_out", shape=(1, sizes.kv_heads, sizes.positions, sizes.size))


def multi_head(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    parts = [flat(net, sizes, name, sizes.heads, sizes.size) for name in ("q", "nk", "nv")]
    past = net.op("Cast", "pos", to=onnx.TensorProto.INT32)
    nodes = [*parts, "", "", "", "k", "v", past]
    options = {"num_heads": sizes.heads, "scale": 0.3}
    net.ops("MultiHeadAttention", *nodes, outs=["y", "k_out", "v_out"], domain=MICROSOFT, **options)
    net.output("y", shape=(1, sizes.tokens, sizes.heads * sizes.size))
    net.output("k_out", "v_out", shape=(1, sizes.kv_heads, sizes.positions, sizes.size))


GROUPED = (
    Sizes(),
    Sizes(kv_heads=1, size=5, value_size=3),
    Sizes(kv_heads=4, positions=2, size=2),
    Sizes(tokens=3, size=17, value_size=20),
    Sizes(positions=9, window=3),
    Sizes(tokens=2, positions=9, window=4, kv_heads=4),
)
EQUAL = tuple(Sizes(**{**vars(s), "size": 16, "value_size": 16}) for s in GROUPED)
FORMS: dict[str, tuple[Form, Sequence[Sizes]]] = {
    "added mask": (added_mask, GROUPED),
    "chosen mask": (chosen_mask, GROUPED),
    "rows of a table": (rows_of_a_table, GROUPED),
    "lowest times bool": (lowest_times_bool, GROUPED),
    "ScatterElements": (scatter_elements, GROUPED),
    "one-hot choice": (one_hot_choice, [s for s in GROUPED if s.tokens == 1]),
    "Attention and TensorScatter": (onnx_attention, GROUPED),
    "Attention, valid length": (valid_length, [s for s in GROUPED if s.tokens == 1 and not s.window]),
    "GroupQueryAttention": (group_query, EQUAL),
    "MultiHeadAttention": (multi_head, [Sizes(kv_heads=4), Sizes(kv_heads=4, size=5, value_size=5, positions=3)]),
}
CHOSEN = ("one-hot choice",)
"""The form that updates its caches by a choice between old and new entries, which writes none beyond the axis."""
CASES = [(name, sizes) for name, (_, all_sizes) in FORMS.items() for sizes in all_sizes]


def ring_of_wheres(net: Net) -> str:
    return net.op("Where", net.op("Less", "pos", whole(net, 4)), "pos", net.op("Sub", "pos", whole(net, 4)))


@dataclass(frozen=True)
class Ring:
    """An index of an axis of four entries that follows from a position.

    Attributes:
        index: Adds the index to a net.
        positions: Positions at which ONNX defines the result.
    """

    index: Callable[[Net], str]
    positions: Sequence[int]


RINGS = {
    "plain": Ring(lambda net: "pos", range(-4, 4)),
    "Mod": Ring(lambda net: net.op("Mod", "pos", whole(net, 4)), (*range(-9, 9), 10**9)),
    "BitwiseAnd": Ring(lambda net: net.op("BitwiseAnd", "pos", whole(net, 3)), (*range(-9, 9), 10**9)),
    "BitwiseAnd of more": Ring(lambda net: net.op("BitwiseAnd", "pos", whole(net, 7)), (0, 3, 8, -5, 17)),
    "Where": Ring(ring_of_wheres, range(-4, 8)),
    "Clip": Ring(lambda net: net.op("Clip", "pos", net.const(0, np.int64), net.const(3, np.int64)), range(-9, 9)),
    "Mod behind": Ring(lambda net: net.op("Mod", net.op("Add", "pos", whole(net, 2)), whole(net, 4)), range(-9, 9)),
    "shorter ring": Ring(lambda net: net.op("Mod", "pos", whole(net, 3)), range(9)),
    "Abs": Ring(lambda net: net.op("Abs", "pos"), range(-3, 4)),
    "Mul": Ring(lambda net: net.op("Mul", "pos", whole(net, 2)), range(-2, 2)),
}


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("form", ["ScatterND", "ScatterElements"])
def test_updates_of_rings_and_at_negative_positions(form: str, ring: str) -> None:
    """An update is recognized if the law holds at all positions; what wraps otherwise is computed before it."""
    net = Net(20)
    x, new = net.input("x", 4, 3), net.input("new", 1, 3)
    net.input("pos", 1, dtype=np.int64)
    index = net.op("Reshape", RINGS[ring].index(net), whole(net, 1, 1))
    if form == "ScatterND":
        y = net.op(form, x, index, new, out="y")
    else:
        y = net.op(form, x, net.op("Expand", index, whole(net, 1, 3)), new, axis=0, out="y")
    net.output(y)
    model = net.model()
    graph = optimized(model)
    assert "tensor_scatter" in operators(graph)
    for position in RINGS[ring].positions:
        feeds = {"x": np.zeros((4, 3), np.float32), "new": np.ones((1, 3), np.float32), "pos": np.array([position])}
        assert_close(interpret(graph, feeds), onnxruntime_outputs(model, feeds), 0)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_new_entries_around_the_end(tokens: int) -> None:
    """Two tokens at position -1 are the last entry and the first; a ring of several tokens does the same."""
    for wraps in (False, True):
        net = Net(20)
        x, new = net.input("x", 4, 3), net.input("new", tokens, 3)
        net.input("pos", 1, dtype=np.int64)
        index = net.op("Add", "pos", net.const(np.arange(tokens).reshape(-1, 1), np.int64))
        index = net.op("Mod", index, whole(net, 4)) if wraps else index
        net.output(net.op("ScatterND", x, index, new, out="y"))
        model = net.model()
        graph = optimized(model)
        assert operators(graph) == ["tensor_scatter"] or tokens == 1
        compiled = compile_model(model, "host")
        positions = range(-9, 9) if wraps else range(-4, 5 - tokens)
        feeds = [
            {"x": np.zeros((4, 3), np.float32), "new": np.full((tokens, 3), 1.0, np.float32), "pos": np.array([p])}
            for p in positions
        ]
        found = compiled.run({k: np.stack([f[k] for f in feeds]) for k in feeds[0]}, sanitize=True)
        for number, one in enumerate(feeds):
            expected = onnxruntime_outputs(model, one)
            assert_close(interpret(graph, one), expected, 0)
            assert_close({k: v[number] for k, v in found.items()}, expected, 0)


@pytest.mark.parametrize("seen_by", ["pos", "entry"])
def test_attention_to_a_ring(seen_by: str) -> None:
    """A mask by the count of tokens sees the whole ring once it is full; one by the entry sees up to this entry."""
    sizes = Sizes(positions=4, kv_heads=1)
    net = Net(20)
    inputs(net, sizes)
    entry = net.op("Mod", "pos", whole(net, 4))
    index = net.op("Add", net.const([[[[0, 0, 0]]]], np.int64), net.op("Mul", entry, whole(net, 0, 0, 1)))
    k, v = (net.op("ScatterND", c, index, n, out=f"{c}_out") for c, n in (("k", "nk"), ("v", "nv")))
    net.output(k, v, shape=(1, 1, 4, 8))
    seen = net.op("LessOrEqual", net.const(np.arange(4), np.int64), "pos" if seen_by == "pos" else entry)
    mask = net.op("Where", seen, net.const(0.0), net.const(-1e9))
    softmax_product(net, sizes, k, v, lambda s: net.op("Add", s, mask), 0.3)
    model = net.plain_model()
    graph = optimized(model)
    assert operators(graph).count("tensor_scatter") == 2 and "cached_attention" in operators(graph)
    for position in range(11):
        feeds = sizes.feeds(3) | {"pos": np.array([position])}
        assert_close(interpret(graph, feeds), onnxruntime_outputs(model, feeds), 1e-5)


def model_of(name: str, sizes: Sizes) -> onnx.ModelProto:
    net = Net(20)
    FORMS[name][0](net, sizes)
    return net.plain_model()


@pytest.mark.parametrize(("name", "sizes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_is_recognized_and_equals_onnxruntime(name: str, sizes: Sizes) -> None:
    model = model_of(name, sizes)
    graph = optimized(model)
    used = operators(graph)
    assert used.count("cached_attention") == 1
    assert used.count("tensor_scatter") == (0 if name in CHOSEN else 2)
    assert not {"softmax", "matmul", "scatter_nd", "scatter_elements"} & set(used)
    assert not [n for n in graph.nodes if n.op.name == "transpose" and sizes.positions in n.output.type.shape]
    for position in range(sizes.positions - sizes.tokens + 1):
        feeds = sizes.feeds(position)
        assert_close(interpret(graph, feeds), onnxruntime_outputs(model, feeds), 1e-5)


@pytest.mark.parametrize("kernel", ["cached_attention_f32", "cached_attention_f32_fpu"])
@pytest.mark.parametrize("sizes", GROUPED, ids=str)
def test_in_c(sizes: Sizes, kernel: str) -> None:
    model = model_of("added mask", sizes)
    compiled = compile_model(model, "nrf52840", CompileOptions(kernels=(kernel,)))
    compiled = replace(compiled, board=load_board("host"))
    assert kernel in {instr.kernel for instr in compiled.program.instrs}
    positions = sorted({0, sizes.positions // 2, sizes.positions - sizes.tokens, 2**40, -(2**40)})
    feeds = [sizes.feeds(max(0, min(p, sizes.positions - sizes.tokens))) | {"pos": np.int64([p])} for p in positions]
    found = compiled.run({k: np.stack([f[k] for f in feeds]) for k in feeds[0]}, sanitize=True)
    for number, one in enumerate(feeds):
        assert_close({k: v[number] for k, v in found.items()}, interpret(compiled.graph, one), 1e-5)


@pytest.mark.parametrize("board", ["nrf52840", "rp2350", "corstone300"])
def test_on_a_simulated_cpu(board: str) -> None:
    """All numbers of registers of a block, and heads of more than 16 elements, which are not kept in registers."""
    net, feeds = Net(20), {}
    sizes = [
        Sizes(kv_heads=1, size=n, value_size=m) for n, m in ((2, 15), (3, 16), (7, 17), (9, 24), (16, 33), (61, 64))
    ]
    for number, one in enumerate(sizes):
        part = Net(20, prefix=f"n{number}_")
        added_mask(part, one)
        names = {v.name: f"n{number}_{v.name}" for v in (*part.inputs, *part.outputs)}
        for node in part.nodes:
            for values in (node.input, node.output):
                values[:] = [names.get(v, v) for v in values]
            node.name = f"n{number}_{node.name}"
        for info in (*part.inputs, *part.outputs):
            info.name = names[info.name]
        net.inputs += part.inputs
        net.outputs += part.outputs
        net.constants += part.constants
        net.nodes += part.nodes
        feeds |= {names[k]: v for k, v in one.feeds(number).items()}
    compiled = compile_model(net.plain_model(), board, CompileOptions(kernels=("cached_attention_f32_fpu",)))
    assert any(instr.kernel == "cached_attention_f32_fpu" for instr in compiled.program.instrs)
    (found,) = simulate(compiled.bundle, load_board(board), [feeds]).outputs
    assert_close(found, interpret(compiled.graph, feeds), 1e-5)


def test_what_is_no_cache_stays_as_it_was() -> None:
    """Attention without a position, with a mask that weakens, with scores that are read, with a bias."""
    for form in (bidirectional, weak_mask, read_shares, biased):
        net = Net(20)
        form(net, Sizes(kv_heads=4))
        graph = optimized(net.plain_model())
        assert "softmax" in operators(graph) and "cached_attention" not in operators(graph)


def bidirectional(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    softmax_product(net, sizes, net.op("Tanh", "k"), net.op("Tanh", "v"), lambda s: s, 0.3)


def weak_mask(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    mask = net.op("Where", visible(net, sizes), net.const(0.0), net.const(-3.0))
    softmax_product(net, sizes, "k", "v", lambda s: net.op("Add", s, mask), 0.3)


def read_shares(net: Net, sizes: Sizes) -> None:
    added_mask(net, sizes)
    net.output(net.nodes[-1].input[0], shape=(1, sizes.heads, 1, sizes.positions))


def biased(net: Net, sizes: Sizes) -> None:
    inputs(net, sizes)
    bias = net.const(np.arange(sizes.positions) * 0.1)
    mask = net.op("Where", visible(net, sizes), net.const(0.0), net.const(-1e9))
    softmax_product(net, sizes, "k", "v", lambda s: net.op("Add", net.op("Add", s, bias), mask), 0.3)


# ------------------------------------------------------------------------------------------------------------- int8

QUANTS = {"q": (0.031, 5), "k": (0.023, -3), "v": (0.027, 7), "y": (0.021, -11)}
"""Scale and zero point of each tensor."""


def quantized_model(sizes: Sizes) -> onnx.ModelProto:
    """Attention between DequantizeLinear and QuantizeLinear, with caches of int8."""
    net = Net(20)
    for name, array in sizes.feeds(0).items():
        net.input(name, *array.shape, dtype=np.int64 if name == "pos" else np.int8)
    real = {c: net.dequantize(c, *QUANTS[c]) for c in "kvq"}
    heads, tokens = (np.arange(n) for n in (sizes.kv_heads, sizes.tokens))
    grid = np.stack(np.broadcast_arrays(0, heads[:, None], tokens[None]), -1)[None]
    index = net.op("Add", net.const(grid, np.int64), net.op("Mul", "pos", whole(net, 0, 0, 1)))
    caches = []
    for cache, size in (("k", sizes.size), ("v", sizes.value_size)):
        new = net.dequantize(f"n{cache}", *QUANTS[cache])
        written = net.op("ScatterND", real[cache], index, new)
        stored = net.quantize(written, *QUANTS[cache], out=f"{cache}_out")
        net.output(stored, dtype=np.int8, shape=(1, sizes.kv_heads, sizes.positions, size))
        caches.append(repeated(net, sizes, net.dequantize(stored, *QUANTS[cache]), size))
    mask = net.op("Where", visible(net, sizes), net.const(0.0), net.const(-1e9))
    scores = net.op("MatMul", real["q"], net.op("Transpose", caches[0], perm=[0, 1, 3, 2]))
    scores = net.op("Add", net.op("Mul", scores, net.const(0.3)), mask)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), caches[1])
    net.quantize(mixed, *QUANTS["y"], out="y")
    net.output("y", dtype=np.int8, shape=(1, sizes.heads, sizes.tokens, sizes.value_size))
    return net.plain_model()


def quantized_feeds(sizes: Sizes, position: int) -> dict[str, Array]:
    """Random quantized values, extremes among them."""
    random = np.random.default_rng(position)
    feeds = {k: random.integers(-128, 128, v.shape).astype(np.int8) for k, v in sizes.feeds(0).items()}
    return feeds | {"pos": np.array([position], np.int64)}


INTEGER_SIZES = (
    *GROUPED,
    Sizes(size=12, value_size=36),
    Sizes(size=61, value_size=64, kv_heads=1),
    Sizes(positions=40),
)


@pytest.mark.parametrize("sizes", INTEGER_SIZES, ids=str)
def test_in_integers(sizes: Sizes) -> None:
    """The whole attention is one operator on int8, whose results are within one step and a little of the real ones."""
    model = quantized_model(sizes)
    graph = optimized(model)
    assert sorted(set(operators(graph)) - {"reshape", "add"}) == ["cached_attention", "tensor_scatter"]
    for position in range(sizes.positions - sizes.tokens + 1):
        feeds = quantized_feeds(sizes, position)
        found, expected = interpret(graph, feeds), onnxruntime_outputs(model, feeds)
        for name, array in expected.items():
            assert np.abs(found[name].astype(int) - array).max() <= (1 if name == "y" else 0)


KERNELS = [
    ("host", "cached_attention_s8"),
    ("nrf52840", "cached_attention_s8_dsp"),
    ("corstone300", "cached_attention_s8_mve"),
]


@pytest.mark.parametrize(("board", "kernel"), KERNELS)
def test_in_integers_in_c(board: str, kernel: str) -> None:
    """Kernels and their plain twins have the bits of numpy, on this computer under sanitizers and on the CPU."""
    ran = 0
    for sizes in INTEGER_SIZES:
        model = quantized_model(sizes)
        try:
            compiled = compile_model(model, board, CompileOptions(kernels=(kernel,)))
        except UsageError:
            continue
        if kernel not in {instr.kernel for instr in compiled.program.instrs}:
            continue
        ran += 1
        positions = sorted({0, sizes.positions // 2, sizes.positions - sizes.tokens})
        feeds = [quantized_feeds(sizes, p) for p in positions]
        expected = [interpret(compiled.graph, one) for one in feeds]
        here = replace(compiled, board=load_board("host"))
        found = here.run({k: np.stack([f[k] for f in feeds]) for k in feeds[0]}, sanitize=True)
        there = simulate(compiled.bundle, load_board(board), feeds).outputs if board != "host" else []
        for number, one in enumerate(expected):
            for name, array in one.items():
                np.testing.assert_array_equal(found[name][number], array)
                assert not there or np.array_equal(there[number][name], array)
    assert ran >= 4
