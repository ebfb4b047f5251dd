# SPDX-License-Identifier: Apache-2.0
"""Rotation of choices over tests: `make test` checks one choice per model, the sweep all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

VARIABLE = "MCUGEN_EVERYWHERE"
"""Environment variable that switches the rotation off; `make sweep` sets it."""

Choice = TypeVar("Choice")
"""Type of a choice."""


def in_turn(choices: Sequence[Choice], key: bytes) -> Sequence[Choice]:
    """Return one of the choices, selected by the bytes of `key` (a model or its code), or all in the sweep."""
    if VARIABLE in os.environ or not choices:
        return choices
    return [choices[crc32(key) % len(choices)]]
