# SPDX-License-Identifier: Apache-2.0
"""Measures what every kernel costs on each CPU, under QEMU, and writes boards/costs/<cpu>.json.

A model of many layers is compiled once for every kernel that fits some of them. Instructions, and estimated cycles of
each core on memory that never lets it wait, are fitted to the terms of mcugen.kernels.cost by non-negative least
squares of relative errors; code is what the functions of most calls take, with all that they call: what is named after
the kernel is each function's own, what begins with mcugen_ is there once for all of them. What memories let the CPU
wait for constants is no matter of the fits: it follows from the board (mcugen.memory.constant_stalls).

With a library (--cmsis-nn-include, --cmsis-nn-lib) its kernels are measured too, each of their ways by itself, and
those of our own that stand against them and are the operators' only ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product, repeat
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from benchmark.subjects import random_array
from elftools.elf.elffile import ELFFile
from onnx import helper, numpy_helper
from rich.console import Console
from scipy.optimize import nnls

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.board import Board, load_board
from mcugen.core.errors import McugenError, UsageError
from mcugen.core.options import CMSIS_NN, CompileOptions, LibraryFiles
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Node
from mcugen.hir.types import Array
from mcugen.kernels.common.library import own_kernel
from mcugen.kernels.cost import TERMS, work
from mcugen.kernels.families import library_kernels_of
from mcugen.lir.kernel import SHORT_LOOPS, Kernel
from mcugen.lir.program import DECODE_WEIGHTS
from mcugen.lir.spec import own_kernels
from mcugen.options.table import find_option
from mcugen.options.values import library_files
from mcugen.reporting.kernels import declared_kernels
from mcugen.simulation import Setup, simulate
from mcugen.simulation.build import build_target
from mcugen.simulation.machines import find_machine

COSTS = Path(__file__).resolve().parents[1] / "boards" / "costs"
BOARDS = {
    "cortex-m0plus": "rp2040",
    "cortex-m3": "stm32f103",
    "cortex-m4": "nrf52840",
    "cortex-m7": "rt1060",
    "cortex-m33": "nrf5340",
    "cortex-m55": "corstone300",
    "rv32imc": "rv32imc",
    "rv32imafc": "rv32imafc",
    "lx106": "xtensa",
    "lx7": "esp32s3",
}
"""A board by CPU."""
OTHER_CORES = {"cortex-m55": ("ra8d1",), "rv32imc": ("esp32c3", "gd32vf103", "rp2350_riscv")}
"""Boards whose cores run the same code in other cycles, by the CPU whose costs are theirs."""
STAND_INS = ("lx7",)
"""CPUs without a compiler here: code of another CPU stands for theirs, and cycles of the core for instructions."""

CONVS = (
    # height, width, channels in, out, kernel height, width, stride, groups
    *((32, 32, 16, 16, 3, 3, 1, 1), (12, 12, 16, 16, 3, 3, 1, 1), (16, 16, 32, 32, 3, 3, 1, 1)),
    *((8, 8, 64, 64, 3, 3, 1, 1), (9, 7, 24, 24, 3, 3, 1, 1), (14, 14, 8, 8, 3, 3, 1, 1)),
    *((24, 24, 16, 32, 3, 3, 1, 1), (10, 10, 48, 40, 3, 3, 1, 1), (6, 6, 64, 96, 3, 3, 1, 1)),
    *((20, 20, 8, 24, 3, 3, 1, 1), (32, 32, 3, 16, 3, 3, 1, 1), (48, 48, 3, 8, 3, 3, 2, 1)),
    *((16, 16, 3, 12, 3, 3, 1, 1), (32, 32, 16, 32, 3, 3, 2, 1), (16, 16, 32, 64, 3, 3, 2, 1)),
    *((49, 10, 1, 64, 10, 4, 2, 1), (28, 28, 1, 8, 5, 5, 1, 1), (12, 12, 8, 16, 5, 5, 1, 1)),
    *((1, 100, 40, 32, 1, 3, 1, 1), (24, 24, 8, 16, 1, 1, 1, 1), (48, 48, 8, 16, 1, 1, 1, 1)),
    *((25, 5, 64, 64, 1, 1, 1, 1), (12, 12, 32, 64, 1, 1, 1, 1), (24, 24, 32, 32, 1, 1, 1, 1)),
    *((6, 6, 128, 128, 1, 1, 1, 1), (3, 3, 256, 256, 1, 1, 1, 1), (3, 3, 128, 256, 1, 1, 1, 1)),
    *((32, 32, 16, 32, 1, 1, 2, 1), (7, 7, 20, 12, 1, 1, 1, 1), (1, 1, 64, 10, 1, 1, 1, 1)),
    *((48, 48, 8, 8, 3, 3, 1, 8), (48, 48, 16, 16, 3, 3, 2, 16), (25, 5, 64, 64, 3, 3, 1, 64)),
    *((24, 24, 32, 32, 3, 3, 2, 32), (12, 12, 64, 64, 3, 3, 1, 64), (6, 6, 128, 128, 3, 3, 1, 128)),
    *((3, 3, 256, 256, 3, 3, 1, 256), (6, 6, 128, 128, 3, 3, 2, 128), (12, 12, 64, 64, 3, 3, 2, 64)),
    *((10, 40, 24, 24, 3, 3, 1, 24), (16, 16, 16, 16, 5, 5, 1, 16), (7, 7, 24, 24, 7, 7, 1, 24)),
    *((1, 60, 32, 32, 1, 9, 1, 32), (20, 20, 24, 24, 5, 5, 2, 24), (5, 5, 96, 96, 5, 5, 1, 96)),
    *((12, 12, 32, 32, 7, 7, 2, 32), (3, 3, 96, 96, 7, 7, 1, 96), (1, 40, 48, 48, 1, 5, 1, 48)),
    *((10, 12, 16, 16, 1, 3, 1, 16), (1, 128, 64, 64, 1, 13, 1, 64), (1, 90, 48, 48, 1, 29, 1, 48)),
    *((1, 100, 40, 40, 1, 17, 2, 40), (1, 50, 64, 64, 1, 3, 1, 64), (1, 2, 128, 128, 1, 7, 1, 128)),
    *((14, 14, 16, 16, 3, 3, 3, 16), (7, 7, 64, 64, 3, 3, 2, 64), (3, 3, 128, 128, 3, 3, 2, 128)),
    *((1, 100, 40, 40, 1, 3, 2, 40), (1, 24, 96, 96, 1, 3, 1, 96), (1, 120, 24, 24, 1, 3, 1, 24)),
)
LIBRARY_CONVS = (
    # pixels apart
    *((24, 24, 32, 32, 1, 1, 2, 1), (12, 12, 64, 64, 1, 1, 2, 1)),
    # pixels of few channels, and of a number that is no multiple of four
    *((16, 16, 6, 10, 1, 1, 1, 1), (12, 12, 30, 30, 1, 1, 1, 1), (8, 8, 128, 64, 1, 1, 1, 1)),
    # lines
    *((1, 49, 40, 64, 1, 9, 1, 1), (1, 64, 16, 16, 1, 5, 1, 1), (1, 128, 8, 32, 1, 9, 1, 1)),
    *((1, 50, 64, 64, 1, 3, 1, 1), (1, 200, 4, 16, 1, 3, 1, 1), (1, 96, 32, 24, 1, 7, 2, 1)),
    # windows of depths that are no multiple of four
    *((16, 16, 5, 7, 3, 3, 1, 1), (20, 20, 10, 20, 3, 3, 2, 1), (40, 40, 1, 16, 3, 3, 1, 1)),
    # groups
    *((12, 12, 16, 32, 3, 3, 1, 2), (8, 8, 32, 32, 3, 3, 1, 4), (14, 14, 8, 16, 5, 5, 1, 4)),
    *((10, 10, 24, 12, 3, 3, 2, 3), (6, 6, 64, 64, 3, 3, 1, 8), (12, 12, 32, 48, 3, 3, 1, 2)),
    (16, 16, 16, 16, 1, 1, 1, 4),
    # several filters for each channel
    *((16, 16, 8, 16, 3, 3, 1, 8), (12, 12, 16, 64, 3, 3, 1, 16), (9, 9, 4, 8, 5, 5, 1, 4)),
    *((20, 20, 12, 24, 3, 3, 2, 12), (24, 24, 2, 16, 3, 3, 1, 2), (8, 8, 32, 64, 3, 3, 1, 32)),
    *((10, 10, 8, 32, 3, 3, 1, 8), (14, 14, 4, 16, 5, 5, 1, 4), (6, 6, 32, 128, 3, 3, 2, 32)),
    # channel by channel, larger windows
    *((16, 16, 32, 32, 5, 5, 1, 32), (24, 24, 8, 8, 5, 5, 2, 8), (8, 8, 64, 64, 4, 4, 1, 64)),
    (12, 12, 16, 16, 3, 5, 1, 16),
    # channels that are no multiple of four
    *((10, 10, 6, 6, 3, 3, 1, 6), (14, 14, 30, 30, 3, 3, 2, 30)),
)
"""Shapes besides for what the library tells apart."""

TRANSPOSED = (
    # height, width, channels in, out, kernel, stride
    *((8, 8, 16, 8, 2, 2), (6, 6, 32, 16, 3, 2), (12, 12, 8, 8, 4, 2), (4, 4, 64, 32, 3, 2), (5, 7, 12, 20, 3, 1)),
    *((16, 16, 4, 4, 2, 2), (9, 9, 16, 16, 4, 2), (8, 8, 32, 16, 4, 2), (5, 5, 48, 8, 2, 2), (10, 6, 24, 24, 3, 2)),
    *((7, 7, 64, 16, 3, 1), (12, 12, 20, 4, 2, 2), (6, 10, 12, 6, 3, 2), (14, 14, 8, 16, 2, 2)),
    (7, 7, 16, 8, 4, 2),
)
ONE_CHANNEL = (
    # height, width, channels, kernel, stride
    *((24, 24, 16, 1, 1), (12, 12, 32, 1, 1), (7, 9, 64, 1, 1), (16, 16, 12, 1, 1), (9, 9, 24, 1, 2)),
    *((16, 16, 16, 3, 1), (9, 7, 32, 3, 1), (20, 20, 4, 3, 1), (14, 14, 8, 5, 1), (17, 17, 8, 3, 2)),
)
"""Convolutions to one channel."""
ONE_TRANSPOSED = (
    # height, width, channels, kernel, stride
    *((12, 12, 16, 2, 2), (6, 7, 32, 2, 2), (12, 12, 16, 4, 2), (5, 5, 32, 4, 2)),
    *((8, 8, 8, 3, 2), (7, 7, 24, 3, 2), (9, 9, 12, 4, 2), (4, 6, 64, 3, 2), (10, 10, 4, 4, 2)),
)
"""The same of transposed ones."""
TENSORS = ((1, 16, 16, 16), (1, 64, 8, 8), (1, 16, 32, 32), (1, 9, 5, 7), (1, 32, 6, 6), (1, 8, 48, 48))
POOLS = (
    # channels, height, width, kernel height, width, stride, padding
    *((16, 32, 32, 2, 2, 2, 0), (32, 16, 16, 3, 3, 2, 1), (64, 8, 8, 2, 2, 2, 0), (8, 24, 24, 3, 3, 1, 1)),
    *((64, 8, 8, 8, 8, 1, 0), (64, 25, 5, 25, 5, 1, 0), (256, 3, 3, 3, 3, 1, 0), (10, 20, 20, 4, 4, 4, 0)),
    (12, 7, 7, 7, 7, 1, 0),
)
ROWS = ((1, 10), (4, 100), (16, 16), (64, 32), (1, 1000), (96, 8), (1, 2), (12, 12))
DENSE = (
    # rows, depth, channels
    *((1, 640, 128), (1, 128, 640), (1, 128, 128), (1, 128, 8), (1, 8, 128), (1, 64, 10), (1, 256, 2), (1, 100, 33)),
    *((1, 1000, 16), (64, 64, 64), (49, 30, 50), (16, 128, 32), (5, 24, 96), (100, 16, 24), (30, 96, 20)),
)
PRODUCTS = (
    *((1, 16, 64, 16), (4, 32, 16, 32), (2, 10, 10, 10), (1, 64, 32, 64)),
    *((4, 24, 24, 8), (1, 49, 16, 49), (2, 8, 96, 24), (1, 30, 50, 20)),
)
"""Batch, rows, depth and columns of products of two activations."""
ATTENTIONS = (
    # heads, heads of the caches, positions, elements of a head
    *((4, 2, 128, 16), (8, 8, 128, 8), (8, 2, 64, 32), (1, 1, 64, 64), (4, 4, 32, 24), (6, 2, 256, 16), (4, 1, 96, 48)),
    *((16, 4, 64, 8), (2, 2, 200, 32), (2, 1, 40, 12), (3, 3, 20, 16)),
)
IMAGES = ((3, 96, 96), (3, 32, 32), (2, 40, 25), (4, 24, 24), (8, 20, 20), (6, 64, 48))
"""Planes, height and width of transpositions to pixels, and back."""


@dataclass
class _Net:
    """Independent layers, each from an input of its own to an output of its own."""

    kind: str
    """Of activations: float32, int8 or int16."""
    most: int = 127
    """Of weights' codes."""
    middle: int = 0
    """Their zero point; of uint8 codes if there is one."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, data: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(data, name))
        return name

    def add(self, op: str, *inputs: str, out: str = "", **attributes: object) -> str:
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    @property
    def is_quantized(self) -> bool:
        return self.kind != "float32"

    def scale(self, scale: float | Array, zero: int = 0, kind: str = "") -> tuple[str, str]:
        """Add the scale and the zero point of activations."""
        return self.constant(np.float32(scale)), self.constant(np.full((), zero, kind or self.kind))

    def input(self, shape: Sequence[int]) -> str:
        name = f"x{len(self.inputs)}"
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return self.add("DequantizeLinear", name, *self.scale(0.05)) if self.is_quantized else name

    def weights(self, *shape: int, axis: int = 0) -> list[str]:
        """Add weights and a bias; quantized weights are distributed like trained ones, with one scale per channel."""
        channels = shape[axis]
        if not self.is_quantized:
            arrays = self.random.standard_normal(shape), self.random.standard_normal(channels)
            values = [np.rint(32 * a).clip(-127, 127) / 32 for a in arrays]  # as float16 and int8 kernels ask
            return [self.constant(a.astype(np.float32)) for a in values]
        codes = self.random.normal(0, self.most / 3, shape).round().clip(-self.most, self.most) + self.middle
        codes = codes.clip(0, 255).astype(np.uint8) if self.middle else codes.astype(np.int8)
        scale = (self.random.uniform(0.001, 0.003, channels) * 127 / self.most).astype(np.float32)
        zeros = self.constant(np.full(channels, self.middle, codes.dtype))
        w = self.add("DequantizeLinear", self.constant(codes), self.constant(scale), zeros, axis=axis)
        bias = self.random.integers(-500, 500, channels, np.int32)
        unit = [self.constant(np.float32(0.05) * scale), self.constant(np.zeros(channels, np.int32))]
        return [w, self.add("DequantizeLinear", self.constant(bias), *unit, axis=0)]

    def output(self, y: str) -> None:
        """Add a ReLU and the output, whose lowest int8 value stands for 0.0."""
        self.plain_output(self.add("Relu", y), 0.05, -128 if self.kind == "int8" else 0)

    def plain_output(self, y: str, scale: float = 0.05, zero: int = 0, result: str = "") -> None:
        """Add the output, by default quantized like the inputs."""
        name, kind = f"y{len(self.outputs)}", result or self.kind
        self.add("QuantizeLinear", y, *self.scale(scale, zero, kind), out=name) if self.is_quantized else self.add(
            "Identity", y, out=name
        )
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, None))

    def sums(self, rows: int, depth: int, channels: int) -> None:
        """Add an integer matrix product by constant weights, and its output."""
        x, y = f"x{len(self.inputs)}", f"y{len(self.outputs)}"
        self.inputs.append(helper.make_tensor_value_info(x, onnx.TensorProto.INT8, (rows, depth)))
        codes = self.random.normal(0, 40, (depth, channels)).round().clip(-127, 127).astype(np.int8)
        self.add("MatMulInteger", x, self.constant(codes), out=y)
        self.outputs.append(helper.make_tensor_value_info(y, onnx.TensorProto.INT32, None))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "costs", self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(model)
        for output, found in zip(model.graph.output, inferred.graph.output, strict=True):
            output.CopyFrom(found)
        return model


def convolutions(
    kind: str, shapes: Sequence[tuple[int, ...]] = CONVS, most: int = 127, middle: int = 0
) -> onnx.ModelProto:
    """Return a model of convolutions, padded so that stride 1 keeps the size."""
    net = _Net(kind, most, middle)
    for h, w, c, out, k_h, k_w, stride, groups in shapes:
        pads = [(k_h - 1) // 2, (k_w - 1) // 2, k_h // 2, k_w // 2]
        x = net.input((1, c, h, w))
        net.output(
            net.add("Conv", x, *net.weights(out, c // groups, k_h, k_w), pads=pads, strides=[stride] * 2, group=groups)
        )
    return net.model()


def dense_layers(kind: str) -> onnx.ModelProto:
    """Return a model of dense layers with one row or several; for int8 also with int16 and int32 results."""
    net = _Net(kind)
    for rows, depth, channels in DENSE:
        net.output(net.add("Gemm", net.input((rows, depth)), *net.weights(channels, depth), transB=1))
    for rows, depth, channels in DENSE if kind == "int8" else ():
        y = net.add("Gemm", net.input((rows, depth)), *net.weights(channels, depth), transB=1)
        net.plain_output(y, 0.001, result="int16")
    for rows, depth, channels in DENSE if kind == "int8" else ():
        net.sums(rows, depth, channels)
    return net.model()


def four_bit_layers() -> list[onnx.ModelProto]:
    """Return models of convolutions and dense layers with 4-bit weights; the latter also with int16 results."""
    net = _Net("int8", FOUR_BITS)
    for rows, depth, channels in DENSE:
        net.output(net.add("Gemm", net.input((rows, depth)), *net.weights(channels, depth), transB=1))
    for rows, depth, channels in DENSE:
        y = net.add("Gemm", net.input((rows, depth)), *net.weights(channels, depth), transB=1)
        net.plain_output(y, 0.001, result="int16")
    return [convolutions("int8", most=FOUR_BITS), net.model()]


def nine_bit_layers() -> list[onnx.ModelProto]:
    """Return a model of convolutions with uint8 weights."""
    return [convolutions("int8", most=ABOVE, middle=MIDDLE)]


def two_bit_layers() -> list[onnx.ModelProto]:
    """Return a model of convolutions with 2-bit weights."""
    return [convolutions("int8", most=1)]


def products(kind: str) -> onnx.ModelProto:
    """Return a model of matrix products of two activations."""
    net = _Net(kind)
    for batch, rows, depth, columns in PRODUCTS:
        net.plain_output(net.add("MatMul", net.input((batch, rows, depth)), net.input((batch, depth, columns))))
    return net.model()


def attentions() -> list[onnx.ModelProto]:
    """Return models of attention of one token to full caches of keys and values, in int8 and in floats."""
    models = []
    for kind in ("int8", "float32"):
        net = _Net(kind)
        net.inputs.append(helper.make_tensor_value_info("past", onnx.TensorProto.INT64, (1,)))
        behind = net.add("Max", "past", net.constant(np.array([1 << 30])))
        for heads, groups, positions, size in ATTENTIONS:
            q, k, v = (net.input((1, groups, n, size)) for n in (heads // groups, positions, positions))
            scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]))
            seen = net.add("LessOrEqual", net.constant(np.arange(positions)), behind)
            mask = net.add("Where", seen, net.constant(np.float32(0)), net.constant(np.float32(-1e9)))
            masked = net.add("Add", net.add("Mul", scores, net.constant(np.float32(0.2))), mask)
            net.plain_output(net.add("MatMul", net.add("Softmax", masked, axis=-1), v))
        models.append(net.model())
    return models


def transpositions(kind: str) -> onnx.ModelProto:
    """Return a model that transposes images from channels first to channels last, and back."""
    net = _Net(kind)
    for c, h, w in IMAGES:
        for shape, perm in (((1, c, h, w), (0, 2, 3, 1)), ((1, h, w, c), (0, 3, 1, 2))):
            number, dtype = len(net.inputs), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            net.inputs.append(helper.make_tensor_value_info(f"x{number}", dtype, shape))
            net.add("Transpose", f"x{number}", out=f"y{number}", perm=perm)
            net.outputs.append(helper.make_tensor_value_info(f"y{number}", dtype, None))
    return net.model()


def sums_and_products(kind: str) -> onnx.ModelProto:
    """Return a model of elementwise operators: of two tensors; for int16 also Sigmoid and Tanh."""
    net = _Net(kind)
    for op in ("Add", "Mul", "Max"):
        for shape in TENSORS:
            y = net.add(op, net.input(shape), net.input(shape))
            net.plain_output(y) if op == "Max" else net.output(y)
    for op in ("Sigmoid", "Tanh"):
        for shape in TENSORS[: 4 * (kind == "int16")]:
            net.plain_output(net.add(op, net.input(shape)), 1 / 32768)
    return net.model()


def pools(kind: str) -> onnx.ModelProto:
    """Return a model of maximum and average pooling."""
    net = _Net(kind)
    for op in ("MaxPool", "AveragePool"):
        for c, h, w, k_h, k_w, stride, pad in POOLS:
            sizes = {"kernel_shape": [k_h, k_w], "strides": [stride] * 2, "pads": [pad] * 4}
            net.plain_output(net.add(op, net.input((1, c, h, w)), **sizes))
    return net.model()


def softmaxes(kind: str) -> onnx.ModelProto:
    """Return a model of Softmax over rows."""
    net = _Net(kind)
    for shape in ROWS:
        net.plain_output(net.add("Softmax", net.input(shape), axis=-1), *_PROBABILITIES[kind])
    return net.model()


_PROBABILITIES = {"int8": (1 / 256, -128), "int16": (1 / 32768, 0)}
"""Scale and zero point."""


def transposed_convolutions(kind: str) -> onnx.ModelProto:
    """Return a model of transposed convolutions: unpadded, and padded so that the size grows by the stride."""
    net = _Net(kind)
    for (h, w, c, out, k, stride), auto in product(TRANSPOSED, ("VALID", "SAME_UPPER")):
        weights = net.weights(c, out, k, k, axis=1)
        sizes = {"strides": [stride] * 2, "auto_pad": auto}
        net.output(net.add("ConvTranspose", net.input((1, c, h, w)), *weights, **sizes))
    return net.model()


def one_channel() -> onnx.ModelProto:
    """Return a model of convolutions and transposed convolutions with one output channel."""
    net = _Net("int8")
    for h, w, c, k, stride in ONE_CHANNEL:
        x, pads = net.input((1, c, h, w)), [(k - 1) // 2] * 4
        net.output(net.add("Conv", x, *net.weights(1, c, k, k), pads=pads, strides=[stride] * 2))
    for h, w, c, k, stride in ONE_TRANSPOSED:
        sizes = {"strides": [stride] * 2, "auto_pad": "SAME_UPPER"}
        net.output(net.add("ConvTranspose", net.input((1, c, h, w)), *net.weights(c, 1, k, k, axis=1), **sizes))
    return net.model()


KINDS = ("int8", "int16", "float32")
MIDDLE, ABOVE = 100, 155
"""The zero point of codes of uint8 weights, and how far the largest is above it: beyond int8."""
FOUR_BITS = 7
"""The greatest code of weights."""
DECODED = tuple((4, 4, depth, count, 3, 3, 1, 1) for depth, count in ((16, 16), (24, 24), (32, 32), (24, 40), (16, 48)))
CODED, ROOM = 15, 2**22
"""The greatest of those that a code is much shorter for; and flash enough for all as they are."""


def models(kind: str) -> list[onnx.ModelProto]:
    """Return all models for activations of a type."""
    return [make(kind) for make in (convolutions, dense_layers, products, transposed_convolutions, transpositions)]


def library_models(kind: str) -> list[onnx.ModelProto]:
    """Return all models of layers that a library may have kernels for."""
    more = (sums_and_products, pools, softmaxes)
    return [*models(kind), convolutions(kind, LIBRARY_CONVS), *(make(kind) for make in more)]


def roomy(name: str) -> Board:
    """Return the board with memory for many layers at once; costs depend on its CPU only."""
    board = load_board(name)
    return replace(
        board, memories=tuple(replace(m, size=0x800_0000, origin=i * 0x1000_0000) for i, m in enumerate(board.memories))
    )


MAX_FIT_ERROR = 0.25
"""Of a fit by which a library's kernel is compared with ours, else ours is taken; and of one of cycles, else
instructions count.
"""


@dataclass(frozen=True)
class Observation:
    """A measured layer: its cost terms and what it took."""

    terms: tuple[int, ...]
    instructions: int
    cycles: int | None = None
    """Estimated, without waits for memory; None where the core has no timing."""


@dataclass
class Measured:
    """The measurements of a kernel: layers by variant, and the code of its functions."""

    layers: dict[str, list[Observation]] = field(default_factory=lambda: defaultdict(list))
    code: list[Code] = field(default_factory=list)
    is_compared: bool = False
    """Whether it is measured to compare a library with our own kernels, where none is better than a wrong one."""


Code = tuple[int, int]
"""Bytes of a layer's function and of what it calls: its own, and those that are shared."""

