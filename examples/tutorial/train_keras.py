# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with Keras and writes what mcugen reads: python train_keras.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
from digits_data import digits, write_samples
from keras import layers

EPOCHS, BATCH = 60, 64


def network() -> keras.Model:
    """8x8x1 pixels, channels last -> probabilities of 10 classes."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            *(layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()),
            *(layers.DepthwiseConv2D(3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()),
            *(layers.Conv2D(32, 1, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()),
            *(layers.Conv2D(32, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()),
            *(layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")),
        ]
    )


def main(folder: Path) -> None:
    """Trains, exports, and writes samples beside the model."""
    keras.utils.set_random_seed(0)
    data, net = digits(), network()
    net.compile(optimizer=keras.optimizers.AdamW(0.005, weight_decay=0.02), loss="sparse_categorical_crossentropy")
    net.fit(data.images[..., None], data.labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    folder.mkdir(parents=True, exist_ok=True)
    net.export(folder / "digits.onnx", format="onnx", verbose=False)
    write_samples(folder, data, "image", axis=-1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
