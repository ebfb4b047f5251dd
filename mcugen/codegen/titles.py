# SPDX-License-Identifier: Apache-2.0
"""Titles of layers in the generated C: names that the author of the ONNX graph knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcugen.codegen.identifiers import identifier, tensor_name
from mcugen.lir.program import Buffer, Instr, Program

Titles = Mapping[str, str]
"""Titles of layers in comments and reports, by the names of instructions."""


@dataclass(frozen=True)
class ListedLayer:
    """A layer in the header's list."""

    name: str
    title: str
    result: str
    """Shapes and types of the layer's results."""
    kernel: str
    """Name of the layer's C function, or the kind of a block."""


def layers_of(program: Program, titles: Titles, functions: Mapping[tuple[object, ...], str]) -> list[ListedLayer]:
    """Return the layers in order; `functions` maps Instr.function_key to C functions of kernels."""
    ends = [(program.head(layer), program.completing(layer)) for layer in program.layers()]
    return [
        ListedLayer(end.name, titles[end.name], _result(end), functions.get(head.function_key, head.kernel))
        for head, end in ends
    ]


def _result(instr: Instr) -> str:
    """Return the end of a note: "1x4 int8" of "1x3 int8(0.5, 3) -> 1x4 int8(0.25, 0) NHWC"."""
    return re.sub(r"\([^()]*\)| NHWC", "", instr.note.rpartition(" -> ")[2])


def titles_of(program: Program) -> Titles:
    """Return the title of each instruction name. Comments, identifiers and the table of layers use it.

    The title is the name of the computed tensor, if an ONNX node behind the instructions has the same name or the
    tensor is an output of the model. Otherwise it is the name of the last of these nodes that the operator is named
    after, or of the last node. If several names share an origin, the last one gets the title; the earlier ones prepare
    its input and keep their own names.
    """
    outward = {endpoint.name for endpoint in program.outputs}
    owners = {instr.origin: instr.name for instr in program.instrs}
    return {
        i.name: tensor_name(i.name) if i.name in outward or owners[i.origin] != i.name else _title(i)
        for i in program.instrs
    }


def _title(instr: Instr) -> str:
    own = tensor_name(instr.name)
    nodes = [tensor_name(node) for node in instr.origin if node]
    if not nodes or any(f"_{identifier(node)}".endswith(f"_{identifier(own)}") for node in nodes):
        return own
    return next((node for node in reversed(nodes) if instr.op in node.lower()), nodes[-1])


def buffer_title(buffer: Buffer, titles: Titles) -> tuple[str, str]:
    """Return the title of the layer or tensor that a buffer belongs to, and the buffer's role there.

    Examples: ("conv1/Relu", "weights"), ("image", "").
    """
    owner, role = buffer.name, ""
    while owner not in titles and "." in owner:
        owner, _, part = owner.rpartition(".")
        role = f"{part}.{role}" if role else part
    if owner in titles:
        return titles[owner], role
    owner, _, role = buffer.name.rpartition(".") if _is_role(buffer.name) else (buffer.name, "", "")
    return tensor_name(owner), role


def _is_role(name: str) -> bool:
    """Return whether a name ends like the names that mcugen gives, such as "image.transpose"."""
    return name.rpartition(".")[2].isidentifier() and name.rpartition(".")[2].islower() and "." in name.strip(".")
