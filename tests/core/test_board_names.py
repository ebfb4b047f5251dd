# SPDX-License-Identifier: Apache-2.0
"""A board goes by the names of its file, its kits and the part numbers of its chip, and no two boards by one name."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from mcugen.core.board import Board, board_names, is_like, load_board
from mcugen.core.board_names import VENDORS, BoardNames
from mcugen.core.errors import UsageError

BOARDS = [load_board(name) for name in board_names()]
SUFFIXES = ("", "T6", "t6tr", "DVL6A")
"""Suffixes of package and temperature in place of "*"."""


def examples(part: str) -> set[str]:
    """Return part numbers that match a part number of a board file: each letter or digit in place of each "?"."""
    ends = SUFFIXES if part.endswith("*") else ("",)
    stem = part.removesuffix("*")
    return {stem.replace("?", letter) + end for letter in string.ascii_uppercase + string.digits for end in ends}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_every_name_of_a_board_is_of_this_board(board: Board) -> None:
    parts = [number for part in board.parts for number in examples(part)]
    for name in (board.name, *board.kits, *parts):
        for spelling in (name, name.upper(), name.replace("-", " "), name.replace("-", "_")):
            assert load_board(spelling).name == board.name
            assert is_like(board, spelling)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_name_is_given_once(board: Board) -> None:
    others = [other for other in BOARDS if other.name != board.name]
    for name in (board.name, *board.kits):
        folded = name.lower().translate(str.maketrans("", "", "-_. "))
        known = [other.lower().translate(str.maketrans("", "", "-_. ")) for o in others for other in (o.name, *o.kits)]
        assert folded not in known
    assert len(set(board.parts)) == len(board.parts)


def test_real_boards_have_part_numbers() -> None:
    chips = {board.name for board in BOARDS if board.parts}
    assert len(chips) > 45
    assert all(board.parts for board in BOARDS if board.name.startswith("stm32") and board.kits)


def test_part_numbers_name_their_source() -> None:
    """Part numbers were compared with public lists of parts; a comment names the list, or says what was not checked."""
    folder = Path(__file__).resolve().parents[2] / "boards"
    lines = [line for path in folder.glob("*.toml") for line in path.read_text().splitlines() if "parts =" in line]
    assert len(lines) > 45
    assert [line for line in lines if not re.fullmatch(r"parts = \[[^]]+\] # .{10,}", line)] == []


@pytest.mark.parametrize("name", ["MIMXRT1062CVL5A", "MIMXRT1176CVM8A", "nRF52832-QFAB", "STM32F446RCT6"])
def test_parts_of_another_clock_or_memory_are_of_no_board(name: str) -> None:
    with pytest.raises(UsageError, match="the board must exist"):
        load_board(name)


@pytest.mark.parametrize(
    ("name", "board"),
    [
        *(("MIMXRT685SFAWBR", "rt685"), ("MCXN947VDF", "mcxn947"), ("MCXN947VDFT", "mcxn947")),
        *(("ATSAMD51J19A-AF", "samd51"), ("MIMXRT1062DVJ6B", "rt1060"), ("MIMXRT1176DVMAA", "rt1170")),
        *(("STM32F446RET6", "stm32f446"), ("stm32f446re", "stm32f446"), ("STM32F446xE", "stm32f446")),
        *(("nRF52840-QIAA", "nrf52840"), ("nrf52840-qiaa-r7", "nrf52840"), ("MIMXRT1062DVL6A", "rt1060")),
        *(("RP2350A", "rp2350"), ("i.MX RT1062", "rt1060"), ("imxrt1176", "rt1170"), ("ATSAMD21G18A-AU", "samd21")),
        *(("nucleo-f446re", "stm32f446"), ("Arduino Nano 33 BLE", "nrf52840"), ("nano 33 ble", "nrf52840")),
        *(("pico2", "rp2350"), ("Raspberry Pi Pico 2", "rp2350"), ("rpi-pico", "rp2040"), ("Teensy 4.0", "teensy40")),
        *(("esp32", "esp32"), ("ESP32-WROOM-32E-N4", "esp32"), ("ESP-EYE", "esp32"), ("ESP32-S2-Saola-1", "esp32s2")),
        *(("esp32s3", "esp32s3"), ("ESP32-S3-DevKitC-1", "esp32s3"), ("Seeed XIAO ESP32S3", "esp32s3")),
        *(("ESP32-S3-BOX", "esp32s3"), ("M5Stack CoreS3", "esp32s3"), ("LILYGO T-Display-S3", "esp32s3")),
        *(
            ("ESP32-S3-WROOM-1-N16R8", "esp32s3"),
            ("EFR32MG24B220F1536IM48-B", "efr32mg24"),
            ("Arduino Nano Matter", "efr32mg24"),
        ),
        *(("STM32U385RGT6Q", "stm32u385"), ("STM32H7S7L8H6H", "stm32h7s7"), ("STM32WBA65RIV6", "stm32wba65")),
        *(("R7KA8P1KFLCAC", "ra8p1"), ("R7KA8M2JFLCAC", "ra8m2"), ("MCXA156VLL", "mcxa156"), ("MCXA346VLH", "mcxa346")),
        *(("PSE846GPS2DBZC4A", "psoc_edge_e84"), ("M55M1H2LJAE", "m55m1"), ("HX6538-A", "hx6538")),
        *(
            ("CH32V307VCT6", "ch32v307"),
            ("CH32H417QEU6", "ch32h417"),
            ("BL616C50Q2I", "bl616"),
            ("RW612ETA2I", "rw612"),
        ),
        *(
            ("GD32H759IMT6", "gd32h759"),
            ("nRF54LM20A", "nrf54lm20"),
            ("nrf54h20dk", "nrf54h20"),
            ("MAX78002", "max78002"),
        ),
        *(("AE822FA0E5597LS0", "alif_e8"), ("AP510NFA-CBR", "apollo510"), ("mps4-corstone320", "corstone320")),
        *(("micro:bit v2", "nrf52833"), ("Seeed XIAO ESP32C3", "esp32c3"), ("ESP32-C6", "esp32c6")),
    ],
)
def test_names_that_users_write(name: str, board: str) -> None:
    assert load_board(name).name == board


FIELD_BOARDS = (
    *("esp32", "esp32s2", "esp32s3", "esp32-s3-devkitc-1", "xiao-esp32s3", "esp-eye", "esp32-s3-box"),
    *(
        "m5stack-cores3",
        "t-display-s3",
        "nrf54lm20",
        "nrf54h20",
        "stm32u3",
        "stm32h7s7",
        "stm32wba65",
        "ra8p1",
        "ra8m2",
    ),
    *("rw612", "psoc_edge_e84", "xg24", "xg26", "apollo510", "max78002", "ch32v307", "ch32h417", "bl616", "gd32h7"),
    *("STM32F446RE", "generic16", "generic8", "esp32p4", "nucleo-f446re", "pico2", "nrf52840dk"),
    *("esp32-c3-devkitm-1", "mimxrt1060-evk"),
)
"""Names of chips, series and kits under which users look for their boards."""


@pytest.mark.parametrize("name", FIELD_BOARDS)
def test_chips_series_and_kits_have_a_board_with_sources(name: str) -> None:
    board = load_board(name)
    assert board.sources or board.name.startswith("generic")


def test_boards_with_kits_or_part_numbers_name_their_sources() -> None:
    assert [board.name for board in BOARDS if (board.kits or board.parts) and not board.sources] == []


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("k230's small core", "rv32"), ("milkv-duo's small core", "rv32"), ("Milk-V Duo 256M small core", "rv32")),
        *(("esp8266", "esp32"), ("nodemcu", "esp32"), ("k230", "rv32"), ("milkv-duo", "rv32"), ("cv1800b", "rv32")),
        *(("atmega328p", "generic"), ("Arduino Uno", "generic"), ("uno r3", "generic"), ("pic18f4550", "generic")),
        *(("MSP430FR5994", "generic"), ("stm8s003", "generic"), ("8051", "generic")),
    ],
)
def test_chips_without_support_are_named_by_their_cpu(name: str, family: str) -> None:
    with pytest.raises(UsageError, match=r"has an? .* CPU.*, which is not supported") as caught:
        load_board(name)
    assert f"such as {family}" in caught.value.remedy
    assert f"`mcugen boards --like {family}`" in caught.value.remedy
    assert any(is_like(board, family) for board in BOARDS)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        *(("nuclo-f446re", "one of nucleo-f446re"), ("nrf52804", "one of nrf52840"), ("x86_64", "one of host")),
        *(("nrf52841", "--like nrf5284`"), ("stm32f412", "--like stm32f41`"), ("stm32f446rct6", "--like stm32f446`")),
        *(
            ("stm32h7", "--like stm32h7`"),
            ("mcxa", "--like mcxa`"),
            ("teensy", "--like teensy`"),
            ("zzz", "of `mcugen boards`"),
        ),
    ],
)
def test_a_wrong_name_has_the_nearest_one_or_its_family(name: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_board(name)
    assert caught.value.remedy.endswith(remedy)
    if "--like" in remedy:
        family = remedy.partition("--like ")[2].rstrip("`")
        assert any(is_like(board, family) for board in BOARDS)


def test_a_part_number_of_two_boards_is_refused() -> None:
    names = BoardNames({"a": {"parts": ["CHIP1?"]}, "b": {"parts": ["CHIP?2"]}})
    assert names.find("chip11") == "a"
    with pytest.raises(UsageError, match=r"unambiguous.*'chip12'.*one of a, b"):
        names.find("chip12")


@pytest.mark.parametrize("name", ["STM32F446RESEARCH", "STM32F446RET6TRLONG", "STM32F446", "nRF52840-QIAB"])
def test_a_suffix_is_one_of_package_and_temperature(name: str) -> None:
    names = BoardNames({"a": {"parts": ["STM32F446?E*", "nRF52840-??AA*"]}})
    with pytest.raises(UsageError, match="must exist"):
        names.find(name)


def test_vendors_do_not_hide_each_other() -> None:
    assert not [(a, b) for i, a in enumerate(VENDORS) for b in VENDORS[i + 1 :] if b.startswith(a)]
