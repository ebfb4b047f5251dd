# SPDX-License-Identifier: Apache-2.0
"""The basis of a report's figures: versions and digests, which tell whether two reports can be compared."""

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
"""Version of the report's JSON (docs/report.schema.json), which is increased if a key is removed or changes meaning."""


@dataclass(frozen=True)
class Basis:
    """Versions and SHA-256 digests of everything that the figures of a report depend on.

    Attributes:
        schema: Version of the report's JSON.
        mcugen: Version of mcugen.
        options: Options that affect the generated code.
        board_sha256: Digest of the board's description.
        compiler: Version of the C compiler; None if nothing was built.
        simulator: Version of the simulator; None if nothing was simulated.
        data_sha256: Digest of the evaluation samples; None without samples.
        calibration_sha256: Digest of the calibration samples; None without samples.
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
        """Return the basis of a report before anything is built or run; the fields on that are None.

        Args:
            board: The board.
            options: Options that affect the generated code, as text.
            calibration_sha256: Digest of the calibration samples; None without samples.
        """
        description = json.dumps(asdict(board), sort_keys=True, default=sorted)
        digest = hashlib.sha256(description.encode()).hexdigest()
        return cls(SCHEMA, __version__, options, digest, calibration_sha256=calibration_sha256)


def samples_sha256(samples: Sequence[Mapping[str, Array]], labels: Array | None = None) -> str:
    """Return the SHA-256 of samples, independent of their file format: values, types and shapes, in order.

    Args:
        samples: Arrays by name, for each sample.
        labels: The samples' labels, which count too; None if unknown.
    """
    digest = hashlib.sha256()
    arrays = [(name, array) for sample in samples for name, array in sorted(sample.items())]
    for name, array in [*arrays, *([] if labels is None else [("labels", labels)])]:
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
