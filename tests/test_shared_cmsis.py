# SPDX-License-Identifier: Apache-2.0
"""The int8 models of ../shared by CMSIS-NN: the reference implementation of tests/cmsis_nn, or the real library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cmsis_checks import linked
from cmsis_nn_library import IS_REAL
from onnx_models import random_feeds
from shared_models import MODELS, QUANTIZED, options, recorded, roomy

from mcugen.core.options import AUTO, CMSIS_NN, FAMILIES, OWN
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array
from mcugen.kernels.common.library import references

pytestmark = pytest.mark.shared

QUICK = ("autoencoder_ad_int8_qdq", "ds_cnn_kws_ortq_u8s8_qdq")
"""Models that are run whenever the others are tested; the rest is for the long sweep."""

CPUS = ("rp2040", "stm32f103", "stm32f411", "rt1060", "rt685", "corstone300")
TINY = ("resnet8_cifar10_int8_qdq", "ds_cnn_kws_int8_qdq", "mobilenet_v1_025_vww_int8_qdq", "autoencoder_ad_int8_qdq")

NAMED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in QUANTIZED]


def compiled(name: str, board: str = "host", family: str = CMSIS_NN, **more: str) -> CompiledModel:
    wanted = replace(options(name), family=family, **more)
    return linked(compile_model(MODELS / f"{name}.onnx", roomy(board), wanted))


def check_bits(model: CompiledModel, name: str, count: int) -> None:
    """Recorded inputs: the same integers as by numpy."""
    samples = recorded(name, model)[0][:count]
    for sample, found in zip(samples, model.simulate(samples, measure=False).outputs, strict=True):
        for key, expected in model.interpret(sample).items():
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(found[key], expected, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(found[key], expected)


@pytest.mark.parametrize("name", NAMED)
def test_bits_on_the_host(name: str) -> None:
    model = compiled(name)
    assert model.bundle.libraries
    check_bits(model, name, 3)


@pytest.mark.qemu
def test_bits_on_a_board() -> None:
    check_bits(compiled(QUICK[0], "stm32f411"), QUICK[0], 1)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("board", CPUS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_bits_on_every_board(name: str, board: str) -> None:
    check_bits(compiled(name, board), name, 1)


def steps(model: CompiledModel, sample: dict[str, Array]) -> Iterator[tuple[Node, int]]:
    """For each node that the library computes: how far its result is from our own, on the same inputs."""
    theirs = references(model.graph, model.program)
    calls = {instr.name for instr in model.program.instrs if instr.library}
    values: dict[Value, Array] = {v: sample[v.name] for v in model.graph.inputs}
    for node in model.graph.nodes:
        arrays = [v.data if v.data is not None else values[v] for v in node.inputs if v is not None]
        results = evaluate_node(node, arrays, theirs.get(node))
        values |= dict(zip(node.outputs, results, strict=True))
        if node.outputs[0].name in calls:
            own = evaluate_node(node, arrays)
            far = (np.abs(a.astype(np.int64) - b).max(initial=0) for a, b in zip(own, results, strict=True))
            yield node, int(max(far))


@pytest.mark.parametrize("name", NAMED)
def test_layers_are_within_a_step_of_our_own(name: str) -> None:
    model = compiled(name)
    (sample, *_), _ = recorded(name, model)
    found = list(steps(model, sample))
    assert found
    assert {node.place: far for node, far in found if far > 1} == {}
    weighted = [far for node, far in found if node.op.macs(node.sig)]
    assert weighted and max(weighted) == 0, "int8 layers with weights give our own bits"


# --------------------------------------------------------------------------------------- `auto`, measured

WORST = 1.15
"""Above the better of both families; the costs that decide are fitted."""


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.skipif(not IS_REAL, reason="instructions are those of the real library")
@pytest.mark.parametrize("board", ["nrf52840", "rt1060", "corstone300"])
@pytest.mark.parametrize("name", TINY)
def test_auto_is_as_fast_as_the_better_family(name: str, board: str) -> None:
    counts = {}
    for family in FAMILIES:
        model = compiled(name, board, family, optimize="speed")
        counts[family] = model.simulate([random_feeds(model.model)]).instructions
    assert counts[AUTO] <= WORST * min(counts[OWN], counts[CMSIS_NN]), counts
