# SPDX-License-Identifier: Apache-2.0
"""Models of every kind of producer in front of every operator with several outputs; each pair is a part of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto
from onnx_models import ML, Net

STEPS, BATCH, WIDTH = SHAPE = (4, 1, 6)
"""Of the tensor between producer and consumer, where they do not change it."""

Producer = Callable[[Net, str], str]
"""A function that adds nodes behind a tensor of SHAPE; their result has as many elements."""
Types = Mapping[str, type]
"""Element types by names of tensors."""
Shape = tuple[int, ...]
"""Shape of a tensor."""
Consumer = Callable[[Net, str, Shape], Types]
"""A function that adds a node with several outputs behind a tensor, and returns those that are outputs of the model."""


# ------------------------------------------------------------------------------------------------ producers


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(np.float32) * 0.4


def _reshaped(net: Net, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.const(shape, np.int64))


def _weighted(net: Net, x: str, *shape: int) -> str:
    return net.op("MatMul", x, net.const(_numbers(*shape)))


def _gemm(net: Net, x: str) -> str:
    rows = _reshaped(net, x, STEPS, WIDTH)
    return net.op("Gemm", rows, net.const(_numbers(WIDTH, WIDTH)), net.const(_numbers(WIDTH)), transB=1)


def _conv(net: Net, x: str, group: int = 1, op_type: str = "Conv") -> str:
    """Over the steps, of WIDTH channels."""
    rows = _reshaped(net, x, 1, WIDTH, STEPS)
    weights = net.const(_numbers(WIDTH, WIDTH // group, 3))
    return net.op(op_type, rows, weights, net.const(_numbers(WIDTH)), pads=[1, 1], group=group)


def _conv2d(net: Net, x: str) -> str:
    rows = _reshaped(net, x, 1, 1, STEPS, WIDTH)
    return net.op("Conv", rows, net.const(_numbers(1, 1, 3, 3)), pads=[1, 1, 1, 1])


def _normalized(net: Net, x: str) -> str:
    constants = [net.const(c) for c in (_numbers(WIDTH), _numbers(WIDTH), np.zeros(WIDTH), np.ones(WIDTH))]
    return net.op("BatchNormalization", _conv(net, x), *constants)


def _split(net: Net, x: str) -> str:
    parts = net.ops("Split", x, outs=[f"{x}.first", f"{x}.second"], axis=2, num_outputs=2)
    return net.op("Concat", parts[1], parts[0], axis=2)


def _sliced(net: Net, x: str) -> str:
    twice = net.op("Concat", x, x, axis=0)
    return net.op("Slice", twice, *(net.const([v], np.int64) for v in (1, STEPS + 1, 0)))


def _padded(net: Net, x: str) -> str:
    part = net.op("Slice", x, *(net.const([v], np.int64) for v in (1, WIDTH, 2)))
    return net.op("Pad", part, net.const([0, 0, 1, 0, 0, 0], np.int64))


def _resized(net: Net, x: str) -> str:
    half = net.op("MaxPool", x, kernel_shape=[2], strides=[2])
    return net.op("Resize", half, "", net.const([1.0, 1.0, 2.0]), mode="nearest")


def _pooled(op_type: str) -> Producer:
    return lambda net, x: net.op(op_type, x, kernel_shape=[3], pads=[1, 1])


def _unary(op_type: str, **attributes: object) -> Producer:
    return lambda net, x: net.op(op_type, x, **attributes)


def _binary(op_type: str) -> Producer:
    return lambda net, x: net.op(op_type, x, net.const(_numbers(WIDTH) + 2.0))


def _quantized(net: Net, x: str, layer: Producer) -> str:
    """A layer between codes; weights are codes, too."""
    return net.fake(layer(net, net.fake(x, 0.03, -3)), 0.05, 4)


def _codes_matmul(net: Net, x: str) -> str:
    return net.op("MatMul", x, net.dequantize(net.const(np.rint(_numbers(WIDTH, WIDTH) * 80), np.int8), 0.0125))


def _codes_biased(net: Net, x: str) -> str:
    bias = net.dequantize(net.const(range(WIDTH), np.int32), 0.03 * 0.0125, dtype=np.int32)
    return net.op("Add", _codes_matmul(net, x), bias)


def _recurrent(op_type: str, gates: int) -> Producer:
    def produce(net: Net, x: str) -> str:
        weights = [net.const(_numbers(1, gates * WIDTH, WIDTH)) for _ in "WR"]
        return net.ops(op_type, x, *weights, outs=[f"{x}.{op_type}"], hidden_size=WIDTH)[0]

    return produce


def _topmost(net: Net, x: str) -> str:
    return net.ops("TopK", x, net.const([WIDTH], np.int64), outs=[f"{x}.top", f"{x}.where"], axis=-1)[0]


def _looped(net: Net, x: str) -> str:
    return next(iter(_loop(net, x, SHAPE)))


def _branch(net: Net, x: str) -> str:
    return next(iter(_if(net, x, SHAPE)))


PRODUCERS: dict[str, Producer] = {
    "nothing": lambda net, x: x,
    "matmul": lambda net, x: _weighted(net, _reshaped(net, x, STEPS, WIDTH), WIDTH, WIDTH),
    "matmul of three axes": lambda net, x: _weighted(net, x, WIDTH, WIDTH),
    "matmul and add": lambda net, x: _binary("Add")(net, _weighted(net, x, WIDTH, WIDTH)),
    "matmul, add and relu": lambda net, x: net.op("Relu", _binary("Add")(net, _weighted(net, x, WIDTH, WIDTH))),
    "gemm": _gemm,
    "gemm and reshape": lambda net, x: _reshaped(net, _gemm(net, x), *SHAPE),
    "gemm, reshape and relu": lambda net, x: net.op("Relu", _reshaped(net, _gemm(net, x), *SHAPE)),
    "product of activations": lambda net, x: net.op("MatMul", x, net.op("MatMul", _turned(net, x), x)),
    "conv": _conv,
    "conv and relu": lambda net, x: net.op("Relu", _conv(net, x)),
    "conv of pictures": _conv2d,
    "depthwise conv": lambda net, x: _conv(net, x, WIDTH),
    "transposed conv": lambda net, x: _conv(net, x, op_type="ConvTranspose"),
    "batch normalization": _normalized,
    "layer normalization": lambda net, x: net.op("LayerNormalization", x, net.const(_numbers(WIDTH))),
    "relu": _unary("Relu"),
    "sigmoid": _unary("Sigmoid"),
    "softmax": _unary("Softmax", axis=2),
    "sum of running": lambda net, x: net.op("CumSum", x, net.const(0, np.int64)),
    "add": _binary("Add"),
    "mul": _binary("Mul"),
    "div": _binary("Div"),
    "greatest": lambda net, x: net.op("Max", x, net.op("Neg", x)),
    "choice": lambda net, x: net.op("Where", net.op("Greater", x, net.const(0.0)), x, net.const(-1.0)),
    "maximum pool": _pooled("MaxPool"),
    "average pool": _pooled("AveragePool"),
    "mean": lambda net, x: net.op("Add", x, net.op("ReduceMean", x, net.const([2], np.int64))),
    "reshape": lambda net, x: _reshaped(net, x, STEPS, WIDTH),
    "transpose": lambda net, x: net.op("Transpose", x, perm=[2, 1, 0]),
    "concatenation": lambda net, x: _split(net, x),
    "slice": _sliced,
    "pad": _padded,
    "resize": _resized,
    "gather": lambda net, x: net.op("Gather", x, net.const([2, 0, 3, 1], np.int64), axis=0),
    "cast": lambda net, x: net.op("Cast", net.op("Cast", x, to=TensorProto.INT32), to=TensorProto.FLOAT),
    "codes": lambda net, x: net.fake(x, 0.03, -3),
    "matmul of codes": lambda net, x: _quantized(net, x, _codes_matmul),
    "matmul of codes and add": lambda net, x: _quantized(net, x, _codes_biased),
    "sum of codes": lambda net, x: _quantized(net, x, lambda n, v: n.op("Add", v, n.fake(n.op("Neg", v), 0.03))),
    "softmax of codes": lambda net, x: net.fake(net.op("Softmax", net.fake(x, 0.03, -3)), 1 / 256, -128),
    "rnn": _recurrent("RNN", 1),
    "gru": _recurrent("GRU", 3),
    "lstm": _recurrent("LSTM", 4),
    "top k": _topmost,
    "loop": _looped,
    "branch": _branch,
}
"""All producers by name."""


SHAPES: dict[str, Shape] = {
    **dict.fromkeys(("matmul", "gemm", "reshape"), (STEPS, WIDTH)),
    **dict.fromkeys((name for name in PRODUCERS if "conv" in name or "batch" in name), (1, WIDTH, STEPS)),
    "conv of pictures": (1, 1, STEPS, WIDTH),
    "transpose": (WIDTH, 1, STEPS),
    **dict.fromkeys(("rnn", "gru", "lstm"), (STEPS, 1, BATCH, WIDTH)),
}
"""Shape of a producer's result by the producer's name, where it is not SHAPE."""


def _turned(net: Net, x: str) -> str:
    return net.op("Transpose", x, perm=[0, 2, 1])


# ------------------------------------------------------------------------------------------------ consumers


def _layer(op_type: str, gates: int, names: str, directions: int = 1) -> Consumer:
    """A recurrent layer whose last states are outputs, too."""

    def consume(net: Net, x: str, shape: Shape) -> Types:
        hidden = 3
        weights = [net.const(_numbers(directions, gates * hidden, size)) for size in (WIDTH, hidden)]
        direction = "bidirectional" if directions == 2 else "forward"
        outs = [f"{x}.{op_type}.{name}" for name in names.split()]
        return _floats(net.ops(op_type, x, *weights, outs=outs, hidden_size=hidden, direction=direction))

    return consume


def _floats(names: Sequence[str]) -> Types:
    return dict.fromkeys(names, np.float32)


def _of_floats(op_type: str, count: int, *constants: object, **attributes: object) -> Consumer:
    """An operator of so many float outputs, and constants for its other inputs."""

    def consume(net: Net, x: str, shape: Shape) -> Types:
        operands = [net.const(c, np.asarray(c).dtype.type) for c in constants]
        outs = [f"{x}.{op_type}.{k}" for k in range(count)]
        return _floats(net.ops(op_type, x, *operands, outs=outs, **attributes))

    return consume


def _of_positions(op_type: str, *constants: object, used: int = 2, **attributes: object) -> Consumer:
    """An operator that gives floats and then integers; of them only the first, only the last or both are read."""

    def consume(net: Net, x: str, shape: Shape) -> Types:
        operands = [net.const(c, np.asarray(c).dtype.type) for c in constants]
        outs = net.ops(op_type, x, *operands, outs=[f"{x}.{op_type}.best", f"{x}.{op_type}.where"], **attributes)
        return dict([(outs[0], np.float32), (outs[1], np.int64)][slice(0, 1) if used == 1 else slice(used - 2, 2)])

    return consume


def _dropout(net: Net, x: str, shape: Shape) -> Types:
    outs = net.ops("Dropout", x, outs=[f"{x}.same", f"{x}.mask"])
    return {outs[0]: np.float32, outs[1]: np.bool_}


def _unique(net: Net, x: str, shape: Shape) -> Types:
    names = ("values", "first", "which", "counts")
    outs = net.ops("Unique", x, outs=[f"{x}.unique.{name}" for name in names])
    return {outs[0]: np.float32, **dict.fromkeys(outs[1:], np.int64)}


def _classifier(op_type: str, **attributes: object) -> Consumer:
    def consume(net: Net, x: str, shape: Shape) -> Types:
        outs = net.ops(op_type, x, outs=[f"{x}.label", f"{x}.scores"], domain=ML, **attributes)
        return {outs[0]: np.int64, outs[1]: np.float32}

    return consume


def _loop(net: Net, x: str, shape: Shape) -> Types:
    """Two steps that halve a tensor, and the sum of each."""
    body = Net(prefix=f"{x}.loop.")
    body.input(f"{x}.step", dtype=np.int64)
    going, state = body.input(f"{x}.going", dtype=np.bool_), body.input(f"{x}.state", *shape)
    half = body.op("Mul", state, body.const([0.5]))
    body.output(body.op("Identity", going), dtype=np.bool_)
    body.output(half, body.op("ReduceSum", half, keepdims=0))
    outs = [f"{x}.last", f"{x}.sums"]
    return _floats(net.ops("Loop", net.const(2, np.int64), "", x, outs=outs, body=body.graph("body")))


def _scan(net: Net, x: str, shape: Shape) -> Types:
    """Sums that run along the first axis, and each part's negative."""
    body = Net(prefix=f"{x}.scan.")
    total, part = (body.input(f"{x}.{name}", *shape[1:]) for name in ("total", "part"))
    body.output(body.op("Add", total, part), body.op("Neg", part))
    outs, zeros = [f"{x}.all", f"{x}.negative"], net.const(np.zeros(shape[1:]))
    return _floats(net.ops("Scan", zeros, x, outs=outs, body=body.graph("body"), num_scan_inputs=1))


