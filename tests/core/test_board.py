# SPDX-License-Identifier: Apache-2.0
"""Board files: what they say, and what is said of wrong ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import mcugen

from mcugen.core.board import FEATURES, board_names, load_board
from mcugen.core.errors import UsageError
from mcugen.core.resources import resource_dir

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


SERIAL = "serial = { clock_hz = 500_000, bits_per_clock = 4, overhead_clocks = 10 }"
CACHE = '{ name = "c", serves = ["flash"], holds = "both", size = 256, line = 16, ways = 2 }'
TIMED = MINIMAL.replace("speed = 2", "wait_states = 5, line_bytes = 16").replace("speed = 1", "wait_states = 0")


KITS = """
nucleo-f446re nucleo-h753zi nucleo-l4r5zi nucleo-u575zi nucleo-h7a3zi nucleo-g0b1re nucleo-f411re nucleo-f103rb
disco-f746ng stm32f4-discovery nucleo-wb55rg pico pico2 teensy40 teensy41 arduino-nano-33-ble arduino-zero
arduino-uno-r4 portenta-h7 microbit-v2 nrf52840dk nrf5340dk nrf54l15dk esp32-c3-devkit esp32-c6-devkitc-1
longan-nano lpcxpresso55s69 frdm-mcxn947 frdm-k64f mimxrt1060-evk mimxrt1170-evk feather-m4 ek-ra8d1
apollo4p-evb alif-e7 xiao-esp32c3
"""
"""Most used development kits, by the names on their boxes."""


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
    assert board.qemu or name in ("host", "generic8", "generic16")
    cpu = {"cortex-m85": "cortex-m55"}.get(board.cpu, board.cpu)  # gcc 12 does not know it
    flags = {"": "", "arm-none-eabi": f"-mcpu={cpu}", "riscv64-unknown-elf": f"-march={board.cpu}"}
    flags["xtensa-lx106-elf"] = ""  # gcc has this CPU only
    assert flags[board.toolchain] in ("", *(flag.removesuffix("+nodsp") for flag in board.cflags))
    assert bool(board.toolchain) == bool(board.qemu)


def test_a_kit_is_its_board_however_the_name_is_written():
    names = ("nucleo-l4r5zi", "Nucleo_L4R5ZI", "NUCLEO L4R5ZI")
    assert {load_board(name).name for name in names} == {"stm32l4r5"}
    assert load_board("STM32L4R5") == load_board("nucleo-l4r5zi")
    assert (load_board("pico-2").name, load_board("teensy4.1").name) == ("rp2350", "teensy41")


def test_the_most_used_kits_have_a_board_with_sources():
    kits = KITS.split()
    assert len(kits) >= 30
    assert [kit for kit in kits if not load_board(kit).sources] == []


def test_kits_are_not_inherited():
    assert "nucleo-h743zi" not in load_board("stm32h753").kits
    assert load_board("stm32h753").memories == load_board("stm32h743").memories


def test_a_kit_that_is_misspelt_has_neighbours():
    with pytest.raises(UsageError, match=r"found: 'nucleo-h753z'\. try: one of nucleo-h753zi"):
        load_board("nucleo-h753z")


@pytest.mark.parametrize("name", board_names())
def test_time_of_memory_is_told_of_all_real_boards(name: str):
    board = load_board(name)
    is_virtual = board.description.startswith("Any ") or board.description.endswith("as QEMU simulates it")
    if is_virtual or name == "host" or name.startswith("corstone3"):  # The latter are FPGA images or virtual.
        return
    assert board.sources
    assert [m.name for m in board.memories if m.access is None] == []


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
    with pytest.raises(
        UsageError, match=r"must exist\. found: 'rt1061'\. try: choose a name of `mcugen boards --like rt106`"
    ):
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
        ("clock_hz", 'frameworks = "pico"\nclock_hz', "'frameworks' must be a table"),
        ("clock_hz", 'frameworks = { zefyr = "x" }\nclock_hz', "'frameworks.zefyr' is not a key of a board file"),
        ("clock_hz", 'frameworks = { zephyr = "a b" }\nclock_hz', "'frameworks.zephyr' must be a name of letters"),
        ("clock_hz", 'frameworks = { pico_sdk = "x;y" }\nclock_hz', "'frameworks.pico_sdk' must be a name of letters"),
        ("clock_hz", "frameworks = { arduino = 1 }\nclock_hz", "'frameworks.arduino' must be a text"),
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
        (", speed = 2", "", "'memories[0].speed' must be given"),
        ("speed = 2", "speed = 2, line_bytes = 8", "'memories[0].line_bytes' must stand beside 'wait_states'"),
        ("speed = 2", "wait_states = 2, line_bytes = 12", "'memories[0].line_bytes' must be a power of two, 256"),
        ("speed = 2", f"wait_states = 1, {SERIAL}", "'memories[0].wait_states' must not stand beside 'serial'"),
        ("speed = 2", f"clock_hz = 1, {SERIAL}", "'memories[0].clock_hz' must not stand beside 'serial'"),
        ("speed = 2", SERIAL.replace("4", "3"), "'memories[0].serial.bits_per_clock' must be a power of two"),
        ("speed = 2", SERIAL.replace("4", "4, lanes = 4"), "'memories[0].serial.lanes' is not a key"),
        ("arena", "supply_millivolts = 3000\narena", "'supply_millivolts' must stand beside 'microamps_per_mhz'"),
        ("arena", "microamps_per_mhz = 90\narena", "'supply_millivolts' must be given"),
        ("arena", "microamps_per_mhz = 0\narena", "'microamps_per_mhz' must be a number above 0"),
        ("arena", f"caches = [{CACHE}]\narena", "'caches[0].serves' must name memories with 'wait_states' or"),
        ("size = 0x800,", "size = 0x800, wait = 1,", "'memories[1].wait' is not a key"),
        ("clock_hz", "features = ['dps']\nclock_hz", "name known features. found: 'dps'. try: one of dsp"),
        ("clock_hz", "features = ['fpu64']\nclock_hz", "'features' must name 'fpu' where it names 'fpu64'"),
        ("clock_hz", "cflags = [1]\nclock_hz", "'cflags' must be a list of texts"),
        ("clock_hz", "memories = 3\nclock_hz", "a board file must be TOML"),
        ("speed = 2", "speed = 2, prefetch = true", "'memories[0].prefetch' must stand beside 'wait_states'"),
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


def test_memory_that_is_not_timed_has_no_waits(tmp_path: Path):
    board = load_board(write(tmp_path, MINIMAL))
    assert board.wait_cycles(board.memory("flash"), 4) is None
    assert (board.caches, board.energy, board.core) == ((), None, board.cpu)


@pytest.mark.parametrize(
    ("timing", "word", "line", "speed"),
    [
        ("wait_states = 5", 5, 8 * 6 - 1, 6),  # a word an access
        ("wait_states = 5, line_bytes = 16", 5, 2 * 6 - 1, 2),
        ("wait_states = 5, burst_wait_states = 0, line_bytes = 8", 5, 6 + 3 - 1, 3),
        ("wait_states = 1, line_bytes = 32, clock_hz = 300_000", 6, 6, 1),  # 2 cycles of 3.33
        (SERIAL, 2 * (10 + 8) - 1, 2 * (10 + 64) - 1, 36),
        (SERIAL + ", line_bytes = 32", 2 * (10 + 8) - 1, 2 * (10 + 64) - 1, 18),  # a burst's overhead counts once
    ],
)
def test_waits_follow_from_the_datasheet(tmp_path: Path, timing: str, word: int, line: int, speed: int):
    board = load_board(write(tmp_path, MINIMAL.replace("speed = 2", timing)))
    flash = board.memory("flash")
    assert (board.wait_cycles(flash, 4), board.wait_cycles(flash, 32), flash.speed) == (word, line, speed)


def test_speed_may_be_told_beside_the_timing(tmp_path: Path):
    assert load_board(write(tmp_path, TIMED.replace("wait_", "speed = 9, wait_", 1))).memory("flash").speed == 9


def test_caches_stand_before_memories(tmp_path: Path):
    halves = [CACHE.replace('"both"', f'"{what}"').replace('"c"', f'"{what}"') for what in ("instructions", "data")]
    board = load_board(write(tmp_path, f"caches = [{', '.join(halves)}]\n{TIMED}"))
    flash, sram = board.memory("flash"), board.memory("sram")
    assert [cache.sets for cache in board.caches] == [8, 8]
    assert [c and c.name for c in (board.cache(flash, "data"), board.cache(sram, "data"))] == ["data", None]


@pytest.mark.parametrize(
    ("caches", "message"),
    [
        (f"{CACHE}, {CACHE}", "'caches[1].name' must be unique"),
        (f"{CACHE}, {CACHE.replace('both', 'data').replace('c', 'd', 1)}", "'caches[1].serves' must not name what 'c'"),
        (CACHE.replace("both", "code"), "'caches[0].holds' must be one of instructions, data, both"),
        (CACHE.replace('["flash"]', '["flush"]'), "'caches[0].serves' must name memories of the board. found: 'flush'"),
        (CACHE.replace("256", "96"), "'caches[0].size' must be a power of two times 'line' times 'ways'. found: 96"),
        (CACHE.replace("line = 16", "line = 24"), "'caches[0].line' must be a power of two"),
        (CACHE.replace("line = 16", "line = 512"), "'caches[0].line' must be a power of two, 256 at most. found: 512"),
        (CACHE.replace("256", f"{1 << 40}"), "'caches[0].size' must be 16,777,216 at most"),
        (CACHE.replace("ways = 2", "ways = 2, policy = 1"), "'caches[0].policy' is not a key"),
    ],
)
def test_wrong_cache_is_refused(tmp_path: Path, caches: str, message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        load_board(write(tmp_path, f"caches = [{caches}]\n{TIMED}"))


def test_energy_follows_from_cycles(tmp_path: Path):
    board = load_board(write(tmp_path, f"microamps_per_mhz = 100.5\nsupply_millivolts = 3000\n{TIMED}"))
    assert board.energy is not None
    assert board.energy.microjoules(2_000_000) == pytest.approx(2 * 100.5 * 3)


GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "boards.md"


def test_the_guide_to_board_files_is_right(tmp_path: Path):
    text = GUIDE.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    path = write(tmp_path, example, "my_board.toml")
    board = load_board(path)
    shown = mcugen("boards", "show", path).out
    told = re.findall(r"^\| (flash|sram|qspi) \| (.*) \|$", text, re.MULTILINE)
    assert [name for name, _ in told] == [memory.name for memory in board.memories]
    for name, waits in told:
        assert re.search(rf"^ +{name} .* {waits} *$", shown, re.MULTILINE)
    assert board.wait_cycles(board.memory("qspi"), 4) == 51


def test_the_guide_to_board_files_names_all_fields():
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    for path in resource_dir("boards").glob("*.toml"):
        text = re.sub(r"(\w*paces = ){.*?}", r"\1", path.read_text())  # whose keys are kernels
        used = set(re.findall(r"^(\w+) =|[{ ](\w+) = ", text, re.MULTILINE))
        assert {key for pair in used for key in pair if key} - {"abstract"} <= named, path.name


def test_a_second_core_has_a_board_file_of_its_own(tmp_path: Path):
    write(tmp_path, MINIMAL, "small.toml")
    core = '{ name = "b", board = "small", pace = 2, paces = { add_s8 = 1.5 }, first_paces = { add_s8 = 1.25 } }'
    board = load_board(write(tmp_path, MINIMAL + f'\ncores = [{{ name = "a" }}, {core}]'))
    assert board.second_core is not None and board.second_core.board is not None
    assert (board.second_core.board.name, board.second_core.pace, board.second_core.paces) == (
        "small",
        2.0,
        {"add_s8": 1.5},
    )
    assert board.second_core.first_paces == {"add_s8": 1.25}
    assert hash(board) == hash(replace(board))
    (ram, *_) = (memory for memory in board.memories if memory.kind == "ram")
    seen = board.seen_by_second_core(ram)
    assert seen is not None and seen.arena_memory == ram.name
    with pytest.raises(UsageError, match="see the arena at one address"):
        board.seen_by_second_core(replace(ram, size=2 * ram.size))


def test_cores_are_shown():
    shown = mcugen("boards", "show", "rt1170").out
    assert re.search(r"core cm4 .* cortex-m4 at 400 MHz, as 'rt1170_cm4_tcm', pace", shown)


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ('{ name = "a", pace = 2 }', "must stand beside 'board'"),
        ('{ name = "a", paces = { add_s8 = 2 } }', "must stand beside 'board'"),
        ('{ name = "a", board = "rt1170_cm4", pace = 2, paces = { add_s8 = 0 } }', "must be a number above 0"),
        ('{ name = "a", board = "rp2350", pace = 2 }', "without 'cores'"),
        ('{ name = "a", board = "rt1170_cm4" }', "'cores\\[0\\].pace' must be given"),
        ('{ name = "a" }, { name = "a" }', "must be unique"),
    ],
)
def test_a_wrong_core_is_refused(tmp_path: Path, cores: str, message: str):
    with pytest.raises(UsageError, match=message):
        load_board(write(tmp_path, MINIMAL + f"\ncores = [{cores}]"))
