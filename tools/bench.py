# SPDX-License-Identifier: Apache-2.0
"""Compares mcugen with other compilers: the same models, compiler flags and simulated CPUs for each.

float32 models run side by side with those of emx-onnx-cgen, a peer that also writes C, built and measured by
the same harness. int8 models are set against recorded figures of TensorFlow Lite Micro with CMSIS-NN.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import typer
from markers import replace_between_markers
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mcugen.board import Board, load_board
from mcugen.codegen.bundle import Bundle, Port
from mcugen.codegen.identifiers import identifier
from mcugen.compiler import compile_model
from mcugen.errors import DoesNotFitError, McugenError, ToolMissingError, UsageError, VerificationError
from mcugen.report.accuracy import run_onnxruntime
from mcugen.simulate import Execution, simulate
from mcugen.simulate.toolchain import ARM_GCC, QEMU, find_program, first_lines
from mcugen.version import __version__

Sample = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT.parent / "shared" / "models"
ANCHORS = ROOT.parent / "shared" / "anchors" / "tflm.json"
DIGITS = ROOT / "examples" / "digits"
WORK = ROOT / "build" / "bench"

FLOAT_MODELS = (
    DIGITS / "digits_f32.onnx",
    MODELS / "mnist_cntk.onnx",
    MODELS / "resnet8_cifar10_f32.onnx",
    MODELS / "ds_cnn_kws_f32.onnx",
    MODELS / "mobilenet_v1_025_vww_f32.onnx",
    MODELS / "autoencoder_ad_f32.onnx",
    MODELS / "streaming_wakeword_f32.onnx",
)
INT8_MODELS = (
    DIGITS / "digits_int8.onnx",
    MODELS / "resnet8_cifar10_int8_qdq.onnx",
    MODELS / "ds_cnn_kws_int8_qdq.onnx",
    MODELS / "mobilenet_v1_025_vww_int8_qdq.onnx",
    MODELS / "autoencoder_ad_int8_qdq.onnx",
    MODELS / "streaming_wakeword_int8_qdq.onnx",
)
FLOAT_BOARDS = "nrf52840,rt1060,corstone300"
INT8_BOARDS = "rp2040,stm32f103,nrf52840,rt1060,corstone300"
TIMED_BOARD = "corstone300"  # large enough for every model: the command line refuses boards that are not

EMX = "emx-onnx-cgen"
EMX_OPTIONS = (
    *("--color", "never"),
    "--emit-data-file",  # weights in a file of their own, where the harness can size them
    *("--large-weight-threshold", "0"),  # in C, not in a binary file to be loaded at run time
    # Its default takes these buffers from the heap, all before the first layer: as many bytes, more instructions.
    *("--large-temp-threshold", "0"),
)

TFLM = "TensorFlow Lite Micro with CMSIS-NN (TFLM, recorded)"
TFLM_HARNESS_CODE = 1_600
"""Bytes of the recorded `flash_code` that are test firmware; ours is subtracted already."""

FLOAT_TOLERANCE = 1e-3
"""Largest error of an output, relative to the output of largest magnitude."""
INT_TOLERANCE = 4
"""Largest error of an integer output, in quantization steps: rounding may differ by one in every layer."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one compiler's code: retired instructions of a call, and bytes."""

    instructions: int
    code: int
    """Flash without weights: what the model adds to a firmware's code and constants."""
    weights: int
    arena: int
    """Inputs and outputs, and all activations that the compiler places there."""
    static: int
    stack: int
    error: float | None
    """Largest deviation from ONNX Runtime: relative for float outputs, in steps for integers; None: unknown."""

    @property
    def flash(self) -> int:
        """All bytes in flash."""
        return self.code + self.weights

    @property
    def ram(self) -> int:
        """All bytes in RAM."""
        return self.arena + self.static + self.stack


@dataclass(frozen=True)
class Outcome:
    """Figures, or why there are none, and what a reader should know about them."""

    figures: Figures | None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A model on a board."""

    model: str
    board: str
    cpu: str
    mcugen: Outcome
    peer: Outcome

    def ratio(self, of: Callable[[Figures], int]) -> float | None:
        """mcugen's figure by the peer's: below 1, mcugen is better."""
        if self.mcugen.figures is None or self.peer.figures is None or not of(self.peer.figures):
            return None
        return of(self.mcugen.figures) / of(self.peer.figures)


Cell = str | float | None
"""Text, a ratio, or nothing."""


@dataclass(frozen=True)
class Table:
    """A table before it is rendered, for the console or for Markdown. Column titles may have two lines."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]


