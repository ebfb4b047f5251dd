# SPDX-License-Identifier: Apache-2.0
"""Networks over a window of time become streams: calls give what ONNX Runtime gives for the window that ends there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx_models import Net, onnxruntime_outputs
from shared_models import MODELS

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.hir.types import Array
from mcugen.pipelines.spectrum import Bands
from mcugen.simulation import simulate

numbers = np.random.default_rng(5)
WINDOWS = 3
"""Length of the tested streams, in windows."""


def weights(net: Net, *shape: int) -> str:
    """Add normally distributed constants to a model."""
    return net.const((numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def conv(net: Net, x: str, channels: tuple[int, int], taps: int, pads: tuple[int, int] = (0, 0), **more: object) -> str:
    """Add a Conv1d with a bias."""
    w, b = weights(net, channels[1], channels[0], taps), weights(net, channels[1])
    return net.op("Conv", x, w, b, pads=list(pads), **more)


def sliced(net: Net, x: str, start: int, stop: int, axis: int) -> str:
    """Add a Slice."""
    return net.op("Slice", x, *(net.const([n], np.int64) for n in (start, stop, axis)))


def causal_tcn(net: Net) -> str:
    """Residual blocks with dilations 1 and 2; the last step is read."""
    x = net.input("x", 1, 3, 32)
    y = net.op("Relu", conv(net, x, (3, 8), 3, (2, 0)))
    z = net.op("Add", net.op("Relu", conv(net, y, (8, 8), 3, (4, 0), dilations=[2])), y)
    return net.op("Gemm", net.op("Gather", z, net.const(-1, np.int64), axis=2), weights(net, 8, 4))


def chomp_tcn(net: Net) -> str:
    """PyTorch's causal layers: symmetric padding, and a slice that cuts its end off; all steps are given."""
    y = sliced(net, conv(net, net.input("x", 1, 3, 24), (3, 6), 3, (2, 2)), 0, -2, 2)
    return sliced(net, conv(net, net.op("LeakyRelu", y), (6, 5), 3, (4, 4), dilations=[2]), 0, -4, 2)


def strided_cnn(net: Net) -> str:
    """Strides and pools without padding in front of a mean over time."""
    y = net.op("Relu", conv(net, net.input("x", 1, 2, 40), (2, 6), 4, strides=[2]))
    y = net.op("MaxPool", net.op("Pad", y, net.const([0, 0, 0, 0, 0, 1], np.int64)), kernel_shape=[2], strides=[2])
    return net.op("GlobalAveragePool", sliced(net, y, 0, 9, 2))


def valid_cnn(net: Net) -> str:
    """Layers without padding, and all that is left of the window in a dense layer."""
    y = net.op("Relu", conv(net, net.input("x", 1, 2, 20), (2, 4), 3))
    y = net.op("AveragePool", conv(net, y, (4, 4), 3), kernel_shape=[3], strides=[1])
    return net.op("Gemm", net.op("Flatten", y), weights(net, 4 * 14, 3))


def mean_cnn(net: Net) -> str:
    """A mean over time without padding before it."""
    y = net.op("Relu", conv(net, net.input("x", 1, 4, 18), (4, 8), 5))
    return net.op("Gemm", net.op("Flatten", net.op("GlobalAveragePool", y)), weights(net, 8, 3))


def rows_first(net: Net) -> str:
    """A sequence of rows: dense layers, a normalization, and a convolution between transpositions."""
    x = net.op("MatMul", net.input("x", 1, 16, 5), weights(net, 5, 8))
    x = net.op("LayerNormalization", x, weights(net, 8), weights(net, 8), axis=-1)
    y = net.op("Transpose", conv(net, net.op("Transpose", x, perm=[0, 2, 1]), (8, 8), 3, (2, 0)), perm=[0, 2, 1])
    return net.op("MatMul", net.op("Sigmoid", y), weights(net, 8, 3))


def attention(net: Net) -> str:
    """Attention over the whole window behind layers of single steps."""
    x = net.op("Relu", net.op("MatMul", net.input("x", 1, 12, 5), weights(net, 5, 8)))
    q, k, v = (net.op("MatMul", x, weights(net, 8, 8)) for _ in range(3))
    mask = net.const(np.where(np.tri(12), 0, -1e4).astype(np.float32))
    scores = net.op(
        "Softmax", net.op("Add", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1])), mask), axis=-1
    )
    return sliced(net, net.op("MatMul", scores, v), 11, 12, 1)


