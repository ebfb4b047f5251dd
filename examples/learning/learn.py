# SPDX-License-Identifier: Apache-2.0
"""Lets a simulated board learn the digits 8 and 9, and says what it knows before and after; see README.md.

python learn.py BOARD [int8]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnx
from make_learning import HERE, KNOWN, Array, Weights
from onnx import numpy_helper

import mcugen
from mcugen.driver.compiled import CompiledModel

Samples = list[dict[str, np.ndarray]]


def compiled(board: str, precision: str = "float32") -> CompiledModel:
    """The network for a board, whose last layer learns; all of it in integers if `precision` is int8."""
    samples = HERE / "lesson.npz" if precision == "int8" else None
    net = mcugen.compile(HERE / "learning.onnx", board, train="last:1", train_weights=precision, calibration=samples)
    return net.compilation.compiled


def runs(images: Array) -> Samples:
    """One call an image."""
    return [{"image": image[None]} for image in images]


def lessons(images: Array, labels: np.ndarray, rate: float) -> Samples:
    """The same, from which the network learns."""
    return [
        {"image": image[None], "target": np.asarray([label], np.int32), "rate": np.asarray([rate], np.float32)}
        for image, label in zip(images, labels, strict=True)
    ]


def known_weights() -> Weights:
    """Those in flash."""
    stored = onnx.load(HERE / "learning.onnx").graph.initializer
    return Weights(**{tensor.name: numpy_helper.to_array(tensor).copy() for tensor in stored})


def accuracies(scores: Sequence[np.ndarray], labels: np.ndarray) -> tuple[float, float]:
    """Of the digits that it was trained on, and of the new ones."""
    right = np.asarray([s.argmax() for s in scores]) == labels
    return float(right[labels < KNOWN].mean()), float(right[labels >= KNOWN].mean())


def main(board: str, precision: str = "float32") -> None:
    """One run: an examination, the lesson, the examination again."""
    lesson, examined = (np.load(HERE / f"{name}.npz") for name in ("lesson", "exam"))
    exam = runs(examined["image"])
    samples = [*exam, *lessons(lesson["image"], lesson["labels"], float(lesson["rate"])), *exam]
    done = compiled(board, precision).simulate(samples, measure=False)
    scores = [o["scores"] for o in done.outputs]
    for when, part in (("before", scores[: len(exam)]), ("after", scores[-len(exam) :])):
        known, new = accuracies(part, examined["labels"])
        print(f"{board} {when}: {known:.1%} of the digits 0 to 7, {new:.1%} of 8 and 9")
    print(f"{board}: what was learned has the CRC-32 {done.crcs[-1]:08x}")


if __name__ == "__main__":
    main(*sys.argv[1:])
