# SPDX-License-Identifier: Apache-2.0
"""Tables for validation on the target: results of layers, constants, and the code's identity (templates/validate)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence

import jinja2
import numpy as np

from mcugen.codegen.bundle import FirmwareConstant, Result, Validation
from mcugen.codegen.folding import break_long_lines
from mcugen.codegen.identifiers import c_string, comment
from mcugen.codegen.literals import c_rows
from mcugen.codegen.memory import MemoryContext
from mcugen.lir.program import MOVE, Access, Buffer, Program, Space

MIN_FRAME_BYTES = 64
"""Smallest allowed data size of a protocol frame in bytes: the answer to the first request needs as many."""

MAX_FRAME_BYTES = 4096
"""Largest allowed data size of a protocol frame in bytes; firmware that defines a larger size does not compile."""

VALIDATION_FUNCTIONS = ("validate_getc", "validate_putc", "validate_poll")
"""Suffixes of the C functions NAME_suffix that the firmware must define for validation."""

_PATTERN = "{name}_validate.{ending}"


def validation_files(name: str) -> tuple[str, str]:
    """Return the names of the C file and the header for device validation; `name` is the model's C name."""
    return _PATTERN.format(name=name, ending="c"), _PATTERN.format(name=name, ending="h")


def results_of_layers(program: Program) -> tuple[Result, ...]:
    """Return the place in memory of each layer result that later layers, the caller, or the next call read.

    The result is empty if sizes are known only at run time, since tensors are then partly undefined.
    """
    return () if program.symbols else tuple(_results(program))


def observable_results(program: Program) -> dict[int, Buffer]:
    """Return the buffers in the arena that layers, by their numbers, write as their only results, as a whole."""
    results: dict[int, list[Result]] = {}
    for result in results_of_layers(program):
        results.setdefault(result.layer, []).append(result)
    return {
        layer: written[0].buffer
        for layer, written in results.items()
        if len(written) == 1 and written[0].buffer.planned and written[0].nbytes == written[0].buffer.nbytes
    }


def _results(program: Program) -> Iterator[Result]:
    ranges = program.live_ranges()
    for number, span in enumerate(program.layers()):
        extents: dict[Buffer, tuple[int, int]] = {}
        for instr in (program.instrs[i] for i in span):
            is_part = instr.kernel == MOVE and len(span) == 1  # The rest of the buffer may be unset.
            for operand in instr.operands:
                buffer, access = operand.buffer, operand.access
                is_kept = buffer.space in (Space.STATE, Space.TAKEN) or ranges.get(buffer, (0, -1))[1] > span[-1]
                if access not in (Access.IN, Access.SCRATCH) and buffer.count and is_kept:
                    extents[buffer] = instr.part(operand.role) if is_part else (0, buffer.nbytes)
        for buffer, (offset, nbytes) in extents.items():
            yield Result(number, buffer, offset, nbytes)


def validation_of(
    program: Program, memory: MemoryContext, texts: Mapping[str, str], weights: bytes | None
) -> Validation:
    """Return the data for the validation of a program: a digest of its code, results of layers, and constants.

    Args:
        program: The program.
        memory: The memory layout of the program's code.
        texts: The C files by name; the digest does not cover their banners.
        weights: The contents of the file of weights; None if the weights are C arrays.
    """
    name = program.name
    digest = hashlib.sha256()
    for file in (f"{name}.c", f"{name}_kernels.h", f"{name}_weights.c"):
        digest.update(texts[file][texts[file].index("*/") :].encode())
    return Validation(digest.digest()[:16], results_of_layers(program), tuple(_constants(memory, weights)))


def _constants(memory: MemoryContext, weights: bytes | None) -> Iterator[FirmwareConstant]:
    for buffer in memory.arrays:
        assert buffer.data is not None
        data = np.ascontiguousarray(buffer.data)
        yield FirmwareConstant(buffer.name, zlib.crc32(data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()))
    if weights is not None:
        yield FirmwareConstant("the file of weights", zlib.crc32(weights))


