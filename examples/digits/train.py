# SPDX-License-Identifier: Apache-2.0
"""Trains the digits example and writes every file of this folder: two ONNX models and two data sets.

Needs PyTorch, which mcugen itself does not: see README.md.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  the name every PyTorch program uses
from make_int8 import CALIBRATION, EVAL, FLOAT_MODEL, print_accuracies, quantize
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

SEED = 0
TEST_SAMPLES = 300
CALIBRATION_SAMPLES = 100
EPOCHS = 120
BATCH = 64
OPSET = 17


def conv_bn_relu(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias (batch norm has one), batch norm and ReLU."""
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(cout), relu=nn.ReLU()))


def separable(cin: int, cout: int, stride: int = 1) -> nn.Sequential:
    """A depthwise 3x3 convolution, then a pointwise one."""
    depthwise = conv_bn_relu(cin, cin, 3, stride, groups=cin)
    return nn.Sequential(OrderedDict(depthwise=depthwise, pointwise=conv_bn_relu(cin, cout, 1)))


class DigitsNet(nn.Module):
    """1x8x8 image in [0, 1] -> 10 class probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(1, 16, 3)
        self.block1 = separable(16, 32)
        self.block2 = separable(32, 40, stride=2)
        self.block3 = separable(40, 48)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(48, 10)

    def logits(self, image: Tensor) -> Tensor:
        features = self.block3(self.block2(self.block1(self.stem(image))))
        return self.classifier(torch.flatten(self.pool(features), 1))

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.logits(image), dim=1)


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images, test images, training labels, test labels; pixels 0..16 become 0..1."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    return tuple(train_test_split(images, labels, test_size=TEST_SAMPLES, stratify=labels, random_state=SEED))


def jitter(images: Tensor) -> Tensor:
    """Each image shifted, turned, scaled and sheared a little, by an affine map of its own."""
    theta = torch.eye(2, 3) + 0.1 * torch.randn(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def train(images: Tensor, labels: Tensor) -> DigitsNet:
    """A trained network in evaluation mode."""
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    steps = EPOCHS * math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net.logits(jitter(images[batch])), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def export(net: DigitsNet, path: Path) -> None:
    """Write `net` as ONNX with its batch norms unfolded, so that the compiler has something to fold."""
    torch.onnx.export(
        net,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        input_names=["image"],
        output_names=["scores"],
        opset_version=OPSET,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,  # the default, EVAL, folds batch norm
    )
    model = onnx.load(path)
    model.graph.name = "digits"
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main() -> None:
    """Train, export, quantize, and say how good the result is."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the order of additions, hence the bytes, depends on it
    torch.use_deterministic_algorithms(True)
    train_images, test_images, train_labels, test_labels = load_data()
    calibration, _ = train_test_split(
        train_images, train_size=CALIBRATION_SAMPLES, stratify=train_labels, random_state=SEED
    )
    np.savez_compressed(CALIBRATION, image=calibration)
    np.savez_compressed(EVAL, image=test_images, labels=test_labels)
    export(train(torch.from_numpy(train_images), torch.from_numpy(train_labels)), FLOAT_MODEL)
    quantize()
    print_accuracies()


if __name__ == "__main__":
    main()
