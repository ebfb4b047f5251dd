# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on the digits 0 to 7, and chooses what it is shown later: learning.onnx, lesson.npz,
exam.npz.

Needs scikit-learn for the data; everything else is numpy.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
CLASSES, KNOWN = 10, 8
HIDDEN = 48
EVALUATED, CHOOSING, TAUGHT, REMEMBERED = 400, 300, 20, 20
"""Images that judge; that choose how the lesson is given; of each new digit, that are shown; of each known one, that
are shown in between.
"""
EPOCHS, BATCH, RATE = 60, 32, 0.3
LESSONS, LESSON_RATES = (5, 10, 20, 30), (0.01, 0.02, 0.05)
"""How often the lesson is given, and with which rate: what is tried."""

Array = NDArray[np.float32]


@dataclass
class Weights:
    """Of the two layers, as [outputs, inputs] and [outputs]."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    def features(self, images: Array) -> Array:
        """What the last layer sees of [N, 64]."""
        return np.maximum(images @ self.w1.T + self.b1, 0)


def softmax(logits: Array) -> Array:
    """By row."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True), np.float32)


def trained(images: Array, labels: NDArray[np.int64]) -> Weights:
    """By plain gradient descent on the known digits; the other outputs stay at zero."""
    rng = np.random.default_rng(0)
    net = Weights(
        rng.normal(0, 0.2, (HIDDEN, 64)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        np.zeros((CLASSES, HIDDEN), np.float32),
        np.zeros(CLASSES, np.float32),
    )
    for _ in range(EPOCHS):
        for start in range(0, len(images), BATCH):
            x, t = images[start : start + BATCH], labels[start : start + BATCH]
            h = net.features(x)
            error = softmax(h @ net.w2[:KNOWN].T + net.b2[:KNOWN])
            error[np.arange(len(t)), t] -= 1
            error *= np.float32(RATE / len(t))
            back = (error @ net.w2[:KNOWN]) * (h > 0)
            net.w2[:KNOWN] -= error.T @ h
            net.b2[:KNOWN] -= error.sum(0)
            net.w1 -= back.T @ x
            net.b1 -= back.sum(0)
    return net


def model_of(net: Weights) -> onnx.ModelProto:
    """The network as it is exported for inference: it says nothing of learning."""
    call, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        call("Gemm", ["image", "w1", "b1"], ["sums"], transB=1),
        call("Relu", ["sums"], ["features"]),
        call("Gemm", ["features", "w2", "b2"], ["scores"], transB=1),
    ]
    inputs, outputs = [info("image", TensorProto.FLOAT, [1, 64])], [info("scores", TensorProto.FLOAT, [1, CLASSES])]
    constants = [numpy_helper.from_array(array, name) for name, array in vars(net).items()]
    graph = helper.make_graph(nodes, "learning", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def learned(net: Weights, images: Array, labels: NDArray[np.int64], rate: float) -> Weights:
    """What the device learns: plain gradient descent on the last layer, one image a step."""
    for image, label in zip(images, labels, strict=True):
        features = net.features(image[None])
        error = softmax(features @ net.w2.T + net.b2)
        error[0, label] -= 1
        net.w2 -= np.float32(rate) * error.T @ features
        net.b2 -= np.float32(rate) * error[0]
    return net


def lesson(labels: NDArray[np.int64], times: int) -> NDArray[np.int64]:
    """Which training images are shown, in order: new digits, and known ones between them, lest these be forgotten."""
    new = [np.flatnonzero(labels == digit)[:TAUGHT] for digit in range(KNOWN, CLASSES)]
    known = [np.flatnonzero(labels == digit)[:REMEMBERED] for digit in range(KNOWN)]
    shown = np.concatenate([*new, *known])
    order = np.random.default_rng(1)
    return np.concatenate([order.permutation(shown) for _ in range(times)])


def chosen(net: Weights, images: Array, labels: NDArray[np.int64]) -> tuple[int, float]:
    """How often the lesson is given, and the rate, by the last of the training images: what tells known and new digits
    best, each half of the mark.
    """
    fit, held = slice(-CHOOSING), slice(-CHOOSING, None)
    marks = {}
    for times, rate in itertools.product(LESSONS, LESSON_RATES):
        shown = lesson(labels[fit], times)
        found = learned(copy.deepcopy(net), images[shown], labels[shown], rate)
        right = (net_scores(found, images[held])).argmax(1) == labels[held]
        marks[times, rate] = right[labels[held] < KNOWN].mean() + right[labels[held] >= KNOWN].mean()
    return max(marks, key=lambda way: marks[way])


def net_scores(net: Weights, images: Array) -> Array:
    """Of each class."""
    return net.features(images) @ net.w2.T + net.b2


def main() -> None:
    """Writes the files; their arrays are called as the commands of mcugen read them."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.data / 16).astype(np.float32)[order], data.target.astype(np.int64)[order]
    known = np.flatnonzero(labels[EVALUATED:-CHOOSING] < KNOWN) + EVALUATED
    net = trained(images[known], labels[known])
    onnx.save(model_of(net), HERE / "learning.onnx")
    times, rate = chosen(net, images[EVALUATED:], labels[EVALUATED:])
    shown = EVALUATED + lesson(labels[EVALUATED:], times)
    np.savez_compressed(
        HERE / "lesson.npz",
        image=images[shown],
        labels=labels[shown],
        rate=np.float32(rate),
    )
    np.savez_compressed(HERE / "exam.npz", image=images[:EVALUATED], labels=labels[:EVALUATED])


if __name__ == "__main__":
    main()
