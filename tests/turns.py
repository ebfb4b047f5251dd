# SPDX-License-Identifier: Apache-2.0
"""What tests do for one of several things in turn, and the sweep for all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

VARIABLE = "MCUGEN_EVERYWHERE"
"""If it is set, nothing is done in turn: `make sweep`."""

Choice = TypeVar("Choice")


def in_turn(choices: Sequence[Choice], key: bytes) -> Sequence[Choice]:
    """One of the choices, which goes by the bytes of `key` (a model, its code), so that tests share them; or all."""
    if VARIABLE in os.environ or not choices:
        return choices
    return [choices[crc32(key) % len(choices)]]