def _if(net: Net, x: str, shape: Shape) -> Types:
    """A tensor and its negative, or the other way round, by the sign of its mean."""
    is_positive = net.op("Greater", net.op("ReduceMean", x, keepdims=0), net.const(0.0))
    sides = []
    for side, operators in (("then", ("Relu", "Neg")), ("else", ("Neg", "Abs"))):
        body = Net(prefix=f"{x}.{side}.")
        body.output(*(body.op(op_type, x) for op_type in operators))
        sides.append(body.graph(side))
    outs = [f"{x}.one", f"{x}.other"]
    return _floats(net.ops("If", is_positive, outs=outs, then_branch=sides[0], else_branch=sides[1]))


_LINES = {"coefficients": _numbers(3, WIDTH).reshape(-1).tolist(), "intercepts": [0.1, -0.2, 0.0]}
_VECTORS = {
    "kernel_type": "RBF",
    "kernel_params": [0.25, 0.0, 3.0],
    "vectors_per_class": [2, 1],
    "support_vectors": _numbers(3, WIDTH).reshape(-1).tolist(),
    "coefficients": [0.5, 0.25, -0.75],
    "rho": [0.1],
}
_TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.05, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "class_treeids": [0, 0, 0],
    "class_nodeids": [1, 2, 2],
    "class_ids": [0, 1, 2],
    "class_weights": [1.0, 0.75, 0.25],
}

