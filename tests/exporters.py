# SPDX-License-Identifier: Apache-2.0
"""Quantized networks as exporters write them, one row for each exporter and option, compiled and compared.

ONNX Runtime's quantizer runs here. The models of Brevitas, PyTorch and tf2onnx are written node by node, as these
versions (named in the rows) export a network with the same blocks.

Run as a program, it rewrites docs/reference/exporters.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from bundle_batch import combine
from markers import replace_between_markers
from onnx import numpy_helper
from onnx_models import Net, onnxruntime_outputs, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array
from mcugen.simulation import Setup, simulate

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "exporters.md"
SAMPLES = 3

# ----------------------------------------------------------------------------------- float networks, for ORT


def weights(seed: int, *shape: int) -> Array:
    """Return normal weights, scaled so that a layer keeps the variance of its input."""
    fan_in = max(int(np.prod(shape[1:])), 1)
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan_in), np.float32)


def cnn(batch_norm: bool = False) -> onnx.ModelProto:
    """Return a CNN: convolutions (stride 2, depthwise, 1x1), a residual sum, a concatenation, a mean, a dense layer."""
    net = Net(21)
    x = net.input("x", 1, 3, 8, 8)
    y = net.op("Conv", x, net.const(weights(1, 8, 3, 3, 3)), net.const(weights(2, 8)), pads=[1] * 4, strides=[2, 2])
    if batch_norm:
        statistics = (np.linspace(1, 2, 8), np.linspace(-1, 1, 8), np.zeros(8), np.ones(8))
        y = net.op("BatchNormalization", y, *(net.const(v) for v in statistics))
    x = net.op("Clip", y, net.const(0.0), net.const(6.0))
    y = net.op("Conv", x, net.const(weights(3, 8, 1, 3, 3)), net.const(weights(4, 8)), group=8, pads=[1] * 4)
    y = net.op("Conv", net.op("Relu", y), net.const(weights(5, 8, 8, 1, 1)), net.const(weights(6, 8)))
    y = net.op("Concat", net.op("Add", y, x), x, axis=1)
    y = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Flatten", net.op("GlobalAveragePool", y))
    net.op("Gemm", y, net.const(weights(7, 5, 16) * 2), net.const(weights(8, 5)), transB=1, out="y")
    net.output("y")
    return net.model()


def mlp() -> onnx.ModelProto:
    """Return an MLP of three dense layers as PyTorch writes them: products with a bias, and one as MatMul and Add."""
    net = Net(21)
    y = net.input("x", 1, 32)
    y = net.op("Relu", net.op("Gemm", y, net.const(weights(1, 24, 32)), net.const(weights(2, 24)), transB=1))
    y = net.op("Relu", net.op("Add", net.op("MatMul", y, net.const(weights(3, 24, 24))), net.const(weights(4, 24))))
    net.op("Gemm", y, net.const(weights(5, 6, 24)), net.const(weights(6, 6)), transB=1, out="y")
    net.output("y")
    return net.model()


def attention() -> onnx.ModelProto:
    """Return one attention head over 6 steps of 8 numbers: projections, scores, softmax, and a residual sum."""
    net = Net(21)
    x = net.input("x", 1, 6, 8)
    q, k, v = (net.op("MatMul", x, net.const(weights(seed, 8, 8))) for seed in (1, 2, 3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
    y = net.op("MatMul", net.op("Softmax", net.op("Mul", scores, net.const(0.35)), axis=-1), v)
    net.op("Add", net.op("MatMul", y, net.const(weights(4, 8, 8))), x, out="y")
    net.output("y")
    return net.model()


def lstm() -> onnx.ModelProto:
    """Return an LSTM over 6 steps, whose last step a dense layer reads."""
    net = Net(21)
    x = net.input("x", 6, 1, 8)
    net.ops("LSTM", x, net.const(weights(1, 1, 32, 8)), net.const(weights(2, 1, 32, 8)), outs=["", "h"], hidden_size=8)
    flat = net.op("Reshape", "h", net.const([1, 8], np.int64))
    net.op("Gemm", flat, net.const(weights(3, 4, 8)), net.const(weights(4, 4)), transB=1, out="y")
    net.output("y")
    return net.model()


# ------------------------------------------------------------------------------- ONNX Runtime's quantizer


def static(network: Callable[[], onnx.ModelProto], types: str, form: str = "QDQ", **options: Any) -> onnx.ModelProto:
    """Return a network quantized by ONNX Runtime's `quantize_static`.

    Args:
        network: Builds the float network.
        types: Types of activations and weights, such as u8s8.
        form: QDQ or QOperator.
        **options: Options of `quantize_static`; those that it does not know become its extra options.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    model = network()

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter([random_feeds(model, seed) for seed in range(100, 108)])

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self.samples, None)

    activations, kind = _quant_types(types)
    known = {key: options.pop(key) for key in ("per_channel", "reduce_range") if key in options}
    return _written(
        quantize_static,
        model,
        calibration_data_reader=Reader(),
        quant_format=QuantFormat[form],
        activation_type=activations,
        weight_type=kind,
        extra_options=options,
        **known,
    )


