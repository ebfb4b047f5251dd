# SPDX-License-Identifier: Apache-2.0
"""Small models that together use every declared kernel, for CPUs unlike those that mcugen is made for.

Kernels are not listed here. A kernel that computes layers with weights is tried on a pool of layers. Any other kernel
is tried on ONNX's own tests of the operators that name it, and on the example beside its declaration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, islice, product

import numpy as np
import onnx.parser
from onnx_models import Feeds, Net, optimized, random_feeds
from onnx_tests import Case, Compiled, cases, compile_case
from shared_models import roomy
from test_dsp_conv import FourBits, Layers, Tensor, TwoBits
from test_overlaps import ANY_TAPS, Layer, Reals
from test_streamed import Image
from test_training import convolutional

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.kernels.common.declared import kernels_of
from mcugen.kernels.portable import learning
from mcugen.lir.kernel import SHORT_LOOPS, Kernel
from mcugen.lir.spec import own_kernels
from mcugen.ops.onnx_node import BUILT_IN
from mcugen.reporting.kernels import declared_kernels


@dataclass(frozen=True)
class Portable:
    """A compiled model with inputs, and the outputs of the numpy reference."""

    model: CompiledModel
    feeds: Feeds
    expected: Feeds

    @property
    def name(self) -> str:
        """Return the name of the generated files."""
        return self.model.bundle.name

    @property
    def kernels(self) -> set[str]:
        """Return the names of the kernel templates in the generated code."""
        return _kernels(self.model)

    @property
    def has_doubles(self) -> bool:
        """Return whether it computes in float64."""
        return any(b.dtype is DType.FLOAT64 for b in self.model.program.buffers)


def _kernels(model: CompiledModel) -> set[str]:
    return {i.kernel for i in model.program.instrs}


@cache
def portable_models() -> list[Portable]:
    """Return models for all declared kernels but those of libraries and of training; their names differ."""
    lessons = list(kernels_of(learning))  # `learning_model` takes them, which runs in a way of its own
    return models_for([kernel for kernel in declared_kernels() if not kernel.library and kernel not in lessons])


STEPS = 4
"""Number of training steps of a trainable model."""
WEIGHTS = ("float32", "int8", "int8_of_reals")
"""Forms in which a trainable model keeps its weights; `int8_of_reals` is int8 updated by float gradients."""


@cache
def learning_model(precision: str) -> Portable:
    """Return a trainable model whose training step uses the kernels that no inference uses.

    Its `feeds` are one training sample; its `expected` outputs are those of the last of STEPS training steps.

    Args:
        precision: One of WEIGHTS.
    """
    kept, _, of_reals = precision.partition("_")
    model = convolutional(quantized=not of_reals)
    options = CompileOptions(training=Training("last:3,bias", precision=kept), name=f"learns_{precision}")
    compiled = compile_model(model, _board("host"), options)
    names = compiled.bundle.lesson
    assert names is not None
    rate = np.full(names.rate.shape, 0.05, np.float32)
    lesson = random_feeds(model, seed=1) | {names.target.name: np.asarray([1], np.int32), names.rate.name: rate}
    found = compiled.reference([lesson] * STEPS)[-1]
    return Portable(compiled, lesson, {port.name: found[port.name] for port in (*compiled.bundle.outputs, names.loss)})


def models_for(wanted: Sequence[Kernel]) -> list[Portable]:
    """Return models that use these kernels, possibly with further ones.

    Raises:
        AssertionError: No model uses one of the kernels; the message names it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = [*_layers(wanted), *_others()]
        for more in (_examples, _of_onnx):
            taken = set().union(*(p.kernels for p in found))
            found += more([kernel for kernel in wanted if kernel.name not in taken])
    missing = {kernel.name for kernel in wanted}.difference(*(p.kernels for p in found))
    remedy = "add a layer to the pool, or give the kernel's declaration an example"
    assert not missing, f"no small model takes {', '.join(sorted(missing))}: {remedy}"
    return found


@cache
def _others() -> list[Portable]:
    """Return small models that are chosen for no kernel in particular."""
    return [*_quantized(), *_rows()]


def _portable(net: Net, name: str, board: Board | None = None, options: CompileOptions | None = None) -> Portable:
    model = net.model()
    compiled = compile_model(model, board or _board("host"), replace(options or CompileOptions(), name=name))
    return _with_numpy(compiled, random_feeds(model, seed=len(name)))


