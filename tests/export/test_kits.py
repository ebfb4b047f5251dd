# SPDX-License-Identifier: Apache-2.0
"""Firmware of kits: builds without warnings, boot headers, memories, and runs of the images on models of the chips."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from export_packages import ROOT, need, run
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.errors import BoardError, UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.deploy.validation.figures import ValidationReport
from mcugen.deploy.validation.session import ValidationSetup, validate_model
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.export.kits import find_kit, kit_names, load_kit

STRICT = "-O2 -Wconversion -Wshadow -pedantic -Werror -Wl,--fatal-warnings"
"""Flags with which all kits must build."""

MEMORIES = {
    "nucleo-f446re": ((0x08000000, 0x80000), (0x20000000, 0x20000)),
    "pico2": ((0x10000000, 0x400000), (0x20000000, 0x82000)),
    "nrf52840dk": ((0x00000000, 0x100000), (0x20000000, 0x40000)),
    "esp32-c3-devkitm-1": ((0x42000000, 0x400000), (0x3C000000, 0x400000), (0x3FC80000, 0x60000)),
    "mimxrt1060-evk": ((0x60000000, 0x800000), (0x20000000, 0x20000), (0x20200000, 0x80000), (0x20280000, 0x40000)),
}
"""First address and size of the memories of each kit's chip, by the datasheets."""

PATIENCE = 300
"""Seconds: this computer may be busy, and QEMU then takes long for each byte of the UART."""

MAX_ATTEMPTS = 150
"""Number of attempts to open a port, 0.2 s apart."""

KITS = [pytest.param(kit, marks=pytest.mark.riscv if "esp32" in kit else pytest.mark.qemu) for kit in MEMORIES]


@cache
def network() -> Compilation:
    """Return a model of a convolution, a dense layer and a softmax in int8, with samples."""
    random = np.random.default_rng(1)
    net = Net()
    x = net.op("Conv", net.input("x", 1, 2, 6, 6), net.const(random.standard_normal((4, 2, 3, 3))))
    x = net.op("Flatten", net.op("Relu", x))
    net.output(net.op("Softmax", net.op("MatMul", x, net.const(random.standard_normal((64, 3)))), out="y"))
    samples = {"x": random.standard_normal((1, 2, 6, 6)).astype(np.float32)}
    return Compilation(
        net.model(),
        options=CompileOptions(name="tiny"),
        quantizing=Quantizing(precision="int8", calibration=samples),
        judging=Judging(data=samples),
    )


