# SPDX-License-Identifier: Apache-2.0
"""Libraries that generated code may call, and what a project must know to have them."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.options import CMSIS_NN


@dataclass(frozen=True)
class Library:
    """A library that a user brings: generated code includes `header`, nothing else of it."""

    title: str
    header: str
    first_version: str
    """The oldest whose functions have these parameters; those of the same major version keep them."""


LIBRARIES = {CMSIS_NN: Library("CMSIS-NN", "arm_nnfunctions.h", "7.0.0")}
"""By the names of families of kernels."""
