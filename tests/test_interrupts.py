# SPDX-License-Identifier: Apache-2.0
"""Interrupts at any place of generated code, whose handlers use flags, FPU, vectors and stack, change no bit.

Under QEMU, whose clock follows the instructions: a timer interrupts again and again while models of all kernels run.
What this cannot show is what QEMU does not play: instructions that a real CPU takes up again in the middle.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from batch import combine
from onnx_models import random_feeds
from portable_models import POOL, net_of, portable_models
from shared_models import roomy

from mcugen import CompileOptions, compile_model
from mcugen.codegen.bundle import Bundle
from mcugen.compiled import CompiledModel
from mcugen.errors import VerificationError
from mcugen.simulate.build import build_target
from mcugen.simulate.execute import execute, qemu_program
from mcugen.simulate.machines import find_machine
from mcugen.simulate.toolchain import ARM, RISCV

CPUS = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("rp2040", "nrf52840", "corstone300")),
    *(pytest.param(board, marks=pytest.mark.riscv) for board in ("rv32imc", "rv32imafc")),
]
KINDS = ("s8", "s16", "f32", "s4")
LAYERS = tuple(layer for part in POOL for layer in part)
TICKS = {ARM.name: 300, RISCV.name: 1}
"""Of the timer, from the end of a handler to the next interrupt: some 20 instructions on Arm, 100 on RISC-V."""
MASKS = re.compile(r"\t(cpsi[de]\b.*|msr\s+(primask|basepri\w*|faultmask).*|csr\w+.*\b(mstatus|mie|mideleg)\b.*)", re.I)


def stormy(bundles: Sequence[Bundle], ticks: int) -> Bundle:
    """The models one after the other, under interrupts from beginning to end."""
    batch = combine(bundles)
    source = (Path(__file__).parent / "interrupts.c").read_text().replace("TICKS", f"{ticks}u")
    header = f'#include "batch.h"\n#define STORM_ARENA_SIZE {batch.arena_size}u\n#define STORM_ARENA_ALIGN 16u\n'
    return replace(
        batch,
        name="storm",
        files=batch.files
        | {
            "storm.h": f"{header}int storm_run(void *arena);\n",
            "storm.c": source,
            "storm_weights.c": "typedef int none;\n",
        },
    )


def outputs_under_storm(bundle: Bundle, board: str, sample: dict[str, np.ndarray], folder: Path):
    """With the program."""
    target = roomy(board)
    machine = find_machine(target)
    image = build_target(bundle, target, machine, folder, hooks=False).model
    program = qemu_program(image, machine, count_instructions=True)
    return execute(program, bundle, [sample], folder / "run", timeout=300).outputs[0], image


def masking(image: Path, board: str) -> list[str]:
    """Instructions that mask interrupts, in functions of the models."""
    toolchain = find_machine(roomy(board)).toolchain
    text = subprocess.run([toolchain.objdump, "-d", str(image)], capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:.+\n)+)", text, re.M)
    return [f"{name}: {found[0]}" for name, body in functions for found in MASKS.findall(body) if name not in OWN]


OWN = ("read_counter", "reset_handler", "start", "stop", "storm_run")
"""Of the harness, and of interrupts.c."""


def model_of(kind: str, board: str) -> CompiledModel:
    return compile_model(net_of(kind, LAYERS).model(), roomy(board), CompileOptions(name="net", optimize="speed"))


@pytest.mark.spread(8)
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
@pytest.mark.parametrize("board", CPUS)
def test_interrupts_change_no_bit(board: str, kind: str, tmp_path: Path):
    compare([model_of(kind, board)], [random_feeds(net_of(kind, LAYERS).model(), seed=1)], board, tmp_path)


def compare(models: Sequence[CompiledModel], feeds: Sequence[dict[str, np.ndarray]], board: str, folder: Path):
    """Under the storm as without, where integers are numpy's (other tests see to that)."""
    sample = {f"{m.bundle.name}/{n}": a for m, given in zip(models, feeds, strict=True) for n, a in given.items()}
    bundle = stormy([m.bundle for m in models], TICKS[roomy(board).toolchain])
    found, image = outputs_under_storm(bundle, board, sample, folder)
    for model, given in zip(models, feeds, strict=True):
        expected = model.simulate([given], measure=False).outputs[0]
        for name, array in expected.items():
            np.testing.assert_array_equal(found[f"{model.bundle.name}/{name}"], array, err_msg=name)
    assert masking(image, board) == []


@pytest.mark.slow
@pytest.mark.parametrize("board", CPUS)
def test_interrupts_within_every_kernel(board: str, tmp_path: Path):
    """On the CPU that each kernel is for; the others on all."""
    target = roomy(board)
    models = [p for p in portable_models() if p.model.board.cpu in (target.cpu, "host") and not p.has_doubles]
    retargeted = [replace(p.model, board=target) for p in models]
    compare(retargeted, [p.feeds for p in models], board, tmp_path)


def sample_of_int8() -> dict[str, np.ndarray]:
    return {f"net/{name}": array for name, array in random_feeds(net_of("s8", LAYERS).model(), seed=1).items()}


@pytest.mark.qemu
def test_a_storm_that_does_not_come_is_told(tmp_path: Path):
    bundle = stormy([model_of("s8", "nrf52840").bundle], 0xFFFFFF)
    with pytest.raises(VerificationError, match=r"must return 0\. found: (-1|4294967295)"):
        outputs_under_storm(bundle, "nrf52840", sample_of_int8(), tmp_path)


@pytest.mark.slow
@pytest.mark.qemu
def test_a_handler_that_changes_a_register_is_seen(tmp_path: Path):
    model, sample = model_of("s8", "nrf52840"), sample_of_int8()
    bundle = stormy([model.bundle], TICKS[ARM.name])
    spoiled = bundle.files["storm.c"].replace("++interrupts;", '++interrupts; __asm__ volatile("eor r6, r6, #4");')
    bundle = replace(bundle, files=bundle.files | {"storm.c": spoiled})
    try:
        found, _ = outputs_under_storm(bundle, "nrf52840", sample, tmp_path)
    except VerificationError:
        return  # a fault, or an error
    expected = model.interpret({name.removeprefix("net/"): array for name, array in sample.items()})
    assert any(not np.array_equal(found[f"net/{name}"], array) for name, array in expected.items())


def test_instructions_that_mask_are_recognized():
    listing = " 8:\tb672      \tcpsid\ti\n a:\tf380 8810 \tmsr\tPRIMASK, r0\n c:\t30047073\tcsrci\tmstatus,8\n"
    assert len(MASKS.findall(listing)) == 3
    assert MASKS.findall(" 8:\tf3ef 8005\tmrs\tr0, IPSR\n e:\tf380 8c00\tmsr\tCPSR_s, r0\n") == []
