# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules and exported programs, compiled in one call, compute what PyTorch computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.core.errors import ModelError, UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[torch]')")

from torch import nn  # noqa: E402

from mcugen.frontend.torch.program import convert  # noqa: E402


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.rnn, self.head = kind(10, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, frames: Any) -> Any:
        steps, _ = self.rnn(frames)
        return self.head(steps[:, -1])


class Temporal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 8, 3), nn.Conv1d(8, 8, 3, dilation=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(nn.functional.pad(x, (2, 0))))
        x = torch.relu(self.second(nn.functional.pad(x, (4, 0))))
        return self.head(x.mean(2))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 4)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.embed(x)).mean(1))


class Inverted(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels * 3
        self.conv = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Any) -> Any:
        return x + self.conv(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.bn(self.conv(x)) + x)


def images(block: nn.Module) -> nn.Module:
    stem = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(*stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


NETWORKS = {
    "GRU": (lambda: Recurrent(nn.GRU), (7, 10)),
    "LSTM": (lambda: Recurrent(nn.LSTM), (7, 10)),
    "TCN": (Temporal, (6, 16)),
    "transformer": (Transformer, (8, 6)),
    "MobileNetV2": (lambda: images(Inverted(8)), (3, 12, 12)),
    "residual": (lambda: images(Residual()), (3, 12, 12)),
}


def network(name: str) -> tuple[nn.Module, Any]:
    """Return a network in training mode with uneven statistics, and samples for it."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    net = make()
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.3, 0.3)
                part.running_var.uniform_(0.5, 1.5)
    return net, np.random.default_rng(0).standard_normal((16, *shape)).astype(np.float32)


def reference(net: nn.Module, samples: Any) -> Any:
    with torch.no_grad():
        return net.eval()(torch.from_numpy(samples)).numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_module_computes_the_same(name: str) -> None:
    net, samples = network(name)
    model = mcugen.compile(net, example_inputs=samples[:1])
    assert net.training
    expected = reference(net, samples[:4])
    np.testing.assert_allclose(model.run(samples[:4])["output"].reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_is_quantized_with_samples_alone(name: str) -> None:
    net, samples = network(name)
    model = mcugen.compile(net, "stm32f446", calibration=samples)
    assert not [layer.name for layer in model.layers if "f32" in layer.kernel]
    expected = reference(net, samples[:4])
    error = model.run(samples[:4])["output"].reshape(expected.shape) - expected
    assert 10 * np.log10(np.mean(expected**2) / np.mean(error**2)) > 25


def test_layers_have_the_names_of_modules() -> None:
    net, samples = network("residual")
    names = [layer.name for layer in mcugen.compile(net, "stm32f446", calibration=samples).layers]
    assert {"0", "3.conv", "3.add", "6"} <= set(names)


def test_quantize_takes_a_module() -> None:
    net, samples = network("TCN")
    quantized = mcugen.quantize(net, samples)
    assert {"first", "second", "head"} <= {layer["name"] for layer in quantized.layers}


def test_several_inputs_by_name_and_several_outputs() -> None:
    class Two(nn.Module):
        def forward(self, left: Any, right: Any) -> Any:
            return left + right, left * right

    one = torch.ones(1, 4)
    model = mcugen.compile(Two(), example_inputs={"right": one, "left": one})
    results = model.run({"left": np.full((1, 1, 4), 3.0, np.float32), "right": np.full((1, 1, 4), 2.0, np.float32)})
    assert {name: float(values.flat[0]) for name, values in results.items()} == {"output_0": 5.0, "output_1": 6.0}


def test_nothing_of_this_computer_is_in_the_model() -> None:
    net, samples = network("residual")
    assert str(Path(__file__).parent).encode() not in convert(net, samples[:1]).SerializeToString()


def test_a_module_without_examples_is_one_error() -> None:
    with pytest.raises(UsageError, match="needs example inputs"):
        mcugen.compile(network("TCN")[0])


def test_examples_of_another_shape_are_one_error() -> None:
    with pytest.raises(ModelError, match=r"must be convertible to ONNX\. found: .*channels"):
        mcugen.compile(network("TCN")[0], example_inputs=torch.zeros(1, 5, 16))


def test_a_tensor_is_no_model() -> None:
    with pytest.raises(UsageError, match=r"must be a torch\.nn\.Module"):
        mcugen.compile(torch.zeros(3))


class Keyword(nn.Module):
    def forward(self, left: Any, *, scale: Any) -> Any:
        return left * scale


class Nested(nn.Module):
    def forward(self, pair: Any) -> Any:
        return {"sum": pair["left"] + pair["right"], "product": pair["left"] * pair["right"]}


class Tuples(nn.Module):
    def forward(self, pair: Any) -> Any:
        left, right = pair
        return left + right, (left * right, left - right)


ONE = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("module", "examples", "names", "num_outputs"),
    [
        (Keyword(), {"left": ONE, "scale": ONE}, ["left", "scale"], 1),
        (Nested(), ({"left": ONE, "right": ONE},), ["pair_left", "pair_right"], 2),
        (Nested(), {"pair": {"left": ONE, "right": ONE}}, ["pair_left", "pair_right"], 2),
        (Tuples(), ((ONE, ONE),), ["pair_0", "pair_1"], 3),
    ],
    ids=["keyword", "dictionary", "dictionary by keyword", "tuple"],
)
def test_nested_inputs_and_outputs(module: nn.Module, examples: Any, names: list[str], num_outputs: int) -> None:
    model = mcugen.compile(module, example_inputs=examples)
    assert [endpoint.name for endpoint in model.compilation.compiled.program.inputs] == names
    results = model.run({name: np.full((1, 1, 4), 3.0 - i, np.float32) for i, name in enumerate(names)})
    assert len(results) == num_outputs
    assert {float(values.flat[0]) for values in results.values()} <= {6.0, 5.0, 1.0}


@pytest.mark.parametrize("file", ["x.npy", "x.npz"])
def test_examples_and_samples_in_files(file: str, tmp_path: Path) -> None:
    net, samples = network("TCN")
    (np.save if file.endswith("npy") else np.savez)(tmp_path / file, samples)
    shapes = [mcugen.compile(net, example_inputs=samples[:1]).run(samples[:1])["output"].shape]
    np.save(tmp_path / "one.npy", samples[:1])
    shapes.append(mcugen.compile(net, example_inputs=tmp_path / "one.npy").run(samples[:1])["output"].shape)
    shapes.append(mcugen.compile(net, calibration=tmp_path / file).run(samples[:1])["output"].shape)
    assert len(set(shapes)) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_modules_of_other_types_compute_in_them(dtype: Any) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).to(dtype), torch.randn(1, 6).to(dtype)
    model = mcugen.compile(net, example_inputs=x)
    (endpoint,) = model.compilation.compiled.program.inputs
    assert endpoint.dtype.value == str(dtype).removeprefix("torch.")
    samples = x[None].double().numpy()
    result = model.run(samples.astype(endpoint.dtype.numpy))["output"].astype(np.float64)
    expected = net(x).detach().double().numpy()
    np.testing.assert_allclose(result.reshape(expected.shape), expected, atol=0.02)


def test_a_module_without_weights_is_one_error() -> None:
    with pytest.raises(UsageError, match="the device 'meta'"):
        mcugen.compile(nn.Linear(4, 3, device="meta"), example_inputs=ONE)


def test_a_branch_that_depends_on_data_is_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(ModelError, match=r"torch\.where"):
        mcugen.compile(Branch(), example_inputs=ONE)
    assert capfd.readouterr().out == ""


def test_a_dynamic_size_needs_a_number() -> None:
    sizes = ({2: torch.export.Dim("time", min=3, max=99)},)
    program = torch.export.export(nn.Conv1d(4, 4, 1), (torch.zeros(1, 4, 9),), dynamic_shapes=sizes)
    with pytest.raises(ModelError, match=r"every input dimension must be known.*--dim"):
        mcugen.compile(program)


LAYER_NAMES = {
    "residual": {"0", "3.conv", "3.add", "6"},
    "MobileNetV2": {"0", "3.conv.0", "3.conv.3", "3.conv.6", "3.add", "6"},
    "transformer": {"embed", "block.linear1", "block.linear2", "head"},
    "GRU": {"rnn", "head"},
    "TCN": {"first", "second", "head"},
}


@pytest.mark.parametrize("is_quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("name", LAYER_NAMES)
def test_layers_and_functions_of_c_have_the_names_of_modules(name: str, is_quantized: bool) -> None:
    net, samples = network(name)
    calibration = {"calibration": samples} if is_quantized else {}
    model = mcugen.compile(net, "stm32f446", example_inputs=samples[:1], **calibration)
    names = {layer.name for layer in model.layers}
    assert {n for n in LAYER_NAMES[name] if n not in names and not n.endswith(".add")} == set()
    assert not [n for n in names if "node_" in n or "val_" in n]
    code = "".join(model.files.values())
    assert all(re.search(rf"\b{re.escape(n)}\b", code) for n in LAYER_NAMES[name] & names)
