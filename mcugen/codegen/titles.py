# SPDX-License-Identifier: Apache-2.0
"""The list of layers in the generated C."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcugen.lir.layer_titles import layer_names
from mcugen.lir.program import Instr, Program


@dataclass(frozen=True)
class ListedLayer:
    """A row of the list of layers in the generated header."""

    name: str
    """Name of the layer."""
    result: str
    """Shapes and types of the layer's results."""
    kernel: str
    """Name of the layer's C function, or the kind of a block."""


def layers_of(program: Program, functions: Mapping[tuple[object, ...], str]) -> list[ListedLayer]:
    """Return the layers in order, as the generated header lists them.

    Args:
        program: The program.
        functions: C names of the kernels' functions, by Instr.function_key.
    """
    ends = [(program.head(layer), program.completing(layer)) for layer in program.layers()]
    return [
        ListedLayer(name, _result(end), functions.get(head.function_key, head.kernel))
        for name, (head, end) in zip(layer_names(program), ends, strict=True)
    ]


def _result(instr: Instr) -> str:
    """Return the end of a note: "1x4 int8" of "1x3 int8(0.5, 3) -> 1x4 int8(0.25, 0) NHWC"."""
    return re.sub(r"\([^()]*\)| NHWC", "", instr.note.rpartition(" -> ")[2])