def dynamic(network: Callable[[], onnx.ModelProto], kind: str, **options: Any) -> onnx.ModelProto:
    """Return a network quantized by ONNX Runtime's `quantize_dynamic`; `kind` is the type of the weights."""
    from onnxruntime.quantization import quantize_dynamic

    return _written(quantize_dynamic, network(), weight_type=_quant_types(kind)[0], **options)


def _written(quantize: Callable[..., None], model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantize(model, path, **options)
        return onnx.load(path)


def _quant_types(types: str) -> list[Any]:
    from onnxruntime.quantization import QuantType

    names = {"u": "QUInt", "s": "QInt"}
    parts = types.replace("u", " u").replace("s", " s").split()
    return [QuantType[names[part[0]] + part[1:]] for part in parts]


# ------------------------------------------------------------------------- other exporters, node by node


class Exported(Net):
    """A network written in the forms of exporters; a tensor's quantization is given as (scale, zero point, type)."""

    def conv(self, x: str, scale: float, seed: int, shape: Sequence[int], bias: bool = True, **how: Any) -> str:
        """Add a convolution with per-channel int8 weights, and return its output.

        With `bias`, the bias is int32 in units of `scale` times the weights' scale, else float.
        """
        w, b = self.weights(seed, shape, scale if bias else None, how.pop("clip", 0))
        return self.op("Conv", x, w, b, kernel_shape=list(shape[2:]), **how)

    def weights(self, seed: int, shape: Sequence[int], unit: float | None, clip: int = 0, axis: int = 0) -> list[str]:
        """Return dequantized weights and a dequantized bias.

        With `clip`, a Clip to so many quantized values precedes the conversion, as Brevitas writes it.
        """
        real = weights(seed, *shape)
        others = tuple(a for a in range(real.ndim) if a != axis)
        most = clip or 127
        scales = np.asarray(np.abs(real).max(axis=others) / most, np.float32)
        along = [-1 if a == axis else 1 for a in range(real.ndim)]
        codes = self.const(np.rint(real / scales.reshape(along)), np.int8)
        if clip:
            codes = self.op("Clip", codes, self.const(-clip, np.int8), self.const(clip, np.int8))
        zero = self.const(np.zeros(len(scales)), np.int8)
        w = self.op("DequantizeLinear", codes, self.const(scales), zero, axis=axis)
        bias = weights(seed + 100, len(scales))
        if unit is None:
            return [w, self.const(bias)]
        units = np.asarray(unit * scales, np.float32)
        zeros = self.const(np.zeros(len(scales)), np.int32)
        stored = self.const(np.rint(bias / units), np.int32)
        return [w, self.op("DequantizeLinear", stored, self.const(units), zeros, axis=0)]

    def clipped(self, x: str, scale: float, bits: int, dtype: type = np.uint8) -> str:
        """Add QuantizeLinear, Clip and DequantizeLinear, as Brevitas writes them for fewer than 8 bits."""
        codes = self.quantize(x, scale, 0, dtype)
        if bits < 8:
            low, high = (0, 2**bits - 1) if dtype is np.uint8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            codes = self.op("Clip", codes, self.const(low, dtype), self.const(high, dtype))
        return self.dequantize(codes, scale, 0, dtype)


def brevitas(bits: int, quantized_output: bool = False) -> onnx.ModelProto:
    """Return a model as Brevitas's export_onnx_qcdq writes it.

    Quantized weights, and all values of fewer than 8 bits, pass a Clip; all types are symmetric.
    """
    net, most = Exported(17), 2 ** (bits - 1) - 1
    wide = 256 / 2**bits  # scales for fewer bits
    x = net.fake(net.input("x", 1, 3, 8, 8), 0.025)
    y = net.conv(x, 0.025, 1, (8, 3, 3, 3), clip=most, pads=[1] * 4, strides=[2, 2])
    x = net.clipped(net.op("Relu", y), 0.012 * wide, bits)
    y = net.conv(x, 0.012 * wide, 2, (8, 1, 3, 3), clip=most, pads=[1] * 4, group=8)
    y = net.clipped(net.op("Relu", y), 0.012 * wide, bits)
    y = net.conv(y, 0.012 * wide, 3, (8, 8, 1, 1), clip=most)
    y, z = (net.clipped(v, 0.02 * wide, bits, np.int8) for v in (y, x))
    y = net.clipped(net.op("Relu", net.op("Add", y, z)), 0.02 * wide, bits)
    y = net.op("AveragePool", y, kernel_shape=[4, 4], strides=[4, 4], count_include_pad=1)
    y = net.op("Flatten", net.clipped(y, 0.01 * wide, bits, np.int8))
    w, b = net.weights(4, (5, 8), 0.01 * wide, clip=most)
    y = net.op("Gemm", y, w, b, transB=1, out="" if quantized_output else "y")
    if quantized_output:
        net.fake(y, 0.03, out="y")
    net.output("y")
    return net.model()


def torch_pt2e(quantizer: str = "x86") -> onnx.ModelProto:
    """Return a model as torch.onnx.export writes it after convert_pt2e, with float biases.

    The quantizer "x86" writes no conversion between a convolution and a sum.
    """
    net = Exported(20)
    fake = partial(net.fake, dtype=np.uint8) if quantizer == "x86" else net.fake
    low = 0 if quantizer == "x86" else -128
    x = fake(net.input("x", 1, 3, 8, 8), 0.027, low + 116)
    y = net.conv(x, 0.027, 1, (8, 3, 3, 3), bias=False, pads=[1] * 4, strides=[2, 2])
    x = fake(net.op("Clip", y, net.const(0.0), net.const(6.0)), 0.015, low)
    y = net.conv(x, 0.015, 2, (8, 1, 3, 3), bias=False, pads=[1] * 4, group=8)
    y = fake(net.op("Relu", y), 0.01, low)
    y = net.conv(y, 0.01, 3, (8, 8, 1, 1), bias=False)
    y = y if quantizer == "x86" else fake(y, 0.03, low + 100)
    y = fake(net.op("Add", y, x), 0.03, low + 100)
    y = fake(net.op("Concat", y, x, axis=1), 0.03, low + 100)
    y = fake(net.op("ReduceMean", y, net.const([-1, -2], np.int64), keepdims=1), 0.03, low + 100)
    y = fake(net.op("Reshape", y, net.const([1, 16], np.int64)), 0.03, low + 100)
    w, b = net.weights(4, (5, 16), None)
    y = net.op("Gemm", y, w, b, transB=1, out="y" if quantizer == "x86" else "")
    if quantizer != "x86":
        fake(y, 0.04, low + 128, out="y")
    net.output("y")
    return net.model()


def torch_fake_quantize() -> onnx.ModelProto:
    """Return a model as torch.onnx.export writes FakeQuantize modules (QAT): each float weight has a QDQ pair."""
    net = Net(17)

    def weight(seed: int, *shape: int) -> str:
        real = weights(seed, *shape)
        scales = np.asarray(np.abs(real).reshape(len(real), -1).max(axis=1) / 127, np.float32)
        params = [net.const(scales), net.const(np.zeros(len(real)), np.int8)]
        codes = net.op("QuantizeLinear", net.const(real), *params, axis=0)
        return net.op("DequantizeLinear", codes, *params, axis=0)

    x = net.fake(net.input("x", 1, 3, 8, 8), 0.027, 116, np.uint8)
    y = net.op("Conv", x, weight(1, 8, 3, 3, 3), net.const(weights(2, 8)), pads=[1] * 4, strides=[2, 2])
    x = net.fake(net.op("Relu", y), 0.015, 0, np.uint8)
    y = net.op("Conv", x, weight(3, 8, 1, 3, 3), net.const(weights(4, 8)), pads=[1] * 4, group=8)
    y = net.fake(y, 0.03, 120, np.uint8)
    y = net.fake(net.op("Add", y, x), 0.03, 100, np.uint8)
    y = net.fake(net.op("GlobalAveragePool", y), 0.02, 100, np.uint8)
    y = net.op("Gemm", net.op("Flatten", y), weight(5, 5, 8), net.const(weights(6, 5)), transB=1)
    net.fake(y, 0.03, 128, np.uint8, out="y")
    net.output("y")
    return net.model()


def tf2onnx(integer_io: bool) -> onnx.ModelProto:
    """Return a model as tf2onnx converts a TFLite file.

    It has NHWC borders, Transposes of quantized values, a Pad between conversions, and int32 biases.
    """
    net = Exported(17)
    image = net.input("x", 1, 8, 8, 3, dtype=np.int8 if integer_io else np.float32)
    first, rest = (0.027, 15), (0.014, -88)
    codes = net.op("Transpose", image if integer_io else net.quantize(image, *first), perm=[0, 3, 1, 2])
    y = net.conv(net.dequantize(codes, *first), 0.027, 1, (8, 3, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2])
    x = net.quantize(net.op("Clip", y, net.const(0.0), net.const(6.0)), *rest)
    y = net.conv(net.dequantize(x, *rest), 0.014, 2, (8, 1, 3, 3), pads=[1] * 4, group=8)
    y = net.fake(net.op("Relu", y), 0.01, -128)
    y = net.fake(net.conv(y, 0.01, 3, (8, 8, 1, 1)), 0.014, -84)
    y = net.quantize(net.op("Add", net.dequantize(x, *rest), y), *rest)
    y = net.dequantize(net.op("Concat", y, x, axis=1), *rest)
    y = net.fake(net.op("Pad", y, net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)), *rest)
    y = net.conv(y, 0.014, 4, (8, 16, 3, 3), strides=[2, 2])
    last = (0.0066, -128)
    y = net.fake(net.op("Relu", y), *last)
    y = net.fake(net.op("MaxPool", y, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]), *last)
    y = net.quantize(net.op("GlobalAveragePool", y), *last)
    y = net.dequantize(net.op("Squeeze", y, net.const([2, 3], np.int64)), *last)
    y = net.fake(net.op("MatMul", y, net.weights(5, (8, 5), None, axis=1)[0]), 0.012, 8)
    y = net.quantize(net.op("Softmax", y), 1 / 256, -128, out="y" if integer_io else "")
    if not integer_io:
        net.dequantize(y, 1 / 256, -128, out="y")
    net.output("y", dtype=np.int8 if integer_io else np.float32)
    return net.model()


