# SPDX-License-Identifier: Apache-2.0
"""Train a decision tree with scikit-learn and write what mcugen reads: python train_sklearn.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier


def main(folder: Path) -> None:
    """Train, convert, and write samples beside the model."""
    features, species = load_iris(return_X_y=True)
    train_x, eval_x, train_y, eval_y = train_test_split(
        features.astype(np.float32), species, test_size=50, stratify=species, random_state=0
    )
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(train_x, train_y)
    folder.mkdir(parents=True, exist_ok=True)
    model = to_onnx(tree, train_x[:1], options={"zipmap": False, "nocl": True}, target_opset=18)
    (folder / "iris.onnx").write_bytes(model.SerializeToString())
    np.savez_compressed(folder / "eval.npz", X=eval_x, labels=eval_y)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
