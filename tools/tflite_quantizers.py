# SPDX-License-Identifier: Apache-2.0
"""Quantizes a network by TensorFlow Lite's converter and by ai-edge-quantizer, and runs it; nothing of mcugen is used.

    python tflite_quantizers.py FOLDER [OUTPUT:INPUT of a state ...]

The folder has model.onnx, calibration.npz and evaluation.npz; for each form that works it gets outputs_NAME.npz. Needs
tensorflow-cpu (the extra `train-keras`), onnx and, for its own form, ai-edge-quantizer.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import onnx
import tensorflow as tf
from onnx import helper, numpy_helper

Arrays = dict[str, np.ndarray]
Tensors = dict[str, Any]


def convolution(attributes: Mapping[str, Any], x: Any, weights: np.ndarray, bias: Any) -> Any:
    """Return a convolution of one or two axes, by way of channels last."""
    rank = weights.ndim - 2
    pads, one = attributes.get("pads", [0] * 2 * rank), [1] * rank
    to_last = [0, *range(2, rank + 2), 1]
    x = tf.transpose(x, to_last)
    if any(pads):
        x = tf.pad(x, [[0, 0], *zip(pads[:rank], pads[rank:], strict=True), [0, 0]])
    kernel = np.transpose(weights, [*range(2, rank + 2), 1, 0])
    strides, dilations = attributes.get("strides", one), attributes.get("dilations", one)
    if rank == 1:
        x, kernel = tf.expand_dims(x, 1), kernel[None]
        strides, dilations = [1, *strides], [1, *dilations]
    y = tf.nn.conv2d(x, kernel, strides, "VALID", dilations=dilations)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    y = tf.squeeze(y, 1) if rank == 1 else y
    return tf.transpose(y, [0, rank + 1, *range(1, rank + 1)])


def gru_step(x: Any, w: np.ndarray, r: np.ndarray, b: np.ndarray, state: Any) -> Any:
    """Return the hidden state behind one step of a GRU whose reset gate comes after the product."""
    hidden = r.shape[-1]
    x, h = tf.reshape(x, [1, -1]), tf.reshape(state, [1, -1])
    left = tf.matmul(x, w[0].T) + b[0, : 3 * hidden]
    right = tf.matmul(h, r[0].T) + b[0, 3 * hidden :]
    lefts, rights = tf.split(left, 3, axis=1), tf.split(right, 3, axis=1)
    update, reset = (tf.sigmoid(lefts[i] + rights[i]) for i in (0, 1))
    candidate = tf.tanh(lefts[2] + reset * rights[2])
    return (1 - update) * candidate + update * h


def resized(x: Any, scales: np.ndarray) -> Any:
    """Return an image that is repeated, nearest neighbour, by way of channels last."""
    x = tf.transpose(x, [0, 2, 3, 1])
    size = [int(n * s) for n, s in zip(x.shape[1:3], scales[2:], strict=True)]
    return tf.transpose(tf.raw_ops.ResizeNearestNeighbor(images=x, size=size), [0, 3, 1, 2])


def evaluate(node: onnx.NodeProto, given: list[Any]) -> list[Any]:
    """Return the results of a node."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    keep = bool(attributes.get("keepdims", 1))
    axis = attributes.get("axis", -1)

    def reduced(function: Callable[..., Any], x: Any, axes: Any) -> Any:
        return function(x, axis=None if axes is None else [int(a) for a in axes], keepdims=keep)

    a, b, c = (*given, None, None, None)[:3]
    simple = {"Relu": tf.nn.relu, "Sqrt": tf.sqrt, "Neg": tf.negative, "Log": tf.math.log, "Sigmoid": tf.sigmoid}
    binary = {"Add": tf.add, "Sub": tf.subtract, "Mul": tf.multiply, "Div": tf.divide, "MatMul": tf.matmul}
    reductions = {"ReduceMean": tf.reduce_mean, "ReduceMin": tf.reduce_min, "ReduceLogSumExp": tf.reduce_logsumexp}
    kind = node.op_type
    if kind in simple:
        return [simple[kind](a)]
    if kind in binary:
        return [binary[kind](a, b)]
    if kind in reductions:
        return [reduced(reductions[kind], a, b)]
    if kind == "ReduceSumSquare":
        return [reduced(tf.reduce_sum, tf.square(a), b)]
    if kind == "Gemm":
        return [tf.matmul(a, b) + c]
    if kind == "Conv":
        return [convolution(attributes, a, b, c)]
    if kind == "Concat":
        return [tf.concat(given, axis)]
    if kind == "Split":
        return list(tf.split(a, [int(n) for n in b], axis=attributes.get("axis", 0)))
    if kind == "Transpose":
        return [tf.transpose(a, attributes["perm"])]
    if kind == "Reshape":
        return [tf.reshape(a, [int(n) for n in b])]
    if kind == "Flatten":
        return [tf.reshape(a, [1, -1])]
    if kind == "Unsqueeze":
        return [tf.expand_dims(a, int(b[0]))]
    if kind == "Softmax":
        return [tf.nn.softmax(a, axis=axis)]
    if kind == "Resize":
        return [resized(a, c)]
    if kind == "Slice":
        (first,), (last,), (place,) = b, c, given[3]
        return [tf.gather(a, list(range(int(first), int(last))), axis=int(place))]
    if kind == "AveragePool":
        x = tf.transpose(a, [0, 2, 3, 1])
        y = tf.nn.avg_pool2d(x, attributes["kernel_shape"], attributes["strides"], "VALID")
        return [tf.transpose(y, [0, 3, 1, 2])]
    if kind == "GRU":
        hidden = gru_step(a, b, c, given[3], given[5])
        return [tf.reshape(hidden, [1, 1, 1, -1]), tf.reshape(hidden, [1, 1, -1])]
    raise NotImplementedError(kind)