# ---------------------------------------------------------- formats of weights, as their documents define them


def _code_layers(layer: Callable[[Net, str, int, Sequence[int]], str], fake: Callable[[Net, str, float], str]) -> Net:
    """The MLP with its products by `layer` of input, seed, shape [K, N], and `fake` behind each tensor."""
    net = Net(21)
    y = fake(net, net.input("x", 1, 64), 0.03)
    for seed, shape in ((1, (64, 64)), (3, (64, 64)), (5, (64, 24))):
        y = net.op("Add", layer(net, y, seed, shape), net.const(weights(seed + 1, shape[1])))
        y = fake(net, net.op("Relu", y), 0.02)
    net.output(y)
    return net


def _blocks(bits: int, block: int, net: Net, x: str, seed: int, shape: Sequence[int]) -> str:
    """MatMul with DequantizeLinear, a scale for each `block` along the input; 0: one a column."""
    depth, channels = shape
    real, most = weights(seed, channels, depth).T, 2 ** (bits - 1) - 1
    size = block or depth
    parts = real.reshape(-1, size, channels)
    scales = np.asarray(np.abs(parts).max(1) / most, np.float32)
    codes = np.rint(parts / scales[:, None]).reshape(depth, channels).astype(int)
    kind = {2: onnx.TensorProto.INT2, 4: onnx.TensorProto.INT4, 8: onnx.TensorProto.INT8}[bits]
    name = f"codes{seed}"
    net.constants.append(onnx.helper.make_tensor(name, kind, codes.shape, codes.reshape(-1).tolist()))
    how = {"axis": 0, "block_size": block} if block else {"axis": 1}
    w = net.op("DequantizeLinear", name, net.const(scales if block else scales[0]), **how)
    return net.op("MatMul", x, w)


