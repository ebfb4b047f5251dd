# SPDX-License-Identifier: Apache-2.0
"""TiGrIS, an interpreter of plans with kernels of CMSIS-NN or in plain C: its programs in mcugen's harness.

Its sources are not ours to keep: a folder of checkouts is given, `tigris` (the compiler of plans), `tigris-runtime` and
`CMSIS-NN`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hardware.measured import Kernels
from hardware.programs import Shapes, built_archive, foreign_bundle, foreign_library
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import VerificationError
from mcugen.core.options import LibraryFiles
from mcugen.simulation.toolchain import Unit, first_lines

FOLDERS = ("tigris", "tigris-runtime", "CMSIS-NN")
_LIBRARY = foreign_library("tigris", "TiGrIS", "tigris.h")
_FAST, _SLOW, _TENSORS = 32768, 8192, 256
"""Bytes of its two arenas, as the measured firmware has them, and the most tensors."""

_SOURCE = """\
#pragma GCC system_header
#define TIGRIS_HAS_CMSIS_NN
#include <string.h>
#include "tigris.h"
#include "tigris_executor.h"
#include "tigris_kernels_cmsis_nn.h"
#include "tigris_kernels_s8.h"
#include "tigris_loader.h"
#include "tigris_mem.h"
extern const unsigned char network_plan[];
static tigris_plan_t plan;
static tigris_mem_t mem;
static void *tensors[{tensors}];
/* All that the measured firmware does before it starts its clock. */
void *network_x(void *arena) {{
    uint32_t fast = {fast}u;
    if (tigris_plan_load(network_plan, {length}u, &plan) != TIGRIS_OK) {{ return 0; }}
    uint8_t *begin = arena;
    uint32_t wanted = plan.header->peak + plan.header->num_tensors * TIGRIS_TENSOR_ALIGN + 512u;
    fast = wanted < fast ? wanted : fast;
    tigris_mem_init(&mem, tensors, plan.header->num_tensors, begin, fast, begin + {fast}u, {slow}u);
    {prepare}
    tigris_mem_init(&mem, tensors, plan.header->num_tensors, mem.fast_base, mem.fast_size, begin + {fast}u, {slow}u);
    tigris_mem_alloc_slow(&mem, plan.model_inputs[0], plan.tensors[plan.model_inputs[0]].size_bytes);
    return mem.tensor_ptrs[plan.model_inputs[0]];
}}
const void *network_y(const void *arena) {{
    (void)arena;
    return mem.tensor_ptrs[plan.model_outputs[0]];
}}
int network_run(void *arena) {{
    tigris_exec_stats_t stats;
    (void)arena;
    return (int)tigris_run(&plan, &mem, {dispatch}, NULL, &stats);
}}
"""


def compile_plan(model: Path, sources: Path) -> bytes:
    """Run TiGrIS's compiler on an ONNX file in a separate process, and return the plan."""
    plan = model.with_suffix(".tgrs")
    package = sources / "tigris" / "src"
    version = "import sys, types; m = types.ModuleType('tigris._version'); m.version = '0'; sys.modules[m.__name__] = m"
    code = f"{version}; from tigris.cli import main; main()"
    command = [sys.executable, "-c", code, "compile", str(model), "-m", "32K", "-o", str(plan)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(package)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise VerificationError("TiGrIS must compile the network", first_lines(done.stdout))
    return plan.read_bytes()


def tigris_bundle(plan: bytes, kernels: Kernels, shapes: Shapes) -> Bundle:
    """Return a plan as a bundle that calls TiGrIS."""
    is_library = kernels == "cmsis_nn"
    source = _SOURCE.format(
        tensors=_TENSORS,
        fast=_FAST,
        slow=_SLOW,
        length=len(plan),
        prepare="tigris_cmsis_nn_prepare(&plan, &mem);" if is_library else "",
        dispatch="tigris_dispatch_kernel_cmsis_nn" if is_library else "tigris_dispatch_kernel_s8",
    )
    return foreign_bundle(_LIBRARY, source, plan, _FAST + _SLOW, shapes)


def tigris_archive(board: Board, sources: Path, folder: Path) -> LibraryFiles:
    """Build the runtime and CMSIS-NN for a board's CPU, as the measured programs were built."""
    runtime, cmsis = sources / "tigris-runtime", sources / "CMSIS-NN"
    includes = ("-I", str(runtime / "include"), "-I", str(cmsis / "Include"))
    flags = ("-std=gnu11", "-O2", "-w", "-DTIGRIS_HAS_CMSIS_NN", *includes)
    files = [*sorted((runtime / "src").glob("*.c")), *sorted((cmsis / "Source").rglob("*.c"))]
    units = [Unit(str(file.resolve()), f"{file.stem}.o") for file in files]
    return LibraryFiles(runtime / "include", built_archive(board, units, flags, folder / f"tigris-{board.cpu}"))
