# SPDX-License-Identifier: Apache-2.0
"""Instructions are one number whatever the input, but for the layers of which the report says why."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from forms import branching, floats, quantized
from shared_models import MODELS, QUANTIZED, roomy

from mcugen import CompiledModel, CompileOptions, compile_model
from mcugen.lir.program import Endpoint

pytestmark = pytest.mark.qemu


def inputs(endpoint: Endpoint) -> list[np.ndarray]:
    """Zeros, the least, the largest, both in turn, random codes, and ramps."""
    low, high = endpoint.dtype.limits if endpoint.dtype.is_integer else (-3, 3)
    shape, draw = endpoint.shape, np.random.default_rng(0)
    ramp = np.linspace(low, high, int(np.prod(shape))).reshape(shape)
    kinds = [np.zeros(shape), np.full(shape, low), np.full(shape, high), np.resize([low, high], shape)]
    return [np.asarray(x).astype(endpoint.dtype.numpy) for x in (*kinds, draw.integers(low, high, shape), ramp)]


def counts(compiled: CompiledModel) -> tuple[set[int], dict[str, set[int]]]:
    """Of runs with all kinds of inputs, in all and by layers."""
    kinds = zip(*(inputs(e) for e in compiled.program.inputs), strict=True)
    samples = [{e.name: x for e, x in zip(compiled.program.inputs, kind, strict=True)} for kind in kinds]
    runs = [compiled.simulate([sample], per_layer=True) for sample in samples]
    names = [layer.name for layer in compiled.report.layers]
    each = zip(*(run.layer_instructions or () for run in runs), strict=True)
    totals = {run.instructions for run in runs if run.instructions is not None}
    return totals, {name: set(found) for name, found in zip(names, each, strict=True)}


QUICK = {("autoencoder_ad_int8_qdq", "nrf52840"), ("autoencoder_ad_int8_qdq", "rp2040")}
CASES = [
    pytest.param(name, board, marks=() if (name, board) in QUICK else pytest.mark.slow)
    for name in QUANTIZED
    for board in ("nrf52840", "corstone300", "rp2040", "esp32c3")
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "board"), CASES)
def test_layers_that_are_not_told_to_vary_take_one_number(name: str, board: str):
    options = CompileOptions(integer_io=True)
    compiled = compile_model(MODELS / f"{name}.onnx", roomy(board), options)
    varying = {text.partition(": ")[0] for text in compiled.report.varies}
    totals, layers = counts(compiled)
    moving = {layer for layer, found in layers.items() if len(found) > 1}
    assert moving <= varying
    assert varying or len(totals) == 1
    assert max(totals) - min(totals) <= 0.005 * max(totals)


def test_why_instructions_vary_is_told():
    def reasons(model: onnx.ModelProto, board: str) -> str:
        return " ".join(compile_model(model, roomy(board)).report.varies)

    assert "are looked for" in reasons(quantized().model(), "nrf52840")
    assert "branch" in reasons(branching().model(), "nrf52840")
    assert "floating point" in reasons(floats().model(), "nrf52840")
    assert "limited by branches" in reasons(onnx.load(MODELS / "autoencoder_ad_int8_qdq.onnx"), "rp2040")
