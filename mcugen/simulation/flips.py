# SPDX-License-Identifier: Apache-2.0
"""Runs a model's self-test on this computer with flipped bits of its constants and of the state it begins with."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.core.errors import VerificationError
from mcugen.simulation.build import build_flips

SAME, DIFFERENT, ERROR, CHECKED, OUT_OF_BOUNDS, NO_END = "sdecot"
"""How a sample may end, as the program prints it: by what is expected, by something else, by an error of the run
function or of the check of weights, by an access that is stopped, not in time."""


@dataclass(frozen=True)
class Flips:
    """Bits to flip together: for each byte the index of its array, its offset, and a mask.

    Arrays are those of Bundle.constants, followed by the state.
    """

    places: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        """Return the text that the program reads."""
        return f"{len(self.places)} " + " ".join(f"{array} {at} {mask}" for array, at, mask in self.places)


def run_flips(
    bundle: Bundle,
    samples: int,
    flips: Sequence[Flips],
    *,
    sanitize: bool = False,
    checks: bool = False,
    seconds: int = 5,
) -> list[str]:
    """For each set of flips, a letter for each of the self-test's samples; a sample takes `seconds` of CPU at most.

    With `sanitize` accesses out of bounds are stopped, else only what the system stops; with `checks` the check of
    weights runs first. VerificationError where samples fail without flips.
    """
    nothing = Flips(())
    with tempfile.TemporaryDirectory(prefix="mcugen-flips-") as folder:
        program = build_flips(bundle, Path(folder), samples, sanitize=sanitize, checks=checks)
        done = subprocess.run(
            [program, str(seconds)],
            input="".join(f"{flip}\n" for flip in [nothing, *flips]),
            capture_output=True,
            text=True,
            check=True,
            env={"ASAN_OPTIONS": "detect_leaks=0:symbolize=0:exitcode=99"},
        )
    intact, *ended = done.stdout.split()
    if intact != SAME * samples:
        raise VerificationError("the self-test must pass on this computer", intact, "report this as a bug of mcugen")
    return ended