def spectrogram(net: Net) -> str:
    """A spectrogram with time before frequency: time without padding, frequency with padding."""
    x = net.input("x", 1, 1, 14, 10)
    y = net.op("Relu", net.op("Conv", x, weights(net, 4, 1, 3, 3), pads=[0, 1, 0, 1]))
    y = net.op("Conv", y, weights(net, 4, 1, 3, 3), group=4, pads=[0, 1, 0, 1], strides=[1, 2])
    return net.op("Gemm", net.op("Flatten", net.op("ReduceMean", y, net.const([2, 3], np.int64))), weights(net, 4, 3))


def lstm(net: Net) -> str:
    """A recurrent layer, which runs over each window, behind a convolution."""
    y = net.op("Transpose", conv(net, net.input("x", 1, 3, 12), (3, 6), 3), perm=[2, 0, 1])
    net.ops("LSTM", y, weights(net, 1, 16, 6), weights(net, 1, 16, 4), outs=["steps", "h"], hidden_size=4)
    return net.op("Identity", "h")


def delta(net: Net) -> str:
    """Differences of steps, and the largest of a pool that reaches back."""
    x = net.input("x", 1, 3, 16)
    y = net.op("Sub", sliced(net, x, 1, 16, 2), sliced(net, x, 0, 15, 2))
    return net.op("MaxPool", net.op("Concat", y, sliced(net, x, 1, 16, 2), axis=1), kernel_shape=[4])


def same_cnn(net: Net) -> str:
    """Symmetric padding: steps come late."""
    y = net.op("Relu", conv(net, net.input("x", 1, 3, 20), (3, 6), 3, (1, 1)))
    return conv(net, y, (6, 2), 5, (2, 2))


def two_outputs(net: Net) -> str:
    """All steps of one layer, and the last steps of another; a constant input besides."""
    x = net.input("x", 1, 3, 16)
    y = conv(net, x, (3, 4), 2, (1, 0))
    net.output(net.op("Tanh", y, out="steps"))
    return net.op(
        "ReduceMax", sliced(net, net.op("Mul", y, weights(net, 1, 4, 1)), 11, 16, 2), net.const([2], np.int64)
    )


def pad_node(net: Net) -> str:
    """Causal padding by a node of its own."""
    y = net.op("Pad", net.input("x", 1, 3, 16), net.const([0, 0, 3, 0, 0, 0], np.int64))
    return net.op("HardSwish", conv(net, y, (3, 5), 4))


def far_taps(net: Net) -> str:
    """Taps so far apart that padding in front of the window hides the first one from the last step."""
    y = conv(net, net.input("x", 1, 3, 8), (3, 4), 4, (9, 0), dilations=[3])
    return net.op("Gather", y, net.const(-1, np.int64), axis=2)


def audio_front(net: Net) -> str:
    """Sound itself: powers by a pair of convolutions, mel bands, logarithms, and a convolution over frames."""
    x = net.input("x", 1, 1, 240)
    angles, window = np.outer(np.arange(17), np.arange(32)) * np.pi / 16, np.hanning(33)[:-1]
    parts = (np.cos(angles) * window, -np.sin(angles) * window)
    re, im = (net.op("Conv", x, net.const(w[:, None]), strides=[8]) for w in parts)
    power = net.op("Add", net.op("Mul", re, re), net.op("Mul", im, im))
    bands = net.op("MatMul", net.const(Bands("mel", 5, 0, 8000).filters(16000, 32).real), power)
    y = net.op("Relu", conv(net, net.op("Log", net.op("Add", bands, net.const(1e-2))), (5, 6), 3))
    return net.op("Gemm", net.op("Flatten", net.op("GlobalAveragePool", y)), weights(net, 6, 3))


def gru(net: Net) -> str:
    """A GRU that is reset behind its recurrent product, behind a convolution."""
    y = net.op("Transpose", conv(net, net.input("x", 1, 3, 20), (3, 6), 3), perm=[2, 0, 1])
    recurrent = weights(net, 1, 12, 6), weights(net, 1, 12, 4)
    net.ops("GRU", y, *recurrent, outs=["", "h"], hidden_size=4, linear_before_reset=1)
    return net.op("Squeeze", "h", net.const([0], np.int64))


def depthwise_tcn(net: Net) -> str:
    """Depthwise layers with dilations 1, 2 and 4, and residual sums."""
    y = net.input("x", 1, 6, 20)
    for dilation in (1, 2, 4):
        taps = weights(net, 6, 1, 3)
        z = net.op("Relu", net.op("Conv", y, taps, group=6, dilations=[dilation], pads=[2 * dilation, 0]))
        y = net.op("Add", conv(net, z, (6, 6), 1), y)
    return net.op("Gather", y, net.const(-1, np.int64), axis=2)


