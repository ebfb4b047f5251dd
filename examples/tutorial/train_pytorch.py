# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with PyTorch and writes what mcugen reads: python train_pytorch.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from digits_data import digits, write_samples
from torch import nn

EPOCHS, BATCH = 60, 64


def network() -> nn.Module:
    """1x8x8 pixels -> 10 scores."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Leaves it in evaluation mode."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.005, weight_decay=0.02)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    net.eval()


def main(folder: Path) -> None:
    """Trains, exports, and writes samples beside the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the order of sums, hence the weights' last bits, depends on it
    data, net = digits(), network()
    train(net, torch.from_numpy(data.images[:, None]), torch.from_numpy(data.labels))
    folder.mkdir(parents=True, exist_ok=True)
    names = {"input_names": ["image"], "output_names": ["scores"]}
    exported = torch.onnx.export(net, (torch.zeros(1, 1, 8, 8),), **names, verbose=False)
    for node in exported.model.graph:
        node.metadata_props.clear()  # where PyTorch is installed on this computer, among others
    exported.save(folder / "digits.onnx", external_data=False)
    write_samples(folder, data, "image", axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
