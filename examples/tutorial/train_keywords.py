# SPDX-License-Identifier: Apache-2.0
"""Train a keyword spotter on synthetic words and write what mcugen reads: python train_keywords.py FOLDER.

The words are two vowels each, made of harmonics below formants. Put recordings in their place for a product.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier

RATE, SECONDS = 8000, 0.5
FRAME, STEP, FFT, BANDS, LOWEST, HIGHEST = 256, 160, 256, 16, 100.0, 3800.0
FRAMES = 1 + (int(RATE * SECONDS) - FRAME) // STEP
FORMANTS = {"a": (800, 1200), "i": (300, 2300), "u": (320, 800), "e": (500, 1900)}
WORDS = (None, "ai", "ua", "ie")
"""Classes: noise alone, and three words of two vowels."""


def vowel(name: str, seconds: float, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """Return a voiced sound whose harmonics follow two formants."""
    time = np.arange(int(RATE * seconds)) / RATE
    sound = np.zeros_like(time)
    for number in range(1, int(HIGHEST / pitch)):
        frequency = number * pitch
        level = sum(1 / (1 + ((frequency - formant) / 120) ** 2) for formant in FORMANTS[name])
        sound += level * np.sin(2 * np.pi * frequency * time + rng.uniform(0, 2 * np.pi))
    return sound / np.abs(sound).max()


def recording(word: str | None, rng: np.random.Generator) -> np.ndarray:
    """Return half a second of int16: background noise, and a word somewhere in it."""
    sound = rng.normal(0, 0.02, int(RATE * SECONDS))
    if word is not None:
        pitch, seconds = rng.uniform(90, 220), rng.uniform(0.12, 0.18)
        voice = np.concatenate([vowel(letter, seconds, pitch, rng) for letter in word])
        begin = rng.integers(0, len(sound) - len(voice))
        sound[begin : begin + len(voice)] += rng.uniform(0.1, 0.5) * voice
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def mel_bands() -> np.ndarray:
    """Return triangles of peak 1 on HTK's mel scale: BANDS rows over the bins of the spectrum."""
    mel = np.linspace(*(2595 * np.log10(1 + np.array([LOWEST, HIGHEST]) / 700)), BANDS + 2)
    corners = 700 * (10 ** (mel / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    up = (bins - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    down = (corners[2:, None] - bins) / (corners[2:] - corners[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down))


def features(samples: np.ndarray) -> np.ndarray:
    """Return log-mel features [FRAMES, BANDS], as the pipeline of the page computes them."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    frames = np.stack([samples[k * STEP : k * STEP + FRAME] for k in range(FRAMES)]) / 32768 * window
    power = np.abs(np.fft.rfft(frames, FFT)) ** 2
    return np.log(np.maximum(power @ mel_bands().T, 1e-6)).astype(np.float32)


def data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return recordings [count, samples] and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(WORDS)
    return np.stack([recording(WORDS[label], rng) for label in labels]), labels


def main(folder: Path) -> None:
    """Train, convert, and write raw samples beside the model."""
    sounds, labels = data(600, seed=1)
    inputs = np.stack([features(sound).ravel() for sound in sounds])
    mean, std = inputs.mean(), inputs.std()
    network = MLPClassifier((24,), max_iter=60, random_state=0).fit((inputs - mean) / std, labels)
    folder.mkdir(parents=True, exist_ok=True)
    options = {"zipmap": False, "output_class_labels": False}
    model = to_onnx(network, inputs[:1], options=options, target_opset=18)
    del model.graph.output[0]  # the label: the firmware takes the largest score
    (folder / "words.onnx").write_bytes(model.SerializeToString())
    (folder / "pipeline.txt").write_text(
        f"sound={RATE}, frame={FRAME}/{STEP}, window=hann, fft={FFT}\n"
        f"mel={BANDS}:{LOWEST:.0f}:{HIGHEST:.0f}, log=ln, floor=1e-6, stack={FRAMES}\n"
        f"mean={mean:.4f}, std={std:.4f}\n"
    )
    np.savez_compressed(folder / "calibration.npz", X=sounds[:100])
    held_out, held_labels = data(100, seed=2)
    np.savez_compressed(folder / "eval.npz", X=held_out, labels=held_labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
