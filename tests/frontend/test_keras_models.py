# SPDX-License-Identifier: Apache-2.0
"""Keras models and .keras files, compiled in one call, compute what Keras computes; hostile files are refused."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.core.errors import ModelError, UsageError

pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[keras]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[keras]')")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed (pip install 'mcugen[keras]')")

LAYERS = keras.layers


def cnn() -> Any:
    inner = (LAYERS.Conv2D(8, 3, use_bias=False), LAYERS.BatchNormalization(), LAYERS.ReLU(), LAYERS.MaxPooling2D())
    last = (LAYERS.GlobalAveragePooling2D(), LAYERS.Dense(4, activation="softmax"))
    return keras.Sequential([keras.Input((8, 8, 1)), *inner, *last])


def gru() -> Any:
    return keras.Sequential([keras.Input((6, 5)), LAYERS.GRU(8), LAYERS.Dense(3)])


@pytest.mark.parametrize("make", [cnn, gru])
def test_a_model_computes_the_same(make: Any) -> None:
    keras.utils.set_random_seed(0)
    net = make()
    samples = np.random.default_rng(0).standard_normal((8, *net.input_shape[1:])).astype(np.float32)
    expected = keras.ops.convert_to_numpy(net(samples))
    result = mcugen.compile(net).run(samples)["output"]
    np.testing.assert_allclose(result.reshape(expected.shape), expected, atol=1e-5)
    quantized = mcugen.compile(net, "stm32f446", calibration=samples)
    assert not [layer.name for layer in quantized.layers if "f32" in layer.kernel and "softmax" not in layer.kernel]


def test_a_file_is_its_model(tmp_path: Path) -> None:
    net = cnn()
    net.save(tmp_path / "net.keras")
    samples = np.ones((1, 8, 8, 1), np.float32)
    results = [mcugen.compile(model).run(samples)["output"] for model in (net, tmp_path / "net.keras")]
    np.testing.assert_array_equal(*results)


def changed(path: Path, change: Any) -> None:
    """Change the first layer's description in a .keras file."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    configuration = json.loads(entries["config.json"])
    configuration["config"]["layers"][1] |= change
    entries["config.json"] = json.dumps(configuration).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    "change",
    [
        {"module": "os", "class_name": "system"},
        {"module": "builtins", "class_name": "__lambda__"},
        {"module": "keras.layers", "class_name": "Lambda"},
        {"module": "keras.layers", "class_name": "Dense", "registered_name": "mine>Dense"},
    ],
)
def test_a_file_with_code_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    cnn().save(tmp_path / "net.keras")
    changed(tmp_path / "net.keras", change)
    with pytest.raises(ModelError, match="must hold only layers of Keras"):
        mcugen.compile(tmp_path / "net.keras")


def test_a_model_without_inputs_is_one_error() -> None:
    with pytest.raises(UsageError, match="must be built"):
        mcugen.compile(keras.Sequential([LAYERS.Dense(3)]))
