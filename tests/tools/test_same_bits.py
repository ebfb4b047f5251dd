# SPDX-License-Identifier: Apache-2.0
"""The same bits whoever compiled the model: tools/same_bits.py on small models, and that it sees what differs."""

from __future__ import annotations

import dataclasses
import shutil
from functools import cache
from pathlib import Path

import pytest
from portable_models import KINDS, POOL, net_of
from same_bits import Build, Done, builds, plain_builds, read, results, table
from shared_models import roomy

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

CPUS = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("nrf52840", "rp2040", "corstone300")),
    pytest.param("rv32imc", marks=pytest.mark.riscv),
]
LAYERS = (*POOL[0], *POOL[3])


@cache
def compiled(board: str, kind: str = "s8") -> CompiledModel:
    return compile_model(net_of(kind, LAYERS).model(), roomy(board), CompileOptions(name="net"))


def installed(wanted: list[Build]) -> list[Build]:
    return [build for build in wanted if shutil.which(build.command[0])]


@pytest.mark.spread(11)
@pytest.mark.parametrize("level", ["-O3", "LTO", "-Os", "-O2"])
@pytest.mark.parametrize("board", CPUS)
def test_every_compiler_gives_the_same_bits(board: str, level: str):
    wanted = [build for build in installed(list(builds(roomy(board)))) if build.level == level]
    for kind in KINDS:
        if kind in ("s8", "f32"):
            found = {build.compiler: end for build, end in results(compiled(board, kind), roomy(board), wanted)}
            assert set(found.values()) == {"equal"}, found


@pytest.mark.parametrize("board", ["host", "nrf52840"])
def test_plain_c_is_for_every_compiler(board: str):
    """In the form that a CPU's fast paths have without its instructions."""
    wanted = installed(list(plain_builds()))
    found = {build.compiler: end for build, end in results(compiled(board), load_board("host"), wanted)}
    assert "gcc" in found
    assert set(found.values()) == {"equal"}, found


def test_an_open_bound_is_a_constant_for_every_compiler():
    model = compiled("host", "f32")
    assert "MCUGEN_MINUS_INFINITY," in model.bundle.files["net.c"]
    wanted = installed([build for build in plain_builds() if build.compiler in ("gcc", "tcc")])
    assert {end for _, end in results(model, load_board("host"), wanted)} == {"equal"}


def test_other_bits_are_seen():
    model = compiled("host")
    files = dict(model.bundle.files)
    kernels = files["net_kernels.h"].replace("return v > high ? high : v;", "return v > high ? high : v - 1;")
    assert kernels != files["net_kernels.h"]
    files["net_kernels.h"] = kernels
    wrong = dataclasses.replace(model, given_bundle=dataclasses.replace(model.bundle, files=files))
    (build,) = [build for build in plain_builds() if build.compiler == "gcc"]
    assert [end for _, end in results(wrong, load_board("host"), [build])] == ["other bits"]


def test_what_does_not_compile_is_told():
    build = Build("gcc", "-O2", ("gcc", "-Dreturn=%"))
    ((_, end),) = results(compiled("host"), load_board("host"), [build])
    assert "must compile without warnings" in end


def test_the_table_counts_what_is_kept(tmp_path: Path):
    kept = tmp_path / "kept.txt"
    done = [Done("a", "host", "gcc", "-O2", "equal"), Done("b", "host", "gcc", "-O2", "other bits")]
    kept.write_text("".join(f"{each}\n" for each in done))
    assert read(kept) == done
    assert "| host | 2 | 1 of 2 |" in table(done)
