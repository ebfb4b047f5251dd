# SPDX-License-Identifier: Apache-2.0
"""Fault injection: runs of a model's self-test on this computer with flipped bits in constants and the first state."""

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
"""Letters for the outcome of a sample under fault injection.

SAME (s): the expected output; DIFFERENT (d): another output; ERROR (e): the run function returned an error; CHECKED
(c): the weight check found the fault; OUT_OF_BOUNDS (o): an access out of bounds was stopped; NO_END (t): timeout.
"""


@dataclass(frozen=True)
class Flips:
    """Bits that are flipped together before a run of the self-test.

    Attributes:
        places: For each byte, the index of an array (of Bundle.constants, followed by the state), the offset of the
            byte in the array, and the mask of the bits to flip.
    """

    places: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        """Return the line that the fault-injection program reads."""
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
    """Run the self-test on this computer once for each set of flipped bits.

    Args:
        bundle: The model.
        samples: Number of the self-test's samples.
        flips: The sets of flipped bits.
        sanitize: Whether a sanitizer stops accesses out of bounds; otherwise only the operating system does.
        checks: Whether the model checks its weights before each sample.
        seconds: Largest CPU time of a sample in seconds.

    Returns:
        For each set of flips, a text with one letter for each sample: the constants SAME (s), DIFFERENT (d), ERROR (e),
            CHECKED (c), OUT_OF_BOUNDS (o) and NO_END (t) of this module.

    Raises:
        VerificationError: A sample fails without flips.
    """
    nothing = Flips(())
    with tempfile.TemporaryDirectory(prefix="mcugen-flips-") as folder:
        program = build_flips(bundle, Path(folder), samples, sanitize=sanitize, checks=checks)
        completed = subprocess.run(
            [program, str(seconds)],
            input="".join(f"{flip}\n" for flip in [nothing, *flips]),
            capture_output=True,
            text=True,
            check=True,
            env={"ASAN_OPTIONS": "detect_leaks=0:symbolize=0:exitcode=99"},
        )
    intact, *ended = completed.stdout.split()
    if intact != SAME * samples:
        raise VerificationError("the self-test must pass on this computer", intact, "report this as a bug of mcugen")
    return ended