def _with_numpy(compiled: CompiledModel, feeds: Feeds) -> Portable:
    """Return the model with numpy's outputs, without those that only give sizes of others."""
    sizes = {symbol.output for symbol in compiled.program.symbols}
    found = compiled.interpret(feeds)
    return Portable(compiled, feeds, {name: array for name, array in found.items() if name not in sizes})


# ---------------------------------------------------------------------------------------- layers with weights


@dataclass(frozen=True)
class _Turned:
    """Three planes that become pixels."""

    def add(self, layers: Layers, name: str) -> None:
        """Between an input and an output of codes."""
        x = layers.input(name, (1, 3, 24, 24)).name
        layers.net.output(layers.net.op("Transpose", x, out=name, perm=[0, 2, 3, 1]), dtype=layers.dtype)


def _real(layers: Layers, name: str, shape: tuple[int, ...]) -> str:
    """Add an input and return its real value."""
    x = layers.input(name, shape)
    is_real = np.dtype(layers.dtype).kind == "f"
    return x.name if is_real else layers.net.dequantize(x.name, x.scale, x.zero, layers.dtype)


@dataclass(frozen=True)
class _Product:
    """Of two activations."""

    def add(self, layers: Layers, name: str) -> None:
        """Between inputs and an output of codes, or of reals."""
        a, b = _real(layers, f"{name} a", (2, 5, 7)), _real(layers, f"{name} b", (2, 7, 6))
        y = layers.net.op("MatMul", a, b)
        is_real = np.dtype(layers.dtype).kind == "f"
        y = layers.net.op("Identity", y, out=name) if is_real else layers.net.quantize(y, 0.02, 1, layers.dtype, name)
        layers.net.output(y, dtype=layers.dtype)


@dataclass(frozen=True)
class _WideRow:
    """A layer whose results have 16 bits, with weights of so many steps to both sides."""

    most: int = 35

    def add(self, layers: Layers, name: str) -> None:
        """From an input of codes, or of reals."""
        w = layers.net.dequantize(layers.net.const(np.resize(np.arange(-self.most, self.most), (14, 5)), np.int8), 0.01)
        y = layers.net.op("MatMul", _real(layers, name, (1, 14)), w)
        layers.net.output(layers.net.quantize(y, 0.0005, 0, np.int16, name), dtype=np.int16)


@dataclass(frozen=True)
class _Sums:
    """A product of integers, whose sums are the result."""

    def add(self, layers: Layers, name: str) -> None:
        """From an input of codes, whatever the kind."""
        w = layers.net.const(37 * np.arange(40).reshape(5, 8) % 255 - 127, np.int8)
        x = layers.net.input(f"x_{name}", 3, 5, dtype=np.int8)
        layers.net.output(layers.net.op("MatMulInteger", x, w, out=name), dtype=np.int32)


@dataclass(frozen=True)
class _Enlarged:
    """A transposed convolution that doubles the size of its input."""

    channels: int
    kernel: int

    def add(self, layers: Layers, name: str) -> None:
        """From an input of codes, or of reals."""
        net, codes = layers.net, layers.random.integers(-90, 91, (self.channels, 3, self.kernel, self.kernel))
        w = net.dequantize(net.const(codes, np.int8), 0.01)
        x = _real(layers, name, (1, self.channels, 3, 4))
        y = net.op("ConvTranspose", x, w, strides=[2, 2], auto_pad="SAME_UPPER")
        is_real = np.dtype(layers.dtype).kind == "f"
        y = net.op("Identity", y, out=name) if is_real else net.quantize(y, 0.05, 1, layers.dtype, name)
        net.output(y, dtype=layers.dtype)


_Part = Layer | _Turned | _Product | _WideRow | _Sums | _Enlarged