CONSUMERS: dict[str, Consumer] = {
    "RNN": _layer("RNN", 1, "all hidden"),
    "GRU": _layer("GRU", 3, "all hidden"),
    "LSTM": _layer("LSTM", 4, "all hidden cell"),
    "LSTM in both directions": _layer("LSTM", 4, "all hidden cell", 2),
    "TopK": _of_positions("TopK", np.array([2]), axis=-1),
    "TopK's values": _of_positions("TopK", np.array([1]), axis=0, used=1),
    "MaxPool": _of_positions("MaxPool", kernel_shape=[2]),
    "Split": _of_floats("Split", 3, np.array([1, 2, 3]), axis=-1),
    "LayerNormalization": _of_floats("LayerNormalization", 3, _numbers(WIDTH), _numbers(WIDTH)),
    "BatchNormalization": _of_floats(
        "BatchNormalization", 3, *(np.full(1, v, np.float32) for v in (0.5, 0.25, 0.0, 1.0)), training_mode=1
    ),
    "Dropout": _dropout,
    "Unique": _unique,
    "Loop": _loop,
    "Scan": _scan,
    "If": _if,
    "LinearClassifier": _classifier("LinearClassifier", classlabels_ints=[0, 1, 2], **_LINES),
    "SVMClassifier": _classifier("SVMClassifier", classlabels_ints=[4, 9], **_VECTORS),
    "TreeEnsembleClassifier": _classifier("TreeEnsembleClassifier", classlabels_int64s=[0, 1, 2], **_TREE),
}
"""All consumers by name."""


