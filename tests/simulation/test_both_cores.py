# SPDX-License-Identifier: Apache-2.0
"""Models on both cores of a simulated chip: the bits of one core, and the instructions of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shared_models import MODELS

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Space
from mcugen.measurement.evaluate import measure_once, render_for_helper
from mcugen.memory.place import MAX_CORE_IMAGE_CODE_BYTES, in_second_core_image
from mcugen.search.core_assignment import MIN_STACK_BYTES
from mcugen.search.core_partition import BARRIER_INSTRUCTIONS
from mcugen.search.objective import TOLERANCES
from mcugen.simulation import simulate
from mcugen.simulation.both_cores import run_on_both_cores

pytestmark = [pytest.mark.qemu, pytest.mark.shared]


def compiled(board: str, cores: int, model: str = "ds_cnn_kws") -> CompiledModel:
    return compile_model(MODELS / f"{model}_int8_qdq.onnx", board, CompileOptions("net", cores=cores))


def sample_of(model: CompiledModel) -> dict[str, np.ndarray]:
    (port,) = model.bundle.inputs
    return {port.name: np.random.default_rng(3).integers(-128, 128, port.shape).astype(np.int8)}


@pytest.mark.spread(4)
@pytest.mark.parametrize("model", ["ds_cnn_kws", pytest.param("resnet8_cifar10", marks=pytest.mark.slow)])
@pytest.mark.parametrize("board", ["rp2040", "rp2350"])
def test_both_cores_share_the_instructions_of_one(board: str, model: str, tmp_path: Path) -> None:
    """Within 0.56 times the instructions of one core, barriers included, by exact counts, and not much more memory."""
    one, two = compiled(board, 1, model), compiled(board, 2, model)
    max_ram = TOLERANCES.max_shared_ram_ratio * (one.program.arena_size + MIN_STACK_BYTES)
    assert two.program.arena_size + MIN_STACK_BYTES <= max_ram
    max_weights_ratio = 2 * TOLERANCES.max_constants_ratio - 1
    assert two.program.weights_size <= max_weights_ratio * one.program.weights_size
    sample = sample_of(two)
    run = run_on_both_cores(two.bundle, load_board(board), sample, tmp_path / "counted")
    expected = simulate(one.bundle, load_board(board), [sample], setup=None)
    for name, array in expected.outputs[0].items():
        np.testing.assert_array_equal(run.alone[name], array)
        np.testing.assert_array_equal(run.together[name], array)
    assert expected.instructions is not None
    assert run.slower < 0.56 * expected.instructions
    assert len(run.forks) > 5  # most layers
    assert 0 < run.barrier < 2 * BARRIER_INSTRUCTIONS  # of both cores
    assert all(0 < fork.end < BARRIER_INSTRUCTIONS for fork in run.forks)


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["rp2040", "rp2350"])
def test_cores_that_signal_by_sev(board: str, tmp_path: Path) -> None:
    """As boards do; QEMU runs both cores at once then."""
    two = compiled(board, 2)
    run = run_on_both_cores(two.bundle, load_board(board), sample_of(two), tmp_path, counts=False)
    for name, array in run.alone.items():
        np.testing.assert_array_equal(run.together[name], array)


def test_models_for_one_core_are_refused(tmp_path: Path) -> None:
    one = compiled("rp2040", 1)
    with pytest.raises(UsageError, match="compiled for two cores of an Arm board"):
        run_on_both_cores(one.bundle, load_board("rp2040"), sample_of(one), tmp_path)


def test_one_core_computes_all_where_the_other_saves_nothing() -> None:
    """DS-CNN on an nRF5340, whose second core made it slower: that is told."""
    model = compiled("nrf5340", 2)
    assert all(layer.core is None for layer in model.report.layers)
    assert any(note.startswith("--cores 2: one core computes all") for note in model.report.notes)
    assert model.program.arena_size == compiled("nrf5340", 1).program.arena_size


@pytest.mark.parametrize("name", ["rt1170"])
def test_unlike_cores_run_the_same_code(name: str) -> None:
    """Built for each of them, with the same bits; the slower one has the smaller portion, and the report joins both."""
    model = compiled(name, 2)
    first, other = (sum(layer.macs for layer in model.report.layers if layer.core == core) for core in (0, 1))
    assert 0 < 2 * other < first
    seen = model.board.seen_by_second_core(model.board.memory(model.board.arena_memory))
    assert seen is not None and seen.cpu == model.board.cores[1].cpu
    sample = sample_of(model)
    ours, theirs = (simulate(model.bundle, board, [sample], measure=False).outputs for board in (model.board, seen))
    for output, array in ours[0].items():
        np.testing.assert_array_equal(theirs[0][output], array)
    cores = measure_once(model).two_cores
    assert cores is not None and cores.unit == "microseconds"
    assert cores.total < cores.alone


def test_weights_of_an_unlike_core_lie_in_its_image() -> None:
    """The Cortex-M4's portions read them there, in its own memory; all others are copied."""
    model = compiled("rt1170", 2)
    read = {o.buffer for i in model.program.of_second_core() for o in i.operands if o.buffer.space is Space.CONST}
    copies = model.draft.placement.copies
    assert read and read <= set(copies)
    firmware = render_for_helper(model)
    assert firmware is not None
    bundle, seen = firmware
    (weights,) = (name for name in bundle.files if name.endswith("_weights.c"))
    ours, theirs = (each.files[weights].count("WEIGHTS_IN_OCRAM1 const") for each in (model.bundle, bundle))
    assert 0 < ours - theirs <= len(read)
    assert any("lie in its own image ('itcm')" in note for note in model.report.notes)
    is_small = replace(
        seen,
        memories=tuple(replace(m, size=MAX_CORE_IMAGE_CODE_BYTES) if m.name == "itcm" else m for m in seen.memories),
    )
    assert in_second_core_image(model.draft.placement, model.program, is_small).copies == copies


def test_equal_cores_have_one_image() -> None:
    assert render_for_helper(compiled("rp2350", 2)) is None


def test_portions_keep_to_weights_that_start_up_can_copy() -> None:
    """The autoencoder's forms that are fastest by instructions take more constants than OCRAM has room for."""
    one, two = (compiled("rt1170", cores, "autoencoder_ad") for cores in (1, 2))
    assert one.options.place.hot
    assert two.options.place.hot
    assert any(layer.core is not None for layer in two.report.layers)
