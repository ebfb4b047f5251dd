# SPDX-License-Identifier: Apache-2.0
"""Modules that PyTorch's quantizers made become integer C without float layers between integer ones."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.core.errors import ModelError
from mcugen.hir.types import DType
from mcugen.ops.matmul import Dense
from mcugen.passes.islands import float_islands

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[torch]')")
torchao = pytest.importorskip("torchao", reason="torchao is not installed (pip install torchao)")

from torch import nn  # noqa: E402
from torch_networks import InvertedBlock, ResidualBlock, seeded  # noqa: E402
from torchao.quantization import quantize_  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86  # noqa: E402
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack  # noqa: E402


def x86_quantizer(is_qat: bool, reduce_range: bool = False) -> Any:
    config = x86.get_default_x86_inductor_quantization_config(is_qat=is_qat, reduce_range=reduce_range)
    return x86.X86InductorQuantizer().set_global(config)


def xnnpack_quantizer(is_qat: bool, is_per_channel: bool = True) -> Any:
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=is_per_channel, is_qat=is_qat)
    return xnnpack.XNNPACKQuantizer().set_global(config)


QUANTIZERS: dict[str, Callable[[bool], Any]] = {
    "x86": x86_quantizer,
    "x86, reduced range": lambda is_qat: x86_quantizer(is_qat, True),
    "XNNPACK": xnnpack_quantizer,
    "XNNPACK, per tensor": lambda is_qat: xnnpack_quantizer(is_qat, False),
}


def small(block: nn.Module) -> nn.Module:
    stem = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6())
    return nn.Sequential(*stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: small(ResidualBlock(8, 8, 1)),
    "inverted": lambda: small(InvertedBlock(8, 8, 1, 3)),
}


def prepared(net: nn.Module, samples: Any, quantizer: Any, is_qat: bool = False) -> Any:
    """Return a module that PT2E has prepared, and that has seen the samples."""
    prepare = prepare_qat_pt2e if is_qat else prepare_pt2e
    module = prepare(torch.export.export(net.eval(), (samples[:1],)).module(), quantizer)
    with torch.no_grad():
        for sample in samples.split(1):
            module(sample)
    return module


def outputs_of(module: Any, samples: Any) -> Any:
    """Return a module's outputs for each sample, [samples, 1, …]."""
    with torch.no_grad():
        return np.stack([module(sample).numpy() for sample in samples.split(1)])


def assert_integer_as(model: mcugen.Model, converted: Any, samples: Any, most_steps: float) -> None:
    """Assert that a model has no float island, and outputs near those of a converted module.

    Most outputs are equal within `most_steps` of 1/255 of the outputs' range. All are equal within what one code of the
    last layer's inputs changes: a mean of 36 codes often lies halfway between two codes, and PyTorch's float sums then
    give either code by their rounding errors (the even one in 71 % of such means).
    """
    assert float_islands(model.compilation.compiled.graph) == {}
    expected = outputs_of(converted, samples)
    step = np.ptp(expected) / 255
    errors = np.abs(model.run(samples.numpy())["output"].reshape(expected.shape) - expected)
    assert np.mean(errors > most_steps * step) < 0.2
    assert errors.max() < max(most_steps * step, change_by_a_code(model))


def change_by_a_code(model: mcugen.Model) -> float:
    """Return the largest change of an output of the last layer if one of its inputs changes by one code.

    The rounding of a quantized output adds one code of the output.
    """
    graph = model.compilation.compiled.graph
    last = [node for node in graph.nodes if isinstance(node.op, Dense)][-1]
    inputs, weights = last.inputs[:2]
    largest = (np.abs(weights.data).max(1) * weights.type.q.scales).max()
    rounding = last.output.type.q.scale[0] if last.output.type.dtype is DType.INT8 else 0
    return float(1.01 * (inputs.type.q.scale[0] * largest + rounding))


