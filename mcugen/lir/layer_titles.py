# SPDX-License-Identifier: Apache-2.0
"""Names of the layers, instructions and buffers of a program, by the rule of mcugen.hir.layer_names."""

from __future__ import annotations

from collections.abc import Mapping

from mcugen.hir.layer_names import LayerSource, computes_named_node, name_results, number_names, tensor_name
from mcugen.lir.program import Buffer, Control, Instr, Program

Titles = Mapping[str, str]
"""Display names of layers, by the names (Instr.name) of the instructions that compute them."""


def titles_of(program: Program) -> Titles:
    """Return the display name of each instruction, by the instruction's own name (Instr.name).

    The display name is that of the instruction's layer. An instruction within a block gets the name that it would have
    as a layer of its own.
    """
    inside = name_results(LayerSource(i.name, i.origin, i.op) for i in program.instrs)
    return inside | name_results(_sources(program))


def layer_names(program: Program) -> tuple[str, ...]:
    """Return the display name of each layer, in the order of Program.layers.

    Names are unique: parts of one layer, such as the two sides of a fork, have a number appended.
    """
    titles = titles_of(program)
    return number_names(titles[source.result] for source in _sources(program))


def _sources(program: Program) -> list[LayerSource]:
    sources = []
    for layer in program.layers():
        named = _named_instruction(program, layer)
        sources.append(LayerSource(program.completing(layer).name, named.origin, named.op))
    return sources


def _named_instruction(program: Program, layer: range) -> Instr:
    """Return the instruction that a layer is named after: its head, or of layers row by row the last that computes."""
    head = program.head(layer)
    if head.control is not Control.STREAM:
        return head
    inside = (program.instrs[index] for index in reversed(layer))
    computing = (i for i in inside if i.control is Control.NONE and not i.moves_nothing)
    return next((i for i in computing if computes_named_node(LayerSource(i.name, i.origin, i.op))), head)


def buffer_title(buffer: Buffer, titles: Titles) -> tuple[str, str]:
    """Return the display name of the layer or tensor that a buffer belongs to, and the buffer's role there.

    Examples: ("conv1/Conv", "weights") for a constant of a layer, ("image", "") for a tensor itself.

    Args:
        buffer: The buffer.
        titles: Display names of the program's instructions (`titles_of`).
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


def buffer_titles(program: Program) -> dict[Buffer, tuple[str, str]]:
    """Return the display name of each buffer's layer or tensor, and the buffer's role there (see `buffer_title`).

    Inputs, outputs and states keep their own names, with the role "".
    """
    titles = titles_of(program)
    own = {e.buffer: (tensor_name(e.name), "") for e in (*program.inputs, *program.outputs, *program.states)}
    return {buffer: own.get(buffer) or buffer_title(buffer, titles) for buffer in program.buffers}


def buffer_names(program: Program) -> dict[Buffer, str]:
    """Return the display name of each buffer as one text, such as "conv1/Conv" or "conv1/Conv.weights"."""
    return {buffer: ".".join(filter(None, parts)) for buffer, parts in buffer_titles(program).items()}