def _nbits(bits: int, net: Net, x: str, seed: int, shape: Sequence[int]) -> str:
    """MatMulNBits in blocks of 16, unsigned around the middle."""
    depth, channels = shape
    parts = weights(seed, channels, depth).reshape(channels, -1, 16)
    half = 2 ** (bits - 1)
    scales = np.asarray(np.abs(parts).max(2) / half, np.float32)
    codes = (np.rint(parts / scales[..., None]) + half).clip(0, 2 * half - 1).astype(np.uint8)
    fields = codes.reshape(channels, parts.shape[1], -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    packed = fields.sum(-1).astype(np.uint8)
    how = {"K": depth, "N": channels, "bits": bits, "block_size": 16, "domain": "com.microsoft"}
    return net.op("MatMulNBits", x, net.const(packed, np.uint8), net.const(scales), **how)


def _float8(net: Net, x: str, seed: int, shape: Sequence[int]) -> str:
    """MatMul with weights of float8_e4m3fn, a scale for all."""
    real, name = weights(seed, shape[1], shape[0]).T, f"floats{seed}"
    scale = np.float32(np.abs(real).max() / 448)
    codes = (real / scale).astype(ml_dtypes.float8_e4m3fn)
    kind = onnx.TensorProto.FLOAT8E4M3FN
    net.constants.append(onnx.helper.make_tensor(name, kind, codes.shape, codes.tobytes(), raw=True))
    return net.op("MatMul", x, net.op("DequantizeLinear", name, net.const(scale)))


def _float16(net: Net, x: str, seed: int, shape: Sequence[int]) -> str:
    """MatMul of float16."""
    half = net.op("Cast", x, to=onnx.TensorProto.FLOAT16)
    y = net.op("MatMul", half, net.const(weights(seed, shape[1], shape[0]).T, np.float16))
    return net.op("Cast", y, to=onnx.TensorProto.FLOAT)


def _not_faked(net: Net, x: str, scale: float) -> str:
    """Tensors stay real."""
    return x


def _faked(net: Net, x: str, scale: float) -> str:
    """uint8 tensors."""
    return net.fake(x, scale, 128 if x == "x" else 0, np.uint8)


def _faked_int4(net: Net, x: str, scale: float) -> str:
    """INT4 tensors, which ONNX stores two a byte."""
    name = f"{x}_zero"
    net.constants.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT4, (), [0]))
    unit = net.const(np.float32(16 * scale))
    return net.op("DequantizeLinear", net.op("QuantizeLinear", x, unit, name), unit, name)


