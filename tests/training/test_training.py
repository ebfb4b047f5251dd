# SPDX-License-Identifier: Apache-2.0
"""Models that are made to learn where they run: the same weights as in numpy, errors that keep the state."""

from __future__ import annotations

import subprocess
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from compilers import assert_accepted
from device import DIVERGED, OK, RATE, TARGET, Device
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.codegen.render import STATE_MARK
from mcugen.core.board import load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import GOALS, CompileOptions, Training
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.driver.variants import Variants
from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.lir.program import STOP, Access, Space, aligned
from mcugen.ops.onnx_node import Refusal
from mcugen.search.trace import SearchTrace
from mcugen.training.layers import layer_name, trainable_layers

RNG = np.random.default_rng(7)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """For each test, whichever ran before it."""
    RNG.bit_generator.state = START


def perceptron(softmax: bool = True) -> onnx.ModelProto:
    """Two dense layers with an activation between them."""
    rng, net = np.random.default_rng(1), Net()
    net.input("x", 1, 6)
    hidden = net.op("Relu", net.op("Gemm", "x", net.const(rng.normal(0, 0.5, (6, 8))), net.const(rng.normal(size=8))))
    scores = net.op("Gemm", hidden, net.const(rng.normal(0, 0.5, (8, 5))), net.const(rng.normal(size=5)))
    net.output(net.op("Softmax", scores) if softmax else scores)
    return net.model()


def convolutional(quantized: bool = False) -> onnx.ModelProto:
    """A convolution, a depthwise and a pointwise one, a mean, a dense layer; perhaps with codes in between."""
    rng, net = np.random.default_rng(2), Net()

    def codes(x: str, scale: float) -> str:
        return net.fake(x, scale) if quantized else x

    def weights(*shape: int) -> str:
        return codes(net.const(rng.normal(0, 0.4, shape)), 0.01)

    net.input("x", 1, 2, 8, 8)
    x = net.op(
        "Relu",
        net.op(
            "Conv",
            codes("x", 0.02),
            weights(4, 2, 3, 3),
            net.const(rng.normal(size=4)),
            strides=[2, 2],
            pads=[1, 1, 1, 1],
        ),
    )
    x = net.op(
        "Relu",
        net.op("Conv", codes(x, 0.05), weights(4, 1, 3, 3), net.const(rng.normal(size=4)), group=4, pads=[1, 1, 1, 1]),
    )
    x = net.op("Relu", net.op("Conv", codes(x, 0.05), weights(6, 4, 1, 1), net.const(rng.normal(size=6))))
    x = net.op("Flatten", net.op("GlobalAveragePool", codes(x, 0.05)))
    scores = net.op("Gemm", codes(x, 0.05), weights(6, 3), net.const(rng.normal(size=3)))
    net.output(net.op("Softmax", codes(scores, 0.05)))
    return net.model()


def recurrent(op_type: str, gates: int) -> onnx.ModelProto:
    """A dense layer of each step, a recurrent one, and a dense one of its last state."""
    rng, net, hidden = np.random.default_rng(3), Net(), 6
    net.input("x", 1, 5, 3)
    front = net.op("MatMul", "x", net.const(rng.normal(0, 0.5, (3, 4))))
    front = net.op("Tanh", net.op("Add", front, net.const(rng.normal(size=4))))
    steps = net.op("Transpose", front, perm=[1, 0, 2])
    rows = gates * hidden
    weights = [net.const(rng.normal(0, 0.4, shape)) for shape in ((1, rows, 4), (1, rows, hidden), (1, 2 * rows))]
    _, last = net.ops(op_type, steps, *weights, outs=["all", "last"], hidden_size=hidden)
    last = net.op("Reshape", last, net.const([1, hidden], np.int64))
    net.output(net.op("Gemm", last, net.const(rng.normal(0, 0.5, (hidden, 4))), net.const(rng.normal(size=4))))
    return net.model()


def deep() -> onnx.ModelProto:
    """Four convolutions of which each result is kept for the gradients."""
    rng, net = np.random.default_rng(5), Net()
    x, channels = net.input("x", 1, 2, 12, 12), 2
    for _ in range(4):
        weights, bias = net.const(rng.normal(0, 0.3, (4, channels, 3, 3))), net.const(rng.normal(size=4))
        x, channels = net.op("Tanh", net.op("Conv", x, weights, bias, pads=[1, 1, 1, 1])), 4
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.op("Gemm", x, net.const(rng.normal(size=(4, 3))), net.const(rng.normal(size=3))))
    return net.model()


def learning(model: onnx.ModelProto, layers: str, loss: str = "cross-entropy", optimizer: str = "sgd") -> CompiledModel:
    return compile_model(model, "host", CompileOptions(training=Training(layers, loss, optimizer)))


def lessons(model: CompiledModel, count: int, rate: float = 0.05) -> list[dict[str, Array]]:
    """Samples with targets."""
    lesson = model.bundle.lesson
    assert lesson is not None
    found = []
    for index in range(count):
        sample = {e.name: RNG.normal(size=e.shape).astype(np.float32) for e in model.program.inputs}
        real = RNG.normal(size=lesson.target.shape).astype(np.float32)
        target = np.asarray([index % lesson.classes], np.int32) if lesson.classes else real
        found.append({**sample, "target": target, "rate": np.full(lesson.rate.shape, rate, np.float32)})
    return found