def causal_transformer(net: Net) -> str:
    """Causal attention with a residual sum and a normalization, and a mean over time."""
    x = net.input("x", 1, 10, 6)
    q, k, v = (net.op("MatMul", x, weights(net, 6, 6)) for _ in range(3))
    mask = net.const(np.where(np.tri(10), 0, -1e9).astype(np.float32))
    scores = net.op("Add", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1])), mask)
    y = net.op("Add", x, net.op("MatMul", net.op("Softmax", scores, axis=-1), v))
    y = net.op("LayerNormalization", y, weights(net, 6), weights(net, 6), axis=-1)
    return net.op("ReduceMean", y, net.const([1], np.int64), keepdims=0)


def gated_tcn(net: Net) -> str:
    """WaveNet's gates: Tanh times Sigmoid of dilated layers, and residual sums; all steps are given."""
    x = net.input("x", 1, 4, 20)
    for dilation in (1, 3):
        layers = [conv(net, x, (4, 4), 2, (dilation, 0), dilations=[dilation]) for _ in range(2)]
        gates = net.op("Mul", net.op("Tanh", layers[0]), net.op("Sigmoid", layers[1]))
        x = net.op("Add", conv(net, gates, (4, 4), 1), x)
    return x


@dataclass(frozen=True)
class Stream:
    """A network over a window, and numbers of new steps."""

    build: Callable[[Net], str]
    axis: int
    steps: tuple[int, ...] = (1, 2, 5)
    option: int | None = None

    def model(self) -> onnx.ModelProto:
        """Return the window form."""
        net = Net(18)
        net.output(self.build(net))
        return net.model()


STREAMS = {
    stream.build.__name__: stream
    for stream in (
        Stream(causal_tcn, 2, (1, 2, 5, 8)),
        Stream(chomp_tcn, 2),
        Stream(strided_cnn, 2, (4, 8)),
        Stream(valid_cnn, 2),
        Stream(mean_cnn, 2),
        Stream(rows_first, 1),
        Stream(attention, 1),
        Stream(spectrogram, 2),
        Stream(lstm, 2),
        Stream(delta, 2),
        Stream(same_cnn, 2),
        Stream(two_outputs, 2),
        Stream(pad_node, 2),
        Stream(far_taps, 2, (1, 2)),
        Stream(audio_front, 2, (8, 16)),
        Stream(gru, 2),
        Stream(depthwise_tcn, 2),
        Stream(causal_transformer, 1),
        Stream(gated_tcn, 2),
    )
}
CASES = [(name, steps) for name, stream in STREAMS.items() for steps in stream.steps]


def compiled(model: onnx.ModelProto, steps: int, axis: int | None = None) -> CompiledModel:
    return compile_model(model, "host", CompileOptions(stream_steps=steps, stream_axis=axis))


