# SPDX-License-Identifier: Apache-2.0
"""The names of a board: of its file, of development kits, and part numbers of its chip.

Names are compared without case and separators, and the name of a vendor may be added, or left out where the rest has a
number: "Arduino Nano 33 BLE" is the kit "arduino-nano-33-ble", and so is "nano33ble". In a part number of a board file,
"?" stands for one letter or digit, such as the number of pins, and "*" at the end for an optional suffix of package and
temperature: "STM32F446?E*" is "STM32F446RE", "STM32F446RET6" and "STM32F446ZET6TR".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcugen.core.errors import UsageError
from mcugen.core.nearest import folded, nearest_spelling

VENDORS = (
    "arduino",
    "adafruit",
    "seeedstudio",
    "seeed",
    "sparkfun",
    "raspberrypi",
    "rpi",
    "pimoroni",
    "pjrc",
    "espressif",
    "lilygo",
    "st",
)
"""Names of vendors that users write before the name of a kit, folded (mcugen.core.nearest.folded).

A longer name stands before each name that is its beginning.
"""
_SUFFIX = "(?:(?=[a-z]*[0-9])[a-z0-9]{1,6})?"
"""Pattern of a suffix of a part number: letters with at least one digit (of the temperature range), such as T6TR."""
_MIN_FAMILY = 3
"""Least number of characters that name a family of boards, as in "rp2"."""

_RV64 = "a 64-bit RISC-V CPU"
_AVR, _PIC = "an 8-bit AVR CPU", "a PIC CPU"
_UNSUPPORTED = (
    (r"esp8266.*|esp12.*|nodemcu(?:v[0-9])?|d1mini", "an Xtensa LX106 CPU without a board", "esp32"),
    (r"k230.*|canmvk230.*|milkvduo.*|duo(?:64m|256m?|s)?|cv18[01].*|sg200.*|c906|c908", _RV64, "rv32"),
    (
        r"(?:at)?(?:mega|tiny|xmega)[0-9].*|avr.*|(?:arduino)?(?:uno|nano|mega|leonardo|micro)(?:r[1-3])?",
        _AVR,
        "generic",
    ),
    (r"pic(?:1|2|3)[0-9].*|dspic.*", _PIC, "generic"),
    (r"msp430.*", "a 16-bit MSP430 CPU", "generic"),
    (r"stm8.*", "an 8-bit STM8 CPU", "generic"),
    (r"(?:at89|mcs)?(?:8051|c51|s5[12]).*", "an 8-bit 8051 CPU", "generic"),
)
"""Names of chips and kits that mcugen has no code for: pattern of the folded name, CPU, family of boards to show."""


@dataclass(frozen=True)
class BoardNames:
    """The names of all boards that are part of mcugen.

    Attributes:
        tables: The contents of the board files by name.
    """

    tables: Mapping[str, Mapping[str, Any]]

    @cached_property
    def _written(self) -> dict[str, str]:
        """Return the boards by the names of files and kits as written."""
        concrete = [name for name, table in self.tables.items() if not table.get("abstract", False)]
        kits = {kit: name for name in concrete for kit in self.tables[name].get("kits", ())}
        return kits | {name: name for name in concrete}

    @cached_property
    def _words(self) -> dict[str, str]:
        """Return the boards by folded names, with and without a vendor."""
        short = {_without_vendor(name): board for name, board in self._written.items() if _has_digit(name)}
        return short | {folded(name): board for name, board in self._written.items()}

    @cached_property
    def _parts(self) -> list[tuple[re.Pattern[str], str]]:
        return [(part_pattern(part), name) for name, table in self.tables.items() for part in table.get("parts", ())]

    def find(self, name: str) -> str:
        """Return the name of the board that a board name, the name of a kit, or a part number stands for.

        Args:
            name: The name. Case and separators are ignored, and so is a vendor's name before it.

        Raises:
            UsageError: No board has the name, or several do; the message has similar names.
        """
        for key in (folded(name), _without_vendor(name)):
            if key in self._words:
                return self._words[key]
        boards = sorted({board for pattern, board in self._parts if pattern.fullmatch(folded(name))})
        if len(boards) == 1:
            return boards[0]
        if boards:
            raise UsageError("the board must be unambiguous", f"'{name}'", f"one of {', '.join(boards)}")
        raise self._unknown(name)

    def _unknown(self, name: str) -> UsageError:
        for pattern, cpu, family in _UNSUPPORTED:
            if re.fullmatch(pattern, _without_vendor(name)):
                return self._unsupported(name, cpu, family)
        near = _SYNONYMS.get(folded(name)) or nearest_spelling(name, self._written)
        if near is not None:
            return UsageError("the board must exist", f"'{name}'", f"one of {near}")
        family = self._family(name)
        listing = f"`mcugen boards --like {family}`" if family else "`mcugen boards`"
        return UsageError("the board must exist", f"'{name}'", f"choose a name of {listing}")

    def _unsupported(self, name: str, cpu: str, family: str) -> UsageError:
        family_boards = [other for other in sorted(set(self._written.values())) if family and other.startswith(family)]
        listing = f"`mcugen boards --like {family}`" if family else "`mcugen boards`"
        remedy = (
            f"use another board, such as {', '.join(family_boards[:6])}: {listing}"
            if family_boards
            else f"see {listing}"
        )
        return UsageError(
            "the board must have an Arm Cortex-M, 32-bit RISC-V or Xtensa LX6 or LX7 CPU",
            f"'{name}' has {cpu}, which is not supported",
            remedy,
        )

    def _family(self, name: str) -> str:
        """Return the longest beginning of a name that is part of the name of a board; "" if none is long enough."""
        key = folded(name)
        beginnings = (key[:length] for length in range(len(key), _MIN_FAMILY - 1, -1))
        return next((text for text in beginnings if any(text in word for word in self._words)), "")


_SYNONYMS = dict.fromkeys(("linux", "x86", "x8664", "pc", "desktop", "native", "local", "computer", "gcc"), "host")
"""Names of boards by other words for them, folded."""


def _without_vendor(name: str) -> str:
    """Return the folded name without a vendor before it, unless little would be left."""
    text = folded(name)
    short_name = next((text.removeprefix(vendor) for vendor in VENDORS if text.startswith(vendor)), "")
    return short_name if len(short_name) >= _MIN_FAMILY and not text.startswith("stm") else text


def _has_digit(name: str) -> bool:
    """Return whether a name is known well enough without its vendor, other than "edge" of "sparkfun-edge"."""
    return any(character.isdigit() for character in name)


def part_pattern(part: str) -> re.Pattern[str]:
    """Return a regular expression that matches the chips of a part number in a board file.

    It matches part numbers in folded form: without case and separators.

    Args:
        part: The part number, in which ? is any character, and * at the end is any suffix.
    """
    text = folded(part)
    return re.compile(re.escape(text.removesuffix("*")).replace(r"\?", "[a-z0-9]") + _SUFFIX * text.endswith("*"))