POOL: Sequence[Sequence[_Part]] = (
    (Layer(4, 5, 3, 5, pads=(1, 1, 1, 1)), Layer(3, 3, 8, 4, (1, 1))),
    (Layer(2, in_c=9, out_c=5, kernel=None),),
    (Layer(1, in_c=24, out_c=6, kernel=None),),
    (Layer(4, 5, 8, 8, pads=(1, 1, 1, 1), group=8),),
    (ANY_TAPS[4],),
    (Layer(5, 5, 8, 8, pads=(1, 1, 1, 1)),),
    (Layer(5, 5, 3, 4, pads=(1, 1, 1, 1)),),
    (Layer(3, 4, 16, 4, pads=(1, 1, 1, 1)),),
    (_Turned(),),
    (_Product(),),
    (_WideRow(),),
    (_WideRow(8),),
    (_Sums(),),
    (_Enlarged(8, 2), _Enlarged(5, 3)),
    (Layer(1, 20, 8, 8, (1, 5), pads=(0, 2, 0, 2), group=8),),
    (Layer(3, 5, 8, 1, pads=(1, 1, 1, 1)), Layer(3, 5, 12, 3, (1, 1))),
    (Layer(1, 20, 8, 8, (1, 3), pads=(0, 1, 0, 1), group=8),),
)
"""Groups of layers, each of which becomes one model: a kernel is tried on the first group with a layer that it fits."""
M0, M3, M4, M55, C3 = "rp2040", "stm32f103", "nrf52840", "corstone300", "esp32c3"
BOARDS = (M4, M0, M3, M55, C3)
"""Boards, one for each family of CPUs."""


class Halves(Reals):
    """A network of float32 layers whose weights are float16 numbers."""

    def layer(self, x: Tensor, weights: np.ndarray, out: str = "", gain: float = 1.0, **attributes: object) -> Tensor:
        """Add a float layer with weights rounded to float16."""
        near = (gain * weights / 64).astype(np.float16).astype(np.float64)
        return super().layer(x, near * 64, out, **attributes)


KINDS = {"s8": Layers, "s16": partial(Layers, np.int16), "f32": Reals, "s4": FourBits, "s2": TwoBits, "f16": Halves}
"""Builders of networks by the types of activations and weights."""


def _layers(wanted: Sequence[Kernel]) -> Iterator[Portable]:
    """Kernels that are one choice of several for a layer, by what they fit."""
    for kernel in wanted:
        for kind, board, layers in product(KINDS, map(_board, BOARDS), POOL):
            fitting = [layer for layer in layers if _fits(kernel, _nodes(kind, layer), board)]
            if fitting:
                net = net_of(kind, fitting)
                goal = "flash" if SHORT_LOOPS in kernel.needs else "balanced"
                options = CompileOptions(kernels=(kernel.name,), optimize=goal)
                yield _portable(net, f"w_{kernel.name}", board, options)
                break


_board = cache(roomy)


@cache
def _nodes(kind: str, layer: _Part) -> list[Node]:
    """A layer of the pool, as kernels see it."""
    return optimized(net_of(kind, [layer]).model()).nodes


def net_of(kind: str, layers: Sequence[_Part]) -> Net:
    """Return a network of layers of the pool, with one kind of weights."""
    model = KINDS[kind]()
    for number, layer in enumerate(layers):
        layer.add(model, f"y{number}")
    return model.net


def _fits(kernel: Kernel, nodes: Sequence[Node], board: Board) -> bool:
    """Whether it may compute one of the nodes on a board's CPU, whatever the goal."""
    features = board.features | {SHORT_LOOPS}
    choices = ((choice, node) for node in nodes for choice in own_kernels(node.op))
    return any(choice.name == kernel.name and choice.fits(node, features) for choice, node in choices)


# ------------------------------------------------------------------------------- ONNX's own tests, and examples

GOALS = ("balanced", "speed")
"""Optimization goals for which models are compiled in search of a kernel."""
TRIES = 30
"""Largest number of ONNX's tests of an operator that are compiled in search of a kernel."""


def _of_onnx(wanted: Sequence[Kernel]) -> Iterator[Portable]:
    """For each kernel the smallest test that takes it, of an operator that names it."""
    numbers, taken = count(), set[str]()
    for kernel in wanted:
        named = {name for (_, name), support in BUILT_IN.support.items() if kernel.name in support.kernels}
        candidates = list(islice((c for c in _tests() if named & set(c.operators)), TRIES))
        for goal, case in product(GOALS, candidates if kernel.name not in taken else ()):
            compiled = compile_case(case, next(numbers), optimize=goal)
            if isinstance(compiled, Compiled) and kernel.name in _kernels(compiled.model):
                taken |= _kernels(compiled.model)
                yield _with_numpy(compiled.model, compiled.sample())
                break


@cache
def _tests() -> list[Case]:
    """Return ONNX's tests of operators, small models first."""
    return sorted((c for c in cases(("node",)) if isinstance(c, Case)), key=_size)


