# SPDX-License-Identifier: Apache-2.0
"""PyTorch's gradients of the last layers of an ONNX model, without any code of mcugen; needs PyTorch.

python torch_gradients.py MODEL SAMPLE.npz LAYERS LOSS GRADIENTS.npz

The sample holds the tensors that the first of these layers, and the nodes behind it, read. From there on, all is
computed in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import torch
from last_layers import depending, last_layers, parameters
from onnx import helper, numpy_helper
from torch.nn import functional

Tensor = torch.Tensor
Values = dict[str, Tensor]


def padded(x: Tensor, pads: Sequence[int], fill: float = 0.0) -> Tensor:
    """Return a tensor padded by ONNX's `pads`, on its last axes."""
    half = len(pads) // 2
    pairs = list(zip(pads[:half], pads[half:], strict=True))
    return functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=fill)


def conv(node: dict, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    run = {3: functional.conv1d, 4: functional.conv2d}[x.ndim]
    rank = x.ndim - 2
    one = [1] * rank
    given = (node.get("strides", one), 0, node.get("dilations", one), node.get("group", 1))
    return run(padded(x, pads_of(node, x, w.shape[2:])), w, b, *given)


def pads_of(node: dict, x: Tensor, kernel: Sequence[int]) -> list[int]:
    """Return the `pads` of a node, or those that its `auto_pad` means."""
    rank, auto = x.ndim - 2, node.get("auto_pad", b"NOTSET").decode()
    if not auto.startswith("SAME"):
        return node.get("pads", [0] * (2 * rank))
    strides = node.get("strides", [1] * rank)
    whole = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    less, more = [n // 2 for n in whole], [n - n // 2 for n in whole]
    return less + more if auto == "SAME_UPPER" else more + less


def max_pool(node: dict, x: Tensor) -> Tensor:
    kernel = node["kernel_shape"]
    wide = padded(x, pads_of(node, x, kernel), -torch.inf)
    return functional.max_pool2d(wide, kernel, node.get("strides", [1] * len(kernel)))


def average_pool(node: dict, x: Tensor) -> Tensor:
    kernel = node["kernel_shape"]
    run = {3: functional.avg_pool1d, 4: functional.avg_pool2d}[x.ndim]
    pads = pads_of(node, x, kernel)
    assert not any(pads) or node.get("count_include_pad")
    return run(padded(x, pads), kernel, node.get("strides", [1] * len(kernel)))


def gemm(node: dict, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    y = (a.T if node.get("transA") else a) @ (b.T if node.get("transB") else b) * node.get("alpha", 1.0)
    return y if c is None else y + c * node.get("beta", 1.0)


def lstm(node: dict, x: Tensor, w: Tensor, r: Tensor, b: Tensor, lens=None, h=None, c=None) -> tuple[Tensor, ...]:
    """Compute an LSTM by PyTorch's own layer, with gates reordered from ONNX's i, o, f, c to i, f, g, o."""
    directions, hidden = r.shape[0], r.shape[2]

    def turned(rows: Tensor) -> Tensor:
        i, o, f, g = rows.chunk(4)
        return torch.cat([i, f, g, o])

    params = []
    for d in range(directions):
        params += [turned(w[d]), turned(r[d]), turned(b[d][: 4 * hidden]), turned(b[d][4 * hidden :])]
    zeros = x.new_zeros(directions, x.shape[1], hidden)
    states = tuple(zeros if state is None else state for state in (h, c))
    y, hn, cn = torch.lstm(x, states, params, True, 1, 0.0, False, directions == 2, False)
    return y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2), hn, cn


def reduce_mean(node: dict, x: Tensor, axes: Tensor | None = None) -> Tensor:
    along = node.get("axes") if axes is None else axes.tolist()
    return x.mean(tuple(along), keepdim=bool(node.get("keepdims", 1)))


def normalized(node: dict, x: Tensor, *affine: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[node.get("axis", -1) % x.ndim :], *affine, eps=node.get("epsilon", 1e-5))


def sliced(node: dict, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor, steps: Tensor | None = None) -> Tensor:
    index = [slice(None)] * x.ndim
    for axis, start, end in zip(axes.tolist(), starts.tolist(), ends.tolist(), strict=True):
        index[axis] = slice(start, end)
    assert steps is None or set(steps.tolist()) == {1}
    return x[tuple(index)]


def reshaped(node: dict, x: Tensor, shape: Tensor) -> Tensor:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])


