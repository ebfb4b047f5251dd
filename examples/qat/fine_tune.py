# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a digit classifier with 4-bit weights in PyTorch, so that its accuracy is the device's, bit for bit.

Needs `pip install 'mcugen[torch,report]' scikit-learn`; run `python fine_tune.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import mcugen

BOARD = "host"
"""The board; with arm-none-eabi-gcc and QEMU installed, "nrf52840" gives the same outputs."""


def load() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images of 8x8 pixels and labels: 1,200 samples for training, the others for tests."""
    digits = load_digits()
    x, y = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return (x[train], y[train]), (x[test], y[test])


def network() -> nn.Module:
    """Return a small network of depthwise separable convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)),
    )


def train(net: nn.Module, x: Any, y: Any, epochs: int, rate: float) -> None:
    """Train a classifier in place."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    net.eval()


def accuracy(outputs: Any, y: Any) -> float:
    """Return the share of samples whose largest output is that of the label."""
    return float((torch.as_tensor(outputs).reshape(len(y), -1).argmax(1) == y).float().mean())


def main() -> dict[str, float]:
    """Print and return the accuracies."""
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = load()
    net = network()
    train(net, x, y, epochs=25, rate=1e-2)
    with torch.no_grad():
        accuracies = {"float32": accuracy(net(x_test), y_test)}

    calibrated = mcugen.compile(net, BOARD, calibration=x[:200].numpy(), precision="w4a8")
    accuracies["w4a8, calibrated"] = accuracy(calibrated.run(x_test.numpy())["output"], y_test)

    qat = mcugen.torch.prepare_qat(net, x[:200], weight_bits=4)
    train(qat, x, y, epochs=5, rate=3e-3)
    with torch.no_grad():
        trained = qat(x_test).numpy()
    accuracies["w4a8, fine-tuned"] = accuracy(trained, y_test)

    model = mcugen.compile(qat, BOARD)
    device = model.run(x_test.numpy(), simulate=True)["output"].reshape(trained.shape)
    accuracies["w4a8, C code"] = accuracy(device, y_test)
    for name, share in accuracies.items():
        print(f"{name:18} {100 * share:.1f} %")
    print("all outputs are equal bit for bit:", np.array_equal(device, trained))
    return accuracies


if __name__ == "__main__":
    main()