@pytest.mark.parametrize(
    ("name", "quantizer", "is_qat"),
    [
        *(("inverted", quantizer, False) for quantizer in QUANTIZERS),
        ("residual", "x86, reduced range", True),
        ("residual", "XNNPACK", True),
    ],
)
def test_a_pt2e_program_stays_integer(name: str, quantizer: str, is_qat: bool) -> None:
    torch.manual_seed(1)
    net, samples = NETWORKS[name](), torch.randn(8, 3, 12, 12)
    net.train()(samples)
    converted = convert_pt2e(prepared(net, samples, QUANTIZERS[quantizer](is_qat), is_qat))
    model = mcugen.compile(converted, "stm32f446", example_inputs=samples[:1])
    assert_integer_as(model, converted, samples, 3)
    assert {"0", "6"} <= {layer.name.removesuffix(".elementwise") for layer in model.layers}


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_mobilenet_v2_stays_integer(quantizer: str) -> None:
    """Random weights enlarge differences from layer to layer.

    The outputs are therefore compared with those that PyTorch computes for inputs that differ by 0.1 or 0.2 %.
    """
    net, samples = seeded("mobilenet_v2", 4)
    converted = convert_pt2e(prepared(net, samples, QUANTIZERS[quantizer](False)))
    model = mcugen.compile(converted, "stm32h743", example_inputs=samples[:1])
    assert float_islands(model.compilation.compiled.graph) == {}
    expected = outputs_of(converted, samples)
    noisy = [outputs_of(converted, samples * factor) for factor in (0.998, 0.999, 1.001, 1.002)]
    found = model.run(samples.numpy())["output"].reshape(expected.shape)
    assert np.square(found - expected).sum() < max(np.square(outputs - expected).sum() for outputs in noisy)
    assert model.memory.flash.weights < 600_000


def test_a_prepared_module_is_converted() -> None:
    torch.manual_seed(1)
    net, samples = NETWORKS["residual"](), torch.randn(8, 3, 12, 12)
    module = prepared(net, samples, xnnpack_quantizer(True), True)
    model = mcugen.compile(module, "stm32f446", example_inputs=samples[:1])
    assert_integer_as(model, convert_pt2e(deepcopy(module)), samples, 3)
    module(samples[:1])  # The module of the user stays as it is.


def layers(dtype: Any = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).to(dtype).eval()


def weight_only() -> dict[str, Any]:
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    four_bits = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    return {"int8": Int8WeightOnlyConfig(), "int4": four_bits}


@pytest.mark.parametrize(("bits", "most_bytes"), [("int8", 10_800), ("int4", 6_500)])
def test_weights_of_quantize_stay_in_few_bits(bits: str, most_bytes: int) -> None:
    net, x = layers(), torch.randn(4, 64)
    quantize_(net, weight_only()[bits])
    model = mcugen.compile(net, "stm32f446", example_inputs=x[:1], optimize="flash")
    assert model.memory.flash.weights < most_bytes
    assert [layer.name for layer in model.layers] == ["0", "2"]
    with torch.no_grad():
        expected = net(x).numpy()
    np.testing.assert_allclose(model.run(x[:, None].numpy())["output"].reshape(4, 32), expected, atol=1e-5)


def test_float_weights_are_told() -> None:
    net = layers()
    quantize_(net, weight_only()["int8"])
    notes = mcugen.compile(net, "stm32f446", example_inputs=torch.zeros(1, 64), optimize="speed").notes
    assert any("weights of 2 layers that came in few bits" in note for note in notes)


def test_dynamic_activations_of_quantize_are_integer_products() -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    net, x = layers(), torch.randn(4, 64)
    quantize_(net, Int8DynamicActivationInt8WeightConfig())
    model = mcugen.compile(net, "stm32f446", example_inputs=x[:1])
    assert sum("dense_s8" in layer.kernel for layer in model.layers) == 2
    assert any("computed in float32" in note for note in model.notes)
    with torch.no_grad():
        expected = np.stack([net(sample).numpy() for sample in x.split(1)])
    np.testing.assert_allclose(model.run(x[:, None].numpy())["output"], expected, atol=1e-4)


def test_modules_of_torch_ao_are_one_error() -> None:
    """The eager mode and the FX mode keep weights in a form of a CPU library."""
    ao = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has no torch.ao.quantization")
    observed = layers()
    observed.qconfig = ao.default_qconfig
    nets = {
        "dynamic": ao.quantize_dynamic(layers(), {nn.Linear}),
        "observed": ao.prepare(observed),
    }
    for net in nets.values():
        with pytest.raises(ModelError, match=r"eager or FX mode .* prepare_pt2e and convert_pt2e"):
            mcugen.compile(net, example_inputs=torch.zeros(1, 64))
