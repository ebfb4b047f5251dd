# SPDX-License-Identifier: Apache-2.0
"""Code of every form is validated: on this computer with the sanitizers, and on boards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_variants import MODELS
from serial_lines import Resets, on_socket

from mcugen.deploy.validation.figures import ValidationReport, Verdict
from mcugen.deploy.validation.session import SIMULATOR_PORT, ValidationSetup, validate
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.metrics import METRICS
from mcugen.evaluation.samples import Samples
from mcugen.simulation.build import Checks, build_wire_host

COUNT = 3


def compiled_form(name: str, board: str = "") -> CompiledModel:
    make, own, options = MODELS[name]
    return compile_model(make().model(), board or own, replace(options, validation=True))


def samples_of(compiled: CompiledModel) -> Samples:
    """Of the largest sizes, and one of the smallest."""
    inputs = compiled.program.inputs
    found = []
    for seed in range(COUNT):
        random = np.random.default_rng(seed)
        sizes = {s.name: s.high if seed else s.low for s in compiled.program.symbols}
        found.append({e.name: _random(random, e.shape_at(sizes), e.dtype.numpy) for e in inputs})
    return Samples(found, None)


def _random(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def check(compiled: CompiledModel, port: str) -> ValidationReport:
    wiring = ValidationSetup(port, patience=60, layer_samples=COUNT)
    result = validate(compiled, samples_of(compiled), METRICS["sqnr"], wiring)
    assert result.difference is None and not result.constants_differ
    assert result.outputs in (Verdict.EXACT, Verdict.CLOSE)
    verdicts = {layer.verdict for layer in result.layers}
    assert Verdict.DIFFERENT not in verdicts
    if not compiled.program.symbols:
        assert verdicts & {Verdict.EXACT, Verdict.CLOSE}
    return result


OFTEN = ("sizes", "state", "blocks", "input row by row", "steps", "weights of their own", "several memories")
"""What is different of the device's C; the others are looked at in `make sweep`."""


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_on_this_computer(name: str, tmp_path: Path):
    compiled = compiled_form(name)
    program = build_wire_host(compiled.bundle, tmp_path, Checks.TELL)
    with on_socket([str(program)]) as port:
        result = check(compiled, port)
    assert result.outputs == Verdict.EXACT


def test_a_stream_goes_on_after_a_reset(tmp_path: Path):
    compiled = compiled_form("state")
    program = build_wire_host(compiled.bundle, tmp_path, Checks.TELL)
    with on_socket([str(program)], Resets(400, 3)) as port:
        result = check(compiled, port)
    assert result.wire.resets == 3
    assert result.outputs == Verdict.EXACT


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", [name for name, (_, board, _) in MODELS.items() if board not in ("host", "esp32c3")])
def test_on_a_board(name: str):
    check(compiled_form(name), SIMULATOR_PORT)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["floats in RAM", "sizes", "blocks", "input row by row", "long names"])
def test_on_a_cortex_m4(name: str):
    check(compiled_form(name, "nrf52840"), SIMULATOR_PORT)
