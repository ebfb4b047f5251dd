# SPDX-License-Identifier: Apache-2.0
"""Debugging output of a compilation: what the passes and the program search do."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.backends.cpu.pipeline import Trace
from mcugen.search.trace import SearchTrace


@dataclass
class CompilationTrace(Trace):
    """The trace of the passes and, if one is given, the trace of the program search."""

    search: SearchTrace | None = None
