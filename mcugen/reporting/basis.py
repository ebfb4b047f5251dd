# SPDX-License-Identifier: Apache-2.0
"""The basis of a report's figures: versions and digests, without which two reports cannot be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from mcugen.core.board import Board
from mcugen.core.version import __version__
from mcugen.hir.types import Array

SCHEMA = 2
"""Version of the report's JSON (docs/report.schema.json): it grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class Basis:
    """Versions and SHA-256 digests on which a report rests; None where nothing ran, or no samples were given.

    `options` are those that shape the code, `compiler` and `simulator` what built and ran it. Digests are of the
    board's description and of samples as the model takes them.
    """

    schema: int
    mcugen: str
    options: str
    board_sha256: str
    compiler: str | None = None
    simulator: str | None = None
    data_sha256: str | None = None
    calibration_sha256: str | None = None

    @classmethod
    def of(cls, board: Board, options: str, calibration_sha256: str | None) -> Basis:
        """Return the basis as far as it is known before anything ran."""
        description = json.dumps(asdict(board), sort_keys=True, default=sorted)
        digest = hashlib.sha256(description.encode()).hexdigest()
        return cls(SCHEMA, __version__, options, digest, calibration_sha256=calibration_sha256)


def samples_sha256(samples: Sequence[Mapping[str, Array]], labels: Array | None = None) -> str:
    """Return a digest of the values, types and shapes of samples in their order, whatever file they came from."""
    digest = hashlib.sha256()
    arrays = [(name, array) for sample in samples for name, array in sorted(sample.items())]
    for name, array in [*arrays, *([] if labels is None else [("labels", labels)])]:
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
