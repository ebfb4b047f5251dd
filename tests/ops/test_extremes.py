# SPDX-License-Identifier: Apache-2.0
"""Integer kernels at both ends of their parameters: zero points, factors from far below 1 to far above.

What C computes may depend on the types of a kernel's parameters, and those on values (`param_dtype`): every kernel is
built with all warnings as errors, and its plain C runs under the sanitizers, with parameters that models rarely have.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundle_batch import combine
from compilers import STRICT
from kernel_extremes import extremes_of, samples_of, trained_values
from measure_costs import kernels_that_fit
from onnx_models import Feeds, Net, assert_close
from portable_models import portable_models
from shared_models import roomy

from mcugen.codegen.literals import c_param
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.lir.program import Wide, param_dtype
from mcugen.simulation import Setup, simulate
from mcugen.simulation.toolchain import ARM, RISCV, Toolchain

Write = Callable[[Net, str], str]

ZEROS = (-128, -1, 0, 127)
SCALES = (1e-7, 0.004, 0.0079, 0.015, 1.0, 1e5)
"""Of results: all saturate, multipliers on both sides of a power of two, all are the zero point."""
PROBABILITIES = (1 / 512, 1 / 256, 0.0079, 0.015, 0.3)
"""Of results of a softmax or its logarithm: others are computed in floats."""
SHAPE = (1, 4, 5, 5)
BATCH = 12
"""Models of a program."""
RELATIVE = 1e-4
"""Of reals, whose sums are taken in another order."""
PARTS = 24


def _numbers(*shape: int, dtype: type = np.int8) -> np.ndarray:
    limits = np.iinfo(dtype)
    found = np.random.default_rng(len(shape)).integers(-128, 128, shape).astype(dtype)
    found.reshape(-1)[:2] = limits.max, limits.min
    return found


def _conv(kernel: int, group: int = 1, stride: int = 1) -> Write:
    def write(net: Net, x: str) -> str:
        weights = net.dequantize(net.const(_numbers(4, SHAPE[1] // group, kernel, kernel), np.int8), 0.01)
        return net.op("Conv", x, weights, pads=[kernel // 2] * 4, group=group, strides=[stride] * 2)

    return write


def _dense(net: Net, x: str) -> str:
    flat = net.op("Reshape", x, net.const([5, 20], np.int64))
    return net.op("Gemm", flat, net.dequantize(net.const(_numbers(7, 20), np.int8), 0.01), transB=1)


def _product(net: Net, x: str) -> str:
    return net.op("MatMul", x, net.op("Transpose", x, perm=[0, 1, 3, 2]))


def _again(net: Net, x: str) -> str:
    """The same real numbers in codes of another scale."""
    return net.fake(x, 0.043, 5)


WRITES: dict[str, Write] = {
    "conv": _conv(3),
    "pointwise conv": _conv(1),
    "depthwise conv": _conv(3, 4),
    "depthwise conv of stride 2": _conv(3, 4, 2),
    "depthwise conv of 5 x 5": _conv(5, 4),
    "transposed conv": lambda net, x: net.op(
        "ConvTranspose", x, net.dequantize(net.const(_numbers(4, 3, 2, 2), np.int8), 0.01), strides=[2, 2]
    ),
    "dense": _dense,
    "product": _product,
    "sum": lambda net, x: net.op("Add", x, _again(net, net.op("Neg", x))),
    "product of elements": lambda net, x: net.op("Mul", x, _again(net, x)),
    "greatest": lambda net, x: net.op("MaxPool", x, kernel_shape=[2, 2]),
    "mean of windows": lambda net, x: net.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "mean": lambda net, x: net.op("GlobalAveragePool", x),
    "sum of axis": lambda net, x: net.op("ReduceSum", x, net.const([2], np.int64)),
    "softmax": lambda net, x: net.op("Softmax", x, axis=-1),
    "softmax of channels": lambda net, x: net.op("Softmax", x, axis=1),
    "logarithm of softmax": lambda net, x: net.op("LogSoftmax", x, axis=-1),
    "concatenation": lambda net, x: net.op("Concat", x, _again(net, x), axis=1),
    "resize": lambda net, x: net.op("Resize", x, "", net.const([1.0, 1.0, 1.5, 2.0]), mode="linear"),
    "layer normalization": lambda net, x: net.op("LayerNormalization", x, net.const(np.ones(5))),
    "leaky relu": lambda net, x: net.op("LeakyRelu", x, alpha=0.3),
    "tanh": lambda net, x: net.op("Tanh", x),
    "clip": lambda net, x: net.op("Clip", x, net.const(-0.5), net.const(0.7)),
}


def model_of(name: str, dtype: type) -> onnx.ModelProto:
    """The operator at both ends of everything: each scale of results with each zero point, those of inputs in turn."""
    net = Net(opset=17 if dtype is np.int8 else 21)
    zeros, step = (ZEROS, 0.021) if dtype is np.int8 else ((0,), 0.00017)
    for number, (scale, zero) in enumerate(product(PROBABILITIES if "softmax" in name else SCALES, zeros)):
        x = net.input(f"x{number}", *SHAPE, dtype=dtype)
        real = WRITES[name](net, net.dequantize(x, step, zeros[number % len(zeros) - 1], dtype))
        net.output(net.quantize(real, scale, zero, dtype, out=f"y{number}"), dtype=dtype)
    return net.model(name)


def compiled(name: str, dtype: type, board: str, kernel: str = "") -> CompiledModel:
    title = "".join(filter(str.isalnum, f"{name}{dtype.__name__}{kernel}"))
    optimize = "flash" if kernel.endswith("_short") else "balanced"
    options = CompileOptions(name=title, kernels=(kernel,) if kernel else (), optimize=optimize)
    return compile_model(model_of(name, dtype), roomy(board), options)


def check(models: Sequence[CompiledModel]) -> None:
    """Plain C under the sanitizers gives what numpy does: of random codes, of the least and of the greatest."""
    check_samples([(model, _samples(model)) for model in models], load_board("host"))


def check_samples(models: Sequence[tuple[CompiledModel, Sequence[Feeds]]], board: Board) -> None:
    """One program of all models gives for each sample what numpy does; on this computer it is sanitized."""
    joined = [
        {f"{model.bundle.name}/{name}": array for model, samples in models for name, array in samples[number].items()}
        for number in range(len(models[0][1]))
    ]
    bundle = combine([model.bundle for model, _ in models])
    outputs = simulate(bundle, board, joined, measure=False, setup=Setup(sanitize=board.name == "host")).outputs
    for model, samples in models:
        sizes = {symbol.output for symbol in model.program.symbols}
        for sample, output in zip(samples, outputs, strict=True):
            wanted = {name: array for name, array in model.interpret(sample).items() if name not in sizes}
            found = {name: output[f"{model.bundle.name}/{name}"] for name in wanted}
            assert_close(found, wanted, RELATIVE)


def _samples(model: CompiledModel) -> list[dict[str, np.ndarray]]:
    ports = [(e.name, e.shape, e.dtype.numpy, e.dtype.limits) for e in model.program.inputs]
    random = np.random.default_rng(0)
    return [
        {name: random.integers(low, high + 1, shape).astype(dtype) for name, shape, dtype, (low, high) in ports},
        *({name: np.full(shape, limits[end], dtype) for name, shape, dtype, limits in ports} for end in (0, 1)),
    ]


def compile_strictly(models: Sequence[CompiledModel], command: Sequence[str], folder: Path) -> None:
    for model in models:
        source = [
            f"{model.bundle.name}.c",
            "-std=c99",
            "-O2",
            "-c",
            "-o",
            "model.o",
        ]  # some warnings need the optimizer
        place = model.write(folder / model.bundle.name)
        done = subprocess.run([*command, *STRICT, *source], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize(("part", "dtype"), [(0, np.int8), (1, np.int16)])
def test_on_the_host(part: int, dtype: type, tmp_path: Path) -> None:
    """Half of the operators each; the sweep has every kernel on every board."""
    models = [compiled(name, dtype, "host") for name in list(WRITES)[part::2]]
    check(models)
    if shutil.which("clang"):
        compile_strictly(models, ["clang"], tmp_path)


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize(("part", "board"), [*enumerate(["rp2040", "nrf52840", "corstone300"])])
def test_for_arm(part: int, board: str, tmp_path: Path) -> None:
    """A third of the operators each, of int8 and int16 in turn; the sweep has every kernel on every board."""
    turns = enumerate(list(WRITES)[part::3])
    models = [compiled(name, (np.int8, np.int16)[number % 2], board) for number, name in turns]
    compile_strictly(models, [ARM.gcc, *load_board(board).cflags], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize(
    ("board", "toolchain"),
    [
        *(pytest.param(b, ARM, marks=pytest.mark.qemu) for b in ("rp2040", "stm32f103", "nrf52840", "corstone300")),
        pytest.param("rv32imafc", RISCV, marks=pytest.mark.riscv),
    ],
)
def test_every_kernel_that_fits(board: str, toolchain: Toolchain, dtype: type, tmp_path: Path) -> None:
    kernels = {name: kernels_that_fit(model_of(name, dtype), board) for name in WRITES}
    models = [compiled(name, dtype, board, kernel) for name, fitting in kernels.items() for kernel in fitting]
    compile_strictly(models, [toolchain.gcc, *toolchain.library, *load_board(board).cflags], tmp_path)
    for start in range(0, len(models), BATCH):
        check(models[start : start + BATCH])


def extremes(part: int, *boards: str) -> list[tuple[CompiledModel, list[Feeds]]]:
    """A share of the models that take every declared kernel, if they are made for one of the boards; with samples."""
    chosen = [p for p in portable_models()[part::PARTS] if p.model.board.name in boards or not boards]
    return [(model, samples_of(portable, model)) for portable in chosen for model in extremes_of(portable)]


@pytest.mark.spread(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_declared_kernel(part: int) -> None:
    """What runs here of a kernel with assembly is its twin."""
    check_samples(extremes(part), load_board("host"))


@pytest.mark.spread(PARTS)
@pytest.mark.qemu
@pytest.mark.parametrize("part", range(PARTS))
def test_every_declared_kernel_on_a_cortex_m4(part: int) -> None:
    check_samples(extremes(part, "nrf52840"), roomy("nrf52840"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "board",
    [
        *(pytest.param(b, marks=pytest.mark.qemu) for b in ("rp2040", "stm32f103", "corstone300")),
        pytest.param("esp32c3", marks=pytest.mark.riscv),
    ],
)
def test_every_declared_kernel_on_other_cpus(board: str) -> None:
    check_samples([found for part in range(PARTS) for found in extremes(part, board)], roomy(board))


@pytest.mark.slow
def test_ends_are_reached() -> None:
    """Zero points lie at both ends of int8, and no kernel has the same offsets, factors and shifts in all models."""
    values = trained_values([model for part in range(PARTS) for model, _ in extremes(part)])
    for kernel, members in values.items():
        for name in ZERO_POINTS & members.keys():
            is_code = max(abs(number) for number in members[name]) <= 128
            assert members[name] >= {-128, 127} or members[name] == {0} or not is_code, f"{kernel}.{name}"
    met = {kernel: [members[name] for name in members.keys() - LIMITS] for kernel, members in values.items()}
    same = {kernel for kernel, found in met.items() if found and all(len(numbers) == 1 for numbers in found)}
    assert same == {"log_softmax_s16"}  # which is for one scale


ZERO_POINTS = {"x_zero_point", "a_zero_point", "b_zero_point", "y_zero_point", "zero_point"}
"""Members of parameters' structs; elsewhere zero points are parts of offsets."""
LIMITS = {"low", "high"}


@pytest.mark.parametrize("name", ["pointwise conv", "dense"])
def test_an_odd_last_pixel_in_place_by_the_twins_of_helium(name: str) -> None:
    """25 pixels, whose results lie over them."""
    check([compiled(name, np.int8, "corstone300")])


def test_a_wide_parameter_has_64_bits_whatever_its_value() -> None:
    """`p->offset >> 32` of a product whose results have zero point -1: the offset fits 32 bits there."""
    program = compiled("product", np.int8, "host").program
    offsets = [i.params["requantize_offset"] for i in program.instrs if i.kernel == "matmul_s8"]
    assert any(-(2**31) <= offset < 2**31 for offset in offsets)
    assert {param_dtype(offset) for offset in offsets} == {DType.INT64}
    assert [c_param(Wide(v)) for v in (5, -(2**31), 2**40)] == [
        "INT64_C(5)",
        "INT64_C(-2147483648)",
        "INT64_C(1099511627776)",
    ]