def format_of(
    layer: Callable[[Net, str, int, Sequence[int]], str], fake: Callable[[Net, str, float], str] = _not_faked
) -> onnx.ModelProto:
    """Return a model whose layers and quantized tensors are written by the given functions.

    Args:
        layer: Adds a layer with quantized weights.
        fake: Quantizes and dequantizes an activation.
    """
    net = _code_layers(layer, fake)
    model = net.plain_model()
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (model.graph.node[-1].output[0],) = (model.graph.output[0].name,) = ("y",)
    return model


_ALONE = "weights alone are quantized, and stay packed"


def _format_rows() -> Iterator[Row]:
    """Formats that several tools write."""
    for bits, block in ((8, 0), (4, 0), (8, 32), (4, 16)):
        how = f"int{bits}, " + (f"blocks of {block}" if block else "by channel")
        yield Row("QDQ, weights alone", how, "MLP", partial(format_of, partial(_blocks, bits, block)), _ALONE)
        yield Row("QDQ", f"u8 by {how}", "MLP", partial(format_of, partial(_blocks, bits, block), _faked))
    for bits in (4, 8):
        yield Row("MatMulNBits", f"{bits} bits", "MLP", partial(format_of, partial(_nbits, bits)), _ALONE)
        yield Row("MatMulNBits", f"{bits} bits, u8 tensors", "MLP", partial(format_of, partial(_nbits, bits), _faked))
    yield Row("QDQ, weights alone", "float8_e4m3fn", "MLP", partial(format_of, _float8), "weights are floats of 8 bits")
    yield Row("float16", "products", "MLP", partial(format_of, _float16), "they are floats")
    clamped = "reals at the borders are clamped to what 4 bits hold"
    both = partial(format_of, partial(_blocks, 4, 0), _faked_int4)
    yield Row("QDQ", "int4 by int4, by channel", "MLP", both, clamped)