def takes(consumer: str, shape: Shape) -> bool:
    """Return whether a consumer accepts a tensor of this shape."""
    if consumer in ("RNN", "GRU", "LSTM", "LSTM in both directions", "BatchNormalization"):
        return shape == SHAPE
    if "Classifier" in consumer:
        return shape == (STEPS, WIDTH)
    return (len(shape) == 3 or consumer != "MaxPool") and shape[-1] == WIDTH


def needs(consumer: str) -> Shape:
    """Return a shape that a consumer accepts."""
    return (STEPS, WIDTH) if "Classifier" in consumer else SHAPE


# ---------------------------------------------------------------------------------------------------- pairs


def _pair(net: Net, x: str, producer: str, consumer: str) -> Types:
    """The two, with nothing between them where the shape suits; what the second gives."""
    made = PRODUCERS[producer](net, x)
    shape = SHAPES.get(producer, SHAPE)
    if not takes(consumer, shape):
        shape = needs(consumer)
        made = _reshaped(net, made, *shape)
    return CONSUMERS[consumer](net, made, shape)


def _plain(net: Net, x: str, producer: str, consumer: str) -> Types:
    return _pair(net, net.input(x, *SHAPE), producer, consumer)


def _with_state(net: Net, x: str, producer: str, consumer: str) -> Types:
    """The mean of what comes out is added to the next input."""
    state = net.input(f"{x}.state", 1)
    outs = _pair(net, net.op("Add", net.input(x, *SHAPE), state), producer, consumer)
    real = next(name for name, dtype in outs.items() if dtype is np.float32)
    mean = net.op("ReduceMean", net.op("Reshape", real, net.const([-1], np.int64)))
    net.op("Tanh", mean, out=f"{x}.state_out")
    return {**outs, f"{x}.state_out": np.float32}


