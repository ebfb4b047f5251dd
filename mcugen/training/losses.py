# SPDX-License-Identifier: Apache-2.0
"""Losses of a model's result and a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.core.errors import UnsupportedError
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import DType, TensorType
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Unary
from mcugen.ops.softmax import Softmax
from mcugen.training.onnx_calls import OnnxCalls

SCALAR = (1,)
"""Shape of a loss, and of a learning rate: one element."""


@dataclass(frozen=True)
class TrainingLoss:
    """A loss that was added to a graph.

    Attributes:
        loss: The loss of one sample, float32 [1].
        target: The graph input with the expected class or output.
        classes: Number of classes; 0 if the target is a tensor.
    """

    loss: Value
    target: Value
    classes: int = 0


def cross_entropy(graph: Graph, result: Value) -> TrainingLoss:
    """Add the loss −log softmax(scores)[target] of one sample, where a softmax at the model's end gives the scores.

    Args:
        graph: The graph, changed in place.
        result: The model's result, which gives the scores.

    Raises:
        Refusal: The output is not scores of at least two classes.
    """
    result = before_quantization(result)
    last, scores = result.producer, logits_of(result)
    shape = scores.type.shape
    classes = shape[-1] if shape else 1
    if classes < 2 or scores.type.count != classes:
        raise Refusal("--loss cross-entropy: the output must be scores of classes", f"{shape}", "--loss mse")
    if last is not None and isinstance(last.op, Unary) and last.op.function == "Sigmoid":
        raise Refusal("--loss cross-entropy: the output must be scores of classes", "a sigmoid", "--loss mse")
    if last is not None and isinstance(last.op, Softmax) and last.op.axis != len(shape) - 1:
        raise Refusal("--loss cross-entropy: softmax must be along the last axis", f"{last.op.axis}", "--loss mse")
    target = graph.add_input("target", TensorType(SCALAR, DType.INT32))
    call = OnnxCalls(graph, "loss")
    is_target = call("Equal", np.arange(classes, dtype=np.int32).reshape(1, classes), target)
    hit = call("Cast", is_target, to=TensorProto.FLOAT)
    logarithm = call("LogSoftmax", call("Reshape", scores, np.asarray([1, classes])), axis=-1)
    total = call("ReduceSum", call("Mul", hit, logarithm), np.asarray([1]), keepdims=0)
    return TrainingLoss(call("Neg", total), target, classes)


def before_quantization(result: Value) -> Value:
    """Return the value before a final Quantize–Dequantize pair, or `result` if the model does not end with one."""
    last = result.producer
    codes = last.input(0).producer if last is not None and isinstance(last.op, Dequantize) else None
    return codes.input(0) if codes is not None and isinstance(codes.op, Quantize) else result


def logits_of(result: Value) -> Value:
    """Return the input of a final softmax, or `result` if the model does not end with one."""
    last = before_quantization(result).producer
    is_softmax = last is not None and isinstance(last.op, Softmax) and not last.op.log
    return last.input(0) if last is not None and is_softmax else result


def _of_differences(function: Callable[[OnnxCalls, Value], Value]) -> Loss:
    """Return the loss that is the mean of a function of each difference."""

    def loss(graph: Graph, result: Value) -> TrainingLoss:
        target = graph.add_input("target", result.type)
        call = OnnxCalls(graph, "loss")
        counted = call("Reshape", function(call, call("Sub", result, target)), np.asarray([-1]))
        return TrainingLoss(call("ReduceMean", counted, np.asarray([0]), keepdims=1), target)

    return loss


def _square(call: OnnxCalls, difference: Value) -> Value:
    return call("Mul", difference, difference)


def _absolute(call: OnnxCalls, difference: Value) -> Value:
    return call("Abs", difference)


def _huber(call: OnnxCalls, difference: Value) -> Value:
    """Return the Huber loss of a difference: ½d² for |d| up to 1, else |d| − ½."""
    one, half = np.ones((), np.float32), np.full((), 0.5, np.float32)
    size = call("Abs", difference)
    inner = call("Mul", call("Mul", difference, difference), half)
    return call("Where", call("Less", size, one), inner, call("Sub", size, half))


def contrastive(graph: Graph, result: Value) -> TrainingLoss:
    """Add the contrastive loss of two embeddings: ½·d² if they belong together, else ½·max(0, 1 − d)².

    d is their distance (Hadsell, Chopra, LeCun, "Dimensionality reduction by learning an invariant mapping", 2006). One
    embedding is `result`. The target input holds 1 if both belong together, else 0, followed by the other embedding.

    Args:
        graph: The graph, changed in place.
        result: The model's result, the embedding of the sample.
    """
    count = result.type.count
    target = graph.add_input("target", TensorType((count + 1,), DType.FLOAT32))
    call, one, half = OnnxCalls(graph, "loss"), np.ones(SCALAR, np.float32), np.full(SCALAR, 0.5, np.float32)
    together, other = (
        call("Slice", target, np.asarray([a]), np.asarray([b]), np.asarray([0])) for a, b in ((0, 1), (1, count + 1))
    )
    difference = call("Sub", call("Reshape", result, np.asarray([count])), other)
    square = call("ReduceSum", call("Mul", difference, difference), np.asarray([0]), keepdims=1)
    apart = call("Sqrt", call("Add", square, np.full(SCALAR, ROOT_EPSILON, np.float32)))
    missing = call("Max", call("Sub", one, apart), np.zeros(SCALAR, np.float32))
    pushed = call("Mul", call("Sub", one, together), call("Mul", missing, missing))
    total = call("Add", call("Mul", together, square), pushed)
    return TrainingLoss(call("Mul", total, half), target)


ROOT_EPSILON = 1e-12
"""Constant that is added to a squared distance before its square root, whose derivative at 0 would be infinite."""

Loss = Callable[[Graph, Value], TrainingLoss]
"""A function that adds a loss, and an input for its target, to a graph: it takes the graph and the result."""

LOSSES: Mapping[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": _of_differences(_square),
    "mae": _of_differences(_absolute),
    "huber": _of_differences(_huber),
    "contrastive": contrastive,
}
"""Functions that add a loss to a graph, by the value of `--loss`."""


def add_loss(graph: Graph, result: Value, loss: str) -> TrainingLoss:
    """Add the loss of a result, and an input for its target, to a graph.

    Args:
        graph: The graph, changed in place.
        result: The model's result.
        loss: A key of LOSSES.

    Raises:
        Refusal: The loss does not fit the result.
        UnsupportedError: The result is not float32.
    """
    require_real(result, graph.output_names[0])
    return LOSSES[loss](graph, result)


def require_real(result: Value, name: str) -> None:
    """Check that the type of a model's result is float32.

    Args:
        result: The result.
        name: What the message calls the result.

    Raises:
        UnsupportedError: The type is another.
    """
    if result.type.dtype is not DType.FLOAT32:
        type_text = f"'{name}' is {result.type.dtype.value}"
        raise UnsupportedError("--train: the trained tensors must be float32 or quantized", type_text, "cast it")
