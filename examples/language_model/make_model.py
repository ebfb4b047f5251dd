# SPDX-License-Identifier: Apache-2.0
"""Train a small language model on the reference of Python, and write it as one step with caches.

Usage: python examples/language_model/make_model.py FOLDER [--steps N]
The text is the module pydoc_data.topics of Python's standard library, under the licence of Python (PSF-2.0). A step
takes a token and its position; it returns the logits of the next token, and the updated caches.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokens import Vocabulary

VOCABULARY, WIDTH, HIDDEN, LAYERS, POSITIONS = 256, 64, 192, 2, 128
HEADS, KEY_HEADS, SIZE = 4, 2, 16
"""Heads of queries, heads of keys and values, and elements of a head."""
BATCH = 8
EPSILON = 1e-5
HIDDEN_SCORE = np.float32(-1e9)

Weights = dict[str, np.ndarray]
"""Parameters of the network, or their gradients, by name."""


def initial_weights() -> Weights:
    """Return random parameters: the embedding is also the last matrix."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(rows)).astype(np.float32)

    weights = {
        "embedding": matrix(VOCABULARY, WIDTH, 1.0),
        "position": matrix(POSITIONS, WIDTH, 0.5),
        "norm": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        weights |= {
            f"norm_a{layer}": np.ones(WIDTH, np.float32),
            f"q{layer}": matrix(WIDTH, HEADS * SIZE),
            f"k{layer}": matrix(WIDTH, KEY_HEADS * SIZE),
            f"v{layer}": matrix(WIDTH, KEY_HEADS * SIZE),
            f"o{layer}": matrix(HEADS * SIZE, WIDTH, 0.5),
            f"norm_b{layer}": np.ones(WIDTH, np.float32),
            f"up{layer}": matrix(WIDTH, HIDDEN),
            f"down{layer}": matrix(HIDDEN, WIDTH, 0.5),
        }
    return weights


# --------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Norm:
    """A root-mean-square normalization y = x · r · g of rows, and what its gradient needs."""

    x: np.ndarray
    r: np.ndarray
    g: np.ndarray

    @staticmethod
    def of(x: np.ndarray, g: np.ndarray) -> Norm:
        """Normalize the rows of x."""
        return Norm(x, 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON)), g)

    @property
    def y(self) -> np.ndarray:
        """Return the result."""
        return self.x * self.r * self.g

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of x and of g."""
        dg = (dy * self.x * self.r).reshape(-1, self.x.shape[-1]).sum(0)
        dyg = dy * self.g
        mean = (dyg * self.x).mean(-1, keepdims=True)
        return self.r * dyg - self.x * self.r**3 * mean, dg


@dataclass(frozen=True)
class Attention:
    """Causal attention of grouped heads, and what its gradient needs: (batch, key heads, group · positions, size)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    shares: np.ndarray

    @staticmethod
    def of(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Attention:
        """Attend from each position to itself and those before it."""
        batch, length = q.shape[:2]
        split = q.reshape(batch, length, KEY_HEADS, HEADS // KEY_HEADS, SIZE).transpose(0, 2, 3, 1, 4)
        q = split.reshape(batch, KEY_HEADS, -1, SIZE)
        k, v = (x.reshape(batch, length, KEY_HEADS, SIZE).transpose(0, 2, 1, 3) for x in (k, v))
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(SIZE**-0.5)
        later = np.tile(np.triu(np.ones((length, length), bool), 1), (HEADS // KEY_HEADS, 1))
        scores[..., later] = HIDDEN_SCORE
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return Attention(q, k, v, e / e.sum(-1, keepdims=True))

    @property
    def y(self) -> np.ndarray:
        """Return the result, (batch, positions, heads · size)."""
        return self._joined(self.shares @ self.v)

    def _joined(self, x: np.ndarray) -> np.ndarray:
        batch, length = x.shape[0], self.k.shape[2]
        split = x.reshape(batch, KEY_HEADS, HEADS // KEY_HEADS, length, SIZE).transpose(0, 3, 1, 2, 4)
        return split.reshape(batch, length, HEADS * SIZE)

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the gradients of q, k and v."""
        batch, length = dy.shape[:2]
        split = dy.reshape(batch, length, KEY_HEADS, HEADS // KEY_HEADS, SIZE).transpose(0, 2, 3, 1, 4)
        dy = split.reshape(self.q.shape)
        dv = self.shares.swapaxes(-1, -2) @ dy
        dshares = dy @ self.v.swapaxes(-1, -2)
        dscores = self.shares * (dshares - (dshares * self.shares).sum(-1, keepdims=True)) * np.float32(SIZE**-0.5)
        dq, dk = dscores @ self.k, dscores.swapaxes(-1, -2) @ self.q
        flat = (x.transpose(0, 2, 1, 3).reshape(batch, length, KEY_HEADS * SIZE) for x in (dk, dv))
        dk, dv = flat
        return self._joined(dq), dk, dv


def outer(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return the gradient of the matrix of a product x @ w."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def loss_and_gradients(w: Weights, tokens: np.ndarray) -> tuple[float, Weights]:
    """Return the mean cross entropy of the tokens (batch, positions + 1) in nats, and the gradients."""
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    x = w["embedding"][given] * np.float32(np.sqrt(VOCABULARY / WIDTH)) + w["position"]
    kept = []
    for i in range(LAYERS):
        a = Norm.of(x, w[f"norm_a{i}"])
        heads = Attention.of(a.y @ w[f"q{i}"], a.y @ w[f"k{i}"], a.y @ w[f"v{i}"])
        x = x + heads.y @ w[f"o{i}"]
        b = Norm.of(x, w[f"norm_b{i}"])
        up = np.maximum(b.y @ w[f"up{i}"], 0)
        x = x + up @ w[f"down{i}"]
        kept.append((a, heads, b, up))
    last = Norm.of(x, w["norm"])
    logits = last.y @ w["embedding"].T
    e = np.exp(logits - logits.max(-1, keepdims=True))
    shares = e / e.sum(-1, keepdims=True)
    rows = np.arange(wanted.size)
    loss = -np.log(shares.reshape(wanted.size, -1)[rows, wanted.reshape(-1)]).mean()
    shares.reshape(wanted.size, -1)[rows, wanted.reshape(-1)] -= 1
    dlogits = shares / np.float32(wanted.size)
    g: Weights = {"embedding": outer(dlogits, last.y)}
    dx, g["norm"] = last.backward(dlogits @ w["embedding"])
    for i, (a, heads, b, up) in reversed(list(enumerate(kept))):
        g[f"down{i}"] = outer(up, dx)
        dup = (dx @ w[f"down{i}"].T) * (up > 0)
        g[f"up{i}"] = outer(b.y, dup)
        db, g[f"norm_b{i}"] = b.backward(dup @ w[f"up{i}"].T)
        dx = dx + db
        g[f"o{i}"] = outer(heads.y, dx)
        parts = dict(zip("qkv", heads.backward(dx @ w[f"o{i}"].T), strict=True))
        g |= {f"{name}{i}": outer(a.y, part) for name, part in parts.items()}
        da, g[f"norm_a{i}"] = a.backward(sum(part @ w[f"{name}{i}"].T for name, part in parts.items()))
        dx = dx + da
    g["position"] = dx.sum(0)
    np.add.at(g["embedding"], given.reshape(-1), dx.reshape(-1, WIDTH) * np.float32(np.sqrt(VOCABULARY / WIDTH)))
    return float(loss), g


def train(tokens: np.ndarray, steps: int) -> Weights:
    """Return parameters after some steps of Adam on random parts of the tokens."""
    random, w = np.random.default_rng(1), initial_weights()
    mean, square = ({name: np.zeros_like(x) for name, x in w.items()} for _ in range(2))
    for step in range(1, steps + 1):
        starts = random.integers(0, len(tokens) - POSITIONS, BATCH)
        loss, gradients = loss_and_gradients(w, tokens[starts[:, None] + np.arange(POSITIONS + 1)])
        rate = np.float32(4e-3 * min(step / 50, 1) * (0.05 + 0.95 * np.cos(np.pi / 2 * step / steps) ** 2))
        for name, g in gradients.items():
            mean[name] = np.float32(0.9) * mean[name] + np.float32(0.1) * g
            square[name] = np.float32(0.99) * square[name] + np.float32(0.01) * g * g
            scale = np.sqrt(square[name] / np.float32(1 - 0.99**step)) + np.float32(1e-8)
            w[name] = w[name] - rate * (mean[name] / np.float32(1 - 0.9**step) / scale)
        if step % 100 == 0 or step == steps:
            print(f"step {step}: {loss / np.log(2):.2f} bits a token", flush=True)
    return w


# ----------------------------------------------------------------------------------------------------------- export


class Writer:
    """Nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        """Begin an empty graph."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant and return its name."""
        name = name or f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def ints(self, *numbers: int) -> str:
        """Add a constant of integers and return its name."""
        return self.const(np.array(numbers, np.int64))

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        out = out or f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [out], out, **attributes))
        return out

    def norm(self, x: str, weights: np.ndarray, name: str) -> str:
        """Add a root-mean-square normalization."""
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.ints(-1), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(np.float32(EPSILON))))
        return self.op("Mul", self.op("Div", x, root), self.const(weights, name))


def step_model(w: Weights) -> onnx.ModelProto:
    """Return one step as an ONNX model, whose caches have the axes (1, key heads, positions, size)."""
    net = Writer()
    scaled = w["embedding"] * np.float32(np.sqrt(VOCABULARY / WIDTH))
    x = net.op("Gather", net.const(scaled, "embedding"), "token")
    x = net.op("Add", x, net.op("Gather", net.const(w["position"], "position"), "pos"))
    seen = net.op("LessOrEqual", net.const(np.arange(POSITIONS)), "pos")
    mask = net.op("Where", seen, net.const(np.float32(0)), net.const(HIDDEN_SCORE))
    grid = net.const(np.stack([np.zeros(KEY_HEADS), np.arange(KEY_HEADS), np.zeros(KEY_HEADS)], -1).astype(np.int64))
    index = net.op("Add", grid, net.op("Mul", "pos", net.ints(0, 0, 1)))
    index = net.op("Reshape", index, net.ints(1, KEY_HEADS, 1, 3))
    for i in range(LAYERS):
        a = net.norm(x, w[f"norm_a{i}"], f"norm_a{i}")
        q, k, v = (net.op("MatMul", a, net.const(w[f"{name}{i}"], f"{name}{i}.w")) for name in "qkv")
        caches = []
        for name, new in (("k", k), ("v", v)):
            new = net.op("Reshape", new, net.ints(1, KEY_HEADS, 1, SIZE))
            caches.append(net.op("ScatterND", f"{name}{i}", index, new, out=f"{name}{i}_out"))
        queries = net.op("Reshape", q, net.ints(1, KEY_HEADS, HEADS // KEY_HEADS, SIZE))
        scores = net.op("MatMul", queries, net.op("Transpose", caches[0], perm=[0, 1, 3, 2]))
        scores = net.op("Add", net.op("Mul", scores, net.const(np.float32(SIZE**-0.5))), mask)
        heads = net.op("MatMul", net.op("Softmax", scores, axis=-1), caches[1])
        heads = net.op("Reshape", heads, net.ints(1, HEADS * SIZE))
        x = net.op("Add", x, net.op("MatMul", heads, net.const(w[f"o{i}"], f"o{i}.w")))
        b = net.norm(x, w[f"norm_b{i}"], f"norm_b{i}")
        up = net.op("Relu", net.op("MatMul", b, net.const(w[f"up{i}"], f"up{i}.w")))
        x = net.op("Add", x, net.op("MatMul", up, net.const(w[f"down{i}"], f"down{i}.w")))
    last = net.norm(x, w["norm"], "norm")
    net.op("MatMul", last, net.const(w["embedding"].T, "logits.w"), out="logits")
    return _model(net)


def _model(net: Writer) -> onnx.ModelProto:
    shape = (1, KEY_HEADS, POSITIONS, SIZE)
    caches = [f"{name}{i}" for i in range(LAYERS) for name in "kv"]
    real, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [helper.make_tensor_value_info(name, whole, [1]) for name in ("token", "pos")]
    inputs += [helper.make_tensor_value_info(name, real, shape) for name in caches]
    outputs = [helper.make_tensor_value_info("logits", real, [1, VOCABULARY])]
    outputs += [helper.make_tensor_value_info(f"{name}_out", real, shape) for name in caches]
    graph = helper.make_graph(net.nodes, "language_model", inputs, outputs, net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def stream(tokens: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return consecutive steps as samples: parts of the text, each from position 0 on."""
    starts = np.linspace(0, len(tokens) - POSITIONS, count).astype(int)
    return {
        "token": np.concatenate([tokens[start : start + POSITIONS] for start in starts])[:, None],
        "pos": np.tile(np.arange(POSITIONS), count)[:, None],
    }


def reference_text() -> str:
    """Return the reference of Python, with each run of a space, a line end or a punctuation mark as one."""
    return re.sub(r"(\W)\1+", r"\1", "\n".join(topics[name] for name in sorted(topics)))


def main() -> None:
    """Train, and write model, vocabulary and samples to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = reference_text()
    vocabulary = Vocabulary.of(text, VOCABULARY)
    tokens = np.array(vocabulary.encode(text), np.int64)
    cut = len(tokens) * 9 // 10
    weights = train(tokens[:cut], options.steps)
    held_out = [tokens[start : start + POSITIONS + 1] for start in range(cut, len(tokens) - POSITIONS, POSITIONS)]
    loss, _ = loss_and_gradients(weights, np.stack(held_out[:64]))
    print(f"{len(text):,} characters, {len(tokens):,} tokens; held out: {loss / np.log(2):.2f} bits a token")
    onnx.save(step_model(weights), options.folder / "model.onnx")
    (options.folder / "vocabulary.json").write_text(json.dumps(vocabulary.merges))
    (options.folder / "vocabulary.h").write_text(vocabulary.to_c())
    np.savez(options.folder / "calibration.npz", **stream(tokens[:cut], 4))
    np.savez(options.folder / "held_out.npz", **stream(tokens[cut:], 2))


if __name__ == "__main__":
    main()
