# SPDX-License-Identifier: Apache-2.0
"""The gradients that generated C computes are PyTorch's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from device import OK, Device
from last_layers import boundary, depending, last_layers

from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.session import Session
from mcugen.hir.types import Array

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "train-pytorch" / "bin" / "python"
SHARED = ROOT.parent / "shared"
TOLERANCE = 1e-5
"""Of a tensor's largest element."""

NETWORKS = {
    "models/autoencoder_ad_f32": (2, "mse"),
    "models/ds_cnn_kws_f32": (3, "cross-entropy"),
    "models/mnist_cntk": (2, "cross-entropy"),
    "models/mobilenet_v1_025_vww_f32": (3, "cross-entropy"),
    "models/pt_bilstm_dynamo": (2, "cross-entropy"),
    "models/pt_mlp_dynbatch_dynamo": (3, "cross-entropy"),
    "models/pt_resnet_s_dynamo": (4, "cross-entropy"),
    "models/pt_tcn_dynamo": (3, "cross-entropy"),
    "models/resnet8_cifar10_f32": (3, "cross-entropy"),
    "models/streaming_wakeword_f32": (3, "cross-entropy"),
    "zoo/deeploy_cct_1_32": (3, "cross-entropy"),
    "zoo/deeploy_tinyvit": (3, "cross-entropy"),
    "zoo/esp_tcn_stream": (3, "cross-entropy"),
    "zoo/st_yamnet_256": (2, "cross-entropy"),
}
"""How many layers from the end, and the loss."""


def before(file: Path, count: int, sample: dict[str, Array]) -> dict[str, Array]:
    """What the last layers read, as ONNX Runtime computes it."""
    model = onnx.load(file)
    names = boundary(model.graph, depending(model.graph, last_layers(model.graph, count)))
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    return Session(model).run(names, sample) if names else {}


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_of_the_last_layers_are_those_of_pytorch(network: str, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("needs what `make tutorial` installs")
    count, loss = NETWORKS[network]
    file, rng = SHARED / f"{network}.onnx", np.random.default_rng(1)
    options = CompileOptions(training=Training(f"last:{count}", loss, "momentum"))
    model = compile_model(file, "host", options)
    device, lesson = Device(model, tmp_path), model.bundle.lesson
    assert lesson is not None
    (endpoint,) = (e for e in model.program.inputs if e.name not in (lesson.target.name, lesson.rate.name))
    x = np.load(SHARED / f"{network}.io.npz")["in0_0"].astype(np.float32)
    shape, is_class = lesson.target.shape, bool(lesson.classes)
    target = np.asarray([1], np.int32) if is_class else rng.normal(size=shape).astype(np.float32)
    status, _ = device.train(x, 1 if is_class else target, 1e-3)
    assert status == OK
    np.savez(tmp_path / "sample.npz", target=target, **{endpoint.name: x}, **before(file, count, {endpoint.name: x}))
    script = ROOT / "tests" / "training" / "torch_gradients.py"
    command = [PYTHON, script, file, tmp_path / "sample.npz", str(count), loss, tmp_path / "gradients.npz"]
    subprocess.run(command, check=True)
    wanted = np.load(tmp_path / "gradients.npz")
    names = list(dict.fromkeys(e.name.rpartition(".")[0] for e in model.program.states if "velocity" not in e.name))
    assert len(names) == count
    for key in wanted:
        layer, role = key.split("/")
        found = device.learned(f"{names[int(layer)]}.{role}.velocity")
        error = np.abs(found - wanted[key].reshape(found.shape)).max() / np.abs(wanted[key]).max()
        assert error <= TOLERANCE, f"{names[int(layer)]}.{role}: {error:.2e}"
