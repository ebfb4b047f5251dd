# SPDX-License-Identifier: Apache-2.0
"""Integer activations without weights give the same bits in plain C and in every CPU's own form.

Sums, products of two tensors, pools, softmax and elementwise functions: odd sizes, every remainder of the blockings,
zero points and scales at their ends. The numpy reference is the specification.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from checks import check_c
from measure_costs import BOARDS, roomy
from onnx_models import Net, random_feeds
from targets import CPUS, clang

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")

Quant = tuple[float, int]


class Layers:
    """A model of independent integer layers."""

    def __init__(self) -> None:
        self.net = Net(20)
        self.inputs = self.outputs = 0

    def input(self, *shape: int, quant: Quant = (0.02, 3), dtype: type = np.int8) -> str:
        """A quantized input, as reals."""
        self.inputs += 1
        scale, zero = quant
        name = self.net.input(f"x{self.inputs}", *shape, dtype=dtype)
        return self.net.dequantize(name, scale, zero if dtype is np.int8 else 0, dtype)

    def image(self, height: int, width: int, channels: int, batch: int = 1, **more: object) -> str:
        """A channels-last input as ONNX sees it, channels first."""
        return self.net.op("Transpose", self.input(batch, height, width, channels, **more), perm=[0, 3, 1, 2])

    def output(self, real: str, quant: Quant, dtype: type = np.int8, *, image: bool = False) -> None:
        """Reals as a quantized output."""
        self.outputs += 1
        real = self.net.op("Transpose", real, perm=[0, 2, 3, 1]) if image else real
        scale, zero = quant
        name = f"y{self.outputs}"
        self.net.output(self.net.quantize(real, scale, zero if dtype is np.int8 else 0, dtype, out=name), dtype=dtype)


def products() -> onnx.ModelProto:
    """Of two activations: int8, int16 and both, depths of every remainder, one to nine columns."""
    layers = Layers()
    shapes = [(1, 1, 1, 1), (2, 3, 5, 2), (1, 2, 16, 3), (1, 5, 17, 4), (3, 2, 34, 5), (1, 4, 47, 6), (1, 3, 64, 9)]
    for index, (batch, rows, depth, columns) in enumerate(shapes):
        zeros = [(0, 0), (-128, 127), (5, -7)][index % 3]
        for a, b in ((np.int8, np.int8), (np.int16, np.int16), (np.int16, np.int8), (np.int8, np.int16)):
            scales = [0.02 if t is np.int8 else 1e-4 for t in (a, b)]
            left = layers.input(batch, rows, depth, quant=(scales[0], zeros[0]), dtype=a)
            right = layers.input(batch, depth, columns, quant=(scales[1], zeros[1]), dtype=b)
            dtype = np.int8 if index % 2 or a is b is np.int8 else np.int16
            coarse = 0.02 * depth**0.5 * (1 if np.int16 in (a, b) else 3)
            layers.output(layers.net.op("MatMul", left, right), (coarse if dtype is np.int8 else 1e-3, index), dtype)
    return layers.net.model()


def sums() -> onnx.ModelProto:
    """Of two tensors: blocks and their remainders, all shifts that scales lead to, clamped, broadcast, int16."""
    layers = Layers()
    ratios = [(0.02, 0.013), (0.5, 3e-4), (1.0, 1.0), (1e-3, 2e-3), (2.0, 40.0), (7e-4, 0.9)]
    for index, (first, second) in enumerate(ratios):
        count = (37, 16, 24, 7, 67, 40)[index]
        pair = layers.input(count, quant=(first, -128)), layers.input(count, quant=(second, 127))
        layers.output(layers.net.op(("Add", "Sub")[index % 2], *pair), (0.05 * (index + 1), 20 * index - 50))
    for low, high in ((0.0, 9.0), (-1.0, 0.5)):
        total = layers.net.op("Add", layers.input(45), layers.input(45, quant=(0.03, -9)))
        limits = layers.net.const(low), layers.net.const(high)
        layers.output(layers.net.op("Clip", total, *limits), (0.04, -100))
    layers.output(layers.net.op("Add", layers.input(3, 5, 7), layers.input(5, 1)), (0.04, 1))
    for function, columns in (("Add", 5), ("Sub", 19), ("Mul", 7), ("Mul", 16)):  # a row to each, a gate by channel
        for first, second in (((2, 3, columns), (columns,)), ((1, 1, columns), (4, 3, columns))):
            pair = layers.input(*first, quant=(0.03, 127)), layers.input(*second, quant=(1 / 256, -128))
            layers.output(layers.net.op(function, *pair), (0.02, -3))
    total = layers.net.op("Add", layers.input(4, 3), layers.input(4, 3, quant=(0.013, -9)))
    layers.output(layers.net.op("Mul", layers.net.fake(total, 0.03, 5), layers.input(4, 3)), (0.05, 9))
    for dtype in (np.int8, np.int16):
        pair = [layers.input(2, 19, quant=(s, z), dtype=np.int16) for s, z in ((1e-4, 0), (3.1e-4, 0))]
        layers.output(layers.net.op("Add", *pair), (5e-4 if dtype is np.int16 else 0.1, 3), dtype)
        layers.output(layers.net.op("Mul", *pair), (5e-3 if dtype is np.int16 else 0.7, 3), dtype)
    for out in (0.001, 0.02, 3.0):
        layers.output(layers.net.op("Mul", layers.input(21), layers.input(21, quant=(0.5, -128))), (out, 7))
    layers.output(layers.net.op("Sigmoid", layers.input(23)), (1 / 256, -128))
    layers.output(layers.net.op("Tanh", layers.input(23, quant=(2**-12, 0), dtype=np.int16)), (2**-15, 0), np.int16)
    return layers.net.model()


def pools() -> onnx.ModelProto:
    """Averages (with ties, and without) and maxima of 1 to 37 channels, windows inside and beyond the edge."""
    layers = Layers()
    window = {"kernel_shape": [3, 2], "strides": [2, 1]}
    for channels in (1, 4, 7, 16, 37):
        for more in (window, window | {"pads": [1, 0, 1, 1]}, window | {"pads": [1, 1, 1, 1], "count_include_pad": 1}):
            image = layers.image(5, 4, channels, batch=2, quant=(0.02, channels))
            layers.output(layers.net.op("AveragePool", image, **more), (0.017, -3), image=True)
            if "count_include_pad" not in more:
                for dtype in (np.int8, np.int16):
                    image = layers.image(5, 4, channels, dtype=dtype)
                    layers.output(layers.net.op("MaxPool", image, **more), (0.02, 3), dtype, image=True)
        mean = layers.net.op("GlobalAveragePool", layers.image(4, 2, channels, batch=2))
        layers.output(mean, (0.02, 3), image=True)
    tall = layers.net.op("GlobalAveragePool", layers.image(17, 16, 5, quant=(0.02, -128)))  # more than 16 bits hold
    layers.output(tall, (0.02, 127), image=True)
    short = layers.net.op("AveragePool", layers.image(5, 4, 6, dtype=np.int16), **window)
    layers.output(short, (0.021, 0), np.int16, image=True)
    dilated = layers.net.op("MaxPool", layers.image(7, 7, 9), kernel_shape=[2, 2], dilations=[2, 3])
    layers.output(dilated, (0.02, 3), image=True)
    return layers.net.model()


def rows() -> onnx.ModelProto:
    """Softmax of rows of 1 to 67, along either axis; normalized rows."""
    layers = Layers()
    for length in (1, 2, 10, 16, 67):
        for dtype, scale in ((np.int8, 0.1), (np.int16, 2e-4)):
            x = layers.input(2, length, quant=(scale, 9), dtype=dtype)
            out = (1 / 256, -128) if dtype is np.int8 else (2**-15, 0)
            layers.output(layers.net.op("Softmax", x, axis=-1), out, dtype)
            layers.output(layers.net.op("LogSoftmax", x, axis=-1), (0.1, 127) if dtype is np.int8 else (1e-3, 0), dtype)
    layers.output(layers.net.op("Softmax", layers.input(7, 3), axis=0), (1 / 256, -128))
    layers.output(layers.net.op("Softmax", layers.input(3, 5, quant=(0.3, 0)), axis=-1), (1e-5, -128))
    random = np.random.default_rng(0)
    scale, bias = (layers.net.const(random.normal(size=13)) for _ in range(2))
    layers.output(layers.net.op("LayerNormalization", layers.input(5, 13), scale, bias, axis=-1), (0.03, 1))
    layers.net.opset = 23
    for length, zero in ((3, 127), (18, -128), (40, 0)):
        x, scale = layers.input(4, length, quant=(0.02, zero)), layers.net.const(random.normal(size=length))
        layers.output(layers.net.op("RMSNormalization", x, scale, axis=-1), (0.03, 1))
        layers.output(layers.net.op("LayerNormalization", x, scale, axis=-1), (0.03, -9))
    return layers.net.model()


MODELS = {"products": products, "sums": sums, "pools": pools, "rows": rows}


@pytest.mark.spread(6)
@pytest.mark.parametrize("kind", MODELS)
def test_plain_c(kind: str):
    model = MODELS[kind]()
    feeds = random_feeds(model)
    compiled = compile_model(model)
    check_c(compiled, feeds, interpret(compiled.graph, feeds))


@pytest.mark.spread(17)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_bits_on_every_cpu(cpu: str, kind: str):
    model = MODELS[kind]()
    compiled = compile_model(model, roomy(BOARDS[cpu]))
    samples = [random_feeds(model, seed) for seed in range(3)] + [extremes(model)]
    found = compiled.simulate(samples, measure=False).outputs
    for sample, outputs in zip(samples, found, strict=True):
        for name, wanted in interpret(compiled.graph, sample).items():
            np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)


def extremes(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Inputs of which each element is one of its type's ends."""
    random = np.random.default_rng(1)
    feeds = random_feeds(model)
    limits = {name: np.iinfo(x.dtype) for name, x in feeds.items()}
    return {n: random.choice([limits[n].min, limits[n].max], x.shape).astype(x.dtype) for n, x in feeds.items()}


