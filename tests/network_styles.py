# SPDX-License-Identifier: Apache-2.0
"""Styles of quantizing a float network, as published tools do it: ONNX Runtime's quantizers, float16, blocks of 4 bits.

`noisy` writes a model with an error of at most one step at each quantized tensor, so that ONNX Runtime itself shows by
how much rounding can change the outputs.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_models import MICROSOFT, Feeds
from structured_networks import Network

CALIBRATION_SAMPLES = 6
"""Number of samples by which quantizers choose ranges."""
Quantize = Callable[[Network, Sequence[Feeds], Random], onnx.ModelProto]
"""A function that quantizes a float network by samples of its inputs."""


def keep_float(network: Network, samples: Sequence[Feeds], random: Random) -> onnx.ModelProto:
    """Return the float network unchanged."""
    return network.model


def convert_to_float16(network: Network, samples: Sequence[Feeds], random: Random) -> onnx.ModelProto:
    """Return the network with float16 tensors."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = onnx.ModelProto.FromString(network.model.SerializeToString())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_float_to_float16(copy, keep_io_types=random.random() < 0.5)


def quantize_statically(
    form: str, activations: str, weights: str, network: Network, samples: Sequence[Feeds], random: Random
) -> onnx.ModelProto:
    """Return the network quantized by ONNX Runtime's `quantize_static` with random extra options.

    Args:
        form: QDQ or QOperator.
        activations: Type of activations.
        weights: Type of weights.
        network: The float network.
        samples: Samples of its inputs.
        random: Source of the choices.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter(samples)

        def get_next(self) -> Feeds | None:
            return next(self.samples, None)

    extra = {
        "ActivationSymmetric": random.random() < 0.25,
        "WeightSymmetric": random.random() < 0.7,
        "DedicatedQDQPair": form == "QDQ" and random.random() < 0.2,
        "ForceQuantizeNoInputCheck": random.random() < 0.3,
        "QuantizeBias": random.random() < 0.8,
    }
    return _written(
        quantize_static,
        network.model,
        calibration_data_reader=Reader(),
        quant_format=QuantFormat[form],
        activation_type=QuantType[activations],
        weight_type=QuantType[weights],
        per_channel=form == "QDQ" and random.random() < 0.6,
        extra_options=extra,
    )


def quantize_dynamically(network: Network, samples: Sequence[Feeds], random: Random) -> onnx.ModelProto:
    """Return the network with products and convolutions quantized by `quantize_dynamic`.

    Recurrent layers stay float, because mcugen does not round their states.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    return _written(
        quantize_dynamic,
        network.model,
        weight_type=random.choice((QuantType.QInt8, QuantType.QUInt8)),
        per_channel=random.random() < 0.4,
        op_types_to_quantize=["MatMul", "Gemm", "Conv", "Attention"],
    )


