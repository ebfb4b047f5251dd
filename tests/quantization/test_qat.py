# SPDX-License-Identifier: Apache-2.0
"""Modules of `mcugen.torch.prepare_qat` compute what the compiled model computes, bit for bit, and can be trained."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.core.errors import ModelError, UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")

from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Train small networks by one thread, which is faster on a busy computer, and sums in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Block(nn.Module):
    """A depthwise and a pointwise convolution beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.bn1, self.act = nn.BatchNorm2d(channels), nn.ReLU6()
        self.pointwise, self.bn2 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.bn2(self.pointwise(self.act(self.bn1(self.depthwise(x))))))


class Means(nn.Module):
    """A convolution over time and the mean of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.head = nn.Conv1d(5, 12, 4, stride=2, dilation=2, padding=3), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.head(nn.functional.relu(self.input(x)).mean(-1))


NETS = {
    "residual": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), Block(8), nn.MaxPool2d(3, 2, 1), Block(8)),
            *(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 6)),
        ),
        (3, 16, 12),
    ),
    "time": (Means, (5, 21)),
    "pools": (
        lambda: nn.Sequential(
            *(nn.Conv1d(4, 8, 4, padding="same"), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 6, 3), nn.AvgPool1d(3, 2)),
            *(nn.Flatten(), nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU6(), nn.Linear(16, 3)),
        ),
        (4, 24),
    ),
}


def trained(net: nn.Module, x: Any, y: Any, epochs: int, rate: float) -> nn.Module:
    """Train a classifier in place, in the same order of samples each time."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return net.eval()


def computed(net: Any, x: Any, board: str = "host", **options: Any) -> np.ndarray:
    """Return the outputs of the compiled module."""
    outputs = mcugen.compile(net.to_onnx(), board=board).run(x.numpy(), **options)["output"]
    return np.asarray(outputs).reshape(len(x), -1)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", NETS)
def test_outputs_are_those_of_the_device(name: str, bits: int) -> None:
    torch.manual_seed(len(name))
    build, shape = NETS[name]
    x = torch.randn(96, *shape) * 2 + 0.5
    net = build()
    trained(net, x, torch.randint(3, (len(x),)), 1, 1e-2)  # statistics of batch normalization
    qat = trained(mcugen.torch.prepare_qat(net, x[:32], weight_bits=bits), x, torch.randint(3, (len(x),)), 3, 1e-2)
    expected = qat(x).detach().numpy()
    assert len(np.unique(expected)) > 20
    assert np.array_equal(computed(qat, x), expected)
    assert np.array_equal(computed(qat, x, simulate=True), expected)


def test_layers_are_integer_ones_with_names_of_modules() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    qat = mcugen.torch.prepare_qat(net, torch.randn(8, 3, 8, 8))
    layers = mcugen.compile(qat.to_onnx(), board="rp2040").layers
    named = ["2.depthwise", "2.pointwise", "2.add", "3", "5"]
    assert [layer.name for layer in layers if layer.name in named] == named
    assert [layer.kernel for layer in layers].count("elementwise") == 2  # conversions of the input and the output


@pytest.mark.parametrize("case", ["dead channels", "large bias"])
def test_extreme_parameters_keep_the_bits(case: str) -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5))
    x = torch.randn(32, 2, 4, 4)
    qat = mcugen.torch.prepare_qat(net, x, weight_bits=4)
    with torch.no_grad():
        for layer in (qat.layers[1], qat.layers[3]):
            if case == "dead channels":
                layer.weight[1:4] = 0.0
                layer.log_scales[2] = -40.0
            else:
                layer.bias[:3] = torch.tensor([1e4, -1e9, 3.0])
    assert np.array_equal(computed(qat, x), qat(x).detach().numpy())


def test_the_example_keeps_its_accuracy_on_the_device() -> None:
    """By how much training helps depends on the threads of PyTorch; test_qat_keywords.py measures it."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    path = Path(__file__).resolve().parents[2] / "examples" / "qat" / "fine_tune.py"
    accuracies = runpy.run_path(str(path))["main"]()
    assert accuracies["w4a8, C code"] == accuracies["w4a8, fine-tuned"] > accuracies["w4a8, calibrated"] - 0.02


@pytest.mark.qemu
def test_the_report_of_a_trained_module_has_its_outputs() -> None:
    torch.manual_seed(4)
    x = torch.randn(32, 2, 9, 6)
    net = nn.Sequential(
        *(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(2, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)),
        *(nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)),
    )
    qat = trained(mcugen.torch.prepare_qat(net, x, weight_bits=4), x, torch.randint(5, (32,)), 2, 1e-2)
    expected = qat(x).detach().numpy()
    model = mcugen.compile(qat, "nrf52840")
    report = model.report((x.numpy(), expected.argmax(1)))
    assert report.accuracy is not None and report.instructions
    assert np.array_equal(computed(qat, x[:8], "nrf52840", simulate=True), expected[:8])


@pytest.mark.parametrize("padding", [(1, 2), (0, 0, 3, 1)])
def test_paddings_are_part_of_convolutions(padding: tuple[int, ...]) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return self.conv(nn.functional.pad(x, padding))

    torch.manual_seed(6)
    net, x = Padded(), torch.randn(16, 2, 7, 5)
    qat = mcugen.torch.prepare_qat(net, x)
    expected = qat(x).detach()
    assert expected.shape == net(x).shape
    assert float((expected - net(x)).abs().max()) < 0.1
    assert np.array_equal(computed(qat, x), expected.reshape(16, -1).numpy())


def test_what_has_no_integer_layer_is_one_error() -> None:
    x = torch.randn(4, 3, 8, 8)
    nets = {
        "1: Sigmoid()": nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid()),
        "0: ReLU()": nn.Sequential(nn.ReLU()),
        "0: ConvTranspose2d": nn.Sequential(nn.ConvTranspose2d(3, 4, 3)),
        "padding_mode=reflect": nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
        "two calls of 0": nn.Sequential(*[nn.Conv2d(3, 3, 1)] * 2),
    }
    for fault, net in nets.items():
        with pytest.raises(ModelError) as error:
            mcugen.torch.prepare_qat(net, x)
        assert fault in str(error.value)


def test_wrong_arguments_are_errors() -> None:
    x, net = torch.randn(4, 3), nn.Linear(3, 2)
    for module, inputs, bits, text in (
        (abs, x, 8, "takes a torch.nn.Module"),
        (net, [1.0], 8, "must be a tensor of samples"),
        (net, x, 3, "weight_bits must be 8 or 4"),
    ):
        with pytest.raises(UsageError, match=text):
            mcugen.torch.prepare_qat(module, inputs, weight_bits=bits)


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "frameworks.md").read_text()
    (example,) = re.findall(r"```python\n(qat = .*?)```", page, re.DOTALL)
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    names: dict[str, Any] = {"mcugen": mcugen, "torch": torch, "net": net}
    names |= {"x_train": torch.rand(256, 1, 8, 8), "y_train": torch.randint(10, (256,))}
    exec(example, names)
    x = names["x_train"][:50]
    outputs = names["model"].run(x.numpy())["output"].reshape(50, 10)
    assert np.array_equal(outputs, names["qat"](x).detach().numpy())


def test_four_bit_weights_are_stored_in_four_bits() -> None:
    torch.manual_seed(3)
    net, x = nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 8)), torch.randn(64, 128)
    quantized = [mcugen.torch.prepare_qat(net, x, weight_bits=bits).to_onnx() for bits in (8, 4)]
    whole, half = (mcugen.compile(model, board="rp2040").memory.flash.weights for model in quantized)
    assert half < 0.6 * whole