def _size(case: Case) -> tuple[int, int, str]:
    """Of how many operators, and elements."""
    elements = sum(array.size for array in (*case.inputs.values(), *case.outputs.values()))
    return len(case.operators), elements, case.name


def _examples(wanted: Sequence[Kernel]) -> Iterator[Portable]:
    """The models beside the declarations of kernels."""
    taken = set[str]()
    for kernel in wanted:
        if not kernel.example or kernel.name in taken:
            continue
        model = onnx.parser.parse_model(kernel.example)
        board = next(found for found in map(_board, ("host", *BOARDS)) if kernel.needs <= found.features)
        for goal in (*GOALS, "flash"):
            compiled = compile_model(model, board, CompileOptions(name=f"e_{kernel.name}", optimize=goal))
            if kernel.name in _kernels(compiled):
                taken |= _kernels(compiled)
                yield _with_numpy(compiled, random_feeds(model, seed=1))
                break


# ------------------------------------------------------------------------------------------- codes, and rows


def _quantized() -> Iterator[Portable]:
    for name, net in quantized_operators():
        yield _portable(net, name)


def quantized_operators() -> Iterator[tuple[str, Net]]:
    """Yield the name and the network of single int8 and int16 operators."""
    for dtype in (np.int8, np.int16):
        for number, add in enumerate(_OPERATORS):
            net = Net(20)
            y = add(net, partial(_codes, net, dtype))
            net.output(net.quantize(y, *_CODES, dtype, out="y"), dtype=dtype)
            yield f"q{8 * dtype(0).itemsize}_{number}", net


def _codes(net: Net, dtype: type, index: int, *shape: int) -> str:
    """Add a quantized input and return its real value."""
    return net.dequantize(net.input(f"x{index}", *shape, dtype=dtype), *_CODES, dtype)


_CODES = (2.0**-5, 0)
_Input = Callable[..., str]


def _weights(net: Net, *shape: int) -> str:
    return net.dequantize(net.const(np.random.default_rng(3).integers(-127, 128, shape), np.int8), 2.0**-8)


_OPERATORS: list[Callable[[Net, _Input], str]] = [
    lambda net, x: net.op("Add", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("Mul", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("PRelu", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("Max", x(0, 3, 7), x(1, 3, 1)),
    lambda net, x: net.op("Tanh", x(0, 3, 7)),
    lambda net, x: net.op("Softmax", x(0, 3, 7)),
    lambda net, x: net.op("LogSoftmax", x(0, 3, 7)),
    lambda net, x: net.op("MatMul", x(0, 3, 7), x(1, 7, 5)),
    lambda net, x: net.op("MaxPool", x(0, 1, 5, 6, 7), kernel_shape=[3, 2], pads=[1, 0, 1, 0]),
    lambda net, x: net.op("AveragePool", x(0, 1, 5, 6, 7), kernel_shape=[3, 2], strides=[2, 2]),
    lambda net, x: net.op("GlobalAveragePool", x(0, 1, 5, 6, 7)),
    lambda net, x: net.op("ReduceSum", x(0, 3, 7), net.const([1], np.int64)),
    lambda net, x: net.op("Resize", x(0, 1, 2, 3, 4), "", net.const([1, 1, 2, 1.5]), mode="linear"),
    lambda net, x: net.op("ConvTranspose", x(0, 1, 3, 4, 3), _weights(net, 3, 2, 2, 3), strides=[2, 2]),
    lambda net, x: net.op("LayerNormalization", x(0, 3, 8), net.const(np.linspace(0.5, 1.5, 8)), net.const(np.ones(8))),
    lambda net, x: net.op("Transpose", x(0, 1, 3, 4, 5), perm=[0, 2, 3, 1]),
    lambda net, x: net.op("Concat", x(0, 2, 3), x(1, 2, 5), axis=1),
]


def _rows() -> Iterator[Portable]:
    """Layers row by row."""
    for number, has_mean in enumerate((True, False)):
        image = Image(16, 6, 1)
        image = image.conv(4).conv(4, depthwise=True).conv(4) if has_mean else image.conv(6).conv(1, stride=2)
        last = image.net.op("GlobalAveragePool", image.last) if has_mean else image.last
        image.net.output(image.net.quantize(last, 0.05, 0, out="y"), dtype=np.int8)
        yield _portable(image.net, f"rows{number}", options=CompileOptions(optimize="ram"))
