# SPDX-License-Identifier: Apache-2.0
"""ONNC's code for MLPerf Tiny's networks with kernels of CMSIS-NN: Skymizer's submission in mcugen's harness.

A folder of checkouts is given: `tiny_results_v1.1` (mlcommons) and `CMSIS_5` (ARM-software, at commit b9667965).
"""

from __future__ import annotations

from pathlib import Path

from hardware.measured import Network
from hardware.programs import SYSTEM_CALLS, Shapes, built_archive, foreign_bundle, foreign_library
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.options import LibraryFiles
from mcugen.simulation.toolchain import Unit

FOLDERS = ("tiny_results_v1.1", "CMSIS_5")
_CODE = Path("tiny_results_v1.1/closed/Skymizer/code")
_NAMES: dict[Network, str] = {"ic": "ic", "ds_cnn": "kws", "vww": "vww", "ad": "ad"}
_MENDED = "arm_convolve_HWC_q7_fast_nonsquare"
"""What the submission puts in the place of a file of CMSIS-NN."""

_LIBRARY = foreign_library("onnc", "ONNC", "network_onnc.h")
_HEADER = """\
void *onnc_x(void);
const void *onnc_y(void);
int onnc_run(void);
"""
_GLUE = """\
#include <string.h>
#include "onnc_main.h"
namespace {
const void *result;
int8_t given[27648];
}
extern "C" void *onnc_x(void) { return given; }
extern "C" const void *onnc_y(void) { return result; }
/* A run writes over its input: it is given anew each time, which the board's firmware does before the clock starts. */
extern "C" int onnc_run(void) {
    const onnc_input_tensor_t input = onnc_get_input_tensor();
    memcpy(input.data, given, input.size);
    result = onnc_main().data;
    return 0;
}
"""
_SOURCE = """\
#include "network_onnc.h"
#pragma GCC system_header
void *network_x(void *arena) { (void)arena; return onnc_x(); }
const void *network_y(const void *arena) { (void)arena; return onnc_y(); }
int network_run(void *arena) { (void)arena; return onnc_run(); }
"""
_C = ("-std=gnu11",)
_CXX = ("-std=gnu++14", "-fno-rtti", "-fno-exceptions")


def is_comparable(network: Network) -> bool:
    """Return whether a network's estimate is comparable: the first run of the DS-CNN differs from later ones."""
    return network != "ds_cnn"


def onnc_bundle(shapes: Shapes) -> Bundle:
    """Return a network as a bundle that calls ONNC's code, which has its own memory."""
    return foreign_bundle(_LIBRARY, _SOURCE, b"\0", 16, shapes)


def onnc_archive(network: Network, board: Board, sources: Path, folder: Path) -> LibraryFiles:
    """Build a network's code and CMSIS-NN for a board's CPU with the submission's options for gcc."""
    name, built = _NAMES[network], folder / f"onnc-{network}-{board.cpu}"
    code = sources / _CODE / "NUCLEO_L4R5ZI-mbed_os" / name / f"{name}01_code"
    include, cmsis = built / "include", sources / "CMSIS_5" / "CMSIS"
    include.mkdir(parents=True, exist_ok=True)
    (include / "network_onnc.h").write_text(_HEADER)
    (include / "onnc_runtime.h").write_text("")
    (built / "glue.cpp").write_text(_GLUE + SYSTEM_CALLS)
    (built / f"{_MENDED}.c").write_text((sources / _CODE / f"{_MENDED}.fixed").read_text())
    roots = (include, code, *(cmsis / part / "Include" for part in ("NN", "DSP", "Core")))
    includes = [option for root in roots for option in ("-I", str(root))]
    flags = ("-O3", "-w", "-DNDEBUG", "-funsigned-char", "-fomit-frame-pointer", "-fno-delete-null-pointer-checks")
    units = [Unit(str(file.resolve()), f"{file.stem}.o", _CXX) for file in (code / "onnc_main.cpp", built / "glue.cpp")]
    kernels = [file for file in sorted((cmsis / "NN" / "Source").rglob("*.c")) if file.stem != _MENDED]
    units += [Unit(str(file.resolve()), f"{file.stem}.o", _C) for file in (built / f"{_MENDED}.c", *kernels)]
    return LibraryFiles(include, built_archive(board, units, (*flags, *includes), built))