Found = dict[str, tuple[list[tuple[str, Observation]], list[Code]]]
"""By kernel: layers and the ways that they took, and the code of each."""


def observe(model: bytes, board_name: str, kernel: str, code_only: bool = False) -> Found:
    """Measure the layers that one of our kernels computes on a board."""
    is_short = any(SHORT_LOOPS in k.needs for k in declared_kernels() if k.name == kernel)
    options = CompileOptions(name="costs", kernels=(kernel,), optimize="flash" if is_short else "balanced")

    def named(_: CompiledModel, node: Node) -> list[Kernel]:
        return [k for k in own_kernels(node.op) if k.name == kernel]

    return _observed(model, board_name, options, named, code_only)


def observe_decoding(board_name: str, code_only: bool = False) -> Found:
    """Measure the decompression of weights: the difference between layers with and without it."""
    board, model = roomy(board_name), convolutions("int8", DECODED, CODED)
    board = replace(board, cflags=(*board.cflags, "-fno-inline-functions-called-once"))  # all functions have a symbol
    options = CompileOptions(name="costs", optimize="flash")
    compiled, plain = (compile_model(model, board, replace(options, max_flash=most)) for most in (None, ROOM))
    programs = [each.program for each in (compiled, plain)]
    decoded = {i.name: i.operand("y").buffer.nbytes for i in compiled.program.instrs if i.kernel == DECODE_WEIGHTS}
    with tempfile.TemporaryDirectory() as folder:
        build_target(compiled.bundle, board, find_machine(board), Path(folder), hooks=False)
        code = _code_of(compiled, DECODE_WEIGHTS, Path(folder))
    runs = [] if code_only else [
        simulate(each.bundle, board, [random_inputs(each)], per_layer=True) for each in (compiled, plain)
    ]  # fmt: skip
    counts = [
        {program.head(layer).name: n for layer, n in zip(program.layers(), run.layer_instructions or (), strict=True)}
        for program, run in zip(programs, runs, strict=False)
    ]
    same = [name for name in decoded if all(name in count for count in counts)] if counts else []
    terms = {n: tuple({"calls": 1, "weights": decoded[n]}.get(term, 0) for term in TERMS) for n in same}
    return {DECODE_WEIGHTS: ([("", Observation(terms[n], counts[0][n] - counts[1][n])) for n in same], code)}


