# SPDX-License-Identifier: Apache-2.0
"""Shards of the test suite: `pytest --shard K/N` runs the K-th of N parts, so that several machines can share a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest


class Shard(NamedTuple):
    """One of several parts of the test files.

    Attributes:
        number: The part, from 1 on.
        count: The number of parts.
    """

    number: int
    count: int

    def takes(self, path: Path, root: Path) -> bool:
        """Return whether pytest shall collect a path: a folder, or a test file of this shard.

        The path of a file relative to `root` decides. A file is never divided, because its tests share fixtures.
        """
        digest = crc32(path.relative_to(root).as_posix().encode())
        return not path.match("test_*.py") or digest % self.count == self.number - 1


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as `2/4` names.

    Raises:
        pytest.UsageError: The text names no shard.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--shard must be K/N with 1 <= K <= N, such as 2/4. found: {text!r}")
    return Shard(int(number), int(count))