# ----------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """A row of the table: an exporter with an option, and a network that it exports.

    `floats` says why layers compute in float, if they do.
    """

    exporter: str
    option: str
    network: str
    build: Callable[[], onnx.ModelProto]
    floats: str = ""


CENTERED = "16-bit zero points that are not in the middle"
"""Reason why layers with 16-bit activations compute in float."""
_REAL = "scales of a real result"
_SUM = "a sum of reals before it is quantized; scales of a real result"
_RUN_TIME = "scales that are found at run time, between products of integers"
_WEIGHTS = "states stay real; scales that are found at run time"


def _runtime_rows() -> Iterator[Row]:
    """Of ONNX Runtime's quantizer."""
    qdq, qoperator = "ONNX Runtime, QDQ", "ONNX Runtime, QOperator"
    for types in ("u8u8", "u8s8", "s8s8", "u16s8", "s16s8", "u16u8"):
        yield Row(qdq, types, "CNN", partial(static, cnn, types), CENTERED if "16" in types else "")
    for types in ("u8u8", "u8s8", "s8s8"):
        yield Row(qoperator, types, "CNN", partial(static, cnn, types, "QOperator"))
    for types in ("u16s8", "s16s8", "u16u8"):
        build = partial(static, cnn, types, ActivationSymmetric=True)
        yield Row(qdq, f"{types}, ActivationSymmetric", "CNN", build)
    yield Row(qoperator, "u8s8, per_channel", "CNN", partial(static, cnn, "u8s8", "QOperator", per_channel=True))
    shared: Mapping[str, dict[str, Any]] = {
        "per_channel": {"per_channel": True},
        "per_channel, reduce_range": {"per_channel": True, "reduce_range": True},
        "ActivationSymmetric, WeightSymmetric=False": {"ActivationSymmetric": True, "WeightSymmetric": False},
        "AddQDQPairToWeight": {"AddQDQPairToWeight": True},
        "DedicatedQDQPair": {"DedicatedQDQPair": True},
        "QDQKeepRemovableActivations": {"QDQKeepRemovableActivations": True},
        "QuantizeBias=False": {"QuantizeBias": False},
        "ForceQuantizeNoInputCheck": {"ForceQuantizeNoInputCheck": True},
        "UseQDQContribOps": {"UseQDQContribOps": True},
        "OpTypesToExcludeOutputQuantization=Conv": {"OpTypesToExcludeOutputQuantization": ["Conv"]},
        "OpTypesToExcludeOutputQuantization=Gemm": {"OpTypesToExcludeOutputQuantization": ["Gemm"]},
    }
    for name, options in shared.items():
        yield Row(qdq, f"u8s8, {name}", "CNN", partial(static, cnn, "u8s8", **options), _REAL if "Gemm" in name else "")
    yield Row(qdq, "u8s8, BatchNormalization left", "CNN", partial(static, partial(cnn, True), "u8s8"))
    yield Row(qdq, "u8u4", "CNN", partial(static, cnn, "u8u4"))
    yield Row(qdq, "u8s4", "CNN", partial(static, cnn, "u8s4"))
    for form in ("QDQ", "QOperator"):
        for network in (mlp, attention):
            name = "MLP" if network is mlp else "attention"
            last = "the last sum is not quantized" if network is attention else ""
            yield Row(f"ONNX Runtime, {form}", "u8s8", name, partial(static, network, "u8s8", form), last)
    yield Row(qdq, "s16s8", "attention", partial(static, attention, "s16s8"), CENTERED)
    loop = "the quantizer leaves LSTMs as they are"
    yield Row(qdq, "u8s8", "LSTM", partial(static, lstm, "u8s8"), loop)
    reasons = {
        "CNN": _RUN_TIME,
        "MLP": _RUN_TIME,
        "attention": f"{_RUN_TIME}; scores are not quantized",
        "LSTM": _WEIGHTS,
    }
    for kind in ("s8", "u8"):
        for network, name in ((cnn, "CNN"), (mlp, "MLP"), (attention, "attention"), (lstm, "LSTM")):
            yield Row("ONNX Runtime, quantize_dynamic", kind, name, partial(dynamic, network, kind), reasons[name])


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows of the table."""
    others = [
        Row("Brevitas 0.13 QCDQ", "8 bits", "CNN", partial(brevitas, 8), _REAL),
        Row("Brevitas 0.13 QCDQ", "8 bits, quantized output", "CNN", partial(brevitas, 8, quantized_output=True)),
        Row("Brevitas 0.13 QCDQ", "4 bits", "CNN", partial(brevitas, 4), _REAL),
        Row("PyTorch 2.14 pt2e (torchao 0.18)", "X86InductorQuantizer", "CNN", torch_pt2e, _SUM),
        Row("PyTorch 2.14 pt2e (torchao 0.18)", "XNNPACKQuantizer", "CNN", partial(torch_pt2e, "xnnpack")),
        Row("PyTorch 2.14, torch.onnx", "FakeQuantize (QAT)", "CNN", torch_fake_quantize),
        Row("tf2onnx 1.17 of TFLite int8", "int8 input and output", "CNN", partial(tf2onnx, True)),
        Row("tf2onnx 1.17 of TFLite int8", "float input and output", "CNN", partial(tf2onnx, False)),
    ]
    return (*others, *_format_rows(), *_runtime_rows())


# --------------------------------------------------------------------------------------------- measurement


@dataclass(frozen=True)
class Measured:
    """The result of compiling a row and comparing its outputs with ONNX Runtime's."""

    row: Row
    model: onnx.ModelProto
    compiled: CompiledModel
    found: Sequence[Mapping[str, Array]]
    wanted: Sequence[Mapping[str, Array]]

    @property
    def layers(self) -> list[Node]:
        """Return the nodes that compute: neither data movements nor conversions."""
        nodes = (node for graph in self.compiled.graph.nested() for node in graph.nodes)
        return [n for n in nodes if not n.op.moves_data and n.op.name not in ("quantize", "dequantize")]

    @property
    def floats(self) -> list[Node]:
        """Return the layers that read or compute floats."""
        return [n for n in self.layers if any(v.type.dtype.is_float for v in _computed(n))]

    @property
    def macs(self) -> tuple[int, int]:
        """Return the multiply-accumulates of float layers, and those of all layers."""
        return tuple(sum(n.op.macs(n.sig) for n in nodes) for nodes in (self.floats, self.layers))  # type: ignore[return-value]

    @property
    def step(self) -> float:
        """Return the scale of a quantized result; 1 if the caller gets the integers, 0 if floats compute the result."""
        last = {name: node for node in self.model.graph.node for name in node.output}["y"]
        stored = {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}
        if last.op_type != "DequantizeLinear":
            return float(last.op_type == "QuantizeLinear")
        return float(stored.get(last.input[1], np.zeros(1)).max())

    @property
    def off(self) -> float:
        """Return the largest difference from ONNX Runtime, in steps of the output's scale.

        Outputs without a scale give the difference as a share of their range.
        """
        pairs = [(f["y"].astype(np.float64), w["y"]) for f, w in zip(self.found, self.wanted, strict=True)]
        span = max(float(np.abs(w).max()) for _, w in pairs)
        return max(float(np.abs(f - w).max()) for f, w in pairs) / (self.step or span)

    @property
    def difference(self) -> str:
        """Return the largest difference from ONNX Runtime as text."""
        return f"{self.off:.0f} codes" if self.step else f"{self.off:.0e}" if self.off else "0"