# Models


def ports(model: onnx.ModelProto, name: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs as the ONNX file declares them. UsageError for a shape that is not fixed."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    return (
        tuple(_port(value, f"{name}_input_{i}") for i, value in enumerate(inputs)),
        tuple(_port(value, f"{name}_output_{i}") for i, value in enumerate(model.graph.output)),
    )


def _port(value: onnx.ValueInfoProto, accessor: str) -> Port:
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        raise UsageError(f"'{value.name}' must have a fixed shape to be compared")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    shape = tuple(dim.dim_value for dim in dims)
    return Port(value.name, accessor, dtype.name, shape, math.prod(shape) * dtype.itemsize)


def sample_for(path: Path, inputs: Sequence[Port]) -> Sample:
    """The first recorded sample beside the model, or seeded random numbers."""
    recorded = path.with_suffix(".io.npz")
    if recorded.is_file():
        with np.load(recorded, allow_pickle=False) as arrays:
            return {port.name: arrays[f"in0_{i}"] for i, port in enumerate(inputs)}
    random = np.random.default_rng(0)
    return {port.name: _random(random, port) for port in inputs}


def _random(random: np.random.Generator, port: Port) -> np.ndarray:
    dtype = np.dtype(port.dtype)
    if dtype.kind == "f":
        return random.standard_normal(port.shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, port.shape, dtype, endpoint=True)


def largest_error(outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> float:
    """Relative to the largest magnitude for float outputs, in quantization steps for integers; NaN is infinite."""
    return max((_error(outputs[name], wanted) for name, wanted in reference.items()), default=0.0)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    error = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))
    if math.isnan(error):
        return math.inf
    return error / (float(np.abs(wanted).max(initial=0.0)) or 1.0) if wanted.dtype.kind == "f" else error


# emx-onnx-cgen in our harness


def emx_bundle(path: Path, name: str, folder: Path) -> Bundle:
    """Runs emx-onnx-cgen and wraps what it writes."""
    code = folder / f"{name}_emx.c"
    folder.mkdir(parents=True, exist_ok=True)
    _run([_emx(), "compile", str(path), str(code), "--model-name", f"{name}_emx", *EMX_OPTIONS])
    data = code.with_name(f"{name}_emx_data.c").read_text()
    inputs, outputs = ports(onnx.load(path), name)
    return wrap_emx(name, code.read_text(), data, inputs=inputs, outputs=outputs)