def observe_own(model: bytes, board_name: str) -> Found:
    """Measure the layers that a library could compute, and whose operator has only one kernel of ours."""

    def alone(compiled: CompiledModel, node: Node) -> list[Kernel]:
        features = compiled.board.features
        own = None if _selectable(node, features) else own_kernel(node, features)
        return [own] if own and any(k.fits(node, features) for k in library_kernels_of(node, CMSIS_NN)) else []

    return _observed(model, board_name, CompileOptions(name="costs"), alone)


def observe_library(model: bytes, board_name: str, library: LibraryFiles) -> Found:
    """Measure the layers that a library computes."""
    options = CompileOptions(name="costs", family=CMSIS_NN, library=library)
    return _observed(model, board_name, options, lambda _, node: list(library_kernels_of(node, CMSIS_NN)))


def _observed(
    model: bytes,
    board_name: str,
    options: CompileOptions,
    kernels: Callable[[CompiledModel, Node], list[Kernel]],
    code_only: bool = False,
) -> Found:
    """Measure the layers that are computed by one of the `kernels` of their node; with `code_only`, run nothing."""
    board = roomy(board_name)
    board = replace(board, cflags=(*board.cflags, "-fno-inline-functions-called-once"))  # all functions have a symbol
    compiled = compile_model(onnx.load_from_string(model), board, options)
    program, nodes = compiled.program, {node.outputs[0].name: node for node in compiled.graph.nodes}
    heads = [program.head(layer) for layer in program.layers()]
    wanted = {node: {k.name: k for k in kernels(compiled, node)} for node in compiled.graph.nodes}
    if not any(head.kernel in wanted[nodes[head.name]] for head in heads if head.name in nodes):
        return {}
    found: dict[str, list[tuple[str, Observation]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        if code_only:
            build_target(compiled.bundle, board, find_machine(board), Path(folder), hooks=False)
            names = {k for each in wanted.values() for k in each} & {head.kernel for head in heads}
            return {name: ([], _code_of(compiled, name, Path(folder))) for name in names}
        sample = random_inputs(compiled)
        run = simulate(
            compiled.bundle,
            board,
            [sample],
            per_layer=True,
            cycles=True,
            setup=Setup(workdir=Path(folder), library=options.library),
        )
        assert run.layer_instructions is not None
        cycles = run.cycles and run.cycles.layers_without_waits
        for head, count, time in zip(heads, run.layer_instructions, cycles or repeat(None, len(heads)), strict=True):
            node = nodes.get(head.name)
            if node is not None and head.kernel in wanted[node]:
                kernel = wanted[node][head.kernel]
                found[kernel.name].append((kernel.way_of(node), Observation(work(node, kernel), count, time)))
        code = {name: _code_of(compiled, name, Path(folder)) for name in found}
    return {name: (layers, code[name]) for name, layers in found.items()}


def _code_of(compiled: CompiledModel, kernel: str, folder: Path) -> list[Code]:
    """Return the code of the functions that a kernel's calls use."""
    elf, library = folder / "model.elf", _library_bytes(compiled, kernel, folder)
    sizes, calls = dict(_functions(elf)), _calls(compiled.board, elf)
    is_own = re.compile(rf"{kernel}(_|\.|$)").match
    outside = [name for caller, names in calls.items() if not is_own(caller) for name in names if is_own(name)]
    found = []
    for name in outside:
        reached = [each for each in _reached(name, calls) if is_own(each) or each.startswith("mcugen_")]
        shared = sum(sizes.get(each, 0) for each in reached if not is_own(each))
        found.append((sum(sizes.get(each, 0) for each in reached) - shared + library, shared))
    return found


def _reached(function: str, calls: Mapping[str, Sequence[str]]) -> set[str]:
    """Return a function and all functions that it calls, directly or not."""
    found, left = {function}, [function]
    while left:
        new = set(calls.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


def _calls(board: Board, elf: Path) -> dict[str, list[str]]:
    """Return the functions that each function calls, or whose addresses it loads, as often as it does."""
    tool = find_machine(board).toolchain.objdump
    text = subprocess.run([tool, "-d", str(elf)], capture_output=True, text=True, check=True).stdout
    places = {int(place, 16): name for place, name in re.findall(r"^([0-9a-f]+) <(\S+)>:$", text, re.M)}
    found: dict[str, list[str]] = defaultdict(list)
    function = ""
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(\S+)>:$", line):
            function = head[1]
        elif word := re.search(r"\.word\t0x([0-9a-f]+)", line):
            found[function] += [places[place] for place in [int(word[1], 16) & ~1] if place in places]
        else:
            found[function] += [name for name in re.findall(r"<([^>+]+)>", line) if name != function]
    return found


def _library_bytes(compiled: CompiledModel, kernel: str, folder: Path) -> int:
    """Return the bytes of the library's functions that a kernel needs."""
    if compiled.options.library is None:
        return 0
    text = compiled.bundle.files[f"{compiled.bundle.name}_kernels.h"]
    bodies = re.findall(rf"^static int {kernel}\w*\([^;]*?\)\n\{{.*?\n}}\n", text, re.M | re.S)
    called = sorted({name for body in bodies for name in re.findall(r"\b(arm_\w+)\(", body)})
    board = compiled.board
    roots = [f"-Wl,-u,{name}" for name in called]
    flags = ("-nostdlib", "-Wl,--gc-sections", "-Wl,--unresolved-symbols=ignore-all", f"-Wl,-e,{called[0]}")
    command = (find_machine(board).toolchain.gcc, *board.cflags, *flags, *roots, "-o", "library.elf")
    archive = str(compiled.options.library.archive_for(board.cpu).resolve())
    subprocess.run([*command, archive], cwd=folder, check=True)
    return sum(size for name, size in _functions(folder / "library.elf") if name.startswith("arm_"))


def _selectable(node: Node, features: frozenset[str]) -> list[str]:
    """Return the names of our kernels that are alternatives for a node."""
    return [k.name for k in own_kernels(node.op) if k.emit and k.fits(node, features)]


def random_inputs(compiled: CompiledModel) -> dict[str, Array]:
    """Return a random sample: integers of the whole range, or standard normal numbers."""
    rng = np.random.default_rng(1)
    return {p.name: random_array(rng, p.shape, p.dtype) for p in compiled.bundle.inputs}


def _functions(elf: Path) -> Iterator[tuple[str, int]]:
    """Yield the names and bytes of all functions of a program."""
    with elf.open("rb") as file:
        for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols():
            if symbol["st_info"]["type"] == "STT_FUNC":
                yield symbol.name, int(symbol["st_size"])


def fit_instructions(layers: Sequence[Observation]) -> tuple[dict[str, float], float]:
    """Return the instructions per cost term, and the largest relative error of the fit."""
    return _fit([o.terms for o in layers], [o.instructions for o in layers])


def fit_cycles(layers: Sequence[Observation]) -> tuple[dict[str, float], float] | None:
    """Return the cycles per cost term, and the largest relative error; None if cycles are unknown."""
    cycles = [o.cycles for o in layers if o.cycles is not None]
    return _fit([o.terms for o in layers], cycles) if len(cycles) == len(layers) else None


def _fit(each: Sequence[tuple[int, ...]], found_counts: Sequence[int]) -> tuple[dict[str, float], float]:
    counts = np.array(found_counts, np.float64)
    terms = np.array(each, np.float64)
    scaled = terms / counts[:, None]
    size = np.maximum(scaled.max(0), 1e-12)
    found, _ = nnls(scaled / size, np.ones(len(counts)))
    per = found / size
    error = float(np.abs(terms @ per / counts - 1).max())
    return {t: float(f"{p:.4g}") for t, p in zip(TERMS, per, strict=True) if p > 0}, error


def kernels_that_fit(model: onnx.ModelProto, board_name: str) -> list[str]:
    """Return the names of our kernels that could compute some layer of a model."""
    graph = import_model(load(model).proto, "costs")
    optimize(graph)
    features = load_board(board_name).features | {SHORT_LOOPS}
    return sorted({name for node in graph.nodes for name in _selectable(node, features)})


def measurable_kernels(features: frozenset[str], only: str = "") -> list[Kernel]:
    """Return our kernels that may be chosen on a CPU and whose names contain `only`."""
    chosen = (k for k in declared_kernels() if k.emit and not k.library and only in k.name)
    return [k for k in chosen if k.needs <= features | {SHORT_LOOPS} and not k.lacks & features]


def models_of_kernels(kernels: Sequence[Kernel], board_name: str) -> Iterator[tuple[Kernel, onnx.ModelProto]]:
    """Yield each kernel with the models in which it fits a layer; with its own example if there are none."""
    fitting = _fitting([model for kind in KINDS for model in models(kind)], board_name)
    others = [
        _fitting(made, board_name)
        for made in ([one_channel()], four_bit_layers(), two_bit_layers(), nine_bit_layers(), attentions())
    ]
    for kernel in kernels:
        found = [model for model, names in fitting if kernel.name in names]
        for other in others:
            found = found or [model for model, names in other if kernel.name in names]
        if not found and kernel.example:
            found = [onnx.parser.parse_model(kernel.example)]
        yield from ((kernel, model) for model in found)


def _fitting(models: Sequence[onnx.ModelProto], board_name: str) -> list[tuple[onnx.ModelProto, list[str]]]:
    return [(model, kernels_that_fit(model, board_name)) for model in models]


def measure(
    board_name: str,
    pool: ProcessPoolExecutor,
    console: Console,
    only: str,
    library: LibraryFiles | None,
    all_own: bool,
    code_only: bool,
) -> dict[str, Measured]:
    """Measure the kernels on a board whose names contain `only`.

    Of our own kernels, these are all if `all_own` is set, else those that are alternatives to a library's.
    """
    own = measurable_kernels(roomy(board_name).features, only) if all_own else []
    jobs = [
        (
            f"{board_name} {kernel.name}",
            False,
            pool.submit(observe, model.SerializeToString(), board_name, kernel.name, code_only),
        )
        for kernel, model in models_of_kernels(own, board_name)
    ]
    for model in [model for kind in ("int8", "int16") if library for model in library_models(kind)]:
        data = model.SerializeToString()
        jobs.append((f"{board_name}, the library", True, pool.submit(observe_library, data, board_name, library)))
        jobs.append((f"{board_name}, against the library", True, pool.submit(observe_own, data, board_name)))
    if all_own and only in DECODE_WEIGHTS:
        jobs.append((f"{board_name} {DECODE_WEIGHTS}", False, pool.submit(observe_decoding, board_name, code_only)))
    found: dict[str, Measured] = defaultdict(Measured)
    for title, is_compared, job in jobs:
        try:
            observed = job.result()
        except McugenError as error:
            console.print(f"[red]{title}: {error}")
            continue
        for kernel, (layers, code) in observed.items():
            if only in kernel:
                for way, layer in layers:
                    found[kernel].layers[way].append(layer)
                found[kernel].code += code
                found[kernel].is_compared = is_compared
    for kernel in own:
        if kernel.name not in found:
            console.print(f"[red]{board_name}: no layer takes {kernel.name}: add one, or an example to the kernel")
    return found


def write_costs(cpu: str, by_core: dict[str, dict[str, Measured]], console: Console) -> None:
    """Update the table of a CPU; instructions are those of its first core. Other kernels keep their entries."""
    found = next(iter(by_core.values()))
    for measured in found.values() if cpu in STAND_INS else ():
        for way, layers in measured.layers.items():
            measured.layers[way] = [replace(o, instructions=o.cycles or o.instructions, cycles=None) for o in layers]
    path = COSTS / f"{cpu}.json"
    table = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    kernels = table.get("kernels", {})
    for kernel, measured in found.items():
        ways = {}
        for way, layers in sorted(measured.layers.items()):
            per, error = fit_instructions(layers)
            is_good = error <= MAX_FIT_ERROR or not measured.is_compared
            ways |= {way: per} if is_good else {}
            told = f"{len(layers)} layers, error {error:.0%}{'' if is_good else ', too large'}, {per}"
            console.print(f"{cpu} {kernel} {way}: {told}")
        kernels.pop(kernel, None)
        if not ways:
            continue
        code = _as_stored(measured.code)
        kernels[kernel] = code | ({"instructions": ways[""]} if ways.keys() == {""} else {"ways": ways})
        if cycles := cycles_of(kernel, by_core, ways.keys(), console):
            kernels[kernel]["cycles"] = cycles
        console.print(f"{cpu} {kernel}: {code}")
    COSTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({**table, "kernels": kernels}, indent=1, sort_keys=True) + "\n", "utf-8")


def write_code(cpu: str, found: dict[str, Measured], console: Console) -> None:
    """Update the bytes of code in the table of a CPU, for kernels whose instructions are known."""
    path = COSTS / f"{cpu}.json"
    table = json.loads(path.read_text("utf-8"))
    kernels = table["kernels"]
    for kernel, measured in found.items():
        if kernel in kernels and measured.code:
            before, code = kernels[kernel]["code"], _as_stored(measured.code)
            kernels[kernel] = {key: each for key, each in kernels[kernel].items() if key != "shared"} | code
            console.print(f"{cpu} {kernel}: {code}, was {before}")
    path.write_text(json.dumps({**table, "kernels": kernels}, indent=1, sort_keys=True) + "\n", "utf-8")


def _as_stored(codes: Sequence[Code]) -> dict[str, int]:
    """Return the medians of a kernel's own and shared bytes, as the table stores them."""
    own, shared = (round(float(np.median(each))) for each in zip(*codes, strict=True)) if codes else (0, 0)
    return {"code": own} | ({"shared": shared} if shared else {})


def cycles_of(
    kernel: str, by_core: dict[str, dict[str, Measured]], ways: Collection[str], console: Console
) -> dict[str, dict[str, dict[str, float]]]:
    """Return cycles by core, variant and cost term, for the variants whose instructions are known."""
    cycles: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for core, found in by_core.items():
        for way, layers in sorted(found[kernel].layers.items() if kernel in found else ()):
            fit = fit_cycles(layers) if way in ways else None
            if fit is None:
                continue
            is_good = fit[1] <= MAX_FIT_ERROR
            cycles[core] |= {way: fit[0]} if is_good else {}
            console.print(
                f"{core} {kernel} {way}: cycles, error {fit[1]:.0%}{'' if is_good else ', too large'}, {fit[0]}"
            )
    return dict(cycles)


def _library_option(what: str) -> Any:
    """Return Typer's option that names a part of CMSIS-NN, with the help of `mcugen report`."""
    return typer.Option(help=find_option(f"cmsis-nn-{what}", "report").description)


def main(
    cpu: Annotated[list[str] | None, typer.Option(help="only these CPUs")] = None,
    kernel: Annotated[str, typer.Option(help="only kernels whose names contain this")] = "",
    library_only: Annotated[
        bool, typer.Option("--library-only", help="only the library, and what stands against it alone")
    ] = False,
    code_only: Annotated[bool, typer.Option("--code-only", help="only bytes of code; nothing is run")] = False,
    cmsis_nn_include: Annotated[Path | None, _library_option("include")] = None,
    cmsis_nn_lib: Annotated[Path | None, _library_option("lib")] = None,
) -> None:
    """Measure the kernels and write the tables of the CPUs."""
    console = Console(stderr=True, width=200)
    unknown = sorted(set(cpu or []) - set(BOARDS))
    if unknown:
        raise UsageError("--cpu must be known", ", ".join(unknown), f"one of: {', '.join(BOARDS)}")
    library = library_files(cmsis_nn_include, cmsis_nn_lib)
    with ProcessPoolExecutor(2) as pool:
        for name in cpu or BOARDS:
            given = library if library is not None and library.archive_for(name).is_file() else None
            boards = (BOARDS[name], *(() if code_only else OTHER_CORES.get(name, ())))
            measured = {
                load_board(board).core: measure(board, pool, console, kernel, given, not library_only, code_only)
                for board in boards
            }
            if code_only:
                write_code(name, next(iter(measured.values())), console)
            else:
                write_costs(name, measured, console)


if __name__ == "__main__":
    typer.run(main)