def _computed(node: Node) -> list[Value]:
    """What it reads that is no constant, and what it makes."""
    return [v for v in (*node.inputs, *node.outputs) if v is not None and not v.is_constant]


def measured(wanted: Sequence[Row]) -> list[Measured]:
    """Compile rows for this computer, run them all in one program, and compare them with ONNX Runtime."""
    models = [row.build() for row in wanted]
    compiled = [compile_model(m, "host", CompileOptions(name=f"m{number}")) for number, m in enumerate(models)]
    feeds = [[random_feeds(model, seed) for seed in range(SAMPLES)] for model in models]
    joined = [
        {f"{c.bundle.name}/{n}": a for c, f in zip(compiled, feeds, strict=True) for n, a in f[sample].items()}
        for sample in range(SAMPLES)
    ]
    bundle = combine([c.bundle for c in compiled])
    outputs = simulate(bundle, load_board("host"), joined, measure=False, setup=Setup(sanitize=True)).outputs
    results = []
    for row, model, c, samples in zip(wanted, models, compiled, feeds, strict=True):
        found = [{e.name: o[f"{c.bundle.name}/{e.name}"] for e in c.program.outputs} for o in outputs]
        results.append(Measured(row, model, c, found, [onnxruntime_outputs(model, s) for s in samples]))
    return results


# ------------------------------------------------------------------------------------------------ document

HEADINGS = ("exporter", "option", "network", "layers", "in float", "MACs in float", "off by", "why")


def table(results: Sequence[Measured]) -> str:
    """Return the rows of the Markdown table."""
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    for found in results:
        row, (floats, macs) = found.row, found.macs
        shares = [str(len(found.layers)), str(len(found.floats)), f"{floats / macs:.0%}", found.difference]
        lines.append((row.exporter, row.option, row.network, *shares, row.floats))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Rewrite the table in docs/reference/exporters.md."""
    DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "exporters", table(measured(rows()))))


if __name__ == "__main__":
    main()
