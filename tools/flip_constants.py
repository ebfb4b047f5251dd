# SPDX-License-Identifier: Apache-2.0
"""Flips bits of a model's constants and runs it: does any flip lead out of an array, or to a run without an end?

For each array of constants some single bits, pairs of bits anywhere in it, and bursts of up to 16 bits one behind the
other are flipped. The code is that for a board, built for this computer, where it is plain C, with the sanitizers of
addresses and undefined behaviour of pointers. Arithmetic may overflow: values are wrong then, and nothing else.

    python tools/flip_constants.py ../shared/models ../shared/zoo --boards host,nrf52840 --each 6
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from mcugen import CompileOptions, McugenError, compile_model, load_board
from mcugen.board import Board
from mcugen.compiled import CompiledModel
from mcugen.simulate.toolchain import Compiler, Unit, host_compiler

HERE = Path(__file__).parent
BAD = "ot"
"""What must not happen: an access out of bounds, or no end."""
KINDS = ("single", "double", "burst")
_ADDRESSES = "address,bounds,object-size,pointer-overflow,alignment,null,integer-divide-by-zero,vla-bound"
_FLAGS = (
    *("-std=gnu99", "-O1", "-pipe", "-w", "-DMCUGEN_SECTION(name)=", "-I", ".", f"-fsanitize={_ADDRESSES}"),
    *("-fno-sanitize-recover=all", "-fwrapv"),
)

_BYTES = {
    **{f"{sign}int{8 * n}_t": n for sign in ("", "u") for n in (1, 2, 4, 8)},
    **{"float": 4, "double": 8},
}
Flip = tuple[str, tuple[tuple[int, int, int], ...]]
"""Its kind, and by byte: number of the array, byte, mask."""


@dataclass(frozen=True)
class Result:
    """How runs with flips ended: letters of flip_constants.c.j2 by array and kind of flip."""

    arrays: tuple[str, ...]
    ended: tuple[tuple[Flip, str], ...]

    def count(self, letters: str, kind: str = "") -> int:
        """How many ended so."""
        return sum(end in letters for (k, _), end in self.ended if kind in ("", k))

    @property
    def bad_arrays(self) -> Counter[str]:
        """Those whose flips led astray, and how many did."""
        return Counter(self.arrays[flips[0][0]] for (_, flips), end in self.ended if end in BAD)


def flips_of(sizes: Sequence[int], each: int, seed: int) -> Iterator[Flip]:
    """For each array `each` single flips, and half as many pairs and bursts."""
    draw = random.Random(seed)
    for array, nbytes in enumerate(sizes):
        for _ in range(each):
            yield "single", ((array, draw.randrange(nbytes), 1 << draw.randrange(8)),)
        for _ in range(-(-each // 2)):
            yield "double", tuple((array, draw.randrange(nbytes), 1 << draw.randrange(8)) for _ in range(2))
        for _ in range(-(-each // 2)):
            begin, length = draw.randrange(8 * nbytes), draw.randint(2, 16)
            bits = range(begin, min(begin + length, 8 * nbytes))
            masks = Counter[int]()
            for bit in bits:
                masks[bit // 8] |= 1 << bit % 8
            yield "burst", tuple((array, at, mask) for at, mask in masks.items())


def build(compiled: CompiledModel, folder: Path, checks: bool = False) -> tuple[Path, tuple[str, ...], list[int]]:
    """The program, the names of the arrays, and their bytes. `checks`: whether weights are checked before each run."""
    bundle = compiled.bundle
    declared = re.findall(
        r"^extern MCUGEN_ALIGN\(4\) const (\w+) (\w+)\[(\d+)\];$", bundle.files[f"{bundle.name}_weights.h"], re.M
    )
    names, sizes = tuple(name for _, name, _ in declared), [_BYTES[c] * int(count) for c, _, count in declared]
    for name in (*bundle.sources, *bundle.headers):
        (folder / name).write_text(bundle.files[name])
    template = jinja2.Template((HERE / "flip_constants.c.j2").read_text(), undefined=jinja2.StrictUndefined)
    text = template.render(
        name=bundle.name,
        constants=names,
        inputs=bundle.inputs,
        outputs=bundle.outputs,
        has_state=bundle.has_state,
        checks=checks,
    )
    (folder / "flips.c").write_text(text)
    compiler = Compiler(host_compiler(), _FLAGS, folder)
    changed = f"{bundle.name}_weights.c"
    units = [Unit(s, f"{s}.o", ("-Dconst=",) if s == changed else ()) for s in (*bundle.sources, "flips.c")]
    compiler.compile(units)
    return compiler.link("flips.out", [unit.object for unit in units], ()), names, sizes


def campaign(compiled: CompiledModel, each: int, seed: int = 0, seconds: int = 5, checks: bool = False) -> Result:
    """Builds the model and runs it with flips."""
    with tempfile.TemporaryDirectory(prefix="mcugen-flips-") as name:
        program, arrays, sizes = build(compiled, Path(name), checks)
        flips = list(flips_of(sizes, each, seed))
        lines = [f"{len(f)} " + " ".join(f"{a} {at} {mask}" for a, at, mask in f) for _, f in flips]
        done = subprocess.run(
            [program, str(seconds)],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            check=True,
            env={"ASAN_OPTIONS": "detect_leaks=0:symbolize=0:exitcode=99"},
        )
    return Result(arrays, tuple(zip(flips, done.stdout.split(), strict=True)))


def models(paths: Sequence[Path]) -> list[Path]:
    """The ONNX files that are named, and those in folders that are."""
    return [file for path in paths for file in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="models, or folders of them")
    parser.add_argument("--boards", default="host", help="names, between commas")
    parser.add_argument("--each", type=int, default=6, help="single flips of each array")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="call the check of weights before each run")
    parser.add_argument("--checked-indices", action="store_true", help="as `compile --checked-indices`")
    given = parser.parse_args()
    print("| model | board | arrays | flips | same | different | error | check | out of bounds | no end | where |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for path in models(given.paths):
        for name in given.boards.split(","):
            options = CompileOptions(check_weights=given.check, checked_indices=given.checked_indices)
            print(row(path, load_board(name), options, given.each, given.seed), flush=True)


def row(path: Path, board: Board, options: CompileOptions, each: int, seed: int) -> str:
    """Of the table, for a model and a board."""
    roomy = tuple(replace(m, size=1 << 28) for m in board.memories)
    wanted = replace(options, dims={"batch": 1} if "dynbatch" in path.stem else {})
    try:
        compiled = compile_model(path, replace(board, memories=roomy), wanted)
        found = campaign(compiled, each, seed, checks=options.check_weights)
    except McugenError as error:
        print(f"{path.stem}, {board.name}: {error}", file=sys.stderr)
        return f"| {path.stem} | {board.name} | | | | | | | | | not compiled |"
    counts = [found.count(letter) for letter in "sdecot"]
    where = ", ".join(f"{name.removeprefix(path.stem)} {n}" for name, n in found.bad_arrays.most_common(6))
    numbers = " | ".join(map(str, (len(found.arrays), len(found.ended), *counts)))
    return f"| {path.stem} | {board.name} | {numbers} | {where} |"


if __name__ == "__main__":
    main()
