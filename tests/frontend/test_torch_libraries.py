# SPDX-License-Identifier: Apache-2.0
"""Networks of torchvision and torchaudio compile in one call, with the outputs of their modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.passes.islands import float_islands

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[torch]')")

from torch import nn  # noqa: E402

Builder = Callable[[Any], nn.Module]
"""A function that makes a network by the package that has its class."""


def shuffled(vision: Any) -> nn.Module:
    return vision.models.ShuffleNetV2([1, 1, 1], [8, 16, 24, 32, 32], 10)


def windowed(vision: Any) -> nn.Module:
    return vision.models.SwinTransformer([4, 4], 8, [2], [2], [4, 4], num_classes=10)


def patched(vision: Any) -> nn.Module:
    net = vision.models.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=10)
    nn.init.normal_(net.heads.head.weight)  # All are 0 before training.
    return net


def excited(vision: Any) -> nn.Module:
    config = vision.models.mobilenetv3.InvertedResidualConfig(16, 5, 32, 16, True, "HS", 2, 1, 1)
    return vision.models.MobileNetV3([config], 32, num_classes=10)


class OfWholeLength(nn.Module):
    """A network whose second argument is the number of frames."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x, torch.tensor([x.shape[1]]))[0]


def conformer(audio: Any) -> nn.Module:
    return OfWholeLength(audio.models.Conformer(16, 2, 32, 1, 7))


class Spoken(nn.Module):
    """Cepstral coefficients of sound, and a classifier of them."""

    def __init__(self, audio: Any) -> None:
        super().__init__()
        self.front = audio.transforms.MFCC(16000, 13, melkwargs={"n_fft": 256, "n_mels": 20})
        layers = (nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
        self.net = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.net(self.front(x)[:, None])


def separator(audio: Any) -> nn.Module:
    return audio.models.ConvTasNet(2, 16, 16, 3, 16, 16, 2, 1)


NETWORKS: dict[str, tuple[str, Builder, tuple[int, ...]]] = {
    "ShuffleNetV2": ("torchvision", shuffled, (3, 32, 32)),
    "Swin": ("torchvision", windowed, (3, 32, 32)),
    "ViT": ("torchvision", patched, (3, 16, 16)),
    "MobileNetV3": ("torchvision", excited, (3, 32, 32)),
    "Conformer": ("torchaudio", conformer, (12, 16)),
    "MFCC": ("torchaudio", Spoken, (4000,)),
    "ConvTasNet": ("torchaudio", separator, (1, 800)),
}
"""Networks by name: the package, the function that makes it, and the shape of a sample."""

REAL_FRONT_ENDS = {"MFCC"}
"""Networks whose first layers, the power of a spectrum, have no integer form."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_a_library_computes_the_same(name: str) -> None:
    package, build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net, samples = build(pytest.importorskip(package)).eval(), torch.randn(8, *shape)
    with torch.no_grad():
        expected = np.stack([net(sample).numpy() for sample in samples.split(1)])
    real = mcugen.compile(net, example_inputs=samples[:1]).run(samples[:, None].numpy())["output"]
    assert np.abs(real.reshape(expected.shape) - expected).max() < 1e-4 * np.abs(expected).max()
    model = mcugen.compile(net, calibration=samples.numpy())
    is_widened = any(layer["precision"] != "int8" for layer in model.quantization.layers)  # As notes tell.
    assert is_widened or name in REAL_FRONT_ENDS or float_islands(model.compilation.compiled.graph) == {}
    error = model.run(samples[:, None].numpy())["output"].reshape(expected.shape) - expected
    assert 10 * np.log10(np.mean(expected**2) / np.mean(error**2)) > 20
