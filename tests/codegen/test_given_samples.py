# SPDX-License-Identifier: Apache-2.0
"""The self-test runs on a sample of the user's, where there is one."""

from __future__ import annotations

import numpy as np
import pytest
from float_models import conv_net, normal_samples
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.hir.types import Array


def samples_of(count: int = 40, seed: int = 0) -> Array:
    """Samples for `conv_net`."""
    return np.stack([s["x"][0] for s in normal_samples(conv_net(), count, seed)])


def header_of(net: Compilation) -> str:
    """The header file."""
    return next(text for name, text in net.compiled.bundle.files.items() if name.endswith("net.h"))


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("option", ["--calibration", "--data"])
def test_the_input_is_one_of_the_samples(precision: str, option: str) -> None:
    given = {"x": samples_of()}
    if precision == "float32" and option == "--calibration":
        pytest.skip("samples for calibration are for quantization")
    quantizing = Quantizing(calibration={"x": samples_of(40, 1)} if option == "--data" else given)
    judging = Judging(data=given if option == "--data" else None)
    net = Compilation(conv_net(), quantizing=quantizing if precision == "int8" else Quantizing(), judging=judging)
    (sample,) = net.compiled.draft.samples
    assert any(np.array_equal(sample.inputs["x"][0], x) for x in given["x"])
    assert net.compiled.report.self_test_input == f"a sample of {option}"
    assert f"a sample of {option}" in " ".join(header_of(net).replace("*", " ").split())
    assert net.compiled.draft.report["self_test_input"] == net.compiled.report.self_test_input


def test_without_samples_it_is_random_and_says_so() -> None:
    net = Compilation(conv_net())
    assert net.compiled.report.self_test_input.startswith("random numbers")
    assert "random inputs" in " ".join(header_of(net).replace("*", " ").split())
    (first,), (second,) = net.compiled.draft.samples, compile_model(conv_net()).draft.samples
    assert np.array_equal(first.inputs["x"], second.inputs["x"])


def test_the_order_of_samples_does_not_matter() -> None:
    samples = samples_of()
    chosen = [
        Compilation(conv_net(), judging=Judging(data={"x": given})).compiled.draft.samples[0].inputs["x"]
        for given in (samples, samples[::-1].copy())
    ]
    assert np.array_equal(*chosen)


def test_a_sample_that_saturates_is_not_chosen() -> None:
    """A fault could not be seen in outputs at the end of their range."""
    net = Net(17)
    net.output(net.op("Clip", net.input("x", 1, 16), net.const(-1.0), net.const(1.0), out="y"))
    random = np.random.default_rng(0)
    samples = np.sign(random.standard_normal((8, 16))).astype(np.float32) * 50
    samples[5] = random.uniform(-1, 1, 16)
    compiled = Compilation(net.model(), quantizing=Quantizing(calibration={"x": samples})).compiled
    assert np.array_equal(compiled.draft.samples[0].inputs["x"][0], samples[5])


def test_outputs_that_depend_on_rounding_are_not_compared_on_real_samples() -> None:
    """A difference of large numbers: what is left of it is rounding."""
    net = Net(17)
    x = net.input("x", 1, 4)
    net.output(net.op("Sub", net.op("Add", x, net.const(1e6)), net.const(1e6), out="y"))
    data = {"x": np.full((4, 4), 1e-1, np.float32) * np.arange(1, 5, dtype=np.float32)[:, None]}
    text = Compilation(net.model(), judging=Judging(data=data)).compiled.report.self_test_input
    assert text.startswith("random numbers") == ("rounding" in text)


def test_states_begin_as_always() -> None:
    net = Net(17)
    h = net.op("Add", net.input("h", 1, 4), net.input("x", 1, 4), out="h_out")
    net.output(h)
    net.output(net.op("Tanh", h, out="y"))
    options = CompileOptions(states={"h_out": "h"})
    data = {"x": np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)}
    (sample,) = Compilation(net.model(), options=options, judging=Judging(data=data)).compiled.draft.samples
    assert not sample.inputs["h"].any()
    assert any(np.array_equal(sample.inputs["x"][0], x) for x in data["x"])