@pytest.mark.spread(5)
@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "mae", "huber"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_losses_and_optimizers_in_c_are_those_of_the_reference(loss: str, optimizer: str) -> None:
    model = learning(perceptron(loss == "cross-entropy"), "last:2", loss, optimizer)
    given = lessons(model, 6)
    found = model.simulate(given, measure=False, sanitize=True).outputs
    for here, there in zip(found, model.reference(given), strict=True):
        for name in here:
            np.testing.assert_allclose(here[name], there[name], rtol=1e-4, atol=1e-5)


@pytest.mark.spread(3)
@pytest.mark.parametrize("layers", ["last:1", "last:2", "last:3", "last:4", "bias", "last:1,bias:2"])
@pytest.mark.parametrize("quantized", [False, True])
def test_any_layers_of_a_network_learn(layers: str, quantized: bool) -> None:
    model = learning(convolutional(quantized), layers)
    given = [lesson | {"target": np.asarray([1], np.int32)} for lesson in lessons(model, 1, 0.02) * 12]
    found = model.simulate(given, measure=False, sanitize=True).outputs
    losses = [float(o["loss"][0]) for o in found]
    assert losses[-1] < 0.9 * losses[0]
    for here, there in zip(found[:3], model.reference(given[:3]), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


@pytest.mark.spread(4)
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("layers", ["last:2", "last:3", "bias"])
def test_recurrent_layers_learn_over_a_window(op_type: str, gates: int, layers: str) -> None:
    model = learning(recurrent(op_type, gates), layers)
    given = [lesson | {"target": np.asarray([1], np.int32)} for lesson in lessons(model, 1) * 15]
    found = model.simulate(given, measure=False, sanitize=True).outputs
    losses = [float(o["loss"][0]) for o in found]
    assert losses[-1] < 0.9 * losses[0]
    for here, there in zip(found[:4], model.reference(given[:4]), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-4)


def test_results_are_computed_again_where_ram_is_short() -> None:
    training = Training("last:5")
    plain = compile_model(deep(), "nrf52840", CompileOptions(training=training))
    ram = int(0.8 * (plain.program.arena_size + plain.program.state_size))
    trace = CompilationTrace(search=SearchTrace())
    short = compile_model(deep(), "nrf52840", CompileOptions(training=training, max_ram=ram), trace)
    assert short.program.arena_size + short.program.state_size <= ram
    assert any(name.endswith(".again") for name in short.bundle.layers)
    assert trace.search is not None
    (recomputed,) = [entry.plan.changes.recomputed for entry in trace.search.entries if entry.is_chosen]
    assert recomputed and all(name.endswith(".again") for name in recomputed)
    host = compile_model(deep(), "host", CompileOptions(training=training, max_ram=ram))
    given = lessons(host, 3)
    for here, there in zip(host.simulate(given, measure=False).outputs, plain.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-4)


def test_no_two_gradients_are_kept_at_once() -> None:
    """Each has become an update before the next one is there."""
    program = learning(deep(), "last:5").program
    spans = []
    for last, update in enumerate(program.instrs):
        writes = [o.buffer for o in update.operands if o.access is not Access.IN and o.buffer.space is Space.STATE]
        for gradient in (o.buffer for o in update.operands if o.buffer.nbytes >= 288 and o.buffer.space is Space.ARENA):
            used = [n for n, instr in enumerate(program.instrs) if any(o.buffer is gradient for o in instr.operands)]
            spans += [(used[0], last)] * bool(writes)
    assert len(spans) == 4
    assert all(end < start for (_, end), (start, _) in pairwise(sorted(spans)))


def test_integer_gradients_that_are_products_are_nowhere_kept() -> None:
    training = Training("last:3", precision="int8")
    program = compile_model(convolutional(quantized=True), "host", CompileOptions(training=training)).program
    sizes = {o.buffer.count for i in program.instrs for o in i.operands if o.buffer.space is Space.ARENA}
    assert 6 * 4 not in sizes
    assert [i.kernel for i in program.instrs].count("descend_codes") == 1


@pytest.mark.parametrize(("precision", "quantized"), [("float32", True), ("int8", False)])
def test_gradients_that_are_products_are_nowhere_kept(precision: str, quantized: bool) -> None:
    """Those of pixelwise convolutions; nor do int8 weights become reals on the way there or back."""
    training = Training("last:3", precision=precision)
    program = compile_model(convolutional(quantized), "host", CompileOptions(training=training)).program
    kept = {
        o.buffer.name: o.buffer for instr in program.instrs for o in instr.operands if o.buffer.space is Space.ARENA
    }
    weights = next(b.buffer.count for b in program.states if b.shape == (6, 4, 1, 1))
    backward = {name: b for name, b in kept.items() if ".backward." in name or ".weights" in name}
    assert backward
    assert all(b.count != weights for b in backward.values())
    assert [i.kernel for i in program.instrs].count("descend") == 1


def test_frozen_codes_stay_codes_on_the_way_back() -> None:
    """The weights of a pixelwise convolution and of a dense layer, with biases trained before them."""
    model = learning(convolutional(quantized=True), "bias")
    products = [node for node in model.graph.nodes if node.op.name == "coded_product"]
    assert len(products) == 2
    assert all(node.input(1).type.dtype is DType.INT8 for node in products)
    given = lessons(model, 3)
    for here, there in zip(model.simulate(given, measure=False).outputs, model.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_product_that_is_no_number_moves_nothing(precision: str, tmp_path: Path) -> None:
    options = CompileOptions(training=Training("last:3", precision=precision))
    device = Device(compile_model(convolutional(), "host", options), tmp_path)
    x, moved = RNG.normal(size=(1, 2, 8, 8)).astype(np.float32), []
    for rate in (1e-3, 3e38):
        for _ in range(3):
            device.train(x, 1, rate)
        weights = [device.learned(e.name) for e in device.model.program.states if e.shape == (6, 4, 1, 1)]
        assert np.isfinite(weights[0].astype(np.float64)).all()
        assert precision == "float32" or np.abs(weights[0].astype(np.int32)).max() <= 127
        moved.append(weights[0].copy())
    assert not np.array_equal(*moved)


@pytest.mark.spread(2)
@pytest.mark.parametrize("layers", ["last:1", "last:2", "last:4"])
@pytest.mark.parametrize("quantized", [False, True])
def test_weights_that_are_kept_as_int8_learn(layers: str, quantized: bool) -> None:
    def trained(precision: str) -> CompiledModel:
        options = CompileOptions(training=Training(layers, precision=precision))
        return compile_model(convolutional(quantized), "host", options)

    model = trained("int8")
    given = [lesson | {"target": np.asarray([1], np.int32)} for lesson in lessons(model, 1, 0.02) * 40]
    found = model.simulate(given, measure=False, sanitize=True).outputs
    losses = [float(o["loss"][0]) for o in found]
    plain = trained("float32")
    wanted = [float(o["loss"][0]) for o in plain.simulate(given, measure=False).outputs]
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, wanted, atol=0.1)
    assert model.program.state_size < plain.program.state_size
    for here, there in zip(found[:5], model.reference(given[:5]), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


def test_steps_of_less_than_a_code_are_not_lost(tmp_path: Path) -> None:
    """A hundred steps that a code has no room for move weights as far as real ones."""
    device, real = (
        Device(compile_model(perceptron(), "host", CompileOptions(training=Training("last:1", precision=p))), folder)
        for p, folder in (("int8", _folder(tmp_path / "int8")), ("float32", _folder(tmp_path / "float32")))
    )
    x, rate = RNG.normal(size=(1, 6)).astype(np.float32), 1e-4
    first = device.learned("weights").astype(np.int32)
    for _ in range(100):
        device.train(x, 2, rate)
        real.train(x, 2, rate)
    moved = device.learned("weights").astype(np.int32) - first
    before = compile_model(perceptron(), "host", CompileOptions(training=Training("last:1"))).program.lesson
    assert before is not None
    (weights,) = (b.data for name, b in before.first.items() if name.endswith("weights"))
    assert weights is not None
    wide = np.abs(weights.reshape(5, 8)).max(1)
    scale = 1.25 * np.maximum(wide, wide.mean()) / 127
    np.testing.assert_allclose(moved, (real.learned("weights") - weights.reshape(5, 8)) / scale[:, None], atol=1.1)
    assert np.abs(moved).max() > 0


BOARDS = ("rp2040", "nrf52840", "stm32h743", "corstone300", "rv32imc")


@pytest.mark.qemu
@pytest.mark.spread(4)
@pytest.mark.parametrize("boards", [BOARDS[:3], BOARDS[3:]], ids="-".join)
@pytest.mark.parametrize(
    ("net", "layers", "loss", "optimizer", "batch"),
    [
        ("convolutions", "last:4", "cross-entropy", "momentum", 1),
        ("residual", "last:1,{3}[0;2],adapter:1:3,bias:4", "huber", "sgd", 1),
        ("pooled", "last:4", "cross-entropy", "sgd", 4),
        pytest.param("dense", "last:3", "cross-entropy", "sgd", 1, marks=pytest.mark.slow),
        pytest.param("dense", "last:2,bias", "mse", "momentum", 3, marks=pytest.mark.slow),
        pytest.param("residual", "last:1,adapter:1:2,bias:3", "huber", "sgd", 1, marks=pytest.mark.slow),
        pytest.param("residual", "{3}[0;2],{2}[1],bias:2", "mae", "sgd", 1, marks=pytest.mark.slow),
    ],
)
def test_integers_learn_the_same_bits_on_every_cpu(
    net: str, layers: str, loss: str, optimizer: str, batch: int, boards: tuple[str, ...]
) -> None:
    """The state after each of 30 steps, as numpy has it. In CI three CPUs have one network, two the other."""
    made = {
        "dense": lambda: coded_perceptron(loss == "cross-entropy"),
        "convolutions": lambda: convolutional(True),
        "pooled": pooled,
    }
    network = made.get(net, residual)()
    named = layers.format(*(layer_name(node) for node in layers_of(network)))
    training, states = Training(named, loss, optimizer, batch, "int8"), []
    for board in ("host", *boards):
        model = compile_model(network, board, CompileOptions(training=training))
        RNG.bit_generator.state = START
        given = lessons(model, 30)
        states.append(model.simulate(given, measure=False).crcs)
        assert len(set(states[-1])) == 30
        assert not any("float32 gradients" in note for note in model.report.notes)
        if board == "host":
            states.append(state_crcs(model, given))
    assert all(found == states[0] for found in states)


def layers_of(model: onnx.ModelProto) -> list[Node]:
    """Those that can be trained."""
    graph = Variants(model, "net", CompileOptions(), load_board("host")).graph({})
    fuse_float(graph)
    return trainable_layers(graph)


def residual() -> onnx.ModelProto:
    """Convolutions with strides, one beside another whose results are added; codes in between; a mean, scores."""
    rng, net = np.random.default_rng(4), Net()

    def conv(x: str, channels: int, depth: int, size: int, **attributes: object) -> str:
        weights = net.fake(net.const(rng.normal(0, 0.4, (channels, depth, size, size))), 0.01)
        return net.op("Conv", x, weights, net.const(rng.normal(0, 0.3, channels)), **attributes)

    x = net.fake(net.input("x", 1, 2, 9, 7), 0.02)
    x = net.fake(net.op("Relu", conv(x, 6, 2, 3, strides=[2, 1], pads=[1, 1, 1, 1])), 0.04, -128)
    beside = net.fake(net.op("Clip", conv(x, 6, 3, 3, group=2, pads=[1, 1, 1, 1]), *limits(net)), 6 / 255, -128)
    x = net.fake(net.op("Add", net.fake(conv(beside, 6, 6, 1), 0.1), x), 0.15)
    x = net.fake(net.op("Relu", conv(x, 5, 6, 3, strides=[2, 2])), 0.2, -128)
    x = net.op("Flatten", net.fake(net.op("GlobalAveragePool", x), 0.15))
    net.output(net.op("Gemm", x, net.fake(net.const(rng.normal(0, 0.4, (5, 4))), 0.01), net.const(rng.normal(size=4))))
    return net.model()


def pooled() -> onnx.ModelProto:
    """Pools whose windows meet, a function, and a gate, between convolutions; codes behind each, a softmax too."""
    rng, net = np.random.default_rng(6), Net()

    def conv(x: str, channels: int, depth: int, size: int) -> str:
        weights = net.fake(net.const(rng.normal(0, 0.5, (channels, depth, size, size))), 0.012)
        made = net.op("Conv", x, weights, net.const(rng.normal(0, 0.3, channels)), pads=[size // 2] * 4)
        return net.fake(made, 0.05)

    x = conv(net.fake(net.input("x", 1, 2, 9, 9), 0.02), 4, 2, 3)
    x = net.fake(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 0.05)
    x = net.fake(net.op("HardSwish", conv(x, 6, 4, 1)), 0.04)
    x = net.fake(net.op("AveragePool", x, kernel_shape=[2, 2], pads=[1, 0, 0, 0]), 0.03)
    gate = net.fake(net.op("GlobalAveragePool", x), 0.02)
    x = net.fake(net.op("Mul", x, net.fake(net.op("HardSigmoid", conv(gate, 6, 6, 1)), 1 / 128)), 0.03)
    x = net.op("Flatten", net.fake(net.op("GlobalAveragePool", x), 0.02))
    weights = net.fake(net.const(rng.normal(0, 0.5, (6, 4))), 0.012)
    x = net.fake(net.op("Gemm", x, weights, net.const(rng.normal(0, 0.3, 4))), 0.03)
    net.output(net.fake(net.op("Softmax", x), 1 / 256, -128))
    return net.model()


def limits(net: Net) -> tuple[str, str]:
    """Those of ReLU6."""
    return net.const(0.0), net.const(6.0)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("layers", "loss"), [("last:3", "mse"), ("bias", "mae"), ("last:1,adapter:1", "huber")])
def test_integers_follow_real_gradients(layers: str, loss: str) -> None:
    """Down the same way as floats, without undefined behaviour."""
    losses = []
    for precision in ("int8", "float32"):
        options = CompileOptions(training=Training(layers, loss, precision=precision))
        model = compile_model(residual(), "host", options)
        RNG.bit_generator.state = START
        given = lessons(model, 1, 0.01) * 30
        found = model.simulate(given, measure=False, sanitize=precision == "int8").outputs
        losses.append([float(o["loss"][0]) for o in found])
    coded, real = losses
    assert real[-1] < 0.7 * real[0]
    np.testing.assert_allclose(coded, real, atol=0.05 * real[0])


def test_integer_steps_point_where_real_ones_do() -> None:
    """Through pools, functions, a gate and a softmax of codes."""
    moved: dict[str, list[Array]] = {}
    for precision in ("float32", "int8"):
        model = compile_model(pooled(), "host", CompileOptions(training=Training("last:4", precision=precision)))
        RNG.bit_generator.state = START
        (given,) = lessons(model, 1, 0.4)
        found = model.interpret({**model.first_states, **given})
        model.simulate([given], measure=False, sanitize=precision == "int8")
        for output, state in model.options.states.items():
            moved.setdefault(state, []).append((found[output] - model.first_states[state].astype(np.float64)).ravel())
    pairs = {name: steps for name, steps in moved.items() if len(steps) == 2}
    assert len(pairs) == 8
    for real, coded in pairs.values():
        assert real @ coded > 0.95 * np.linalg.norm(real) * np.linalg.norm(coded) > 0


def coded_perceptron(softmax: bool = True) -> onnx.ModelProto:
    """Three dense layers with codes in between."""
    rng, net = np.random.default_rng(1), Net()
    x = net.input("x", 1, 6)
    for inputs, outputs, scale in ((6, 8, 0.02), (8, 7, 0.03), (7, 5, 0.02)):
        weights = net.fake(net.const(rng.normal(0, 0.5, (inputs, outputs))), 0.01)
        x = net.op("Gemm", net.fake(x, scale), weights, net.const(rng.normal(0, 0.3, size=outputs)))
        x = net.op("Relu", x) if outputs > 5 else x
    net.output(net.op("Softmax", net.fake(x, 0.05)) if softmax else x)
    return net.model()


def state_crcs(model: CompiledModel, given: list[dict[str, Array]]) -> tuple[int, ...]:
    """CRC-32 of the state as numpy leaves it after each sample, with the mark of a begun state behind it."""
    kept, found = model.first_states, []
    for sample in given:
        results = model.interpret({**kept, **sample})
        kept = {target: results[source] for source, target in model.options.states.items()}
        parts = [kept[state.name].tobytes() for state in model.program.states]
        if model.program.marks_state:
            parts[-1] += bytes(-len(parts[-1]) % 4) + STATE_MARK.to_bytes(4, "little")
        found.append(zlib.crc32(b"".join(part + bytes(aligned(len(part)) - len(part)) for part in parts)))
    return tuple(found)


@pytest.mark.spread(2)
@pytest.mark.parametrize("zero", [0, -100])
def test_integers_learn_what_reals_learn(zero: int) -> None:
    """Classes by a hidden matrix: codes lose little of what floats come to."""
    net, rng = Net(), np.random.default_rng(3)
    hidden = rng.normal(size=(6, 5))
    x = net.fake(net.input("x", 1, 6), 0.02, zero)
    for inputs, outputs in ((6, 12), (12, 5)):
        weights = net.fake(net.const(rng.normal(0, 0.4, (inputs, outputs))), 0.01)
        x = net.op("Gemm", x, weights, net.const(np.zeros(outputs)))
        x = net.fake(net.op("Relu", x), 0.04, -128) if outputs == 12 else x
    net.output(x)
    xs = rng.uniform(-0.5, 2.5, (900, 1, 6)).astype(np.float32)
    classes = np.argmax((xs[:, 0] - 1) @ hidden, -1).astype(np.int32)
    right = {}
    for precision in ("int8", "float32"):
        model = compile_model(net.model(), "host", CompileOptions(training=Training("last:2", precision=precision)))
        rate = np.full(2, 0.05, np.float32)
        given = [{"x": x, "target": c[None], "rate": rate} for x, c in zip(xs[:700], classes, strict=False)] * 2
        runs = [{"x": x} for x in xs[700:]]
        outputs = model.simulate([*given, *runs], measure=False, sanitize=True).outputs[len(given) :]
        guessed = np.asarray([next(iter(o.values())).argmax() for o in outputs])
        right[precision] = float((guessed == classes[700:]).mean())
    assert right["float32"] > 0.7
    assert right["int8"] > right["float32"] - 0.04


@pytest.mark.spread(2)
@pytest.mark.parametrize("rate", [1e-30, 1e10, 3e38])
def test_codes_stay_codes_whatever_the_rate(rate: float, tmp_path: Path) -> None:
    options = CompileOptions(training=Training("last:3", precision="int8"))
    model = compile_model(coded_perceptron(), "host", options)
    device, names = Device(model, tmp_path), [e.name for e in model.program.states if "." in e.name]
    before = {name: device.learned(name).copy() for name in names}
    for _ in range(4):
        device.train(np.full((1, 6), 1.5, np.float32), 1, rate, [0, 1, 0])
    lesson = model.program.lesson
    assert lesson is not None
    for name in names:
        same = np.array_equal(device.learned(name), before[name])
        assert same == (rate < 1 or name.startswith(f"{lesson.layers[1]}."))
        assert name.endswith("bias") or np.abs(device.learned(name).astype(np.int32)).max() <= 127


@pytest.mark.qemu
def test_int8_weights_are_the_same_on_every_cpu() -> None:
    """By float gradients: another code would be another score by far more than floats differ."""
    options = CompileOptions(training=Training("last:2", precision="int8"))
    scores = []
    for board in ("host", "rp2040", "nrf52840", "corstone300"):
        model = compile_model(convolutional(), board, options)
        assert any("float32 gradients" in note for note in model.report.notes)
        RNG.bit_generator.state = START
        given = lessons(model, 40)
        runs = [{"x": given[0]["x"]}, {"x": given[1]["x"]}]
        scores.append(list(model.simulate([*given, *runs], measure=False).outputs[-2:]))
    for there in scores[1:]:
        for a, b in zip(scores[0], there, strict=True):
            for name in a:
                np.testing.assert_allclose(b[name], a[name], atol=1e-6)


def test_weights_are_int8_where_float32_does_not_fit() -> None:
    narrow = CompileOptions(training=Training("last:1", precision="int8"))
    plain = compile_model(perceptron(), "nrf52840", narrow)
    ram = plain.program.arena_size + plain.program.state_size
    training = Training("last:1")
    short = compile_model(perceptron(), "nrf52840", CompileOptions(training=training, max_ram=ram))
    assert any(note.startswith("trained weights are int8") for note in short.report.notes)
    with pytest.raises(DoesNotFitError, match="max-ram"):
        insisting = Training("last:1", precision="float32")
        compile_model(perceptron(), "nrf52840", CompileOptions(training=insisting, max_ram=ram))
    with pytest.raises(UsageError, match="learns by sgd"):
        compile_model(
            perceptron(), "host", CompileOptions(training=Training("last:1", optimizer="adam", precision="int8"))
        )


def test_frozen_layers_stay_integers() -> None:
    model = learning(convolutional(quantized=True), "last:1")
    dtypes = [node.input(0).type.dtype.value for node in model.graph.nodes if node.op.name == "conv"]
    assert dtypes == ["int8"] * 3
    assert [n.op.name for n in model.graph.nodes].count("dequantize") == 1


def test_the_last_layer_learns_what_numpy_learns(tmp_path: Path) -> None:
    model = learning(perceptron(), "last:1")
    device = Device(model, tmp_path)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in perceptron().graph.initializer}
    w1, b1, w2, b2 = (array.astype(np.float64) for array in constants.values())
    for index in range(200):
        x = RNG.normal(size=(1, 6)).astype(np.float32)
        hidden = np.maximum(x @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        error = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        loss = -np.log(error[0, index % 5])
        error[0, index % 5] -= 1
        w2, b2 = w2 - 0.05 * hidden.T @ error, b2 - 0.05 * error[0]
        status, found = device.train(x, index % 5, 0.05)
        assert status == OK and found == pytest.approx(loss, abs=1e-4)
    np.testing.assert_allclose(device.learned("weights"), w2.T, atol=1e-5)
    np.testing.assert_allclose(device.learned("bias"), b2, atol=1e-5)


def test_runs_read_what_was_learned_until_a_reset(tmp_path: Path) -> None:
    model = learning(perceptron(), "last:1")
    device, x = Device(model, tmp_path), RNG.normal(size=(1, 6)).astype(np.float32)
    plain = compile_model(perceptron()).run({"x": x[None]})
    first = device.run(x)
    np.testing.assert_allclose(first, next(iter(plain.values()))[0], rtol=1e-5)
    for _ in range(30):
        device.train(x, 4, 0.2)
    assert device.run(x)[0, 4] > 0.9
    device.reset()
    np.testing.assert_array_equal(device.run(x), first)


def test_judging_learns_nothing(tmp_path: Path) -> None:
    device, x = Device(learning(perceptron(), "last:2"), tmp_path), RNG.normal(size=(1, 6)).astype(np.float32)
    before = device.state.copy()
    assert device.loss(x, 2)[0] == OK
    np.testing.assert_array_equal(device.state, before)


@pytest.mark.parametrize(
    ("x", "target", "rate", "status"),
    [
        (1.0, 5, 0.1, TARGET),
        (1.0, -1, 0.1, TARGET),
        (1.0, 0, -0.1, RATE),
        (1.0, 0, np.nan, RATE),
        (1.0, 0, np.inf, RATE),
        (np.nan, 0, 0.1, DIVERGED),
        (np.inf, 0, 0.1, DIVERGED),
    ],
)
def test_what_cannot_be_learned_keeps_the_state(
    tmp_path: Path, x: float, target: int, rate: float, status: int
) -> None:
    device = Device(learning(perceptron(), "last:2"), tmp_path)
    before = device.state.copy()
    assert device.train(np.full((1, 6), x, np.float32), target, rate)[0] == status
    np.testing.assert_array_equal(device.state, before)


@pytest.mark.spread(4)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("batch", [1, 2])
def test_layers_that_are_frozen_stay_as_they_are(optimizer: str, batch: int, tmp_path: Path) -> None:
    training = Training("last:2", optimizer=optimizer, batch=batch)
    model = compile_model(perceptron(), "host", CompileOptions(training=training))
    device, x = Device(model, tmp_path), RNG.normal(size=(1, 6)).astype(np.float32)
    names = [e.name for e in model.program.states if "." in e.name]
    lesson = model.program.lesson
    assert lesson is not None
    for place, frozen in enumerate(lesson.layers):
        before = {name: device.learned(name).copy() for name in names}
        for _ in range(batch):
            device.train(x, 2, 0.05, [index == place for index in range(2)])
        same = {name: np.array_equal(device.learned(name), old) for name, old in before.items()}
        assert all(is_same for name, is_same in same.items() if name.startswith(f"{frozen}."))
        assert not any(is_same for name, is_same in same.items() if name.endswith("weights") and frozen not in name)


def test_weights_stay_finite_whatever_the_rate(tmp_path: Path) -> None:
    device = Device(learning(perceptron(softmax=False), "last:2", "mse"), tmp_path)
    x = np.full((1, 6), 1e10, np.float32)
    for _ in range(5):
        device.train(x, np.zeros((1, 5), np.float32), 3e38)
    assert np.isfinite(device.learned("weights")).all()


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ("nothing", "must name a layer with weights to train, or be last:N, bias or adapter:RANK"),
        ("last:0", "2 layers"),
        ("last:3", "2 layers"),
        ("", "must name a layer"),
    ],
)
def test_layers_that_are_not_there_are_refused(layers: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        learning(perceptron(), layers)


def test_what_has_no_derivative_is_refused_with_what_has() -> None:
    rng, net = np.random.default_rng(1), Net()
    net.input("x", 1, 6)
    hidden = net.op("Gemm", "x", net.const(rng.normal(size=(6, 8))), net.const(rng.normal(size=8)))
    found = net.op("Det", net.op("Reshape", hidden, net.const([2, 2, 2], np.int64)))
    row = net.op("Reshape", found, net.const([1, 2], np.int64))
    scores = net.op("Gemm", row, net.const(rng.normal(size=(2, 5))), net.const(rng.normal(size=5)))
    net.output(scores)
    assert learning(net.model(), "last:1").bundle.lesson is not None
    with pytest.raises(Refusal, match=r"det.*try: train only what lies behind it"):
        learning(net.model(), "last:2")


def test_classes_need_scores() -> None:
    net = Net()
    net.input("x", 1, 6)
    net.output(
        net.op("Sigmoid", net.op("Gemm", "x", net.const(RNG.normal(size=(6, 4))), net.const(RNG.normal(size=4))))
    )
    with pytest.raises(Refusal, match="must be scores of classes"):
        learning(net.model(), "last:1")


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("model", "layers", "loss", "optimizer"),
    [
        (perceptron(), "last:2", "cross-entropy", "adam"),
        (convolutional(quantized=True), "last:2,bias:3", "cross-entropy", "momentum"),
        (perceptron(softmax=False), "last:1", "huber", "sgd"),
    ],
)
def test_the_self_test_learns_and_no_compiler_warns(
    tmp_path: Path, model: onnx.ModelProto, layers: str, loss: str, optimizer: str
) -> None:
    folder = learning(model, layers, loss, optimizer).write(tmp_path / "model")
    name = "net"
    assert_accepted(folder, *(file.name for file in folder.glob("*.c")))
    (folder / "main.c").write_text(
        f'#include "{name}.h"\nint main(void) {{ return {name}_selftest({name}_default_arena()); }}\n'
    )
    flags = ["-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    subprocess.run(["gcc", *flags, *folder.glob("*.c"), "-o", tmp_path / "main", "-lm"], check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0


@pytest.mark.parametrize("layers", ["last:1", "last:3,bias"])
def test_equal_input_gives_equal_files(layers: str) -> None:
    first, second = (learning(convolutional(quantized=True), layers).bundle.files for _ in range(2))
    assert first == second


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("goal", GOALS)
def test_runs_come_first_whatever_the_goal(goal: str) -> None:
    options = CompileOptions(training=Training("last:3"), optimize=goal)
    model = compile_model(convolutional(quantized=True), "nrf52840", options)
    program, lesson = model.program, model.program.lesson
    assert lesson is not None
    after_run, after_loss = (n for n, instr in enumerate(program.instrs) if instr.kernel == STOP)

    def writes(space: Space) -> list[int]:
        operands = ((n, o) for n, instr in enumerate(program.instrs) for o in instr.operands)
        return [n for n, o in operands if o.buffer.space is space and o.access is not Access.IN]

    assert max(writes(Space.OUTPUT)) < after_run < min(writes(Space.TAKEN))
    assert max(writes(Space.TAKEN)) < after_loss < min(writes(Space.STATE))
    given = lessons(model, 2)
    for here, there in zip(model.simulate(given, measure=False).outputs, model.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


def test_names_of_lessons_may_be_taken() -> None:
    net = Net()
    x, other = net.input("target", 1, 6), net.input("rate", 1, 6)
    weights = net.const(RNG.normal(size=(6, 4)))
    net.output(net.op("Gemm", net.op("Add", x, other), weights, net.const(RNG.normal(size=4)), out="loss"))
    model = learning(net.model(), "last:1")
    lesson = model.bundle.lesson
    assert lesson is not None
    assert not {lesson.target.name, lesson.rate.name, lesson.loss.name} & {"target", "rate", "loss"}
    sample = {name: np.ones((1, 6), np.float32) for name in ("target", "rate")}
    taught = {lesson.target.name: np.asarray([2], np.int32), lesson.rate.name: np.full(1, 0.1, np.float32)}
    first, second, run = model.simulate([sample | taught, sample | taught, sample], measure=False).outputs
    assert second[lesson.loss.name] < first[lesson.loss.name]
    assert set(run) == {"loss"}


@pytest.mark.spread(3)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("layers", ["adapter:1", "adapter:2:1,last:1", "adapter:1:2,bias"])
def test_adapters_begin_as_nothing_and_learn(layers: str, quantized: bool, tmp_path: Path) -> None:
    plain = compile_model(convolutional(quantized))
    model = learning(convolutional(quantized), layers)
    x = RNG.normal(size=(1, 2, 8, 8)).astype(np.float32)
    device, before = Device(model, tmp_path), plain.simulate([{"x": x}], measure=False).outputs[0]
    np.testing.assert_allclose(device.run(x), next(iter(before.values())), atol=0.05 if quantized else 1e-5)
    losses = [device.train(x, 1, 0.05)[1] for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]
    assert {e.name.rpartition(".adapter.")[2] for e in model.program.states} >= {"down", "up"}
    given = lessons(model, 3)
    for here, there in zip(model.simulate(given, measure=False).outputs, model.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


@pytest.mark.spread(2)
@pytest.mark.parametrize("quantized", [False, True])
def test_some_channels_learn_alone(quantized: bool, tmp_path: Path) -> None:
    known = learning(convolutional(quantized), "last:4").program.lesson
    assert known is not None
    first, _, pointwise, last = known.layers
    model = learning(convolutional(quantized), f"{pointwise}[0;3],{last}[1]")
    x = RNG.normal(size=(1, 2, 8, 8)).astype(np.float32)
    device = Device(model, tmp_path)
    losses = [device.train(x, 1, 0.05)[1] for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]
    assert {e.name: e.shape for e in model.program.states} == {
        f"{pointwise}.channels": (2, 4, 1, 1),
        f"{last}.channels": (1, 6),
    }
    given = lessons(model, 3)
    for here, there in zip(model.simulate(given, measure=False).outputs, model.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)
    for wrong in (f"{last}[9]", f"{known.layers[1]}[0]", f"{first}[]"):
        with pytest.raises(UsageError, match="--train"):
            learning(convolutional(quantized), wrong)


@pytest.mark.parametrize("layers", ["adapter:0", "adapter:99", "adapter:1:9"])
def test_adapters_that_make_no_sense_are_refused(layers: str) -> None:
    with pytest.raises(UsageError, match="--train adapter"):
        learning(perceptron(), layers)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_batch_is_a_step_by_the_mean_of_its_gradients(optimizer: str, tmp_path: Path) -> None:
    same = [RNG.normal(size=(1, 6)).astype(np.float32) for _ in range(2)]
    one = Device(learning(perceptron(), "last:1", optimizer=optimizer), _folder(tmp_path / "one"))
    training = Training("last:1", optimizer=optimizer, batch=3)
    three = Device(compile_model(perceptron(), "host", CompileOptions(training=training)), _folder(tmp_path / "three"))
    for x in same:
        before = three.learned("weights").copy()
        one.train(x, 2, 0.05)
        for index in range(3):
            np.testing.assert_array_equal(three.learned("weights"), before)
            three.train(x, 2, 0.05)
            assert index == 2 or np.any(three.learned("weights.sum"))
        np.testing.assert_allclose(three.learned("weights"), one.learned("weights"), rtol=1e-5, atol=1e-6)
        assert not np.any(three.learned("weights.sum"))


@pytest.mark.spread(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_batch_of_integers_is_a_step_by_the_mean_of_its_gradients(optimizer: str, tmp_path: Path) -> None:
    """What is frozen does not count, and nothing moves before the last sample."""
    one, three = (
        Device(compile_model(coded_perceptron(), "host", CompileOptions(training=training)), _folder(tmp_path / name))
        for name, training in (
            ("one", Training("last:2", optimizer=optimizer, precision="int8")),
            ("three", Training("last:2", optimizer=optimizer, batch=3, precision="int8")),
        )
    )
    names = [f"{layer}.{kind}" for layer in layer_names(coded_perceptron())[1:] for kind in ("weights", "bias")]
    for x in [RNG.normal(size=(1, 6)).astype(np.float32) for _ in range(3)]:
        before = [three.learned(name).copy() for name in names]
        one.train(x, 2, 0.5)
        for index in range(3):
            for name, old in zip(names, before, strict=True):
                np.testing.assert_array_equal(three.learned(name), old)
            three.train(x, 2, 0.5)
            assert index == 2 or all(np.any(three.learned(f"{name}.sum")) for name in names)
        for name, old in zip(names, before, strict=True):
            now = three.learned(name).astype(np.int64)
            atol = 1 if name.endswith("weights") else 0.01 * np.abs(now - old).max() + 1
            np.testing.assert_allclose(now, one.learned(name), rtol=0, atol=atol)
            assert not np.any(three.learned(f"{name}.sum"))


def layer_names(model: onnx.ModelProto) -> list[str]:
    """Of those that can be trained."""
    return [layer_name(node) for node in layers_of(model)]


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_pairs_come_together_or_go_apart(tmp_path: Path) -> None:
    """By the loss of the paper, its derivative in numpy."""
    model = learning(perceptron(softmax=False), "last:1", "contrastive")
    device, (x, y) = Device(model, tmp_path), RNG.normal(size=(2, 1, 6)).astype(np.float32)
    other = device.run(x)[0] + np.float32(0.1)
    distance = float(np.sqrt(5) * 0.1)
    for together, loss in ((1, distance**2 / 2), (0, (1 - distance) ** 2 / 2)):
        device.reset()
        target = np.asarray([together, *other], np.float32)
        status, found = device.train(x, target, 0.05)
        assert status == OK and found == pytest.approx(loss, rel=1e-4)
        assert device.loss(x, target)[1] < loss
    far = np.asarray([0, *(device.run(y)[0] + 5)], np.float32)
    before = device.state.copy()
    assert device.train(y, far, 0.05) == (OK, 0)
    np.testing.assert_array_equal(device.state, before)


@pytest.mark.parametrize(("layers", "is_real"), [("last:1", False), ("last:2", True), ("bias", True)])
def test_recurrent_layers_that_learn_stay_real_in_quantized_models(layers: str, is_real: bool) -> None:
    """Those that are trained, or that gradients go through; what stands before them is integers."""
    samples = {"x": RNG.normal(size=(16, 1, 5, 3)).astype(np.float32)}
    quantizing, options = Quantizing(calibration=samples), CompileOptions(training=Training(layers))
    model = Compilation(recurrent("LSTM", 4), options=options, quantizing=quantizing).compiled
    kernels = {instr.kernel for instr in model.program.instrs}
    assert ("lstm" in kernels) == is_real
    given = lessons(model, 1, 0.1) * 4
    found = [float(o["loss"][0]) for o in model.simulate(given, measure=False, sanitize=True).outputs]
    assert found[-1] < found[0]


def test_a_layer_before_a_loop_of_codes_is_refused_with_a_remedy() -> None:
    """No gradient goes through it, which must not pass in silence."""
    samples = {"x": RNG.normal(size=(16, 1, 5, 3)).astype(np.float32)}
    coded = Compilation(recurrent("LSTM", 4), quantizing=Quantizing(calibration=samples)).quantized
    with pytest.raises(Refusal, match="--layer NAME=float32"):
        compile_model(coded.proto, "host", CompileOptions(training=Training("last:2")))


def test_what_changes_by_steps_alone_is_refused() -> None:
    """A layer in front of a rounding would learn nothing, ever."""
    rng, net = np.random.default_rng(1), Net()
    net.input("x", 1, 6)
    hidden = net.op("Gemm", "x", net.const(rng.normal(size=(6, 8))), net.const(rng.normal(size=8)))
    scores = net.op("Gemm", net.op("Floor", hidden), net.const(rng.normal(size=(8, 5))), net.const(rng.normal(size=5)))
    net.output(scores)
    assert learning(net.model(), "last:1").bundle.lesson is not None
    for layers in ("last:2", "bias"):
        with pytest.raises(Refusal, match=r"found: floor.*try: train only what lies behind it"):
            learning(net.model(), layers)


def test_layers_of_other_outputs_are_not_trained() -> None:
    """What is learned from is the first output."""
    rng, net = np.random.default_rng(1), Net()
    net.input("x", 1, 6)
    for size in (5, 3):
        net.output(net.op("Gemm", "x", net.const(rng.normal(size=(6, size))), net.const(rng.normal(size=size))))
    known = learning(net.model(), "bias").graph.lesson
    assert known is not None
    assert len(known.layers) == 1
    with pytest.raises(UsageError, match="1 layers that could be trained"):
        learning(net.model(), "last:2")
