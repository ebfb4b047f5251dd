# SPDX-License-Identifier: Apache-2.0
"""Train an autoencoder on vibrations of a healthy machine and write what mcugen reads: python train_anomaly.py FOLDER.

The vibrations are synthetic: a shaft with harmonics, and for faults a bearing that knocks. Put recordings in their
place for a product.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from skl2onnx import to_onnx
from sklearn.neural_network import MLPRegressor

RATE, FRAME, BANDS, LOWEST, HIGHEST = 3200, 512, 20, 20, 1500


def vibration(is_faulty: bool, rng: np.random.Generator) -> np.ndarray:
    """Return one frame of int16."""
    time = np.arange(FRAME) / RATE
    turns = rng.uniform(24, 26)
    sound = sum(np.sin(2 * np.pi * k * turns * time + rng.uniform(0, 6)) / k for k in (1, 2, 3))
    sound = rng.uniform(0.8, 1.2) * sound + rng.normal(0, 0.05, FRAME)
    if is_faulty:
        knocks = (time * 4.1 * turns) % 1
        sound += rng.uniform(0.4, 0.8) * np.exp(-knocks * 8) * np.sin(2 * np.pi * 900 * time)
    return np.rint(np.clip(sound / 4, -1, 1) * 32767).astype(np.int16)


def features(samples: np.ndarray) -> np.ndarray:
    """Return BANDS logarithms of equal parts of the spectrum, as the pipeline of the page computes them."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    power = np.abs(np.fft.rfft(samples / 32768 * window)) ** 2
    hertz, ends = np.arange(FRAME // 2 + 1) * RATE / FRAME, np.linspace(LOWEST, HIGHEST, BANDS + 1)
    bands = [power[(hertz >= low) & (hertz < high)].mean() for low, high in pairwise(ends)]
    return np.log(np.maximum(bands, 1e-6)).astype(np.float32)


def data(count: int, faulty: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames [count, FRAME], and 1 for each faulty one."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) < faulty * count).astype(np.int64)
    return np.stack([vibration(bool(label), rng) for label in labels]), labels


def with_score(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the autoencoder with one output: the mean squared difference between its input and output."""
    graph = model.graph
    rebuilt = graph.node.pop().input[0]  # what skl2onnx reshapes to a single column at the end
    nodes = [
        helper.make_node("Sub", [graph.input[0].name, rebuilt], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axis"], ["score"]),
    ]
    graph.node.extend(nodes)
    graph.initializer.append(helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, [None, 1]))
    return model


def main(folder: Path) -> None:
    """Train, convert, and write raw samples beside the model."""
    frames, _ = data(600, faulty=0, seed=1)
    inputs = np.stack([features(frame) for frame in frames])
    mean, std = inputs.mean(), inputs.std()
    inputs = (inputs - mean) / std
    network = MLPRegressor(hidden_layer_sizes=(16, 4, 16), max_iter=400, random_state=0).fit(inputs, inputs)
    folder.mkdir(parents=True, exist_ok=True)
    model = with_score(to_onnx(network, inputs[:1], target_opset=18))
    (folder / "machine.onnx").write_bytes(model.SerializeToString())
    (folder / "pipeline.txt").write_text(
        f"vibration={RATE}, frame={FRAME}/{FRAME}, window=hann, fft={FRAME}\n"
        f"bins={BANDS}:{LOWEST}:{HIGHEST}, log=ln, floor=1e-6\n"
        f"mean={mean:.4f}, std={std:.4f}\n"
    )
    np.savez_compressed(folder / "calibration.npz", X=frames[:200])
    held_out, labels = data(80, faulty=0.5, seed=2)
    np.savez_compressed(folder / "eval.npz", X=held_out, labels=labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
