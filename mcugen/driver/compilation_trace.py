# SPDX-License-Identifier: Apache-2.0
"""Debugging output of a compilation: what the passes and the program search do."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.backends.cpu.pipeline import Trace
from mcugen.search.trace import SearchTrace


@dataclass
class CompilationTrace(Trace):
    """A record of how each pass changes the graph and, if `search` is set, of the candidates of the program search."""

    search: SearchTrace | None = None
    """Records the candidates of the program search; None if they are not to be recorded."""
