# SPDX-License-Identifier: Apache-2.0
"""Shards have each test file once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from shards import Shard, parse_shard

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_each_file_is_in_one_shard(count: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    parts = [[file for file in FILES if shard.takes(file, TESTS)] for shard in shards]
    assert sorted(file for part in parts for file in part) == FILES
    assert min(map(len, parts)) > len(FILES) / count / 2


def test_each_shard_takes_folders_and_helpers() -> None:
    for path in (TESTS / "ops", TESTS / "conftest.py", TESTS / "shards.py"):
        assert all(Shard(number, 3).takes(path, TESTS) for number in (1, 2, 3))


def collected(*options: str) -> list[str]:
    """Return the test files of a small folder in which pytest finds tests."""
    arguments = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        TESTS.parent,
        TESTS / "export",
        *options,
    ]
    command = [sys.executable, "-m", "pytest", *map(str, arguments)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    return re.findall(r"^tests/export/(\w+\.py): \d+$", done.stdout, re.MULTILINE)


def test_pytest_collects_the_files_of_a_shard() -> None:
    files = [path.name for path in FILES if path.parent.name == "export"]
    assert sorted(collected("--shard", "1/2") + collected("--shard", "2/2")) == files
    assert collected() == files


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "a/b", "1/0", "-1/4", "1/4/2", "1.5/2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="--shard must be K/N"):
        parse_shard(text)
