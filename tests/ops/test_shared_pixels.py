# SPDX-License-Identifier: Apache-2.0
"""Pixels of eight channels by the DSP extension: layers of all widths share one function."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx_models import random_feeds
from test_dsp_conv import Layers

from mcugen.core.board import load_board
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate

HEAD = re.compile(r"^static void (pointwise_s8_dsp\w*)\(const \w+_params \*p", re.M)


def tokens(*widths: int, depth: int = 8, number: int = 64) -> Layers:
    """Dense layers of a small transformer: so many tokens, each of `depth` channels."""
    layers = Layers()
    for index, width in enumerate(widths):
        layers.add(f"{index} to {width}", (number, depth), layers.weights(width, depth))
    return layers


def functions(model: CompiledModel) -> list[str]:
    return HEAD.findall(model.bundle.files[f"{model.bundle.name}_kernels.h"])


@pytest.mark.parametrize("depth", [4, 8])
@pytest.mark.parametrize("widths", [(8, 8), (8, 16, 24, 1), (1, 1)], ids=str)
def test_bit_exact_by_one_function(depth: int, widths: tuple[int, ...]):
    model = tokens(*widths, depth=depth, number=37).check(("pointwise_s8_dsp",), ("host", "nrf52840", "nrf5340"))
    assert len(functions(model)) == 1


def test_layers_of_transformers_take_it():
    """Widths of their own had functions of their own, and were left to plain C of four instructions a product."""
    layers = tokens(8, 8, 8, 8, 16, 24, number=128)
    model = compile_model(layers.net.model(), "nrf52840")
    assert {i.kernel for i in model.program.instrs if any(o.role == "w" for o in i.operands)} == {"pointwise_s8_dsp"}
    run = simulate(model.bundle, load_board("nrf52840"), [random_feeds(layers.net.model())])
    assert run.instructions < 1.5 * 128 * 8 * (4 * 8 + 16 + 24)


@pytest.mark.parametrize(("widths", "most"), [((16,), 1.3), ((16, 32), 1.45)])
def test_one_width_needs_no_register(widths: tuple[int, ...], most: float):
    layers = tokens(*widths, number=512)
    model = layers.check(("pointwise_s8_dsp",), ("nrf52840",))
    run = simulate(model.bundle, load_board("nrf52840"), [random_feeds(layers.net.model())])
    assert run.instructions < most * 512 * 8 * np.sum(widths)
