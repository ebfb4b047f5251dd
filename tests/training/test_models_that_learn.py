# SPDX-License-Identifier: Apache-2.0
"""Shared and zoo models with `--train`: each learns something, or says in one error why not, and what could be done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mcugen.api.compilation import Compilation
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Teaching
from mcugen.evaluation.samples import random_samples

SHARED = Path(__file__).parents[3] / "shared"
FEW = ("deeploy_transformer_int", "dory_eegnet_int", "esp_tcn_stream", "mnist_cntk", "pt_mlp_dynbatch_dynamo")
"""Small ones of several kinds: of the others the sweep asks."""
MODELS = [
    pytest.param(file, id=file.stem, marks=() if file.stem in FEW else pytest.mark.slow)
    for folder in ("models", "zoo")
    for file in sorted((SHARED / folder).glob("*.onnx"))
]
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")


def taught(file: Path, layers: str, precision: str) -> CompiledModel:
    """By classes, or by what the output should have been where there are none."""
    options = CompileOptions(training=Training(layers, precision=precision))
    try:
        return compile_model(file, "host", options)
    except McugenError as error:
        if "--loss mse" not in str(error):
            raise
    return compile_model(file, "host", CompileOptions(training=Training(layers, "mse", precision=precision)))


def moved(model: CompiledModel) -> set[str]:
    """The states that a step towards one class, or another, changes: of one that is sure there is nothing to learn."""
    lesson, known, rng = model.bundle.lesson, model.graph.lesson, np.random.default_rng(0)
    assert lesson is not None and known is not None
    (sample,) = random_samples(model.program.inputs).inputs
    targets = [[lesson.classes - 1], [0]] if lesson.classes else [rng.normal(size=lesson.target.shape)]
    changed = set[str]()
    for target in targets:
        given = {
            lesson.target.name: np.asarray(target, lesson.target.dtype),
            lesson.rate.name: np.ones(lesson.rate.shape, np.float32),
        }
        found = model.interpret({**model.first_states, **sample, **given})
        states = known.states.items()
        changed |= {state for output, state in states if not np.array_equal(found[output], model.first_states[state])}
    return changed


@pytest.mark.spread(2)
@pytest.mark.parametrize("file", MODELS)
@pytest.mark.parametrize("layers", ["last:1", "last:2", "bias"])
@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_models_learn_or_say_why_not(file: Path, layers: str, precision: str) -> None:
    try:
        model = taught(file, layers, precision)
    except McugenError as error:
        assert "found: " in str(error) and ("try: " in str(error) or "layers that could be trained" in str(error))
    else:
        assert moved(model)


@pytest.mark.slow
@pytest.mark.parametrize("file", MODELS)
def test_models_choose_what_they_train_or_say_why_not(file: Path, tmp_path: Path) -> None:
    """By a lesson of a few samples of noise."""
    plain = compile_model(file, "host")
    if len(plain.program.inputs) > 1:
        pytest.skip("samples of one input")
    (endpoint,) = plain.program.inputs
    rng, count = np.random.default_rng(0), 8
    images = rng.normal(size=(count, *endpoint.shape)).astype(endpoint.dtype.numpy)
    np.savez(tmp_path / "lesson.npz", **{endpoint.name: images}, labels=np.arange(count) % 2)
    options = CompileOptions(training=Training("auto"))
    try:
        model = Compilation(file, "host", options, teaching=Teaching(tmp_path / "lesson.npz")).compiled
    except McugenError as error:
        assert "found: " in str(error) and "try: " in str(error)
    else:
        assert moved(model)
