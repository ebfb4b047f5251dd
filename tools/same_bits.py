# SPDX-License-Identifier: Apache-2.0
"""Compilers and their optimization levels beside each other: does a model compute the same bits, whoever compiled it?

Each model is generated once for a board, built by every compiler at every level, beside a harness of gcc, and
run on one sample. Integer outputs are compared with numpy's, real ones with those of gcc at -O2. With --plain the code
is built for this computer, without anything that is not C99, by smaller compilers besides.

What was done is kept in build/same_bits.txt, a line each; a run that was interrupted goes on.

    python tools/same_bits.py ../shared/models --boards rp2040,nrf52840
    python tools/same_bits.py ../shared/models --boards host,nrf52840,rp2040 --plain
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmark.subjects import roomy
from flip_constants import models
from markers import markdown_table, rewrite_passage

from mcugen import McugenError
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation.build import build_by
from mcugen.simulation.execute import execute, host_program, qemu_program
from mcugen.simulation.machines import find_machine
from mcugen.simulation.toolchain import ARM, RISCV

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "tests.md"
BOARDS = ("rp2040", "stm32f103", "nrf52840", "corstone300", "rv32imc", "rv32imafc", "nrf5340", "rt1060")
"""One for each CPU that has kernels of its own."""
LEVELS: Mapping[str, tuple[str, ...]] = {"-Os": ("-Os",), "-O2": ("-O2",), "-O3": ("-O3",), "LTO": ("-O2", "-flto")}
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic-errors", "-Werror")
CLANGS = ("clang", "clang-22")
"""Debian 12's, and the newest of its packages."""
_CLANG: Mapping[str, tuple[str, ...]] = {
    ARM.name: ("--target=arm-none-eabi", "-mthumb", "-isystem", "/usr/lib/arm-none-eabi/include"),
    RISCV.name: ("--target=riscv32-unknown-elf", "-isystem", "/usr/lib/picolibc/riscv64-unknown-elf/include"),
    "": (),
}
"""With the headers of the C library that comes with gcc."""
_ROUNDS = "-ffp-contract=off"
"""clang fuses products and sums unless told otherwise, gcc does not with -std=c99."""
_TCC = "/usr/lib/x86_64-linux-gnu/tcc/include"
_WIDTHS = ("-D__SIZE_TYPE__=unsigned long", "-D__PTRDIFF_TYPE__=long", "-D__WCHAR_TYPE__=int")
PLAIN: Mapping[str, tuple[str, ...]] = {
    "gcc": ("gcc", "-O2", *STRICT),
    "clang": ("clang", "-O2", *STRICT),
    "clang-22": ("clang-22", "-O2", *STRICT),
    "tcc": ("tcc", "-Wall"),
    "pcc": ("pcc",),
    "chibicc": ("chibicc", f"-I{_TCC}", *_WIDTHS),  # its package has no headers
}
"""Compilers for this computer, which are given `-std=c99 -DMCUGEN_PLAIN_C`."""
STANDARD_ONLY = ("-std=c99", "-DMCUGEN_PLAIN_C")
_SECONDS = 300.0


@dataclass(frozen=True)
class Build:
    """A compiler with its options, and its names in the table."""

    compiler: str
    level: str
    command: tuple[str, ...]
    joins: tuple[str, ...] = ()
    """The linker that makes one object of the model's, where the compiler leaves that to it."""


def builds(board: Board) -> Iterator[Build]:
    """Yield every compiler for a board's CPU at every level; the first is gcc at -O2."""
    gcc = (f"{board.toolchain}-gcc", *_library(board)) if board.qemu else ("gcc",)
    for level in sorted(LEVELS, key=lambda level: level != "-O2"):
        yield Build("gcc", level, (*gcc, *board.cflags, *LEVELS[level], *STRICT))
    flags = tuple(flag for flag in board.cflags if flag != "-mstrict-align")  # clang's way anyhow
    for name in CLANGS:
        for level, options in LEVELS.items():
            joins = ("ld.lld-22", "-r") if level == "LTO" else ()
            if not joins or name == "clang-22":
                command = (name, *_CLANG[board.toolchain], *flags, *options, *STRICT, _ROUNDS)
                yield Build(name, level, command, joins)


def plain_builds() -> Iterator[Build]:
    """Yield every compiler for this computer."""
    for name, command in PLAIN.items():
        yield Build(name, "", (*command, *STANDARD_ONLY))


def _library(board: Board) -> tuple[str, ...]:
    return find_machine(board).toolchain.library


Outputs = Mapping[str, np.ndarray]


def run(build: Build, compiled: CompiledModel, board: Board, sample: Outputs) -> Outputs:
    """Return the outputs of the model built for a board.

    Raises:
        McugenError: The model does not compile or run.
    """
    with tempfile.TemporaryDirectory(prefix="mcugen-bits-") as name:
        folder = Path(name)
        image = build_by(build.command, compiled.bundle, board, folder, build.joins)
        program = qemu_program(image, find_machine(board)) if board.qemu else host_program(image)
        return execute(program, compiled.bundle, [sample], folder / "run", timeout=_SECONDS).outputs[0]


