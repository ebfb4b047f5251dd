# SPDX-License-Identifier: Apache-2.0
"""Board files: what they say, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcugen.board import FEATURES, board_names, load_board
from mcugen.errors import UsageError

MINIMAL = """
inherits = "cortex-m4"
description = "test"
clock_hz = 1_000_000
arena_memory = "sram"
memories = [
    { name = "flash", kind = "flash", origin = 0x0800_0000, size = 0x1000, speed = 2 },
    { name = "sram", kind = "ram", origin = 0x2000_0000, size = 0x800, speed = 1 },
]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_names_are_those_of_concrete_boards():
    names = board_names()
    assert names == sorted(names)
    assert {"host", "rt1060", "rp2040", "corstone300", "stm32f746"} <= set(names)
    assert {"esp32c3", "gd32vf103", "rv32imc", "rv32imafc"} <= set(names)
    assert not [name for name in names if name.startswith(("cortex-", "riscv"))]


@pytest.mark.parametrize("name", board_names())
def test_each_board_is_consistent(name: str):
    board = load_board(name)
    arena = board.memory(board.arena_memory)
    assert board.name == name
    assert board.features <= FEATURES
    assert arena.kind == "ram"
    assert board.memory(board.weights_memory).kind == "flash"
    assert board.qemu or name == "host"
    flags = {"": "", "arm-none-eabi": f"-mcpu={board.cpu}", "riscv64-unknown-elf": f"-march={board.cpu}"}
    assert flags[board.toolchain] in ("", *board.cflags)
    assert board.toolchain or name == "host"


def test_board_takes_cpu_parts_from_the_file_it_inherits():
    board = load_board("nrf52840")
    assert (board.cpu, board.qemu, board.features) == ("cortex-m4", "mps2-an386", {"dsp", "fpu"})
    assert (board.clock_hz, board.total_flash, board.total_ram) == (64_000_000, 1 << 20, 256 << 10)


def test_board_may_replace_what_it_inherits():
    board = load_board("stm32f746")
    assert "fpu64" not in board.features
    assert "-mfpu=fpv5-sp-d16" in board.cflags


def test_board_from_a_file_of_ones_own(tmp_path: Path):
    board = load_board(write(tmp_path, MINIMAL))
    assert (board.name, board.total_ram, board.memory("sram").end) == ("mine", 0x800, 0x2000_0800)


def test_board_inherits_from_a_file_beside_it(tmp_path: Path):
    write(tmp_path, MINIMAL, "base.toml")
    assert load_board(write(tmp_path, 'inherits = "base"\nclock_hz = 5')).clock_hz == 5


def test_unknown_board_names_its_neighbours():
    with pytest.raises(UsageError, match=r"must exist\. found: 'rt1061'\. try: one of rt1060"):
        load_board("rt1061")


@pytest.mark.parametrize("name", ["", "../boards/host", "/etc/passwd"])
def test_a_name_is_not_a_path(name: str):
    with pytest.raises(UsageError, match="the board must exist"):
        load_board(name)


def test_shared_cpu_file_is_no_board():
    with pytest.raises(UsageError, match="'cortex-m7' is a CPU that boards inherit from"):
        load_board("cortex-m7")


def test_unknown_memory_names_the_others():
    with pytest.raises(UsageError, match=r"no memory 'ocram3'.*one of ocram"):
        load_board("rt1060").memory("ocram3")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clock_hz = 1_000_000", "", "'clock_hz' must be given"),
        ("clock_hz = 1_000_000", "clock_hz = 0", "'clock_hz' must be a whole number of at least 1. found: 0"),
        ("clock_hz = 1_000_000", "clock_hz = true", "'clock_hz' must be a whole number"),
        ("clock_hz = 1_000_000", 'clock_hz = "fast"', "'clock_hz' must be a whole number. found: 'fast'"),
        ("clock_hz", "clock_khz = 1\nclock_hz", "'clock_khz' is not a key of a board file"),
        ('"test"', '""', "'description' must not be empty"),
        ('arena_memory = "sram"', 'arena_memory = "flash"', "'arena_memory' must name one"),
        ('kind = "ram"', 'kind = "rom"', "'memories[1].kind' must be ram or flash. found: 'rom'"),
        ('name = "sram"', 'name = "flash"', "'memories[1].name' must be unique"),
        ("0x2000_0000", "0x0800_0800", "'memories[1].origin' must not lie in memory 'flash'"),
        ("0x2000_0000", "0xffff_ff00", "'memories[1].size' must end within 32 bits"),
        ("size = 0x800,", "size = 0x800, wait = 1,", "'memories[1].wait' is not a key"),
        ("clock_hz", "features = ['dps']\nclock_hz", "name known features. found: 'dps'. try: one of dsp"),
        ("clock_hz", "features = ['fpu64']\nclock_hz", "'features' must name 'fpu' where it names 'fpu64'"),
        ("clock_hz", "cflags = [1]\nclock_hz", "'cflags' must be a list of texts"),
        ("clock_hz", "memories = 3\nclock_hz", "a board file must be TOML"),
        ('"cortex-m4"', '"mine"', "'inherits' must not go in circles"),
        ('"cortex-m4"', '"cortex-m99"', "cortex-m99.toml: the board file must be readable"),
        ('"cortex-m4"', "4", "'inherits' must be the name of a board file"),
        ("[", "", "a board file must be TOML"),
    ],
)  # fmt: skip
def test_wrong_field_is_named_with_its_file(tmp_path: Path, old: str, new: str, message: str):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        load_board(write(tmp_path, MINIMAL.replace(old, new, 1)))
    assert ".toml: " in str(error.value)


def test_missing_file(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.toml: the board file must be readable"):
        load_board(str(tmp_path / "none.toml"))
