# SPDX-License-Identifier: Apache-2.0
"""The handwritten digits of scikit-learn, 8x8 pixels, that both programs train with and are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CALIBRATION_SAMPLES, HELD_OUT = 100, 300


@dataclass(frozen=True)
class Digits:
    """Images [samples, 8, 8] of float32 in 0..1, and classes, for training and held out."""

    images: np.ndarray
    labels: np.ndarray
    held_images: np.ndarray
    held_labels: np.ndarray


def digits() -> Digits:
    """1,497 to train with, 300 held out."""
    data = load_digits()
    images, labels = (data.images / 16).astype(np.float32), data.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=HELD_OUT, stratify=labels, random_state=0)
    return Digits(split[0], split[2], split[1], split[3])


def write_samples(folder: Path, data: Digits, name: str, axis: int) -> None:
    """What mcugen reads: samples of the input `name`, whose channels are `axis`; those of training have no labels."""
    images, held = (np.expand_dims(array, axis) for array in (data.images, data.held_images))
    np.savez_compressed(folder / "calibration.npz", **{name: images[:CALIBRATION_SAMPLES]})
    np.savez_compressed(folder / "eval.npz", **{name: held}, labels=data.held_labels)