def function_of(model: onnx.ModelProto) -> Any:
    """Return the network as a function of TensorFlow, with named inputs and outputs."""
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    specs = {
        each.name: tf.TensorSpec([d.dim_value for d in each.type.tensor_type.shape.dim], tf.float32, each.name)
        for each in model.graph.input
    }

    @tf.function(input_signature=[specs])
    def run(inputs: Tensors) -> Tensors:
        values: Tensors = {**constants, **inputs}
        for node in model.graph.node:
            made = evaluate(node, [values[name] if name else None for name in node.input])
            values.update(zip(node.output, made, strict=False))
        return {each.name: tf.identity(values[each.name]) for each in model.graph.output}

    return run


def run_stream(content: bytes, samples: Arrays, states: Mapping[str, str]) -> Arrays:
    """Return the outputs for all samples; states begin with zeros and pass from sample to sample."""
    runner = tf.lite.Interpreter(model_content=content).get_signature_runner("serving_default")
    taken, given = runner.get_input_details(), runner.get_output_details()
    kept = {name: np.zeros(taken[name]["shape"], np.float32) for name in states.values()}
    found: dict[str, list[np.ndarray]] = {}
    for n in range(len(next(iter(samples.values())))):
        fed = {name: array[n] for name, array in samples.items() if name not in kept} | kept
        made = runner(**{name: stored(array, taken[name]) for name, array in fed.items()})
        outputs = {name: real(array, given[name]) for name, array in made.items()}
        kept = {target: outputs[source] for source, target in states.items()}
        for name, array in outputs.items():
            found.setdefault(name, []).append(array)
    return {name: np.stack(arrays) for name, arrays in found.items()}


def stored(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Return an input as the network takes it: quantized if its type is an integer."""
    kind, (scale, zero) = np.dtype(detail["dtype"]), detail["quantization"]
    if kind.kind == "f":
        return np.asarray(array, kind)
    limits = np.iinfo(kind)
    return np.clip(np.rint(array / scale) + zero, limits.min, limits.max).astype(kind)


def real(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Return an output as real numbers."""
    scale, zero = detail["quantization"]
    return array.copy() if array.dtype.kind == "f" else ((array.astype(np.float32) - zero) * scale)


def forms(model: onnx.ModelProto, calibration: Arrays, folder: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield each form of the network: its name, and what makes the file of TensorFlow Lite."""
    module = tf.Module()
    module.run = function_of(model)
    tf.saved_model.save(module, str(folder / "saved"), signatures={"serving_default": module.run})
    samples = [
        {name: array[n] for name, array in calibration.items()} for n in range(len(next(iter(calibration.values()))))
    ]

    def converted(is_quantized: bool) -> bytes:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved"))
        if is_quantized:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: iter(samples)
        content: bytes = converter.convert()
        return content

    def by_ai_edge() -> bytes:
        from ai_edge_quantizer import quantizer, recipe

        (folder / "float.tflite").write_bytes(converted(False))
        made = quantizer.Quantizer(str(folder / "float.tflite"), recipe.static_wi8_ai8())
        statistics = made.calibrate({"serving_default": samples})
        return bytes(made.quantize(statistics).quantized_model)

    yield "float", lambda: converted(False)
    yield "converter", lambda: converted(True)
    yield "ai-edge-quantizer", by_ai_edge


def main() -> None:
    """Write the outputs of each form that works."""
    folder, states = Path(sys.argv[1]), dict(pair.split(":") for pair in sys.argv[2:])
    calibration, evaluation = (dict(np.load(folder / f"{name}.npz")) for name in ("calibration", "evaluation"))
    for name, make in forms(onnx.load(folder / "model.onnx"), calibration, folder):
        try:
            outputs = run_stream(make(), evaluation, states)
        except Exception:  # a form that a quantizer refuses is left out
            print(f"{name}: {traceback.format_exc(limit=-1)}")
            continue
        np.savez(folder / f"outputs_{name}.npz", **outputs)


if __name__ == "__main__":
    main()