def validation_texts(
    env: jinja2.Environment,
    program: Program,
    memory: MemoryContext,
    validation: Validation,
    names: Mapping[Buffer, str],
    context: Mapping[str, object],
) -> dict[str, str]:
    """Return the texts of the C file and the header for validation, by file name.

    Args:
        env: Environment of the templates.
        program: The program.
        memory: The placement of the program's arena and constants.
        validation: The checksums and results that the firmware reports.
        names: C names of buffers.
        context: Further context of the templates.
    """
    bases = _Bases(program, memory, names)
    results = [
        {
            "layer": result.layer,
            "base": bases.number(result.buffer),
            "offset": (result.buffer.offset or 0) * result.buffer.planned + result.offset,
            "nbytes": result.nbytes,
            "width": result.dtype.nbytes,
        }
        for result in validation.results
    ]
    constants = [
        {"c": f"{program.name}_{names[b]}", "nbytes": b.nbytes, "width": b.dtype.nbytes} for b in memory.arrays
    ]
    if memory.blob is not None:
        file = {"c": f"{program.name.upper()}_VALIDATE_WEIGHTS", "nbytes": len(memory.blob), "width": 1}
        constants.append(file)
    provenance = context["provenance"]
    assert isinstance(provenance, dict)
    values = {
        **context,
        "least_frame": MIN_FRAME_BYTES,
        "most_frame": MAX_FRAME_BYTES,
        "model_bytes": _bytes(bytes.fromhex(provenance["sha256"] or "00" * 32)),
        "code_bytes": _bytes(validation.code),
        "options_literal": c_string(comment(f"board {provenance['board']}; {provenance['options']}", 110)),
        "tensors": results,
        "bases": bases.expressions,
        "checked_constants": constants,
        "twice": [
            *["labels"] * bool(context["labels"]),
            *["begin", "step"] * bool(context["steps"]),
            *[str(context[key]).removeprefix(f"{program.name}_") for key in _CHECKS if context["checked"]],
        ],
        "ordered_outputs": _ordered(program, context),
    }
    source, header = validation_files(program.name)
    return {
        source: break_long_lines(env.get_template("validate/validate.c.j2").render(values)),
        header: env.get_template("validate/validate.h.j2").render(values),
    }


_CHECKS = ("check_some", "check_all")
"""Keys of the context that name functions which compare checksums."""


def _ordered(program: Program, context: Mapping[str, object]) -> list[object]:
    """Return all outputs in the program's order, including those that tell sizes."""
    tensors = [*_list(context["outputs"]), *_list(context["size_outputs"])]
    computed = {symbol.output for symbol in program.symbols}
    plain, sizes = iter(tensors), iter(tensors[len(_list(context["outputs"])) :])
    return [next(sizes if endpoint.name in computed else plain) for endpoint in program.outputs]


def _list(value: object) -> Sequence[object]:
    assert isinstance(value, list)
    return value


def _bytes(data: bytes) -> list[str]:
    return list(c_rows(np.frombuffer(data, np.uint8)))


class _Bases:
    """The C expressions of tensors' base addresses: areas of the arena, members of the state, lent buffers."""

    def __init__(self, program: Program, memory: MemoryContext, names: Mapping[Buffer, str]) -> None:
        arena = "MCUGEN_ARENA"
        several = len(memory.areas) > 1
        self._areas = [f"{arena}[{i}]" if several else arena for i in range(len(memory.areas))]
        self._names = names
        self.expressions: list[str] = []

    def number(self, buffer: Buffer) -> int:
        """Return the index of a buffer's expression in the table."""
        text = self._expression(buffer)
        if text not in self.expressions:
            self.expressions.append(text)
        return self.expressions.index(text)

    def _expression(self, buffer: Buffer) -> str:
        if buffer.space is Space.STATE:
            return f"mcugen_hooked_state.{self._names[buffer]}"
        if buffer.space is Space.TAKEN:
            return f"mcugen_lent_{self._names[buffer]}"
        return self._areas[buffer.area]
