# SPDX-License-Identifier: Apache-2.0
"""Transformers for the least RAM: scores of a query, or of a head, at a time; tokens one by one between them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, optimized, outputs_in_c, random_feeds

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import row_axis
from mcugen.hir.traits import row_form
from mcugen.lir.program import Control
from mcugen.search.head_projection import project_by_heads
from mcugen.search.head_splitting import split_attention_heads

SMALLEST_RAM = CompileOptions(optimize="ram")


class Transformer:
    """A block of attention and a hidden layer four times as wide, of float32 or of int8."""

    def __init__(self, tokens: int, width: int, heads: int, *, is_real: bool) -> None:
        self.net, self.random, self.is_real = Net(), np.random.default_rng(0), is_real
        self.tokens, self.width, self.heads = tokens, width, heads

    def model(self) -> onnx.ModelProto:
        """Of one block."""
        net, width = self.net, self.width
        x = self.typed(net.input("x", 1, self.tokens, width))
        scale, bias = net.const(np.ones(width)), net.const(np.zeros(width))
        even = self.typed(net.op("LayerNormalization", x, scale, bias, axis=-1))
        queries, keys, values = (self.dense(even, width, width) for _ in range(3))
        scores = net.op("MatMul", self.by_heads(queries, 0, 2, 1, 3), self.by_heads(keys, 0, 2, 3, 1))
        shares = self.typed(net.op("Softmax", self.typed(net.op("Mul", scores, net.const(0.35))), axis=-1), 1 / 128)
        found = self.typed(net.op("MatMul", shares, self.by_heads(values, 0, 2, 1, 3)))
        joined = net.op("Reshape", net.op("Transpose", found, perm=[0, 2, 1, 3]), net.const([1, -1, width], np.int64))
        x = self.typed(net.op("Add", x, self.dense(joined, width, width)))
        hidden = self.typed(net.op("Relu", self.dense(x, width, 4 * width)))
        y = self.typed(net.op("Add", x, self.dense(hidden, 4 * width, width)))
        net.output(net.op("Identity", y, out="y"), shape=(1, self.tokens, width))
        return net.model()

    def typed(self, x: str, scale: float = 0.05) -> str:
        """As int8 has it."""
        return x if self.is_real else self.net.fake(x, scale)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        """A layer for each token."""
        weights = self.net.const(self.random.integers(-127, 128, (inputs, outputs)), np.int8)
        product = self.net.op("MatMul", x, self.net.dequantize(weights, 0.003))
        return self.typed(self.net.op("Add", product, self.net.const(self.random.normal(size=outputs) / 10)))

    def by_heads(self, x: str, *perm: int) -> str:
        """With an axis for the heads, in that order."""
        shape = self.net.const([1, self.tokens, self.heads, self.width // self.heads], np.int64)
        return self.net.op("Transpose", self.net.op("Reshape", x, shape), perm=list(perm))


@pytest.mark.spread(3)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("is_real", [False, True], ids=["int8", "float32"])
def test_no_more_than_scores_of_some_queries_of_a_head(heads: int, is_real: bool) -> None:
    model = Transformer(48, 16, heads, is_real=is_real).model()
    plain, least = (
        compile_model(model, options=CompileOptions(optimize="speed")),
        compile_model(model, options=SMALLEST_RAM),
    )
    feeds = random_feeds(model)
    assert_close(outputs_in_c(least, feeds), interpret(plain.graph, feeds))
    assert not {b.name for b in least.program.buffers if b.planned and not b.count % (48 * 48)}
    assert least.program.arena_size < (0.75 if heads == 1 else 0.5) * plain.program.arena_size


def test_heads_are_computed_one_after_the_other() -> None:
    """Of matrices without a batch, with a mask that is constant, and results that are read as a whole."""
    net = Net()
    queries, keys, values = (net.input(name, 3, 20, 6) for name in "qkv")
    scores = net.op("MatMul", queries, net.op("Transpose", keys, perm=[0, 2, 1]))
    masked = net.op("Add", scores, net.const(np.triu(np.full((1, 20, 20), -9.0), 1)))
    shares = net.op("Softmax", masked, axis=-1)
    net.output(net.op("MatMul", shares, values, out="y"), net.op("Identity", "v", out="z"), shape=(3, 20, 6))
    model = net.model()
    graph = optimized(model)
    apart = split_attention_heads(graph)
    products = [node.output.type.shape for node in apart.nodes if node.op.name == "matmul"]
    assert products == [(1, 20, 20), (1, 20, 6)] * 3
    feeds = random_feeds(model)
    assert_close(interpret(apart, feeds), interpret(graph, feeds), 0)
    assert_close(outputs_in_c(compile_model(model, options=SMALLEST_RAM), feeds), interpret(graph, feeds))


def test_other_products_stay_whole() -> None:
    """Of a single head, of too many, or where others read the scores: the graph is the same."""
    net = Net()
    for name, heads in (("one", 1), ("many", 17), ("read", 2)):
        q, k, v = (net.input(f"{name} {role}", 1, heads, 5, 5) for role in "qkv")
        scores = net.op("MatMul", q, k, out=f"{name} scores")
        net.output(net.op("MatMul", net.op("Softmax", scores, axis=-1), v))
        if name == "read":
            net.output(scores)
    graph = optimized(net.model())
    assert split_attention_heads(graph) is graph


def test_hidden_layers_are_of_one_token() -> None:
    """A chain of layers for each token has no hidden tensor of all of them."""
    net = Net()
    x = net.input("x", 1, 64, 8)
    for inputs, outputs in ((8, 64), (64, 8)):
        weights = net.const(np.random.default_rng(inputs).integers(-3, 4, (inputs, outputs)) / 8)
        x = net.op("Relu", net.op("MatMul", x, weights))
    net.output(net.op("Softmax", x, axis=-1, out="y"), shape=(1, 64, 8))
    compiled = compile_model(net.model(), options=SMALLEST_RAM)
    assert Control.STREAM in {instr.control for instr in compiled.program.instrs}
    assert max(b.count for b in compiled.program.buffers if b.planned) == 64 * 8
    feeds = random_feeds(net.model())
    assert_close(outputs_in_c(compiled, feeds), interpret(compile_model(net.model()).graph, feeds))


def test_what_each_row_takes_all_of_is_made_before() -> None:
    """A tensor by itself, transposed: rows of the product need all rows of what they are rows of."""
    net = Net()
    x = net.op("Relu", net.input("x", 1, 32, 8))
    product = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    net.output(net.op("Softmax", product, axis=-1, out="y"), shape=(1, 32, 32))
    feeds = random_feeds(net.model())
    least = compile_model(net.model(), options=SMALLEST_RAM)
    assert_close(outputs_in_c(least, feeds), interpret(compile_model(net.model()).graph, feeds))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 8, 8, 3), 1), ((8, 3), 0), ((1, 1, 8, 3), 2), ((1, 8), None), ((8,), None), ((), None)],
)
def test_rows_are_counted_by_the_first_long_axis(shape: tuple[int, ...], axis: int | None) -> None:
    assert row_axis(shape) == axis


def test_several_rows_are_taken_where_weights_are_read_or_packed() -> None:
    """Elsewhere they would only take memory: a window of them for each tensor between."""
    net = Net()
    x = net.input("x", 1, 32, 8)
    net.output(net.op("Sigmoid", net.op("MatMul", x, net.const(np.ones((8, 8)))), out="y"), shape=(1, 32, 8))
    forms = {node.op.name: row_form(node.op, node.sig) for node in optimized(net.model()).nodes}
    assert {name: form.rows for name, form in forms.items() if form and name != "reshape"} == {"dense": 4, "sigmoid": 1}


RESHAPED = [(0, 1, 8, 8), (0, 8, 1, 8), (0, 2, 4, 8), (-1, 8), (0, 64), (1, 0, 8, 8)]


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("shape", RESHAPED, ids=lambda shape: "x".join(map(str, shape)))
def test_products_of_batches_may_be_reshaped(batch: int, shape: tuple[int, ...]) -> None:
    """The search that divides products of matrices looks at what reads them, too."""
    net = Net()
    scores = net.op("MatMul", net.input("x", batch, 8, 8), net.input("k", batch, 8, 8))
    sizes = [batch if size == 0 else size for size in shape]
    net.output(net.op("Tanh", net.op("Reshape", scores, net.const(sizes, np.int64))))
    model = net.model()
    plain, feeds = optimized(model), random_feeds(model)
    expected = interpret(plain, feeds)
    assert_close(interpret(split_attention_heads(plain), feeds), expected)
    assert_close(outputs_in_c(compile_model(model, options=SMALLEST_RAM), feeds), expected)


def test_projections_are_computed_head_by_head() -> None:
    """No projection of all heads is left; integers keep their bits."""
    model = Transformer(24, 16, 2, is_real=False).model()
    plain, feeds = optimized(model), random_feeds(model)
    projected = project_by_heads(split_attention_heads(plain))
    layers = [node.output.type.shape[-1] for node in projected.nodes if node.op.name == "dense"]
    assert sorted(layers) == [8] * 6 + [16, 16, 64]
    expected = interpret(plain, feeds)
    assert_close(interpret(projected, feeds), expected, 0)
    assert project_by_heads(plain) is plain
    least = compile_model(model, options=CompileOptions(optimize="ram", external_io=True))
    assert_close(outputs_in_c(least, feeds), expected, 0)
    assert least.program.arena_size < 4 * 24 * 16 + 1000
