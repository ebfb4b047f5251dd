# SPDX-License-Identifier: Apache-2.0
"""Keras models and .keras files, compiled in one call, compute what Keras computes; hostile files are refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import numpy_outputs

import mcugen
from mcugen.core.errors import ModelError, UsageError

pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[keras]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[keras]')")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed (pip install 'mcugen[keras]')")

from mcugen.frontend.keras.child import convert_in_child  # noqa: E402
from mcugen.frontend.keras.model import convert, convert_file  # noqa: E402

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


IMAGE, SEQUENCE, VECTOR = (9, 8, 4), (7, 6), (10,)
ACTIVATIONS = (
    *("elu", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "log_softmax", "mish", "relu6", "selu", "sigmoid"),
    *("silu", "softplus", "softsign", "tanh"),
)
BRANCHES: dict[tuple[int, ...], list[Any]] = {
    IMAGE: [
        LAYERS.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        LAYERS.Conv2D(4, (3, 2), dilation_rate=2, groups=2),
        LAYERS.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2),
        LAYERS.SeparableConv2D(5, 3, padding="same"),
        LAYERS.Conv2DTranspose(4, 3, strides=2, padding="same"),
        LAYERS.Conv2DTranspose(4, 3, strides=2),
        LAYERS.BatchNormalization(),
        LAYERS.GroupNormalization(2),
        LAYERS.MaxPooling2D(2, padding="same"),
        LAYERS.AveragePooling2D(3, strides=2, padding="same"),
        LAYERS.GlobalMaxPooling2D(),
        LAYERS.GlobalAveragePooling2D(keepdims=True),
        LAYERS.Normalization(mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 3.0, 4.0]),
        LAYERS.Rescaling(1 / 127.5, offset=-1),
        LAYERS.Resizing(5, 6),
        LAYERS.UpSampling2D(2, interpolation="bilinear"),
        LAYERS.Cropping2D(1),
        LAYERS.ZeroPadding2D(((1, 2), (0, 1))),
        LAYERS.Flatten(),
        LAYERS.Permute((3, 1, 2)),
        LAYERS.PReLU(shared_axes=[1, 2], alpha_initializer="glorot_uniform"),
    ],
    SEQUENCE: [
        LAYERS.Dense(5),
        LAYERS.Conv1D(4, 3, strides=2, padding="same"),
        LAYERS.Conv1D(4, 3, dilation_rate=2, padding="causal"),
        LAYERS.DepthwiseConv1D(3, depth_multiplier=2),
        LAYERS.SeparableConv1D(5, 3, padding="same"),
        LAYERS.Conv1DTranspose(4, 3, strides=2, padding="same"),
        LAYERS.LayerNormalization(),
        LAYERS.RMSNormalization(),
        LAYERS.MaxPooling1D(2),
        LAYERS.AveragePooling1D(2),
        LAYERS.GRU(5, return_sequences=True),
        LAYERS.GRU(5, reset_after=False),
        LAYERS.LSTM(5, go_backwards=True),
        LAYERS.SimpleRNN(5),
        LAYERS.Bidirectional(LAYERS.LSTM(4, return_sequences=True)),
        LAYERS.MultiHeadAttention(2, 3),
    ],
    VECTOR: [
        LAYERS.Dense(5, activation="softmax"),
        LAYERS.Dropout(0.5),
        LAYERS.UnitNormalization(),
        LAYERS.RepeatVector(3),
        *(LAYERS.Activation(name) for name in ACTIVATIONS),
    ],
}
"""Layers by the shape of their input, which are the branches of one model."""


@pytest.mark.parametrize("shape", BRANCHES, ids=len)
def test_layers_compute_the_same(shape: tuple[int, ...]) -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input(shape, name="x")
    attends = LAYERS.MultiHeadAttention
    net = keras.Model(x, [layer(x, x) if isinstance(layer, attends) else layer(x) for layer in BRANCHES[shape]])
    random = np.random.default_rng(0)
    for weight in net.weights:
        weight.assign(random.uniform(0.2, 1, weight.shape) * (1 if "variance" in weight.path else 0.5))
    sample = random.standard_normal((1, *shape)).astype(np.float32) * 2
    found = numpy_outputs(convert(net), {"x": sample})
    for layer, expected, array in zip(BRANCHES[shape], net(sample, training=False), found.values(), strict=True):
        np.testing.assert_allclose(array, keras.ops.convert_to_numpy(expected), 1e-5, 2e-5, err_msg=layer.name)


def test_embeddings_compute_the_same() -> None:
    net = keras.Sequential([keras.Input((6,), dtype="int32", name="tokens"), LAYERS.Embedding(11, 4)])
    tokens = np.asarray([[0, 3, 10, 5, 5, 1]], np.int32)
    (found,) = numpy_outputs(convert(net), {"tokens": tokens}).values()
    np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(net(tokens)))


def test_layers_have_the_names_that_they_have_in_keras(tmp_path: Path) -> None:
    x = keras.Input((8, 8, 3), name="image")
    block = keras.Sequential([LAYERS.Conv2D(4, 3, name="wide"), LAYERS.ReLU()], name="block")
    y = LAYERS.Bidirectional(LAYERS.GRU(4, name="gru"), name="both")(LAYERS.Reshape((36, 4))(block(x)))
    net = keras.Model(x, LAYERS.Dense(2, activation="softmax", name="half")(y))  # `half` is a method of modules.
    compiled = mcugen.compile(net)
    names = [layer.name for layer in compiled.layers]
    assert {"block/wide", "both/forward_gru", "both/backward_gru", "half", "half.softmax"} <= {*names}
    assert [value.name for value in compiled.compilation.compiled.program.inputs] == ["image"]
    assert "block/wide" in (compiled.write(tmp_path) / f"{compiled.name}.c").read_text()


def test_bias_and_normalization_are_part_of_the_convolution() -> None:
    first = (LAYERS.Conv2D(4, 3, padding="same"), LAYERS.BatchNormalization(), LAYERS.ReLU())
    net = keras.Sequential([keras.Input((8, 8, 3)), *first, LAYERS.SeparableConv2D(4, 3), LAYERS.ReLU()])
    assert [layer.op for layer in mcugen.compile(net).layers] == ["conv"] * 3


def test_a_child_process_converts_a_file_to_the_same(tmp_path: Path) -> None:
    cnn().save(tmp_path / "net.keras")
    here, there = convert_file(tmp_path / "net.keras"), convert_in_child(tmp_path / "net.keras")
    assert here.SerializeToString(deterministic=True) == there.SerializeToString(deterministic=True)


def test_an_error_passes_from_the_child_process(tmp_path: Path) -> None:
    (tmp_path / "net.keras").write_bytes(b"PK")
    with pytest.raises(ModelError, match=r"net\.keras: the file must be a .keras file"):
        convert_in_child(tmp_path / "net.keras")


OTHER_BACKEND = """
import sys
import keras, mcugen, numpy as np
net = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 3, name="first"), keras.layers.Flatten()])
net.compile(loss=lambda truth, found: 0.0)  # A function of the user's, which is not part of the network.
x = np.ones((1, 8, 8, 1), np.float32)
model = mcugen.compile(net)
np.testing.assert_allclose(model.run(x)["output"].reshape(1, -1), keras.ops.convert_to_numpy(net(x)), 1e-5, 1e-5)
assert [layer.name for layer in model.layers] == ["first"]

class Mine(keras.layers.Layer):
    def call(self, x):
        return x + 1

try:
    mcugen.compile(keras.Sequential([keras.Input((3,)), Mine()]))
except mcugen.ModelError as error:
    sys.exit(0 if "Mine" in str(error) and 'KERAS_BACKEND to "torch"' in str(error) else str(error))
sys.exit("no error")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_models_of_other_backends_are_converted(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend}
    program = [sys.executable, "-c", OTHER_BACKEND]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
