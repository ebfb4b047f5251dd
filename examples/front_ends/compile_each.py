# SPDX-License-Identifier: Apache-2.0
"""Train a small model with each framework, and compile it: python compile_each.py FOLDER [FRAMEWORK…]."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mcugen

BOARD = "nrf52840"
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((200, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


def torch_model(folder: Path) -> Any:
    """Save a PyTorch module as an exported program, and return the path of the file."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(1, 6),)), folder / "model.pt2")
    return folder / "model.pt2"


def keras_model(folder: Path) -> Any:
    """Save a Keras model, and return the path of the file."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    layers = [keras.layers.Dense(8, activation="relu", name="hidden"), keras.layers.Dense(2, name="scores")]
    keras.Sequential([keras.Input((6,), name="features"), *layers]).save(folder / "model.keras")
    return folder / "model.keras"


def sklearn_model(_: Path) -> Any:
    """Return a fitted pipeline of scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)


def xgboost_model(_: Path) -> Any:
    """Return a fitted classifier of XGBoost."""
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=8, max_depth=3).fit(X, Y)


def lightgbm_model(_: Path) -> Any:
    """Return a fitted classifier of LightGBM."""
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=8, verbose=-1).fit(X, Y)


MODELS: Mapping[str, Callable[[Path], Any]] = {
    "torch": torch_model,
    "keras": keras_model,
    "sklearn": sklearn_model,
    "xgboost": xgboost_model,
    "lightgbm": lightgbm_model,
}


def main(folder: Path, frameworks: list[str]) -> None:
    """Write the C of a model of each framework, and print what it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    for framework in frameworks or MODELS:
        model = mcugen.compile(MODELS[framework](folder), BOARD)
        written = model.write(folder / framework)
        print(f"{framework}: {len(model.layers)} layers in {written}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