def calls_of(x: Array, steps: int, axis: int) -> list[Array]:
    """Divide a stream into what each call gets."""
    return np.split(x, x.shape[axis] // steps, axis)


@pytest.mark.parametrize(("name", "steps"), CASES)
def test_calls_give_what_windows_give(name: str, steps: int):
    """Outputs of whole windows equal ONNX Runtime's for the last window; steps equal the last steps of that window."""
    stream = STREAMS[name]
    check_stream(stream.model(), steps, stream.axis, stream.option, late=3 if name == "same_cnn" else 0)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", ["pt_tcn_legacy", "streaming_wakeword_f32"])
def test_trained_networks(name: str, steps: int):
    """A TCN that PyTorch exported, and the wake word network of MLPerf Tiny."""
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    check_stream(onnx.load(path), steps, 2)


def check_stream(model: onnx.ModelProto, steps: int, axis: int, option: int | None = None, late: int = 0) -> None:
    """Compare calls with ONNX Runtime's results for the windows that end with them.

    Args:
        model: The window form.
        steps: Number of new steps of a call.
        axis: Axis of the input that counts steps.
        option: The axis that the user names; None if it must be found.
        late: Steps by which outputs come late: only symmetric padding looks ahead.
    """
    given = model.graph.input[0]
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    window = shape[axis]
    length = WINDOWS * window // steps * steps
    x = numbers.standard_normal([length if a == axis else n for a, n in enumerate(shape)]).astype(np.float32)
    program = compiled(model, steps, option)
    results = program.interpret_samples([{given.name: part} for part in calls_of(x, steps, axis)])
    assert program.report.ram.state > 0
    compared = 0
    for number, found in enumerate(results):
        end = (number + 1) * steps
        if end < window:
            continue
        part = np.take(x, range(end - window, end), axis)
        for output, expected in onnxruntime_outputs(model, {given.name: part}).items():
            got = found[output]
            if got.shape != expected.shape:
                (counted,) = (a for a in range(got.ndim) if got.shape[a] != expected.shape[a])
                stop = expected.shape[counted] - late
                expected = np.take(expected, range(stop - got.shape[counted], stop), counted)
            np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
            compared += 1
    assert compared


@pytest.mark.parametrize("name", ["chomp_tcn", "pad_node", "rows_first"])
def test_first_calls_of_causal_networks_give_the_window_form(name: str):
    """A stream begins like a window: padding stands only in front of its first step."""
    stream = STREAMS[name]
    model = stream.model()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = numbers.standard_normal(shape).astype(np.float32)
    results = compiled(model, 2).interpret_samples([{"x": part} for part in calls_of(x, 2, stream.axis)])
    for output, expected in onnxruntime_outputs(model, {"x": x}).items():
        joined = np.concatenate([found[output] for found in results], stream.axis)
        np.testing.assert_allclose(joined, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["causal_tcn", "strided_cnn", "mean_cnn", "spectrogram"])
def test_quantized_streams_have_the_bits_of_windows_and_run_in_c(name: str):
    stream = STREAMS[name]
    model, steps = stream.model(), stream.steps[0]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    window = shape[stream.axis]
    samples = {"x": numbers.standard_normal((8, *shape[1:])).astype(np.float32)}
    quantized = Compilation(model, quantizing=Quantizing(calibration=samples)).quantized
    whole = compile_model(quantized)
    program = compile_model(quantized, options=CompileOptions(stream_steps=steps, stream_axis=stream.option))
    x = np.concatenate(list(samples["x"][:2, None]), stream.axis)
    calls = [{"x": part} for part in calls_of(x, steps, stream.axis)]
    results = program.interpret_samples(calls)
    for number, found in enumerate(results):
        end = (number + 1) * steps
        if end >= window:
            part = np.take(x, range(end - window, end), stream.axis)
            for output, expected in whole.interpret({"x": part}).items():
                np.testing.assert_array_equal(found[output], expected)
    for found, array in zip(simulate(program.bundle, program.board, calls).outputs, results, strict=True):
        for output, values in found.items():
            np.testing.assert_array_equal(values, array[output])


def padded_mean(net: Net) -> str:
    """A mean over time behind symmetric padding."""
    return net.op("GlobalAveragePool", conv(net, net.input("x", 1, 3, 16), (3, 4), 3, (1, 1)))


def far_reach(net: Net) -> str:
    """A last step that depends on more steps than the window has."""
    y = conv(net, net.input("x", 1, 3, 8), (3, 4), 3, (6, 0), dilations=[3])
    return net.op("Gather", conv(net, y, (4, 4), 2, (3, 0), dilations=[3]), net.const(-1, np.int64), axis=2)


def square(net: Net) -> str:
    """An image whose rows could be steps, or whose columns could."""
    return net.op("ReduceMean", net.op("Conv", net.input("x", 1, 1, 8, 8), weights(net, 2, 1, 3, 3)))


def last_of_same(net: Net) -> str:
    """A last step that depends on padding behind the window."""
    return sliced(net, conv(net, net.input("x", 1, 3, 16), (3, 4), 3, (1, 1)), 15, 16, 2)


def positions(net: Net) -> str:
    """A constant for each position of the window in front of a convolution."""
    return conv(net, net.op("Add", net.input("x", 1, 3, 16), weights(net, 1, 3, 16)), (3, 4), 3)


@pytest.mark.parametrize(
    ("build", "steps", "axis", "message"),
    [
        (padded_mean, 1, None, "padding of the window's start"),
        (far_reach, 1, None, "padding of the window's start"),
        (last_of_same, 1, None, "padding of the window's end"),
        (strided_cnn, 3, 2, "a multiple of 2"),
        (audio_front, 5, 2, "a multiple of 8. found: dft 'Conv_t0'"),
        (strided_cnn, 2, 2, "a multiple of 4"),
        (causal_tcn, 32, 2, "longer than the new steps"),
        (causal_tcn, 1, 5, "longer than the new steps"),
        (causal_tcn, 0, None, "must be a number of steps"),
        (square, 1, None, "the time axis must be clear"),
        (positions, 1, None, "each layer reads the whole window"),
    ],
)
def test_what_cannot_stream_is_refused_with_the_reason(build: Callable, steps: int, axis: int | None, message: str):
    with pytest.raises(UsageError) as error:
        compiled(Stream(build, 2).model(), steps, axis)
    assert message in f"{error.value}"