def _in_loop(net: Net, x: str, producer: str, consumer: str) -> Types:
    """Three times, with the tensor halved each time."""
    body = Net(net.opset, prefix=f"{x}.body.")
    body.input(f"{x}.step", dtype=np.int64)
    going, state = body.input(f"{x}.going", dtype=np.bool_), body.input(f"{x}.state", *SHAPE)
    outs = _pair(body, state, producer, consumer)
    body.output(body.op("Identity", going), dtype=np.bool_)
    body.output(body.op("Mul", state, body.const([0.5])))
    for name, dtype in outs.items():
        body.output(name, dtype=dtype)
    names = {f"{x}.rows{index}": dtype for index, dtype in enumerate(outs.values())}
    given = [net.const(3, np.int64), "", net.input(x, *SHAPE)]
    net.ops("Loop", *given, outs=[f"{x}.last", *names], body=body.graph("body"))
    return {f"{x}.last": np.float32, **names}


def _in_branch(net: Net, x: str, producer: str, consumer: str) -> Types:
    """Of the tensor or of its negative."""
    given, sides, dtypes = net.input(x, *SHAPE), [], []
    for side, op_type in (("then", "Neg"), ("else", "Abs")):
        body = Net(net.opset, prefix=f"{x}.{side}.")
        outs = _pair(body, body.op(op_type, given), producer, consumer)
        for name, dtype in outs.items():
            body.output(name, dtype=dtype)
        sides, dtypes = [*sides, body.graph(side)], list(outs.values())
    names = {f"{x}.side{index}": dtype for index, dtype in enumerate(dtypes)}
    is_positive = net.op("Greater", net.op("ReduceMean", given, keepdims=0), net.const(0.0))
    net.ops("If", is_positive, outs=list(names), then_branch=sides[0], else_branch=sides[1])
    return names


PLACES: dict[str, Callable[[Net, str, str, str], Types]] = {
    "plain": _plain,
    "with state": _with_state,
    "in a loop": _in_loop,
    "in a branch": _in_branch,
}
"""Functions that put a pair of producer and consumer into a model, by the place: plain, with a state, in a body."""


def model_of(pairs: Sequence[tuple[str, str]], place: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model of independent pairs of producer and consumer, and its states.

    Pair i reads an input x{i} of its own, since equal nodes would be merged.
    """
    net = Net(opset=18)
    for number, (producer, consumer) in enumerate(pairs):
        for name, dtype in PLACES[place](net, f"x{number}", producer, consumer).items():
            net.output(name, dtype=dtype)
    outputs = [info.name for info in net.outputs]
    return net.model(), {name: name.removesuffix("_out") for name in outputs if name.endswith(".state_out")}
