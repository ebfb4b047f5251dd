# SPDX-License-Identifier: Apache-2.0
"""Our kernels beside CMSIS-NN's by layer of the MLPerf Tiny models: rewrites a table of docs/reference/kernels.md.

It needs the library: headers and an archive for each CPU, as `mcugen report` takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmark.subjects import MODELS
from markers import rewrite_passage
from measure_costs import random_inputs

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import Board, load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import AUTO, CMSIS_NN, FAMILIES, OWN, CompileOptions, LibraryFiles
from mcugen.driver.compiler import compile_model
from mcugen.hir.layer_names import name_nodes
from mcugen.options.table import find_option
from mcugen.options.values import library_files

SUBJECTS = ("resnet8_cifar10", "ds_cnn_kws", "mobilenet_v1_025_vww", "autoencoder_ad")
BOARDS = ("nrf52840", "rt1060", "corstone300")


@dataclass(frozen=True)
class Row:
    """A layer: its description, and its instructions by kernel."""

    title: str
    what: str
    kernel: str
    instructions: int


@dataclass(frozen=True)
class Column:
    """A model compiled with one family of kernels for one board; `layers` by names that the families share."""

    layers: Mapping[str, Row]
    instructions: int
    code: int
    weights: int
    arena: int
    calls: int
    """Layers that call the library."""


def measured(model: str, board_name: str, family: str, goal: str, library: LibraryFiles) -> Column:
    """Measure one inference of random int8 inputs."""
    board = load_board(board_name)
    options = CompileOptions(optimize=goal, family=family, library=library)
    compiled = compile_model(MODELS / f"{model}_int8_qdq.onnx", board, options)
    run = compiled.simulate([random_inputs(compiled)], per_layer=True)
    assert run.layer_instructions is not None and run.instructions is not None and run.sizes is not None
    shapes = {name: _shape(node.op.name, node) for node, name in name_nodes(compiled.graph).items()}
    layers = {}
    for layer, count in zip(compiled.report.layers, run.layer_instructions, strict=True):
        layers[layer.name] = Row(layer.name, shapes.get(layer.name, layer.op), layer.kernel, count)
    calls = sum(layer.family != OWN for layer in compiled.report.layers)
    arena = compiled.program.arena_size
    return Column(layers, run.instructions, run.sizes.code, run.sizes.weights, arena, calls)


def _shape(name: str, node) -> str:
    """Return the description of a layer: operator, window if any, and shape of the result."""
    weights = [v.type.shape for v in node.inputs[1:2] if v is not None and v.is_constant]
    window = "".join(f" {s[1]}x{s[2]}" for s in weights if len(s) == 4)
    return f"{name}{window} → {'x'.join(map(str, node.outputs[0].type.shape))}"


Columns = dict[tuple[str, str, str], Column]
"""By model, board and family."""


def document(columns: Columns, boards: Sequence[Board], goal: str) -> Iterator[str]:
    """Yield the tables as Markdown: whole models, then layer by layer."""
    library = LIBRARIES[CMSIS_NN]
    how = f"`make kernel-table`, `--optimize {goal}`, {library.versions}"
    yield f"Retired instructions of one inference of random codes ({how})."
    yield ""
    heads = ("instructions: own", *FAMILIES[1:], "code, bytes: own", *FAMILIES[1:], "arena, bytes: own", *FAMILIES[1:])
    yield f"| model | CPU | {' | '.join(heads)} |"
    yield "|---|---|" + "---:|" * 9
    for model in SUBJECTS:
        for board in boards:
            found = [columns[model, board.name, family] for family in FAMILIES]
            figures = [c.instructions for c in found], [c.code for c in found], [c.arena for c in found]
            cells = [f"{n:,}" for row in figures for n in row]
            yield f"| {model} | {board.cpu} | {' | '.join(cells)} |"
    for model in SUBJECTS:
        yield from ("", f"#### {model}", "")
        yield "| layer | " + " | ".join(f"{b.cpu}: own | cmsis-nn" for b in boards) + " | `auto` calls it on |"
        yield "|---|" + "---:|" * (2 * len(boards)) + "---|"
        yield from _layers(model, columns, boards)


def _layers(model: str, columns: Columns, boards: Sequence[Board]) -> Iterator[str]:
    """Yield rows for the layers that the library computes; the other layers are equal in both."""
    by_board = [
        (board, *(columns[model, board.name, family].layers for family in (OWN, CMSIS_NN, AUTO))) for board in boards
    ]
    _, _, first, _ = by_board[0]
    for name, row in first.items():
        if not row.kernel.startswith("cmsis_"):
            continue
        cells, taken = [], []
        for board, own, theirs, auto in by_board:
            cells += [f"{layers[name].instructions:,}" if name in layers else "" for layers in (own, theirs)]
            if name in auto and auto[name].kernel.startswith("cmsis_"):
                taken.append(board.cpu.removeprefix("cortex-").upper())
        yield f"| {row.what} | {' | '.join(cells)} | {', '.join(taken)} |"


def _library_option(what: str) -> Any:
    """Return Typer's option that names a part of CMSIS-NN, with the help of `mcugen report`."""
    return typer.Option(help=find_option(f"cmsis-nn-{what}", "report").description)


def main(
    optimize: Annotated[str, typer.Option(help="the goal of our own kernels")] = "speed",
    write_docs: Annotated[Path | None, typer.Option(help="document whose table to rewrite; else it is printed")] = None,
    cmsis_nn_include: Annotated[Path | None, _library_option("include")] = None,
    cmsis_nn_lib: Annotated[Path | None, _library_option("lib")] = None,
) -> None:
    """Measure four models on three CPUs, by both families of kernels and by the choice between them."""
    library = library_files(cmsis_nn_include, cmsis_nn_lib)
    boards = [load_board(name) for name in BOARDS]
    missing = [b.cpu for b in boards if library is None or not library.archive_for(b.cpu).is_file()]
    if library is None or missing:
        options = LIBRARIES[CMSIS_NN]
        remedy = f"give {' DIR and '.join(options.options)} FILE, with {{cpu}} in the file's name"
        raise UsageError(f"the table needs {options.versions} as built for each CPU", f"none for {missing[0]}", remedy)
    if not MODELS.is_dir():
        raise UsageError("the table needs the models of MLPerf Tiny", f"no {MODELS}", "put them there")
    keys = [(model, board.name, family) for model in SUBJECTS for board in boards for family in FAMILIES]
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(measured, *key, optimize, library) for key in keys]
        columns = dict(zip(keys, (job.result() for job in jobs), strict=True))
    text = "\n".join(document(columns, boards, optimize))
    if write_docs is None:
        print(text)
    else:
        rewrite_passage(write_docs, "kernels", text)


if __name__ == "__main__":
    typer.run(main)
