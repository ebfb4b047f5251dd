# SPDX-License-Identifier: Apache-2.0
"""PyTorch networks of the comparison with ExecuTorch, with random weights and statistics of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class TorchNetwork:
    """A network of the comparison.

    Attributes:
        title: Name in tables.
        build: Returns the module with random weights.
        shape: Shape of the input, for one sample.
        is_same: Whether sizes of all layers are known to be those of the recorded network.
    """

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    is_same: bool = True


def _conv(channels: int, out: int, kernel: Any, stride: Any = 1, groups: int = 1, padding: Any = None) -> nn.Sequential:
    """Return a convolution with batch normalization and ReLU."""
    pad = (kernel // 2 if isinstance(kernel, int) else tuple(k // 2 for k in kernel)) if padding is None else padding
    conv = nn.Conv2d(channels, out, kernel, stride, pad, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which has a convolution if the size changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(channels, out, 3, stride), nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2, self.relu = nn.BatchNorm2d(out), nn.ReLU()
        self.shortcut = nn.Conv2d(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.relu(self.bn2(self.conv2(self.conv1(x))) + self.shortcut(x))


def resnet8() -> nn.Module:
    """Return ResNet8 of MLPerf Tiny, for images of 32x32 pixels."""
    blocks = (ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2))
    return nn.Sequential(_conv(3, 16, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _separable(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_conv(channels, channels, 3, stride, channels), _conv(channels, out, 1))


def ds_cnn() -> nn.Module:
    """Return DS-CNN of MLPerf Tiny, for 49 frames of 10 coefficients."""
    stem = (nn.ZeroPad2d((1, 1, 4, 5)), _conv(1, 64, (10, 4), 2, padding=0))
    return nn.Sequential(
        *stem, *(_separable(64, 64) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12)
    )


def mobilenet_v1() -> nn.Module:
    """Return MobileNetV1 of width 0.25 for images of 96x96 pixels, two classes."""
    sizes = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    channels, layers = 8, [_conv(3, 8, 3, 2)]
    for out, stride in sizes:
        layers.append(_separable(channels, out, stride))
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 2))


def autoencoder() -> nn.Module:
    """Return the autoencoder of MLPerf Tiny's anomaly detection, for 640 features."""
    sizes = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.BatchNorm1d(pair[1]), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(128, 640))


class InvertedBlock(nn.Module):
    """An inverted residual block of MobileNetV2."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        expand = [_relu6(channels, inner, 1, 1, 1)] if expansion > 1 else []
        project = (nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
        self.conv = nn.Sequential(*expand, _relu6(inner, inner, 3, stride, inner), *project)
        self.is_residual = stride == 1 and channels == out

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.is_residual else self.conv(x)


def _relu6(channels: int, out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6())


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 0.35, with names and sizes as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        settings = [
            (1, 8, 1, 1),
            (6, 8, 2, 2),
            (6, 16, 3, 2),
            (6, 24, 4, 2),
            (6, 32, 3, 1),
            (6, 56, 3, 2),
            (6, 112, 1, 1),
        ]
        channels, layers = 16, [_relu6(3, 16, 3, 2, 1)]
        for expansion, out, count, stride in settings:
            for number in range(count):
                layers.append(InvertedBlock(channels, out, 1 if number else stride, expansion))
                channels = out
        self.features = nn.Sequential(*layers, _relu6(channels, 1280, 1, 1, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 10))

    def forward(self, x: Any) -> Any:
        return self.classifier(nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1))


class Recurrent(nn.Module):
    """A recurrent layer and a classifier of its last step."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.rnn, self.head = kind(10, 32, batch_first=True), nn.Linear(32, 12)

    def forward(self, frames: Any) -> Any:
        steps, _ = self.rnn(frames)
        return self.head(steps[:, -1])


class Temporal(nn.Module):
    """Four causal dilated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [10, 24, 24, 24, 24]
        self.convs = nn.ModuleList(nn.Conv1d(*pair, 3, dilation=2**i) for i, pair in enumerate(pairwise(sizes)))
        self.head = nn.Linear(24, 12)

    def forward(self, x: Any) -> Any:
        for conv in self.convs:
            x = torch.relu(conv(nn.functional.pad(x, (2 * conv.dilation[0], 0))))
        return self.head(x.mean(2))


class Transformer(nn.Module):
    """An encoder layer of a transformer over 49 frames."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(10, 32), nn.Linear(32, 12)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.embed(x)).mean(1))


NETWORKS: Mapping[str, TorchNetwork] = {
    "resnet8": TorchNetwork("ResNet8", resnet8, (3, 32, 32)),
    "ds_cnn": TorchNetwork("DS-CNN", ds_cnn, (1, 49, 10)),
    "mobilenet_v1": TorchNetwork("MobileNetV1 VWW", mobilenet_v1, (3, 96, 96)),
    "autoencoder": TorchNetwork("autoencoder", autoencoder, (640,)),
    "mobilenet_v2": TorchNetwork("MobileNetV2-0.35, 96x96", MobileNetV2, (3, 96, 96)),
    "gru": TorchNetwork("GRU 49x10 → 32", lambda: Recurrent(nn.GRU), (49, 10)),
    "lstm": TorchNetwork("LSTM", lambda: Recurrent(nn.LSTM), (49, 10)),
    "tcn": TorchNetwork("TCN, four Conv1d", Temporal, (10, 49), False),
    "transformer": TorchNetwork("transformer, one block", Transformer, (49, 10), False),
}
"""The networks of the comparison by name; the recorded sizes of the last two are unknown."""


def seeded(name: str, num_samples: int) -> tuple[nn.Module, Any]:
    """Return a network in evaluation mode, and samples from a normal distribution.

    Batch normalization has the statistics of the samples, so that activations have usual ranges.
    """
    torch.manual_seed(0)
    network = NETWORKS[name]
    module = network.build()
    samples = torch.randn(num_samples, *network.shape)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.momentum = None
    with torch.no_grad():
        module.train()(samples)
    return module.eval(), samples