def _written(quantize: Callable[..., None], model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    with _no_warnings(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantize(model, path, **options)
        return onnx.load(path)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Without the advice that quantizers log for every model."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def quantize_blocks(network: Network, samples: Sequence[Feeds], random: Random) -> onnx.ModelProto:
    """Return the network with MatMulNBits (4 or 8 bits) in place of products with constant matrices.

    Some have zero points.
    """
    model = onnx.ModelProto.FromString(network.model.SerializeToString())
    constants = {t.name: t for t in model.graph.initializer}
    bits, block = random.choice((4, 4, 8)), random.choice((16, 32))
    count = 0
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            real = numpy_helper.to_array(constants[node.input[1]])
            operands, how = _packed(real.T, bits, block, random.random() < 0.5)
            names = [f"{node.input[1]}.{part}{count}" for part in range(len(operands))]
            model.graph.initializer.extend(map(numpy_helper.from_array, operands, names))
            count += 1
            x, out = node.input[0], node.output[0]
            node.CopyFrom(helper.make_node("MatMulNBits", [x, *names], [out], node.name, domain=MICROSOFT, **how))
    if count:
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    read = {name for node in model.graph.node for name in node.input}
    kept = [t for t in model.graph.initializer if t.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def _packed(real: np.ndarray, bits: int, block: int, has_zeros: bool) -> tuple[list[np.ndarray], dict[str, int]]:
    """Weights [N, K] in blocks along K: packed codes [N, blocks, bytes], scales and perhaps zero points."""
    channels, depth = real.shape
    blocks = -(-depth // block)
    padded = np.zeros((channels, blocks * block), np.float32)
    padded[:, :depth] = real
    parts = padded.reshape(channels, blocks, block)
    half, most = 2 ** (bits - 1), 2**bits - 1
    if has_zeros:
        low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        scales = np.maximum((high - low) / most, 1e-6).astype(np.float32)
        zeros = np.rint(-low / scales).clip(0, most).astype(np.uint8)
    else:
        scales = np.maximum(np.abs(parts).max(2) / half, 1e-6).astype(np.float32)
        zeros = np.full(scales.shape, half, np.uint8)
    codes = (np.rint(parts / scales[..., None]) + zeros[..., None]).clip(0, most).astype(np.uint8)
    operands = [_fields(codes, bits), scales.reshape(-1)]
    if has_zeros:
        operands.append(_fields(zeros, bits).reshape(-1))
    return operands, {"K": depth, "N": channels, "bits": bits, "block_size": block}


def _fields(codes: np.ndarray, bits: int) -> np.ndarray:
    """Two 4-bit codes a byte along the last axis, the first in the low half."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], -1)
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4, np.uint8)


_TYPES = {
    "u8s8": ("QUInt8", "QInt8"),
    "u8u8": ("QUInt8", "QUInt8"),
    "s8s8": ("QInt8", "QInt8"),
    "s16s8": ("QInt16", "QInt8"),
    "u16u8": ("QUInt16", "QUInt8"),
    "u16s8": ("QUInt16", "QInt8"),
    "s16s16": ("QInt16", "QInt16"),
    "u8s4": ("QUInt8", "QInt4"),
    "s8u4": ("QInt8", "QUInt4"),
}

STYLES: Mapping[str, Quantize] = {
    "float32": keep_float,
    "float16": convert_to_float16,
    **{f"QDQ {kind}": partial(quantize_statically, "QDQ", *types) for kind, types in _TYPES.items()},
    **{
        f"QOperator {kind}": partial(quantize_statically, "QOperator", *_TYPES[kind])
        for kind in ("u8s8", "u8u8", "s8s8")
    },
    "dynamic": quantize_dynamically,
    "MatMulNBits": quantize_blocks,
}
"""Quantizers by the name of the style."""
OWN = "own"
"""First part of the names of styles that mcugen's quantizer makes; a value of --precision follows."""


# --------------------------------------------------------------------------------------------------------- noise

_OUTPUT_SCALES = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), 6),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool"), 3),
    **dict.fromkeys(("QLinearSoftmax", "QLinearReduceMean"), 3),
    "QLinearConcat": 0,
    "QGemm": 7,
}
"""Of operators that quantize their result: which input is its scale; the zero point is the next one."""


def noisy(model: onnx.ModelProto, seed: int, steps: float = 1.0) -> onnx.ModelProto:
    """Return the model with uniform random errors of at most `steps` quantization steps at each quantized tensor."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    _Noise(seed, steps).write(copy.graph)
    return copy


class _Noise:
    def __init__(self, seed: int, steps: float) -> None:
        self.random, self.steps, self.count = Random(seed), steps, 0

    def write(self, graph: onnx.GraphProto) -> None:
        """Change a graph and the bodies of its nodes."""
        constants = {t.name for t in graph.initializer}
        nodes = [new for node in graph.node for new in self.with_noise(node, constants)]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        for body in (a.g for node in nodes for a in node.attribute if a.HasField("g")):
            self.write(body)
        del graph.node[:]
        graph.node.extend(nodes)

    def with_noise(self, node: onnx.NodeProto, constants: set[str]) -> list[onnx.NodeProto]:
        """The node and what adds noise to the tensor that it quantizes."""
        node = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            before = self._added(node.input[0], node.input[1])
            node.input[0] = before[-1].output[0]
            return [*before, node]
        if node.op_type == "DynamicQuantizeLinear":
            measured = helper.make_node(node.op_type, [node.input[0]], [self._name() for _ in range(3)])
            before = self._added(node.input[0], measured.output[1])
            node.input[0] = before[-1].output[0]
            return [measured, *before, node]
        place = _OUTPUT_SCALES.get(node.op_type)
        if place is None:
            return [node]
        domain = node.domain if node.domain == MICROSOFT else ""
        params, out, clean = list(node.input[place : place + 2]), node.output[0], self._name()
        node.output[0] = clean
        real = helper.make_node("DequantizeLinear", [clean, *params], [self._name()], domain=domain)
        added = self._added(real.output[0], params[0])
        again = helper.make_node("QuantizeLinear", [added[-1].output[0], *params], [out], domain=domain)
        return [node, real, *added, again]

    def _name(self) -> str:
        self.count += 1
        return f"noise.{self.count}"

    def _added(self, x: str, scale: str) -> list[onnx.NodeProto]:
        how = {"low": -self.steps, "high": self.steps, "seed": float(self.random.randrange(1 << 16))}
        uniform = helper.make_node("RandomUniformLike", [x], [self._name()], dtype=TensorProto.FLOAT, **how)
        scaled = helper.make_node("Mul", [uniform.output[0], scale], [self._name()])
        return [uniform, scaled, helper.make_node("Add", [x, scaled.output[0]], [self._name()])]
