# SPDX-License-Identifier: Apache-2.0
"""Constant masks before a softmax: a finite one is a number, which hides only what scores cannot outweigh."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from checks import check_c
from float_models import normal_samples, quantized, sqnr
from onnx_models import (
    MICROSOFT,
    Net,
    apply,
    assert_close,
    check_everywhere,
    check_quantized,
    imported,
    onnxruntime_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.passes.composite_operators import assume_mask, recognize_mask
from mcugen.passes.magnitudes import Magnitudes
from mcugen.passes.simplify import simplify

CAUSAL = np.triu(np.ones((6, 6), np.bool_), 1)
SOME = np.asarray([0, 0, 1, 0, 1, 0], np.bool_)
WHOLE = CAUSAL | (np.arange(6) == 2)[:, None]
"""Of one row nothing is left."""
SHAPE = (1, 2, 6, 6)
LOWEST = float(np.finfo(np.float32).min)
NUMBERS = [-np.inf, LOWEST, -1e9, -65504.0, -1e4, -200.0, -50.0]


def softmax(net: Net, scores: str, mask: np.ndarray, number: float, way: str = "add", axis: int = -1) -> str:
    """Masked by a sum, or by a choice whose condition tells what is seen, or what is not."""
    if way == "add":
        masked = net.op("Add", scores, net.const(np.where(mask, number, 0)))
    else:
        low, condition = net.const(number), net.const(mask != (way == "seen"), np.bool_)
        masked = net.op("Where", condition, *((scores, low) if way == "seen" else (low, scores)))
    return net.op("Softmax", masked, axis=axis)


# ---------------------------------------------------------------------------------------------- right results


@pytest.mark.parametrize("spread", [1.0, 3e4, 3e9], ids=str)
@pytest.mark.parametrize("mask", [CAUSAL, SOME, WHOLE], ids=["causal", "some", "whole"])
def test_scores_of_any_size(mask: np.ndarray, spread: float):
    """Unlike what is masked, a score may be as large as its type allows."""
    net = Net()
    x = net.input("x", *SHAPE)
    for number in NUMBERS:
        for way in ("add", "seen", "unseen"):
            if not (np.isinf(number) and mask is WHOLE):  # 0 / 0
                net.output(softmax(net, x, mask, number, way))
    model = net.model()
    feeds = random_feeds(model, spread=spread)
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds), 1e-4)
    check_c(compiled, feeds, found, 1e-4)


@pytest.mark.parametrize("way", ["add", "seen", "unseen"])
@pytest.mark.parametrize("mask", [np.triu(np.ones((3, 5), np.bool_), 1), SOME[:5]], ids=["rows", "columns"])
def test_more_keys_than_queries(way: str, mask: np.ndarray):
    net = Net()
    net.output(softmax(net, net.input("x", 1, 2, 3, 5), mask, -np.inf, way))
    graph = apply(net.model(), recognize_mask)
    (node,) = graph.nodes
    assert len(node.inputs) == 2
    feeds = random_feeds(net.model())
    weights = np.where(mask, 0, np.exp(feeds["x"].astype(np.float64)))
    (found,) = interpret(graph, feeds).values()
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("way", ["add", "seen"])
def test_a_row_of_infinities_is_what_it_is(way: str):
    net = Net()
    net.output(softmax(net, net.input("x", *SHAPE), WHOLE, -np.inf, way))
    feeds = random_feeds(net.model())
    assert_close(interpret(optimized(net.model()), feeds), onnxruntime_outputs(net.model(), feeds))


@pytest.mark.parametrize("spread", [1.0, 3e4], ids=str)
def test_attention_of_onnx_runtime(spread: float):
    """Its masks are finite: −10000, or what the model says."""
    net = Net()
    x, w = net.input("x", 2, 6, 8), net.const(np.random.default_rng(0).standard_normal((8, 24)))
    bias = net.const(np.zeros(24))
    for number, mask in ((-1e4, SOME), (-50.0, SOME), (LOWEST, SOME), (-1e4, np.ones(6, np.bool_))):
        visible = net.const(np.tile(~mask, (2, 1)), np.int32)
        for causal in (0, 1):
            attributes = {"num_heads": 2, "mask_filter_value": number, "unidirectional": causal}
            net.output(net.op("Attention", x, w, bias, visible, domain=MICROSOFT, **attributes), shape=(2, 6, 8))
    feeds = random_feeds(net.model(), spread=np.sqrt(spread))
    assert_close(interpret(optimized(net.model()), feeds), onnxruntime_outputs(net.model(), feeds), 1e-4)


@pytest.mark.parametrize("spread", [1.0, 300.0], ids=str)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_onnx(causal: int, spread: float):
    net = Net(23)
    q, k, v = (net.input(name, 1, 2, 6, 4) for name in "qkv")
    for number in (-1e4, -1e9, LOWEST):
        mask = net.const(np.where(CAUSAL.T if causal else SOME, number, 0) * np.ones((6, 6)))
        net.output(net.op("Attention", q, k, v, mask, is_causal=causal))
    net.output(net.op("Attention", q, k, v, net.const(~SOME & np.ones((6, 6), np.bool_), np.bool_)))
    feeds = random_feeds(net.model(), spread=spread)
    assert_close(interpret(optimized(net.model()), feeds), onnxruntime_outputs(net.model(), feeds), 1e-4)


# ------------------------------------------------------------------------------------ what is hidden for sure


def normalized(net: Net, x: str) -> str:
    """Scores of an attention whose queries and keys are made of normalized tokens."""
    random = np.random.default_rng(0)
    tokens = net.op("LayerNormalization", x, net.const(random.uniform(0.5, 1.5, 8)), net.const(np.zeros(8)))
    q, k = (net.op("MatMul", tokens, net.const(random.standard_normal((8, 4)))) for _ in range(2))
    return net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))


BOUNDED: dict[str, tuple[tuple[int, ...], Callable[[Net, str], str]]] = {
    "Tanh": (SHAPE, lambda net, x: net.op("Tanh", x)),
    "Clip": (SHAPE, lambda net, x: net.op("Mul", net.op("Clip", x, net.const(-9.0), net.const(9.0)), net.const(7.0))),
    "codes": (SHAPE, lambda net, x: net.fake(x, 0.25, 3)),
    "BatchNormalization of probabilities": (
        SHAPE,
        lambda net, x: net.op("BatchNormalization", net.op("Softmax", x), *(net.const([0.5, 2]) for _ in range(4))),
    ),
    "normalized tokens": ((1, 6, 8), normalized),
}


@pytest.mark.parametrize("number", [-np.inf, -1e9, -1e4])
@pytest.mark.parametrize("scores", BOUNDED)
def test_masks_hide_from_bounded_scores(scores: str, number: float):
    shape, build = BOUNDED[scores]
    net = Net()
    for way in ("add", "seen", "unseen"):
        net.output(softmax(net, build(net, net.input(f"x_{way}", *shape)), CAUSAL, number, way))
    graph = optimized(net.model())
    masked = [node for node in graph.nodes if node.op.name == "softmax" and len(node.inputs) > 1]
    assert len(masked) == 3 and all(node.input(1).type.count == 36 for node in masked)
    check_everywhere(net.model())


@pytest.mark.parametrize("number", [LOWEST, -1e9, -1e4])
def test_masks_are_added_to_any_others(number: float):
    net = Net()
    net.output(softmax(net, net.input("x", *SHAPE), CAUSAL, number))
    assert operators(apply(net.model(), recognize_mask)) == ["add", "softmax"]
    assert operators(apply(net.model(), assume_mask, simplify)) == ["softmax"]


@pytest.mark.parametrize("scores", BOUNDED)
def test_no_element_exceeds_its_bound(scores: str):
    shape, build = BOUNDED[scores]
    net = Net()
    net.output(build(net, net.input("x", *shape)))
    graph = imported(net.model())
    bound = Magnitudes().of(graph.outputs[0])
    for seed in range(20):
        (found,) = interpret(graph, random_feeds(net.model(), seed, 10.0 ** (seed % 7))).values()
        assert np.abs(found).max() <= bound < 4000


@pytest.mark.parametrize("batch", [(), (1, 1), (1, 2)], ids=str)
def test_one_mask_for_several_heads(batch: tuple[int, ...]):
    net = Net()
    net.output(softmax(net, net.input("x", *SHAPE), np.broadcast_to(CAUSAL, (*batch, 6, 6)), -np.inf))
    graph = apply(net.model(), recognize_mask, simplify)
    assert operators(graph) == ["softmax"]
    assert graph.nodes[0].input(1).type.count == 36 * (batch[1] if batch else 1)
    check_everywhere(net.model())


def test_what_is_no_mask_is_still_added():
    net = Net()
    mask = np.where(CAUSAL, -np.inf, np.arange(36).reshape(6, 6) / 10)
    net.output(net.op("Softmax", net.op("Add", net.input("x", *SHAPE), net.const(mask))))
    assert operators(apply(net.model(), recognize_mask, simplify)) == ["add", "softmax"]
    check_everywhere(net.model())


def test_rows_that_lie_apart_stay():
    net = Net()
    net.output(softmax(net, net.input("x", *SHAPE), CAUSAL, -np.inf, axis=-2))
    assert operators(apply(net.model(), recognize_mask)) == ["add", "softmax"]


# ---------------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("number", [-np.inf, -1e4])
def test_masked_softmax_of_codes(dtype: type, number: float):
    """The same model as QDQ: what is hidden has no part in the range of the scores."""
    net = Net(21)
    scale = 0.0513 if dtype is np.int8 else 2.1e-4
    x = net.dequantize(net.input("x", 2, 3, 6, 6, dtype=dtype), scale, 0, dtype)
    step, zero = (1 / 256, -128) if dtype is np.int8 else (1 / 32768, 0)
    net.output(net.quantize(softmax(net, x, CAUSAL, number), step, zero, dtype, out="y"), dtype=dtype)
    model = net.model()
    assert operators(optimized(model)) == ["softmax"]
    check_quantized(model, share=0.01)


def test_codes_that_reach_beyond_a_mask():
    net = Net()
    x = net.dequantize(net.input("x", 2, 3, 6, 6, dtype=np.int8), 100.0)
    net.output(net.quantize(softmax(net, x, CAUSAL, -1e4), 1 / 256, -128, out="y"), dtype=np.int8)
    assert operators(optimized(net.model())) != ["softmax"]
    check_quantized(net.model(), share=0.01)


def calibrated(number: float, spread: float) -> onnx.ModelProto:
    """Scores that nothing bounds before they are quantized."""
    net = Net()
    x = net.input("x", 1, 6, 8)
    q, k = (net.op("MatMul", x, net.const(np.eye(8)[:, :4] * np.sqrt(spread))) for _ in range(2))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
    net.output(net.op("MatMul", softmax(net, scores, CAUSAL, number), x, out="y"))
    return net.model()


@pytest.mark.parametrize(("number", "spread"), [(-1e9, 1.0), (-1e4, 1.0), (-1e4, 3e4)])
def test_calibration_bounds_scores(number: float, spread: float):
    model = calibrated(number, spread)
    graph = optimized(quantized(model).proto)
    is_hidden = any(node.op.name == "softmax" and len(node.inputs) > 1 for node in graph.nodes)
    assert is_hidden == (spread == 1)
    samples = normal_samples(model, 8, seed=5)
    exact = [onnxruntime_outputs(model, s)["y"] for s in samples]
    assert sqnr(exact, [interpret(graph, s)["y"] for s in samples]) > (20 if is_hidden else 8)
