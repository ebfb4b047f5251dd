# SPDX-License-Identifier: Apache-2.0
"""What wakes the other core, and what a data cache must forget: ports of the runtime, and the lines that use them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from compilers import run
from shared_models import MODELS
from targets import clang

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import MOVE, Access, Control, Program

pytestmark = pytest.mark.shared

FLAGS = ("-mthumb", "-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
CHIPS = [
    ("cortex-m0plus", "SEV"),
    ("cortex-m33", "SEV"),
    ("cortex-m7", "MU"),
    ("cortex-m4", "MU"),
    ("cortex-m7", "HSEM"),
    ("cortex-m4", "HSEM"),
    ("cortex-m33", "FREERTOS"),
    ("cortex-m0plus", "FREERTOS"),
]
FREERTOS = {
    "FreeRTOS.h": "#include <stddef.h>\ntypedef unsigned long TickType_t;\ntypedef long BaseType_t;\n"
    "#define pdTRUE 1L\n",
    "task.h": "typedef struct task *TaskHandle_t;\nTaskHandle_t xTaskGetCurrentTaskHandle(void);\n"
    "BaseType_t xTaskNotifyGive(TaskHandle_t);\nunsigned long ulTaskNotifyTake(BaseType_t, TickType_t);\n"
    "void vPortYield(void);\n#define taskYIELD() vPortYield()\n",
}
"""Stand-ins: what the port uses of it."""


@cache
def compiled(board: str) -> CompiledModel:
    return compile_model(MODELS / "ds_cnn_kws_int8_qdq.onnx", board, CompileOptions("net", cores=2))


@pytest.mark.qemu
def test_ports_compile(tmp_path: Path) -> None:
    """For each core of a chip, with its registers, and with a data cache on a Cortex-M7; by clang where words would go
    by a library otherwise.
    """
    compiled("rt1170").write(tmp_path)
    for name, text in FREERTOS.items():
        (tmp_path / name).write_text(text)
    for cpu, port in CHIPS:
        caches = [("-DMCUGEN_CORES_CACHE",), ()] if port in ("MU", "HSEM") else [()]
        for more in caches:
            flags = (f"-mcpu={cpu}", *FLAGS, f"-DMCUGEN_CORES_{port}", *more)
            run(["arm-none-eabi-gcc", *flags, "-c", "net.c", "-o", "net.o"], tmp_path)
            if cpu == "cortex-m0plus":
                run([*clang(load_board("rp2040")), *flags, "-fsyntax-only", "net.c"], tmp_path)


def written_by_the_other_core(program: Program) -> list[set[tuple[int, int]]]:
    """By fork the offsets and sizes of what the second side writes for others to read."""
    found, is_other = list[set[tuple[int, int]]](), False
    for instr in program.instrs:
        if instr.control is Control.ELSE:
            found.append(set())
        is_other = instr.control is Control.ELSE or (is_other and instr.control is not Control.END)
        if is_other and instr.kernel != MOVE:
            made = (o.buffer for o in instr.operands if o.access is Access.OUT)
            found[-1] |= {(buffer.offset or 0, buffer.nbytes) for buffer in made if buffer.planned}
    return found


@pytest.mark.parametrize("board", ["rt1170", "stm32h745"])
def test_what_the_other_core_wrote_is_forgotten_and_nothing_else(board: str) -> None:
    """On the Cortex-M4 of an RT1170, which has a cache as well, also what the Cortex-M7 wrote."""
    model = compiled(board)
    text = str(model.bundle.files["net.c"])
    body = text[text.index("int net_run_cores") :]
    places = {n: int(at or 0) for n, at in re.findall(r"\*const (\w+) = \(\w[^;]*?(?:\+ (\d+)\))?;", body)}
    after = [part.split("MCUGEN_ON_LAYER")[0] for part in body.split("mcugen_cores_join(link)")[1:]]
    lines = [re.findall(r"MCUGEN_CORE_INVALIDATE\((\w+), (\d+)u\)", part) for part in after]
    found = [{(places[name], int(nbytes)) for name, nbytes in part} for part in lines]
    assert found == written_by_the_other_core(model.program)
    shards = text[text.index("static void other_portion") : text.index("int net_worker")]
    assert ("MCUGEN_CORE_INVALIDATE" in shards) is (board == "rt1170")
    assert any("MCUGEN_CORES_CACHE" in note and "'cm7'" in note for note in model.report.notes)


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["rp2350", "nrf5340"])
def test_nothing_is_forgotten_without_a_cache(board: str) -> None:
    model = compiled(board)
    assert "MCUGEN_CORE_INVALIDATE" not in str(model.bundle.files["net.c"])
    assert not any("cache" in note for note in model.report.notes)