def wrap_emx(name: str, code: str, data: str, *, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Bundle:
    """A bundle whose arena holds inputs and outputs alone: emx has its other buffers on the stack."""
    tensors = (*inputs, *outputs)
    parameters = emx_parameters(code, f"{name}_emx")
    if len(parameters) != len(tensors):
        raise VerificationError(f"the entry of {EMX}'s code must take inputs and outputs", ", ".join(parameters))
    *offsets, size = accumulate((_aligned(port.nbytes) for port in tensors), initial=0)
    accessors = [
        f"{_signature(port, port in outputs)} {{ return ({'const ' if port in outputs else ''}char *)arena + {at}; }}"
        for port, at in zip(tensors, offsets, strict=True)
    ]
    arguments = ", ".join(f"(void *)((char *)arena + {at})" for at in offsets)
    # Its code is included as a system header: the harness's warnings are errors, and not meant for it.
    files = {
        f"{name}.h": "\n".join(
            (
                f"#define {name.upper()}_ARENA_SIZE {size}u",
                f"#define {name.upper()}_ARENA_ALIGN 16u",
                *(f"{_signature(port, port in outputs)};" for port in tensors),
                f"int {name}_run(void *arena);\n",
            )
        ),
        f"{name}.c": "\n".join(
            (
                f'#include "{name}.h"',
                f'#include "{name}_emx.h"',
                *accessors,
                f"int {name}_run(void *arena) {{ {name}_emx({arguments}); return 0; }}\n",
            )
        ),
        f"{name}_emx.h": f"#pragma GCC system_header\n{code}",
        f"{name}_emx_data.h": f"#pragma GCC system_header\n{data}",
        f"{name}_weights.c": f'#include "{name}_emx_data.h"\n',
    }
    return Bundle(name, files, size, inputs, outputs, layers=())


def emx_parameters(code: str, entry: str) -> list[str]:
    """Parameters of the function that computes the model, inputs before outputs."""
    found = re.search(rf"^void {re.escape(entry)}\((.*)\) \{{$", code, re.MULTILINE)
    if not found:
        raise VerificationError(f"{EMX} must define the function it was asked for", f"no '{entry}'")
    return [parameter.strip() for parameter in found[1].split(",")]


def _signature(port: Port, output: bool) -> str:
    const = "const " if output else ""
    return f"{const}void *{port.accessor}({const}void *arena)"


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def _emx() -> str:
    """The program beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name(EMX)
    found = str(beside) if beside.is_file() else shutil.which(EMX)
    if found is None:
        raise ToolMissingError(f"'{EMX}' must be installed", "no such program", "pip install -e '.[bench]'")
    return found


# Measurement


@dataclass(frozen=True)
class Subject:
    """A model file with a sample of inputs, and the outputs to expect."""

    path: Path
    sample: Sample
    reference: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        """Name of the file, without its suffix."""
        return self.path.stem


def load_subject(path: Path) -> Subject:
    """Reads a model, chooses its sample, and asks ONNX Runtime for the outputs."""
    model = onnx.load(path)
    sample = sample_for(path, ports(model, "model")[0])
    return Subject(path, sample, run_onnxruntime(model, [sample])[0])


def measure_mcugen(subject: Subject, board: Board) -> Outcome:
    """mcugen's figures. A board that is too small is given more memory: simulated memory is large anyway."""
    note = ""
    try:
        compiled = compile_model(subject.path, board)
    except DoesNotFitError:
        note = f"too large for {board.name}"
        compiled = compile_model(subject.path, roomy(board))
    return _outcome(subject, board, compiled.bundle, "mcugen", note)


def measure_emx(subject: Subject, board: Board) -> Outcome:
    """Figures of emx-onnx-cgen's code for the same model."""
    name = identifier(subject.name)
    bundle = emx_bundle(subject.path, name, _folder(subject, board, "emx"))
    return _outcome(subject, board, bundle, "emx", "")


def _outcome(subject: Subject, board: Board, bundle: Bundle, compiler: str, note: str) -> Outcome:
    run = simulate(bundle, board, [subject.sample], workdir=_folder(subject, board, compiler))
    error = largest_error(run.outputs[0], subject.reference)
    integer = all(array.dtype.kind != "f" for array in subject.reference.values())
    if error > (INT_TOLERANCE if integer else FLOAT_TOLERANCE):
        note = f"{compiler} WRONG: {error:.3g} off; {note}".removesuffix("; ")
    return Outcome(figures_of(bundle, run, error), note)


def figures_of(bundle: Bundle, run: Execution, error: float) -> Figures:
    """The figures of a measured run."""
    assert run.instructions is not None and run.stack is not None and run.sizes is not None
    sizes = run.sizes
    return Figures(
        instructions=run.instructions,
        code=sizes.code,
        weights=sizes.weights,
        arena=bundle.arena_size,
        static=sizes.static_ram,
        stack=run.stack,
        error=error,
    )


def guarded(measure: Callable[[], Outcome], compiler: str) -> Outcome:
    """The outcome; a failure is one too, and must not end the benchmark."""
    try:
        return measure()
    except McugenError as error:
        return Outcome(None, f"{compiler}: {_first_line(str(error))}")
    except Exception as error:  # a bug in a compiler; the other rows are still wanted
        return Outcome(None, f"{compiler}: {type(error).__name__}: {_first_line(str(error))}")


def roomy(board: Board) -> Board:
    """The board with memories that hold any model."""
    chosen = (board.arena_memory, board.weights_memory)
    memories = tuple(replace(m, size=1 << 28) if m.name in chosen else m for m in board.memories)
    return replace(board, memories=memories)


def _folder(subject: Subject, board: Board, compiler: str) -> Path:
    return WORK / subject.name / board.name / compiler


def measure_tflm(anchors: Mapping[str, Any], subject: Subject, board: Board) -> Outcome:
    """Recorded figures for the int8 model on the board's CPU, if there are any."""
    recorded = anchors.get(subject.name.removesuffix("_int8_qdq"), {}).get(board.cpu.removesuffix("plus"))
    if recorded is None:
        return Outcome(None)
    return Outcome(
        Figures(
            instructions=recorded["instructions"],
            code=recorded["flash_code"] - TFLM_HARNESS_CODE,
            weights=recorded["model_bytes"],
            arena=recorded["arena"],
            static=recorded["ram_static"] - recorded["arena"],
            stack=recorded["stack"],
            error=None,
        )
    )


def compile_seconds(path: Path) -> dict[str, float | None]:
    """Wall time of both command lines, start of the process included; None where one fails."""
    folder = WORK / path.stem / "timed"
    folder.mkdir(parents=True, exist_ok=True)
    mcugen = Path(sys.executable).with_name("mcugen")
    return {
        "mcugen": _seconds(
            lambda: [str(mcugen), "compile", str(path), "--board", TIMED_BOARD, "-o", str(folder / "mcugen")]
        ),
        "emx": _seconds(lambda: [_emx(), "compile", str(path), str(folder / "emx.c"), *EMX_OPTIONS]),
    }


def _seconds(command: Callable[[], list[str]]) -> float | None:
    try:
        arguments = command()
        start = time.perf_counter()
        _run(arguments)
    except McugenError:
        return None
    return time.perf_counter() - start


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise VerificationError(f"{Path(command[0]).name} must succeed", first_lines(done.stdout))
    return done.stdout


# Tables


def format_ratio(ratio: float) -> str:
    """Two decimals, three for small ratios."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.3f}x"


def ratio_style(ratio: float) -> str:
    """Green where mcugen is better, red where it is worse; half a percent is neither."""
    return "green" if ratio < 0.995 else "red" if ratio > 1.005 else "yellow"


def geometric_mean(ratios: Sequence[float | None]) -> float | None:
    """Of the ratios that are known."""
    known = [math.log(ratio) for ratio in ratios if ratio]
    return math.exp(sum(known) / len(known)) if known else None


def comparison(title: str, peer: str, rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    """Both figures and their ratio for each measure, and each CPU's mean ratio over the models."""
    columns = ["model", "CPU"]
    for measure in measures:
        columns += [f"{measure.title}\nmcugen", f"\n{peer}", "\nratio"]
    body = [_row(row, measures) for row in rows]
    for cpu in dict.fromkeys(row.cpu for row in rows):
        mean: list[Cell] = ["geometric mean", _short(cpu)]
        for measure in measures:
            mean += ["", "", geometric_mean([row.ratio(measure.of) for row in rows if row.cpu == cpu])]
        body.append([*mean, ""])
    return Table(title, (*columns, "notes"), body)


@dataclass(frozen=True)
class Measure:
    """A group of three columns: its figure, and the parts it is the sum of as text."""

    title: str
    of: Callable[[Figures], int]
    show: Callable[[Figures], str]


INSTRUCTIONS = Measure("instructions", lambda f: f.instructions, lambda f: f"{f.instructions:,}")
FLASH = Measure("flash (code + weights)", lambda f: f.flash, lambda f: f"{f.code:,} + {f.weights:,}")
RAM = Measure("RAM (arena + static + stack)", lambda f: f.ram, lambda f: f"{f.arena:,} + {f.static:,} + {f.stack:,}")
ARENA = Measure("arena", lambda f: f.arena, lambda f: f"{f.arena:,}")
CODE = Measure("code", lambda f: f.code, lambda f: f"{f.code:,}")
FLASH_TOTAL = Measure("flash", lambda f: f.flash, lambda f: f"{f.flash:,}")
RAM_TOTAL = Measure("RAM", lambda f: f.ram, lambda f: f"{f.ram:,}")

FLOAT_MEASURES = (INSTRUCTIONS, FLASH, RAM)
INT8_MEASURES = (INSTRUCTIONS, ARENA, RAM_TOTAL, CODE, FLASH_TOTAL)


def _row(row: Row, measures: Sequence[Measure]) -> list[Cell]:
    cells: list[Cell] = [row.model, _short(row.cpu)]
    for measure in measures:
        both = (row.mcugen.figures, row.peer.figures)
        cells += [*(measure.show(f) if f else "-" for f in both), row.ratio(measure.of)]
    return [*cells, "; ".join(outcome.note for outcome in (row.mcugen, row.peer) if outcome.note)]


def _short(cpu: str) -> str:
    return cpu.removeprefix("cortex-").upper().replace("PLUS", "+")


def timing(seconds: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Run time of the compilers themselves."""
    rows: list[list[Cell]] = [
        [model, *(f"{taken[key]:.1f}" if taken[key] is not None else "-" for key in ("mcugen", "emx"))]
        for model, taken in seconds.items()
    ]
    return Table("Seconds to compile, for information", ("model", "mcugen", "emx"), rows)


_TEXT_COLUMNS = ("model", "CPU", "notes")


def to_rich(table: Table) -> RichTable:
    """For the console: figures to the right, ratios coloured."""
    rich = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        justify: Literal["left", "right"] = "left" if column in _TEXT_COLUMNS else "right"
        rich.add_column(column, justify=justify, overflow="fold")
    for row in table.rows:
        rich.add_row(*(_rich_cell(cell) for cell in row))
    return rich


def _rich_cell(cell: Cell) -> Text:
    if isinstance(cell, float):
        return Text(format_ratio(cell), style=ratio_style(cell))
    return Text(cell or "", style="red" if cell and "WRONG" in cell else "")


def to_markdown(table: Table) -> str:
    """For the documentation: ratios in bold where mcugen is better."""
    titles = (column.replace("\n", " ").strip() for column in table.columns)
    lines = [f"### {table.title}", "", _line(titles)]
    lines.append(_line("---" if column in _TEXT_COLUMNS else "--:" for column in table.columns))
    return "\n".join([*lines, *(_line(map(_markdown_cell, row)) for row in table.rows)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"**{format_ratio(cell)}**" if cell < 0.995 else format_ratio(cell)
    return (cell or "").replace("|", "\\|")


@dataclass(frozen=True)
class Results:
    """All that was measured, and how."""

    command: str
    tools: Mapping[str, str]
    flags: str
    int8_flags: str
    float_rows: list[Row]
    int8_rows: list[Row]
    seconds: Mapping[str, Mapping[str, float | None]]

    def tables(self) -> list[Table]:
        """Those that have rows."""
        tables = [
            comparison(f"float32: mcugen and {EMX} (emx)", "emx", self.float_rows, FLOAT_MEASURES),
            comparison(f"int8: mcugen and {TFLM}", "TFLM", self.int8_rows, INT8_MEASURES),
            timing(self.seconds),
        ]
        return [table for table in tables if table.rows]

    def how(self) -> str:
        """What was run, and with what."""
        tools = "\n".join(f"- {tool}: {version}" for tool, version in self.tools.items())
        flags = f"float32: `{self.flags}` for both compilers; mcugen's int8: `{self.int8_flags}`"
        return f"Made by `{self.command}` (flags of {flags}) with:\n\n{tools}\n"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "command": self.command,
            "tools": dict(self.tools),
            "flags": {"float32": self.flags, "int8": self.int8_flags},
            "emx_options": list(EMX_OPTIONS),
            "float32": [_row_json(row, "emx", ("instructions", "code", "flash", "ram")) for row in self.float_rows],
            "int8": [_row_json(row, "tflm", tuple(_MEASURES)) for row in self.int8_rows],
            "compile_seconds": {model: dict(taken) for model, taken in self.seconds.items()},
        }


_MEASURES = {"instructions": INSTRUCTIONS, "code": CODE, "flash": FLASH, "arena": ARENA, "ram": RAM}


def _row_json(row: Row, peer: str, ratios: Sequence[str]) -> dict[str, Any]:
    return {
        "model": row.model,
        "board": row.board,
        "cpu": row.cpu,
        "mcugen": _outcome_json(row.mcugen),
        peer: _outcome_json(row.peer),
        "ratios": {key: row.ratio(_MEASURES[key].of) for key in ratios},
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures
    sums = {"flash": figures.flash, "ram": figures.ram, **asdict(figures)} if figures else {}
    return {**sums, "note": outcome.note}


def tool_versions() -> dict[str, str]:
    """Of everything that the figures depend on."""
    try:
        emx = importlib.metadata.version(EMX)
    except importlib.metadata.PackageNotFoundError:
        emx = "not installed"
    compilers = {tool: _run([find_program(tool), "--version"]).splitlines()[0] for tool in (ARM_GCC, QEMU)}
    return {"mcugen": __version__, EMX: emx, **compilers}


def chosen(models: Sequence[Path], terms: str) -> list[Path]:
    """Those that exist and whose name has one of the terms, which commas separate."""
    wanted = [term.strip() for term in terms.split(",") if term.strip()]
    return [m for m in models if m.is_file() and (not wanted or any(term in m.stem for term in wanted))]


def main(
    models: Annotated[str, typer.Option(help="parts of model names, by commas; all if empty")] = "",
    boards: Annotated[str, typer.Option(help="board names, by commas; one a CPU if empty")] = "",
    float_: Annotated[bool, typer.Option("--float", help="float32 models only")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="int8 models only")] = False,
    opt: Annotated[str, typer.Option(help="flags for float32 code of both, behind the board's")] = "-O2",
    int8_opt: Annotated[str, typer.Option(help="flags for int8 code, TFLM's being recorded")] = "-O2",
    json_: Annotated[Path, typer.Option("--json", help="results for programs")] = ROOT / "build/bench.json",
    write_docs: Annotated[Path | None, typer.Option(help="document whose tables to rewrite")] = None,
) -> None:
    """Compares mcugen with emx-onnx-cgen (float32) and with recorded figures of TFLM (int8)."""
    # Wide enough for the tables where the output is not a terminal but a log.
    console = Console(width=None if sys.stdout.isatty() else 220)
    if not MODELS.is_dir():
        console.print(f"{MODELS} is absent: only the project's own models are compared.")
    both = float_ == int8
    float_models = chosen(FLOAT_MODELS, models) if both or float_ else []
    int8_models = chosen(INT8_MODELS, models) if both or int8 else []
    if not float_models and not int8_models:
        raise UsageError("--models must name a model", repr(models), "parts of names, such as resnet8,kws")

    anchors = json.loads(ANCHORS.read_text()) if ANCHORS.is_file() else {}
    results = Results(
        command=shlex.join(["tools/bench.py", *sys.argv[1:]]),
        tools=tool_versions(),
        flags=opt,
        int8_flags=int8_opt,
        float_rows=_rows(float_models, boards or FLOAT_BOARDS, opt, console, measure_emx),
        int8_rows=_rows(int8_models, boards or INT8_BOARDS, int8_opt, console, partial(measure_tflm, anchors)),
        seconds={path.stem: compile_seconds(path) for path in float_models},
    )
    for table in results.tables():
        console.print(to_rich(table))
    console.print(results.how(), markup=False, highlight=False)
    json_.parent.mkdir(parents=True, exist_ok=True)
    json_.write_text(json.dumps(results.to_json(), indent=1) + "\n")
    if write_docs:
        content = "\n".join([results.how(), *map(to_markdown, results.tables())])
        write_docs.write_text(replace_between_markers(write_docs.read_text(), "bench", content))


def _rows(
    models: Sequence[Path],
    boards: str,
    opt: str,
    console: Console,
    measure_peer: Callable[[Subject, Board], Outcome],
) -> list[Row]:
    """Measures each model on each board, saying which."""
    rows = []
    for path in models:
        subject = load_subject(path)
        for name in boards.split(","):
            known = load_board(name.strip())
            board = replace(known, cflags=(*known.cflags, *shlex.split(opt)))
            with console.status(f"{subject.name} on {board.name}"):
                ours = guarded(partial(measure_mcugen, subject, board), "mcugen")
                theirs = guarded(partial(measure_peer, subject, board), "emx")
            rows.append(Row(subject.name, board.name, board.cpu, ours, theirs))
    return rows


def _first_line(text: str) -> str:
    """Of an error, without what was found and the remedy; of a list of errors, the first one."""
    lines = text.strip().splitlines() or [""]
    is_list = len(lines) > 1 and lines[0].endswith(":")
    return (lines[1].strip(" -") if is_list else lines[0]).split(". found:")[0]


if __name__ == "__main__":
    try:
        typer.run(main)
    except McugenError as problem:
        sys.exit(f"error: {problem}")