@pytest.fixture(scope="module")
def firmware(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of the built firmware of a kit, the fixture's parameter."""
    kit = request.param
    need("make", f"{load_board(kit).toolchain}-gcc")
    folder = tmp_path_factory.mktemp(kit)
    replace(network(), board=kit).export("kit", folder)
    run(["make", f"CFLAGS={STRICT}"], folder)
    yield folder


def kit_of(firmware: Path) -> str:
    """Return the kit whose firmware lies in a folder of the fixture."""
    return next(name for name in MEMORIES if firmware.name.startswith(name))


def words_at(data: bytes, offset: int, count: int) -> list[int]:
    return [int.from_bytes(data[offset + 4 * n : offset + 4 * n + 4], "little") for n in range(count)]


def symbols_of(elf: ELFFile) -> dict[str, int]:
    return {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols()}


def validated(kit: str, port: str) -> ValidationReport:
    """Return the result of `mcugen validate` on a port, which may take a while to open."""
    net = replace(network(), board=kit, options=replace(network().options, validation=True))
    for attempt in count():
        try:
            return validate_model(net, ValidationSetup(port, patience=PATIENCE, layer_samples=1))
        except BoardError as error:
            if attempt == MAX_ATTEMPTS or "must open" not in str(error):
                raise
            sleep(0.2)
    raise AssertionError


@pytest.mark.parametrize("firmware", KITS, indirect=True)
def test_sections_lie_in_the_memories_of_the_chip(firmware: Path) -> None:
    kit = kit_of(firmware)
    with (firmware / "build" / "firmware.elf").open("rb") as file:
        elf = ELFFile(file)
        sections = [s for s in elf.iter_sections() if s["sh_flags"] & 2 and s["sh_size"]]
        assert {".boot", ".text", ".rodata", ".bss"} <= {section.name for section in sections}
        for section in sections:
            begin, end = section["sh_addr"], section["sh_addr"] + section["sh_size"]
            assert any(first <= begin and end <= first + size for first, size in MEMORIES[kit]), section.name
        symbols = symbols_of(elf)
        assert symbols["kit_stack_top"] - symbols["kit_stack_bottom"] == load_kit(kit).stack_bytes
        assert symbols["kit_bss_end"] <= symbols["kit_stack_bottom"]
        assert any(symbols["kit_stack_top"] == first + size for first, size in MEMORIES[kit][1:]), "top of a RAM"
        assert symbols["kit_stack_top"] % 8 == 0


@pytest.mark.parametrize("firmware", KITS, indirect=True)
def test_the_image_begins_as_the_boot_rom_reads_it(firmware: Path) -> None:
    kit = kit_of(firmware)
    image = (firmware / "build" / "firmware.bin").read_bytes()
    with (firmware / "build" / "firmware.elf").open("rb") as file:
        elf = ELFFile(file)
        symbols, entry = symbols_of(elf), elf["e_entry"]
    if kit == "esp32-c3-devkitm-1":
        assert words_at(image, 0, 2) == [0xAEDB041D] * 2
        assert entry == symbols["kit_reset"] == 0x42000008
        rodata = symbols["kit_copies_begin"] - 0x3C000000
        assert words_at(image, rodata, 2)[1] == symbols["kit_data_begin"], "data are at the same offset as in flash"
        return
    at = 0x2000 if kit == "mimxrt1060-evk" else 0
    flash = MEMORIES[kit][0][0]
    vectors = words_at(image, at, 16)
    assert vectors[0] == symbols["kit_stack_top"]
    assert vectors[1] == symbols["kit_reset"] == entry
    assert all(vector & 1 and flash <= vector < flash + len(image) for vector in vectors[1:])
    if kit == "pico2":
        check_image_definition(image)
    if kit == "mimxrt1060-evk":
        check_flexspi_image(image)


def check_image_definition(image: bytes) -> None:
    """Check the block loop of the RP2350 datasheet, 5.9: a start in the first 4 KiB, items, and an end."""
    starts = [n for n in range(0, 4096, 4) if words_at(image, n, 1) == [0xFFFFDED3]]
    assert len(starts) == 1
    word, last, following, end = words_at(image, starts[0] + 4, 4)
    assert (word & 0xFF, word >> 8 & 0xFF) == (0x42, 1), "item IMAGE_TYPE of one word"
    flags = word >> 16
    assert flags & 0xF == 1, "executable"
    assert (flags >> 4 & 3, flags >> 8 & 7, flags >> 12 & 7) == (2, 0, 1), "secure, Arm, RP2350"
    assert (last & 0x7F, last >> 8 & 0xFFFF) == (0x7F, 1), "last item, behind one word of items"
    assert following == 0, "the only block of the loop"
    assert end == 0xAB123579


def check_flexspi_image(image: bytes) -> None:
    """Check the FlexSPI configuration block, the image vector table and the boot data of IMXRT1060RM, 9.6 and 9.7."""
    assert image[:4] == b"FCFB"
    assert words_at(image, 4, 1) == [0x56010400]
    assert tuple(image[0xC:0x10]) == (1, 3, 3, 0), "sampling, hold and set-up time, column address"
    assert tuple(image[0x44:0x47]) == (1, 4, 6), "serial NOR, 4 lines, 100 MHz"
    assert words_at(image, 0x50, 1) == [8 << 20]
    halves = [int.from_bytes(image[0x80 + 2 * n : 0x82 + 2 * n], "little") for n in range(4)]
    decoded = [(half >> 10, 1 << (half >> 8 & 3), half & 0xFF) for half in halves]
    assert decoded == [(1, 1, 0xEB), (2, 4, 24), (12, 4, 6), (9, 4, 4)], "command, address, dummy, read"
    assert not any(image[0x88:0x1C0]), "no other command"
    header, entry, _, dcd, boot, own, csf, _ = words_at(image, 0x1000, 8)
    assert (header & 0xFF, header >> 8 & 0xFFFF, header >> 24) == (0xD1, 0x2000, 0x41)
    assert (entry, dcd, boot, own, csf) == (0x60002000, 0, 0x60001020, 0x60001000, 0)
    start, size, plugin = words_at(image, 0x1020, 3)
    assert (start, plugin) == (0x60000000, 0)
    assert size >= len(image)


@pytest.mark.parametrize("firmware", KITS, indirect=True)
def test_the_image_runs_on_the_chip_s_model(firmware: Path) -> None:
    """Each register is known and has its clock, and the results are those of this computer."""
    chips = pytest.importorskip("kit_chips", reason="needs unicorn")
    kit = kit_of(firmware)
    emulated = chips.EmulatedKit(kit, firmware / "build" / "firmware.bin")
    with chips.serve_kit(emulated) as port:
        report = validated(kit, port)
    assert emulated.chip.faults == []
    assert (report.outputs, report.different_samples, report.difference) == ("exact", 0, None)
    assert {layer.verdict for layer in report.layers} == {"exact"}
    assert report.constants_differ == []
    assert report.firmware.clock_hz == chips.MACHINES[kit].clock_hz
    assert report.cycles is not None and report.cycles.first > 1000
    assert report.stack is not None and 0 < report.stack < load_kit(kit).stack_bytes
    assert (report.wire.lost, report.wire.damaged) == (0, 0)


MUTATIONS = {
    "nucleo-f446re": (
        ("RCC_APB1ENR |= 1u << 17;", ";"),
        ("FLASH_ACR = 5u", "FLASH_ACR = 4u"),
        ("180u << 6", "170u << 6"),
        ("0x40004408", "0x40004410"),
        ("clock_hz / 4u", "clock_hz / 2u"),
    ),
    "pico2": (
        ("1u << 9 | 1u << 26; /*", "1u << 26; /*"),
        ("PLL_SYS_FBDIV_INT = 125u", "PLL_SYS_FBDIV_INT = 133u"),
        ("UART0_IBRD = 6u", "UART0_IBRD = 8u"),
        ("0x40028004", "0x40014004"),
    ),
    "nrf52840dk": (
        ("UART0_PSELRXD = 8u", "UART0_PSELRXD = 6u"),
        ("0x01D7E000u", "0x01D60000u"),
        ("0x40002500", "0x40002504"),
    ),
    "esp32-c3-devkitm-1": (
        ("SYSTEM_PERIP_CLK_EN0 |= 1u << 2 | 1u << 24;", "SYSTEM_PERIP_CLK_EN0 &= ~(1u << 24);"),
        ("RTC_WDTWPROTECT = 0x50D83AA1u;", ";"),
        ("csrwi 0x7E0, 1", "nop"),
    ),
    "mimxrt1060-evk": (
        ("CCM_CCGR5 |= 3u << 24;", ";"),
        ("| 0x13u", "| 0x12u"),
        ("| 100u;", "| 88u;"),
        ("CCM_CACRR = 1u", "CCM_CACRR = 0u"),
        ("RTWDOG_CNT = 0xD928C520u;", ";"),
    ),
}
"""For each kit, changes of its code that must be found."""


@pytest.mark.parametrize("firmware", KITS, indirect=True)
def test_the_chip_s_model_finds_mistakes(firmware: Path) -> None:
    chips = pytest.importorskip("kit_chips", reason="needs unicorn")
    kit = kit_of(firmware)
    source = (firmware / "kit" / "kit.c").read_text()
    try:
        for before, after in MUTATIONS[kit]:
            assert before in source, before
            (firmware / "kit" / "kit.c").write_text(source.replace(before, after))
            run(["make", "-s"], firmware)
            emulated = chips.EmulatedKit(kit, firmware / "build" / "firmware.bin")
            emulated.run()
            emulated.chip.uart.check(emulated.chip)
            assert emulated.chip.faults or reported_clock(firmware, emulated) != chips.MACHINES[kit].clock_hz, before
    finally:
        (firmware / "kit" / "kit.c").write_text(source)


def reported_clock(firmware: Path, emulated: Any) -> int:
    """Return the clock that the firmware would report to the host, in Hz."""
    with (firmware / "build" / "firmware.elf").open("rb") as file:
        address = symbols_of(ELFFile(file))["kit_clock_hz"]
    return int.from_bytes(emulated.cpu.mem_read(address, 4), "little")


@pytest.mark.qemu
def test_qemu_runs_the_nucleo_s_firmware(tmp_path: Path) -> None:
    """QEMU's STM32F405 has no clock tree: the PLL never locks, and the firmware says that it runs with 16 MHz."""
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    replace(network(), board="nucleo-f446re").export("kit", tmp_path / "kit")
    run(["make", f"CFLAGS={STRICT}"], tmp_path / "kit")
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    image = tmp_path / "kit" / "build" / "firmware.elf"
    wire = f"tcp:127.0.0.1:{number},server=on,wait=on"
    command = ["qemu-system-arm", "-M", "netduinoplus2", "-kernel", image, "-display", "none", "-monitor", "none"]
    with subprocess.Popen([*command, "-serial", "null", "-serial", wire], stderr=subprocess.PIPE) as qemu:
        try:
            assert qemu.stderr is not None
            report = validated("nucleo-f446re", f"socket://127.0.0.1:{number}")
        finally:
            qemu.kill()
    assert (report.outputs, report.different_samples) == ("exact", 0)
    assert {layer.verdict for layer in report.layers} == {"exact"}
    assert report.firmware.clock_hz == 16_000_000
    assert any("16 MHz" in note and "180 MHz" in note for note in report.notes)


def test_each_kit_is_a_name_of_its_board() -> None:
    assert set(kit_names()) == set(MEMORIES)
    for name in kit_names():
        kit, board = load_kit(name), load_board(name)
        assert board.name == kit.board
        assert set(kit.memories) <= {memory.name for memory in board.memories}
        assert {board.code_memory, board.data_memory, board.arena_memory} <= set(kit.memories)
        assert kit.documents, "addresses need sources"
        spans = sorted((entry.offset, entry.offset + 4 * len(entry.words)) for entry in kit.boot)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert f"`{name}`" in (ROOT / "docs" / "how-to" / "kits.md").read_text()


@pytest.mark.parametrize(
    ("requested", "found"), [("pico2", "pico2"), ("Raspberry Pi Pico 2", "pico2"), ("rp2350", "pico2")]
)
def test_kits_are_found_by_their_names_and_by_their_board(requested: str, found: str) -> None:
    assert find_kit(requested, load_board(requested)).name == found


@pytest.mark.parametrize("board", ["nucleo-f446ze", "pico2-w", "xiao-esp32c3", "arduino-nano-33-ble"])
def test_other_kits_with_the_chip_are_refused(board: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"boards/kits") as raised:
        replace(network(), board=board).export("kit", tmp_path)
    assert "nucleo-f446re" in raised.value.remedy


@pytest.mark.parametrize(
    ("board", "options", "text"),
    [
        ("mimxrt1060-evk", {"family": "cmsis-nn"}, "no other libraries"),
        ("mimxrt1060-evk", {"place": Places(arena=("sdram",))}, "sdram"),
        ("pico2", {"cores": 2}, "second core"),
    ],
)
def test_what_the_start_up_does_not_provide_is_refused(
    board: str, options: dict[str, object], text: str, tmp_path: Path
) -> None:
    net = replace(network(), board=board)
    with pytest.raises(UsageError, match=text):
        replace(net, options=replace(net.options, **options)).export("kit", tmp_path)


@pytest.mark.parametrize("kit", ["pico2", "mimxrt1060-evk"])
def test_the_same_model_gives_the_same_firmware(kit: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        replace(network(), board=kit).export("kit", tmp_path / folder)
    files = {path.relative_to(tmp_path / "one"): path.read_bytes() for path in (tmp_path / "one").rglob("*.*")}
    assert files == {path: (tmp_path / "two" / path).read_bytes() for path in files}
    assert len(files) > 15


@pytest.mark.parametrize("kit", kit_names())
def test_readme_and_script_have_the_commands(kit: str, tmp_path: Path) -> None:
    replace(network(), board=kit).export("kit", tmp_path)
    readme = (tmp_path / "README.md").read_text()
    script = (tmp_path / "measure.sh").read_text()
    assert "{" not in readme.replace("${", ""), "nothing is left of the template"
    assert f"--board {kit}" in readme
    assert f"--board {kit}" in script
    assert load_kit(kit).documents[0] in readme
    run(["sh", "-n", "measure.sh"], tmp_path)
