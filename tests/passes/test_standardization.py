# SPDX-License-Identifier: Apache-2.0
"""Sums and products with constants keep the digits that the model's own steps keep, whatever they become.

The measure is float64: each channel may be off by a few ulp of the result, or by as much as float32 loses in the
model's own steps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import onnx
import pytest
from checks import check_c
from float_models import normal_samples, quantized, sqnr
from onnx_models import ML, Feeds, Net, operators, optimized

from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array

CHANNELS, SIZE = 3, 40
MEAN = np.asarray([101325.0, 20.0, -3172.0])
DEVIATION = np.asarray([7.0, 3.0, 0.37])
STEPS: dict[str, Callable[[Array, Array], Array]] = {
    "Add": lambda x, c: x + c,
    "Sub": lambda x, c: x - c,
    "Mul": lambda x, c: x * c,
    "Div": lambda x, c: x / c,
    "from": lambda x, c: c - x,
}
"""What a step does with a constant; `from` is Sub with the constant first."""
CHAINS = [
    *product(("Sub", "Add", "from"), ("Div", "Mul")),
    *product(("Sub", "Add", "from"), ("Div", "Mul"), ("Mul", "Add", "Sub", "from")),
    *product(("Mul", "Div"), ("Sub", "from"), ("Mul", "Div")),
    ("Sub", "Sub"),
    ("from", "from"),
    ("Div", "Sub", "Div", "Add"),
    ("Sub", "Mul", "Add", "Div", "Add"),
]


def constants(chain: tuple[str, ...]) -> list[Array]:
    """A large one for the first sum, as standardizations have, and small ones for all others."""
    found, random, is_large = [], np.random.default_rng(len(chain)), True
    for step in chain:
        if step in ("Mul", "Div"):
            numbers = DEVIATION if step == "Div" else np.round(1 / DEVIATION, 2)
        else:
            numbers = MEAN * (-1 if step == "Add" else 1) if is_large else random.uniform(0.1, 2, CHANNELS)
            is_large = False
        found.append(numbers.astype(np.float32))
    return found


def computed(chain: tuple[str, ...], x: Array) -> Array:
    """The steps one after the other, in the type of x."""
    for step, number in zip(chain, constants(chain), strict=True):
        x = STEPS[step](x, number.astype(x.dtype))
    return x


def near_roots(chain: tuple[str, ...]) -> Array:
    """Samples around where the result is 0, whole numbers among them."""
    at = computed(chain, np.zeros((1, CHANNELS)))
    slope = computed(chain, np.ones((1, CHANNELS))) - at
    random = np.random.default_rng(0)
    x = -at / slope + random.standard_normal((SIZE, CHANNELS)) * 5
    x[::2] = np.rint(x[::2])
    return x.astype(np.float32)


def add_chain(net: Net, x: str, chain: tuple[str, ...], shape: tuple[int, ...] = (CHANNELS,)) -> str:
    for step, number in zip(chain, constants(chain), strict=True):
        c = net.const(number.reshape(shape))
        x = net.op("Sub", c, x) if step == "from" else net.op(step, x, c)
    return x


def assert_precise(found: Array, exact: Array, steps: Array, axis: int = 1) -> None:
    """Within 4 ulp, or 4 times the most that float32 loses in these steps, in each channel."""
    others = tuple(a for a in range(exact.ndim) if a != axis)
    lost = np.abs(steps.astype(np.float64) - exact).max(others, keepdims=True)
    allowed = 4 * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) + 4 * lost
    assert (np.abs(found.astype(np.float64) - exact) <= allowed).all()


def test_every_chain():
    net = Net()
    feeds: Feeds = {net.input(f"x{i}", SIZE, CHANNELS): near_roots(chain) for i, chain in enumerate(CHAINS)}
    for i, chain in enumerate(CHAINS):
        net.output(net.op("Identity", add_chain(net, f"x{i}", chain), out=f"y{i}"))
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    for i, chain in enumerate(CHAINS):
        x = feeds[f"x{i}"]
        assert_precise(found[f"y{i}"], computed(chain, x.astype(np.float64)), computed(chain, x))
    check_c(compiled, feeds, found, relative=1e-6)


@pytest.mark.parametrize("chain", [("Sub", "Div"), ("Add", "Mul"), ("from", "Div"), ("Sub", "Mul", "Mul")], ids=str)
def test_one_loop_subtracts_first(chain: tuple[str, ...]):
    """And divides by no number."""
    net = Net()
    net.output(add_chain(net, net.input("x", SIZE, CHANNELS), chain))
    graph = optimized(net.model())
    (node,) = graph.nodes
    assert operators(graph) == ["affine"] and node.op.steps == ("Add", "Mul")


def batch_normalization(net: Net, x: str, mean: Array, beta: Array) -> str:
    statistics = (np.ones(CHANNELS), beta, mean, np.square(DEVIATION))
    return net.op("BatchNormalization", x, *map(net.const, statistics), epsilon=0.0)


@pytest.mark.parametrize("beta", [np.zeros(CHANNELS), np.asarray([0.5, -1, 0.25])], ids=["plain", "shifted"])
@pytest.mark.parametrize("space", [(), (4, 5)], ids=["rows", "image"])
def test_batch_normalization(beta: Array, space: tuple[int, ...]):
    net = Net()
    net.output(batch_normalization(net, net.input("x", SIZE, CHANNELS, *space), MEAN, beta))
    shape = (CHANNELS, *(1 for _ in space))
    random = np.random.default_rng(0).standard_normal((SIZE, CHANNELS, *space))
    x = (MEAN.reshape(shape) + DEVIATION.reshape(shape) * random).astype(np.float32)
    (found,) = interpret(optimized(net.model()), {"x": x}).values()
    m, s, b = (v.reshape(shape) for v in (MEAN, DEVIATION, beta))
    steps = (x - m.astype(np.float32)) / s.astype(np.float32) + b.astype(np.float32)
    assert_precise(found, (x.astype(np.float64) - m) / s.astype(np.float32) + b, steps)


def test_batch_normalization_with_a_small_mean_takes_two_steps():
    net = Net()
    net.output(batch_normalization(net, net.input("x", SIZE, CHANNELS), 2 * DEVIATION, np.zeros(CHANNELS)))
    (node,) = optimized(net.model()).nodes
    assert node.op.name == "affine" and node.op.steps == ("Mul", "Add")


def test_batch_normalization_of_inputs():
    """Its statistics are computed by the network."""
    net = Net()
    x, mean = net.input("x", SIZE, CHANNELS), net.input("mean", CHANNELS)
    one, variance = net.const(np.ones(CHANNELS)), net.const(np.square(DEVIATION))
    net.output(net.op("BatchNormalization", x, one, net.const(np.zeros(CHANNELS)), mean, variance, epsilon=0.0))
    given = (MEAN + DEVIATION * np.random.default_rng(0).standard_normal((SIZE, CHANNELS))).astype(np.float32)
    feeds = {"x": given, "mean": MEAN.astype(np.float32)}
    (found,) = interpret(optimized(net.model()), feeds).values()
    exact = (given.astype(np.float64) - MEAN) / DEVIATION.astype(np.float32)
    assert_precise(found, exact, (given - MEAN.astype(np.float32)) / DEVIATION.astype(np.float32))


def test_scaler():
    net = Net()
    x = net.input("x", SIZE, CHANNELS)
    scale = (1 / DEVIATION).astype(np.float32)
    net.output(net.op("Scaler", x, domain=ML, offset=MEAN.tolist(), scale=scale.tolist()), shape=(SIZE, CHANNELS))
    given = (MEAN + DEVIATION * np.random.default_rng(0).standard_normal((SIZE, CHANNELS))).astype(np.float32)
    (found,) = interpret(optimized(net.model()), {"x": given}).values()
    exact = (given.astype(np.float64) - MEAN) * scale
    assert_precise(found, exact, (given - MEAN.astype(np.float32)) * scale)


# ------------------------------------------------------------------------------------- layers before and behind


def layered(kind: str, weights: Array, chain: tuple[str, ...]) -> onnx.ModelProto:
    net = Net()
    space = (4,) if kind == "Conv" else ()
    x = net.input("x", SIZE, CHANNELS, *space)
    w = net.const(weights.reshape(CHANNELS, CHANNELS, *(1 for _ in space)))
    y = net.op("Conv", x, w) if kind == "Conv" else net.op("Gemm", x, w, transB=1)
    net.output(add_chain(net, y, chain, (CHANNELS, *(1 for _ in space))))
    return net.model()


CHAINS_OF_LAYERS = [("Sub", "Div"), ("Sub", "Mul", "Add"), ("Sub", "Sub")]


@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
@pytest.mark.parametrize("chain", CHAINS_OF_LAYERS, ids=str)
def test_layers_whose_sums_are_exact_take_in_nothing_that_is_not(kind: str, chain: tuple[str, ...]):
    """Each of these weights picks an element, or a difference."""
    weights = np.asarray([[1, 0, 0], [0, 1, 0], [1, -1, 0.5]], np.float32)
    model = layered(kind, weights, chain)
    x = np.rint(MEAN + 3 * np.random.default_rng(0).standard_normal((SIZE, CHANNELS))).astype(np.float32)
    sums = x @ weights.T
    given = x if kind == "Gemm" else np.repeat(x[..., None], 4, 2)
    (found,) = interpret(optimized(model), {"x": given}).values()
    exact, steps = computed(chain, sums.astype(np.float64)), computed(chain, sums)
    assert_precise(found if kind == "Gemm" else found[..., 0], exact, steps)


@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
@pytest.mark.parametrize("chain", CHAINS_OF_LAYERS, ids=str)
def test_layers_whose_sums_are_rounded_take_in_all(kind: str, chain: tuple[str, ...]):
    """It loses no more than some roundings of the products."""
    weights = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS)).astype(np.float32)
    model = layered(kind, weights, chain)
    graph = optimized(model)
    assert sorted({"conv": "layer", "dense": "layer"}.get(n, n) for n in operators(graph) if n != "transpose") in (
        ["layer"],
        ["layer", "reshape", "reshape"],
    )


def test_what_is_calibrated_is_one_step():
    """Integers are computed from constants of float64."""
    net = Net()
    x = net.input("x", 2, CHANNELS, 6, 6)
    shifted = net.op("Mul", net.op("Sub", x, net.const([[[0.5]], [[-1]], [[2]]])), net.const([[[2]], [[3]], [[0.3]]]))
    y = net.op("Add", shifted, net.const([[[1]], [[0.1]], [[-1]]]))
    w = np.random.default_rng(0).standard_normal((4, CHANNELS, 3, 3)) / 5
    net.output(net.op("Conv", net.op("Relu", y), net.const(w), out="y"))
    model = net.model()
    graph = optimized(quantized(model).proto)
    steps = [step for name in operators(graph) for step in name.split("+")]
    assert [step for step in steps if step in ("affine", "add", "sub", "mul")] == ["affine"]
    samples = normal_samples(model, 8, seed=5)
    exact = [interpret(optimized(model), s)["y"] for s in samples]
    assert sqnr(exact, [interpret(graph, s)["y"] for s in samples]) > 30
