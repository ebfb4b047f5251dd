# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers with an NPU: projections of all steps in one invocation, and products of each step in the loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_recurrent_flash import STEPS, Network

from mcugen.backends.npu.ethos_u import vela
from mcugen.codegen.bundle import AcceleratorInvocation
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

pytestmark = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")

NETWORKS = {
    "lstm": Network("LSTM", 8, 12),
    "lstm in both directions": Network("LSTM", 8, 12, directions=2),
    "gru": Network("GRU", 8, 12, linear=1),
    "gru, reset before the product": Network("GRU", 8, 12),
    "rnn of two layers": Network("RNN", 8, 12, layers=2),
}
PROJECTIONS = {"lstm in both directions": 2, "rnn of two layers": 2}
PRODUCTS = {"lstm in both directions": 2, "gru, reset before the product": 2, "rnn of two layers": 2}


def samples(count: int = 2) -> list[dict[str, np.ndarray]]:
    return [{"x": x} for x in np.random.default_rng(7).standard_normal((count, STEPS, 1, 8)).astype(np.float32)]


def invocations(compiled: CompiledModel) -> list[AcceleratorInvocation]:
    return list(compiled.bundle.invocations)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_products_run_on_the_npu_with_the_cpus_bits(name: str) -> None:
    model, board = NETWORKS[name].quantized(), replace(load_board("corstone300"), qemu="")
    mixed, plain = (compile_model(model, board, CompileOptions(npu=npu)) for npu in ("only", "off"))
    np.testing.assert_equal(mixed.interpret_samples(samples()), plain.interpret_samples(samples()))
    np.testing.assert_equal(mixed.simulate(samples()).outputs, plain.interpret_samples(samples()))
    runs = [invocation.runs for invocation in invocations(mixed)]
    assert runs.count(STEPS) == PRODUCTS.get(name, 1)
    figures = mixed.report.accelerator
    assert figures is not None and [segment.runs for segment in figures.segments] == runs
    products = [p for p in figures.placements if p.operator == "dense"]
    assert len(products) == PROJECTIONS.get(name, 1) + PRODUCTS.get(name, 1) + 1
    assert all(p.runs_on != "CPU" for p in products)


def test_projections_of_many_steps_are_one_invocation() -> None:
    """On this board, a product of each step takes longer on the NPU, whose weights lie in slow memory."""
    mixed = compile_model(Network("LSTM", 64, 48).quantized(), "corstone300", CompileOptions(npu="auto"))
    assert [invocation.runs for invocation in invocations(mixed)][:1] == [1]
    figures = mixed.report.accelerator
    assert figures is not None
    (projection, *_) = (p for p in figures.placements if p.operator == "dense")
    assert projection.runs_on == "Ethos-U55-128"


@pytest.mark.qemu
def test_cycles_count_the_invocations_of_all_steps() -> None:
    mixed = compile_model(NETWORKS["gru"].quantized(), "ra8p1", CompileOptions(npu="only"))
    run = mixed.simulate(samples(), cycles=True)
    np.testing.assert_equal(run.outputs, mixed.interpret_samples(samples()))
    assert run.cycles is not None and run.cycles.total is not None
    assert run.cycles.total > sum(i.runs * i.work.cpu_cycles for i in invocations(mixed)) > STEPS * 3000