@pytest.mark.spread(17)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", MODELS)
def test_clang_takes_all_of_it(tmp_path: Path, cpu: str, kind: str):
    board = roomy(BOARDS[cpu])
    command = clang(board)
    for name, text in compile_model(MODELS[kind](), board).bundle.files.items():
        (tmp_path / name).write_text(text)
    for level in ("-O0", "-O2"):
        subprocess.run([*command, *STRICT, level, "-c", "net.c", "-o", "net.o"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(seed: int):
    """Products and pools of random sizes, scales and zero points, in plain C."""
    random = np.random.default_rng(seed)
    layers = Layers()
    for _ in range(6):
        batch, m, k, n = (int(random.integers(1, high)) for high in (3, 8, 40, 10))
        quants = [(float(random.uniform(1e-3, 0.1)), int(random.integers(-128, 128))) for _ in range(3)]
        pair = layers.input(batch, m, k, quant=quants[0]), layers.input(batch, k, n, quant=quants[1])
        layers.output(layers.net.op("MatMul", *pair), quants[2])
        height, width, channels = (int(v) for v in random.integers(3, 9, 3))
        kernel = [int(v) for v in random.integers(1, 4, 2)]
        image = layers.image(height, width, channels, quant=quants[0])
        pool = {"kernel_shape": kernel, "strides": [int(v) for v in random.integers(1, 3, 2)]}
        layers.output(layers.net.op("AveragePool", image, **pool), quants[1], image=True)
    model = layers.net.model()
    feeds = random_feeds(model, seed)
    compiled = compile_model(model)
    check_c(compiled, feeds, interpret(compiled.graph, feeds))


def test_any_size():
    """A mean and products over a length known at run time: what follows from it is looked up, the code stays."""
    net = Net(20)
    x = net.dequantize(net.input("x", 1, "T", 8, dtype=np.int8), 0.02, 3)
    mean = net.op("ReduceMean", x, net.const([1], np.int64), keepdims=0)
    net.output(net.quantize(mean, 0.02, 3, out="mean"), dtype=np.int8, shape=(1, 8))
    scores = net.fake(net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1])), 0.1)
    net.output(net.quantize(net.op("MatMul", scores, x), 0.02, 0, out="mixed"), dtype=np.int8, shape=(1, "T", 8))
    compiled = compile_model(net.plain_model(), options=CompileOptions(dims={"T": (3, 40)}))
    for length in (3, 4, 17, 40):
        sample = {"x": np.random.default_rng(length).integers(-128, 128, (1, length, 8)).astype(np.int8)}
        found = compiled.run({"x": sample["x"][None]}, sanitize=True)
        for name, wanted in compiled.interpret(sample).items():
            np.testing.assert_array_equal(found[name][0], wanted, err_msg=name)
