# SPDX-License-Identifier: Apache-2.0
"""Measures what functions of kernels take that a program calls once, and writes it to boards/costs/<cpu>.json.

A compiler inlines such a function and knows all of its parameters, so that it takes far less than one that several
layers call, which tools/measure_costs.py measures. Of the shared models each function is built in a program of its own,
with nothing else; what comes of the C library is left out (its functions of floats overlap: what nothing is left of is
not stored). Stored is what three quarters of them do not exceed. Kernels
whose instructions were not measured get the bytes of functions that several layers call, too.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from measure_costs import BOARDS, COSTS, roomy
from rich.console import Console

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.drafts import bundle_of
from mcugen.lir.program import Instr
from mcugen.search.budget import calls_of, code_of_calls
from mcugen.simulation.build import build_parts
from mcugen.simulation.elf import function_sizes, read_sizes
from mcugen.simulation.simulation import roots_of

SHARED = Path(__file__).resolve().parents[2] / "shared"
MODELS = (
    *("ds_cnn_kws_int8_qdq", "mnist_cntk", "mobilenet_v1_025_vww_int8_qdq"),
    *("resnet8_cifar10_ortq_s8s8_perchannel_qdq", "resnet8_cifar10_f32", "pt_tcn_dynamo", "pt_yolo_head_dynamo"),
    *("pt_bilstm_dynamo", "streaming_wakeword_f32"),
)
GOALS = ("flash", "balanced")
SHARE = 75
"""Percent of the functions of a kernel that take no more than what is stored."""

_LIBRARY = ("memset(", "memcpy(", "memmove(")


@dataclass
class Found:
    """By kernel, bytes of functions that are called once, and of those that are called by several layers."""

    once: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    several: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    soft_floats: list[int] = field(default_factory=list)
    """Of the C library, where floats are computed by functions of the compiler's."""
    built: dict[str, int] = field(default_factory=dict)
    """By digest of C code: what is alike counts once."""

    def add(self, compiled: CompiledModel) -> None:
        """Of all functions of a program."""
        calls = [call for calls in calls_of(compiled.program) for call in calls]
        if "fpu" not in compiled.board.features and any(o.buffer.dtype.is_float for c in calls for o in c.operands):
            self.soft_floats.append(_built(compiled.bundle, compiled.board)[1])
        base = self._bytes(compiled, ())
        assert base is not None
        for calls in calls_of(compiled.program):
            nbytes = self._bytes(compiled, calls)
            if nbytes is None:
                continue
            if len(calls) == 1:
                self.once[calls[0].kernel].append(nbytes - base)
            else:
                self.several[calls[0].kernel].append(nbytes - base - code_of_calls(calls))

    def _bytes(self, compiled: CompiledModel, instrs: Sequence[Instr]) -> int | None:
        """Of a program that does nothing else; None where its code was built before, or it cannot be by itself."""
        program = replace(compiled.program, instrs=list(instrs), inputs=[], outputs=[])
        try:
            bundle = bundle_of(program, compiled.board, compiled.options)
        except (McugenError, StopIteration, KeyError):  # a part of a block, say
            return None
        text = "".join(t for name, t in sorted(bundle.files.items()) if name.endswith((".c", "_kernels.h")))
        digest = hashlib.sha256(text.replace(bundle.name, "").encode()).hexdigest()
        if instrs and digest in self.built:
            return None
        self.built[digest], _ = _built(bundle, compiled.board)
        return self.built[digest]


def _built(bundle: Bundle, board: Board) -> tuple[int, int]:
    """Bytes of a bundle's code, and of what it needs of the C library."""
    with tempfile.TemporaryDirectory() as folder:
        model, empty = build_parts(bundle, board, Path(folder), roots_of(bundle))
        functions = function_sizes(model) - function_sizes(empty)
        text = "".join(bundle.files.values())
        library = sum(n for name, n in functions.items() if f" {name}(" not in text or f"{name}(" in _LIBRARY)
        return read_sizes(model).flash - read_sizes(empty).flash - library, library


def _compiled(board: Board) -> Iterator[CompiledModel]:
    for model, goal in product(MODELS, GOALS):
        with suppress(McugenError):
            yield compile_model(SHARED / "models" / f"{model}.onnx", board, CompileOptions(name="m", optimize=goal))


def main(cpu: Annotated[list[str] | None, typer.Option(help="only these CPUs")] = None) -> None:
    """Measures and writes."""
    console = Console(stderr=True, width=200)
    for name in cpu or BOARDS:
        found, path = Found(), COSTS / f"{name}.json"
        for compiled in _compiled(roomy(BOARDS[name])):
            found.add(compiled)
        table = json.loads(path.read_text("utf-8"))
        several = {k: v for k, v in found.several.items() if k not in table["kernels"]}
        for key, each in (("once", found.once), ("several", several)):
            stored = {k: round(float(np.percentile(v, SHARE))) for k, v in sorted(each.items()) if v}
            table[key] = {k: max(v, 0) for k, v in stored.items() if v > 0 or key == "several"}
            console.print(f"{name} {key}: {table[key]}")
        if found.soft_floats:
            table["soft_floats"] = round(float(np.percentile(found.soft_floats, SHARE)))
        path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
