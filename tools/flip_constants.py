# SPDX-License-Identifier: Apache-2.0
"""Flips bits of a model's constants and runs it: does any flip lead out of an array, or to a run without an end?

For each array of constants, and for the state of a stream as if it was loaded so, some single bits, pairs of bits
anywhere in it, and bursts of up to 16 bits one behind the other are flipped. The code is that for a board, built for
this computer, where it is plain C, with the sanitizers of addresses and undefined behaviour of pointers. Arithmetic may
overflow: values are wrong then, and nothing else.

    python tools/flip_constants.py ../shared/models ../shared/zoo --boards host,nrf52840 --each 6
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.subjects import roomy
from zoo import BOUND, SIZES

from mcugen import McugenError
from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation.flips import NO_END, OUT_OF_BOUNDS, Flips, run_flips

BAD = OUT_OF_BOUNDS + NO_END
"""What must not happen: an access out of bounds, or no end."""
KINDS = ("single", "double", "burst")
STATES = {
    "dtln_1": {"tf_op_layer_stack_2": "input_3"},
    "gtcrn_stream": {f"{cache}_cache_out": f"{cache}_cache" for cache in ("conv", "tra", "inter")},
    "silero_vad_16k": {"stateN": "state"},
}
"""Of the models that are streams, what their caller keeps, as `compile --state`."""


@dataclass(frozen=True)
class Result:
    """Outcomes of runs with bit flips: letters of mcugen.simulation.flips by array and kind of flip."""

    arrays: tuple[str, ...]
    ended: tuple[tuple[str, Flips, str], ...]

    def count(self, letters: str, kind: str = "") -> int:
        """Return the number of runs that ended with one of the letters."""
        return sum(end in letters for k, _, end in self.ended if kind in ("", k))

    @property
    def bad_arrays(self) -> Counter[str]:
        """Return the arrays whose flips had a bad end, each with the number of such flips."""
        return Counter(self.arrays[flips.places[0][0]] for _, flips, end in self.ended if end in BAD)


def flips_of(sizes: Sequence[int], each: int, seed: int) -> Iterator[tuple[str, Flips]]:
    """Yield `each` single flips per array, and half as many pairs and bursts, with their kinds."""
    draw = random.Random(seed)
    for array, nbytes in enumerate(sizes):
        for _ in range(each):
            yield "single", Flips(((array, draw.randrange(nbytes), 1 << draw.randrange(8)),))
        for _ in range(-(-each // 2)):
            yield "double", Flips(tuple((array, draw.randrange(nbytes), 1 << draw.randrange(8)) for _ in range(2)))
        for _ in range(-(-each // 2)):
            begin, length = draw.randrange(8 * nbytes), draw.randint(2, 16)
            bits = range(begin, min(begin + length, 8 * nbytes))
            masks = Counter[int]()
            for bit in bits:
                masks[bit // 8] |= 1 << bit % 8
            yield "burst", Flips(tuple((array, at, mask) for at, mask in masks.items()))


def campaign(compiled: CompiledModel, each: int, seed: int = 0, seconds: int = 5, checks: bool = False) -> Result:
    """Build the model and run its self-test with flips; with `checks`, weights are checked before each run."""
    constants, state = compiled.bundle.constants, compiled.program.state_size
    flips = list(flips_of([constant.nbytes for constant in constants] + [state] * bool(state), each, seed))
    ended = run_flips(compiled.bundle, 1, [f for _, f in flips], sanitize=True, checks=checks, seconds=seconds)
    names = (*(constant.name for constant in constants), "state")
    return Result(names, tuple((kind, f, end) for (kind, f), end in zip(flips, ended, strict=True)))


def models(paths: Sequence[Path]) -> list[Path]:
    """Return the named ONNX files, and those in named folders."""
    return [file for path in paths for file in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="models, or folders of them")
    parser.add_argument("--boards", default="host", help="names, between commas")
    parser.add_argument("--each", type=int, default=6, help="single flips of each array")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=5, help="of CPU, that a run may take")
    parser.add_argument("--check", action="store_true", help="call the check of weights before each run")
    parser.add_argument("--checked-indices", action="store_true", help="as `compile --checked-indices`")
    given = parser.parse_args()
    print("| model | board | arrays | flips | same | different | error | check | out of bounds | no end | where |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for path in models(given.paths):
        for name in given.boards.split(","):
            options = CompileOptions(check_weights=given.check, checked_indices=given.checked_indices)
            print(row(path, load_board(name), options, given.each, given.seed, given.seconds), flush=True)


def row(path: Path, board: Board, options: CompileOptions, each: int, seed: int, seconds: int) -> str:
    """Return the row of the table for a model and a board."""
    dims, bound, states = (of.get(path.stem, {}) for of in (SIZES, BOUND, STATES))
    wanted = replace(options, dims=dims, bound=bound, states=states)  # type: ignore[arg-type]
    try:
        compiled = compile_model(path, roomy(board, 1 << 28), wanted)
        found = campaign(compiled, each, seed, seconds, checks=options.check_weights)
    except McugenError as error:
        print(f"{path.stem}, {board.name}: {error}", file=sys.stderr)
        return f"| {path.stem} | {board.name} | | | | | | | | | not compiled |"
    counts = [found.count(letter) for letter in "sdecot"]
    where = ", ".join(f"{name.removeprefix(path.stem)} {n}" for name, n in found.bad_arrays.most_common(6))
    numbers = " | ".join(map(str, (len(found.arrays), len(found.ended), *counts)))
    return f"| {path.stem} | {board.name} | {numbers} | {where} |"


if __name__ == "__main__":
    main()