def random_sample(compiled: CompiledModel) -> dict[str, np.ndarray]:
    """Return a random sample: int8 values for integer inputs, standard normal numbers for floats."""
    draw = np.random.default_rng(0)
    found = {}
    for port in compiled.bundle.inputs:
        dtype = np.dtype(port.dtype)
        if dtype.kind == "f":
            found[port.name] = draw.normal(size=port.shape).astype(dtype)
        else:
            low, high = (0, 2) if dtype.kind == "b" else (max(np.iinfo(dtype).min, -128), 128)
            found[port.name] = draw.integers(low, high, port.shape).astype(dtype)
    return found


def has_equal_bits(found: Outputs, expected: Outputs) -> bool:
    """Return whether all outputs have the expected bits."""
    return all(found[name].tobytes() == array.astype(found[name].dtype).tobytes() for name, array in expected.items())


def results(compiled: CompiledModel, board: Board, wanted: Sequence[Build]) -> Iterator[tuple[Build, str]]:
    """Yield for each build `equal`, `other bits`, or the error."""
    sample = random_sample(compiled)
    codes = {name: array for name, array in compiled.interpret(sample).items() if array.dtype.kind != "f"}
    first: Outputs = {}
    for build in wanted:
        try:
            found = run(build, compiled, board, sample)
        except McugenError as error:
            yield build, " ".join(str(error).split())[:300]
            continue
        first = first or found
        yield build, "equal" if has_equal_bits(found, {**first, **codes}) else "other bits"


# ------------------------------------------------------------------------------------------------- the sweep


@dataclass(frozen=True)
class Done:
    """The result of a build of a model for a board; a line of the file that keeps results."""

    model: str
    board: str
    compiler: str
    level: str
    result: str

    @classmethod
    def read(cls, line: str) -> Done:
        """Return the result that a line of the file describes."""
        return cls(*line.rstrip("\n").split("\t"))

    def __str__(self) -> str:
        return "\t".join((self.model, self.board, self.compiler, self.level, self.result))


def sweep(path: Path, name: str, plain: bool, kept: Path) -> None:
    """Run all builds of a model for a board and append the results to `kept`, unless they are there."""
    mark = f"{name}, plain C" if plain else name
    if any(done.model == path.stem and done.board == mark for done in read(kept)):
        return
    board = roomy(load_board(name))
    try:
        compiled = compile_model(path, board, CompileOptions(dims={"batch": 1} if "dynbatch" in path.stem else {}))
    except McugenError as error:
        raise SystemExit(f"{path.stem}, {name}: {error}") from error
    target, wanted = (load_board("host"), plain_builds()) if plain else (board, builds(board))
    lines = [Done(path.stem, mark, b.compiler, b.level, r) for b, r in results(compiled, target, list(wanted))]
    with kept.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def read(kept: Path) -> list[Done]:
    """Return the results in the file."""
    return [Done.read(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def table(done: Sequence[Done]) -> str:
    """Return a table of how many builds gave equal bits, by board, compiler and level."""
    columns = sorted({(d.compiler, d.level) for d in done})
    rows = sorted({d.board for d in done})
    total = Counter((d.board, d.compiler, d.level) for d in done)
    right = Counter((d.board, d.compiler, d.level) for d in done if d.result == "equal")
    lines = [["board", "models", *(" ".join(c) for c in columns)]]
    for row in rows:
        cells = [f"{right[row, *c]} of {total[row, *c]}" if total[row, *c] else "" for c in columns]
        lines.append([row, str(len({d.model for d in done if d.board == row})), *cells])
    return markdown_table(lines, 1)


def main() -> None:
    """Run the missing builds; print the table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="models, or folders of them")
    parser.add_argument("--boards", default=",".join(BOARDS), help="names, between commas")
    parser.add_argument("--plain", action="store_true", help="as plain C for this computer, by all its compilers")
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "same_bits.txt")
    parser.add_argument("--write-docs", action="store_true", help=f"rewrite the tables of {DOCUMENT.name}")
    given = parser.parse_args()
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    for path in models(given.paths):
        for name in given.boards.split(","):
            print(f"{path.stem}, {name}", flush=True)
            sweep(path, name, given.plain, given.kept)
    tables = [table([d for d in read(given.kept) if d.board.endswith("plain C") == plain]) for plain in (False, True)]
    print("\n\n".join(tables))
    wrong = [str(d) for d in read(given.kept) if d.result != "equal"]
    print("\n".join(wrong))
    if given.write_docs:
        for name, text in zip(("compilers", "plain-compilers"), tables, strict=True):
            rewrite_passage(DOCUMENT, name, text)


if __name__ == "__main__":
    main()