def unsqueezed(node: dict, x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted(axes.tolist()):
        x = x.unsqueeze(axis)
    return x


def split(node: dict, x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, sizes.tolist(), node.get("axis", 0))


def gathered(node: dict, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    taken = x.index_select(axis, index.reshape(-1) % x.shape[axis])
    return taken.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


OPERATORS: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "Add": lambda node, a, b: a + b,
    "AveragePool": average_pool,
    "Clip": lambda node, x, low, high: x.clip(low, high),
    "Concat": lambda node, *parts: torch.cat(parts, node["axis"]),
    "Conv": conv,
    "Elu": lambda node, x: functional.elu(x, node.get("alpha", 1.0)),
    "Flatten": lambda node, x: x.flatten(node.get("axis", 1)),
    "Gather": gathered,
    "Gelu": lambda node, x: functional.gelu(x),
    "Gemm": gemm,
    "GlobalAveragePool": lambda node, x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    "Identity": lambda node, x: x,
    "LayerNormalization": normalized,
    "LeakyRelu": lambda node, x: functional.leaky_relu(x, node.get("alpha", 0.01)),
    "LogSoftmax": lambda node, x: x.log_softmax(node.get("axis", -1)),
    "LSTM": lstm,
    "MatMul": lambda node, a, b: a @ b,
    "MaxPool": max_pool,
    "Mul": lambda node, a, b: a * b,
    "Pow": lambda node, a, b: a**b,
    "ReduceMean": reduce_mean,
    "Relu": lambda node, x: x.relu(),
    "Reshape": reshaped,
    "Sigmoid": lambda node, x: x.sigmoid(),
    "Slice": sliced,
    "Softmax": lambda node, x: x.softmax(node.get("axis", -1)),
    "Split": split,
    "Squeeze": lambda node, x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist())),
    "Sub": lambda node, a, b: a - b,
    "Tanh": lambda node, x: x.tanh(),
    "Transpose": lambda node, x: x.permute(node["perm"]),
    "Unsqueeze": unsqueezed,
}
"""Functions that compute an ONNX operator by PyTorch, by operator."""


def run(graph: onnx.GraphProto, behind: set[str], values: Values) -> Tensor:
    """Return the first output of a graph, computed from the boundary's values, without a softmax at the end."""
    last = graph.output[0].name
    for node in graph.node:
        if node.output[0] not in behind:
            continue
        if node.op_type == "Softmax" and last in node.output:
            return values[node.input[0]]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        results = OPERATORS[node.op_type](attributes, *(values.get(name) for name in node.input))
        results = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.output, results, strict=False))
    return values[last]


def exact(array: np.ndarray) -> Tensor:
    """Return an array as a tensor; real numbers become float64."""
    return torch.tensor(array.astype(np.float64) if array.dtype == np.float32 else array)


def main(file: str, sample: str, count: str, loss: str, result: str) -> None:
    """Write the gradients as LAYER/ROLE, with layers counted from the first trained one."""
    model, data = onnx.load(file), dict(np.load(sample))
    target = data.pop("target")
    layers = last_layers(model.graph, int(count))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | data
    values = {name: exact(array) for name, array in arrays.items()}
    by = {(i, role): name for i, layer in enumerate(layers) for role, name in parameters(model.graph, layer).items()}
    for name in by.values():
        values[name].requires_grad_()
    scores = run(model.graph, depending(model.graph, layers), values)
    if loss == "cross-entropy":
        found = functional.cross_entropy(scores.reshape(1, -1), torch.tensor(target.astype(np.int64)))
    else:
        found = functional.mse_loss(scores, torch.tensor(target.astype(np.float64)).reshape(scores.shape))
    found.backward()
    gradients = {}
    for (i, role), name in by.items():
        gradient = values[name].grad.numpy()
        attributes = {a.name: helper.get_attribute_value(a) for a in layers[i].attribute}
        turned = role == "weights" and (layers[i].op_type == "MatMul" or not attributes.get("transB", 1))
        turned |= role == "weights" and layers[i].op_type == "Gemm" and "transB" not in attributes
        gradients[f"{i}/{role}"] = gradient.T if turned else gradient
    np.savez(result, **gradients)


if __name__ == "__main__":
    main(*sys.argv[1:])
