# SPDX-License-Identifier: Apache-2.0
"""What a tool says of some files, remembered by its command, its version and the files' contents."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


def heard(command: Sequence[str], files: Mapping[str, str], kept: Path | None = None) -> tuple[int, str]:
    """The exit code, and what it wrote, of a command in a folder with these files. `kept` is a folder with what was
    heard before, where nothing needs to run again."""
    if kept is None:
        return _heard(command, files)
    asked = json.dumps([version(command[0]), command, files])
    file = kept / hashlib.sha256(asked.encode()).hexdigest()
    if not file.exists():
        kept.mkdir(parents=True, exist_ok=True)
        answer = json.dumps(_heard(command, files))
        file.with_suffix(".new").write_text(answer)
        file.with_suffix(".new").replace(file)
    code, text = json.loads(file.read_text())
    return code, text


@cache
def version(tool: str) -> str:
    """As the tool tells it."""
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout


def _heard(command: Sequence[str], files: Mapping[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as place:
        for name, text in files.items():
            (Path(place) / name).write_text(text)
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
