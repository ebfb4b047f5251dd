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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from operator import or_
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from measure_costs import BOARDS, COSTS, roomy
from onnx import helper, numpy_helper
from rich.console import Console

from mcugen.api.compilation import Compilation
from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import ModelSource, compile_model
from mcugen.driver.drafts import bundle_of
from mcugen.driver.tasks import Quantizing
from mcugen.lir.program import Instr
from mcugen.search.budget import call_code_bytes, calls_of
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
    """Bytes of functions that one layer calls, and of functions that several layers call, by kernel."""

    once: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    several: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    soft_floats: list[int] = field(default_factory=list)
    """Of the C library, where floats are computed by functions of the compiler's."""
    built: dict[str, int] = field(default_factory=dict)
    """By digest of C code: what is alike counts once."""

    def add(self, compiled: CompiledModel) -> None:
        """Add the bytes of all functions of a program, and of the C library's floating point."""
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
                self.several[calls[0].kernel].append(nbytes - base - call_code_bytes(calls))

    def _bytes(self, compiled: CompiledModel, instrs: Sequence[Instr]) -> int | None:
        """Return the bytes of a program that runs only these instructions.

        The result is None if the same C was built before, or the instructions cannot be a program of their own.
        """
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
    """Return the bytes of a bundle's code, and of the C library's functions that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        model, empty = build_parts(bundle, board, Path(folder), roots_of(bundle))
        functions = function_sizes(model) - function_sizes(empty)
        text = "".join(bundle.files.values())
        library = sum(n for name, n in functions.items() if f" {name}(" not in text or f"{name}(" in _LIBRARY)
        return read_sizes(model).flash - read_sizes(empty).flash - library, library


def _compiled(board: Board, models: Iterable[ModelSource]) -> Iterator[CompiledModel]:
    """Yield models compiled for a board with each goal, except those that it cannot run."""
    for model, goal in product(models, GOALS):
        with suppress(McugenError):
            yield compile_model(model, board, CompileOptions(name="m", optimize=goal))


def _recurrent_networks() -> Iterator[onnx.ModelProto]:
    """Yield small networks of each recurrent layer, in one direction and in two, in float32 and in int8."""
    for gates, kind, directions in ((1, "RNN", 1), (3, "GRU", 1), (4, "LSTM", 1), (3, "GRU", 2), (4, "LSTM", 2)):
        samples = {"x": np.random.default_rng(0).standard_normal((16, 6, 1, 8)).astype(np.float32)}
        model = _recurrent_network(kind, gates, directions)
        yield model
        yield Compilation(model, quantizing=Quantizing(calibration=samples)).quantized.proto


def _recurrent_network(kind: str, gates: int, directions: int) -> onnx.ModelProto:
    """Return a recurrent layer of 12 units that reads six steps of eight features, and a dense layer behind it."""
    rng, hidden = np.random.default_rng(1), 12
    shapes = {
        "w": (directions, gates * hidden, 8),
        "r": (directions, gates * hidden, hidden),
        "b": (directions, 2 * gates * hidden),
        "dense": (directions * hidden, 3),
    }
    constants = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    constants["row"] = np.array([1, directions * hidden], np.int64)
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [
        helper.make_node(kind, ["x", "w", "r", "b"], ["", "last"], hidden_size=hidden, direction=direction),
        helper.make_node("Reshape", ["last", "row"], ["features"]),
        helper.make_node("MatMul", ["features", "dense"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6, 1, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def main(cpu: Annotated[list[str] | None, typer.Option(help="only these CPUs")] = None) -> None:
    """Measure the functions and write the bytes to the tables of the CPUs."""
    console = Console(stderr=True, width=200)
    for name in cpu or BOARDS:
        board, path = roomy(BOARDS[name]), COSTS / f"{name}.json"
        shared, recurrent = Found(), Found()
        for compiled in _compiled(board, [SHARED / "models" / f"{model}.onnx" for model in MODELS]):
            shared.add(compiled)
        for compiled in _compiled(board, _recurrent_networks()):
            recurrent.add(compiled)
        table = json.loads(path.read_text("utf-8"))
        for key in ("once", "several"):
            # Shared models decide where they use a kernel, as small layers take less. Unused kernels keep their bytes.
            measured = (_stored(found, key, table["kernels"]) for found in (recurrent, shared))
            table[key] = reduce(or_, measured, table.get(key, {}))
            console.print(f"{name} {key}: {table[key]}")
        if shared.soft_floats:
            table["soft_floats"] = round(float(np.percentile(shared.soft_floats, SHARE)))
        path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")


def _stored(found: Found, key: str, known: Collection[str]) -> dict[str, int]:
    """Return the bytes to store by kernel: of functions called `once`, or by `several` layers unless known."""
    samples = found.once if key == "once" else {k: v for k, v in found.several.items() if k not in known}
    nbytes = {k: round(float(np.percentile(v, SHARE))) for k, v in sorted(samples.items()) if v}
    return {k: max(n, 0) for k, n in nbytes.items() if n > 0 or key == "several"}


if __name__ == "__main__":
    typer.run(main)
