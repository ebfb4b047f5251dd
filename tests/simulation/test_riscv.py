# SPDX-License-Identifier: Apache-2.0
"""What is RISC-V's own: extensions, the library, aligned access. The other tests of QEMU run there too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate
from mcugen.simulation.build import build_target
from mcugen.simulation.machines import find_machine
from mcugen.simulation.profile import Profiler

pytestmark = pytest.mark.riscv

ONE = [{"x": np.arange(16, dtype=np.int8)}]
DIGITS = Path(__file__).parents[2] / "examples" / "digits"

INSTRUCTIONS = {"a": "lr.w a5, (sp)", "f": "fadd.s fa0, fa0, fa0", "d": "fcvt.d.s fa0, fa0", "zba": "sh1add a5, a5, a5"}


@pytest.mark.spread(2)
@pytest.mark.parametrize(("board", "has"), [("rv32imc", ""), ("gd32vf103", "a"), ("rv32imafc", "af")])
@pytest.mark.parametrize("extension", INSTRUCTIONS)
def test_instructions_that_a_riscv_board_lacks_fault(board: str, has: str, extension: str):
    model = program_of(extension)
    if extension in has:
        simulate(model, load_board(board), ONE)
        return
    with pytest.raises(VerificationError, match="exception 2 in tiny_run"):
        simulate(model, load_board(board), ONE)


def test_a_machine_has_the_bit_extensions_that_its_name_lists():
    flags = ("-march=rv32imc_zba", "-mabi=ilp32", "-mstrict-align")
    board = replace(load_board("rv32imc"), qemu="virt-rv32imc_zba_zbb", cflags=flags)
    simulate(program_of("zba"), board, ONE)
    with pytest.raises(VerificationError, match="exception 2 in tiny_run"):
        simulate(program_of("zba"), replace(board, qemu="virt-rv32imc_zbb"), ONE)


def program_of(extension: str) -> Bundle:
    """Return a program that executes an instruction of an extension."""
    code = f".option push\\n .option arch, +{extension}\\n {INSTRUCTIONS[extension]}\\n .option pop"
    return tiny(f'(void)arena; __asm__ volatile("{code}" ::: "a5"); return 0;')


def test_errno_has_a_place():
    """It belongs to a thread, in picolibc; the sizes count it once."""
    model = tiny("errno = tiny_x(arena)[5]; return errno - 5;", before="#include <errno.h>")
    sizes = simulate(model, load_board("esp32c3"), ONE).sizes
    assert sizes is not None
    assert sizes.static_ram == 4


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_the_profile_sees_unaligned_accesses(tmp_path: Path, offset: int):
    """QEMU itself lets them pass."""
    model = tiny(f"return *(volatile int *)(void *)((char *)arena + {offset}) * 0;")
    assert unaligned(model, "esp32c3", tmp_path, ONE[0]) == [0, 2, 1][offset]


@pytest.mark.spread(3)
@pytest.mark.parametrize("network", ["digits_int8", "digits_f32"])
@pytest.mark.parametrize("board", ["esp32c3", "rv32imafc"])
def test_no_access_is_unaligned(tmp_path: Path, network: str, board: str):
    """Many RISC-V CPUs have no such loads and stores."""
    model = compile_model(DIGITS / f"{network}.onnx", board)
    sample = {p.name: np.zeros(p.shape, p.dtype) for p in model.bundle.inputs}
    assert unaligned(model.bundle, board, tmp_path, sample) == 0


def unaligned(bundle: Bundle, board: str, folder: Path, sample: dict[str, np.ndarray]) -> int:
    """Bus transfers beyond one that accesses took."""
    target = load_board(board)
    machine = find_machine(target)
    images = build_target(bundle, target, machine, folder, hooks=False)
    (span,) = Profiler(machine, bundle, sample, target, 60).spans(images.model)
    return span.unaligned
