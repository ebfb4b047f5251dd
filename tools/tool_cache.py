# SPDX-License-Identifier: Apache-2.0
"""Cache of the output of tools, keyed by command line, version of the tool, and contents of the files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


def run_tool(command: Sequence[str], files: Mapping[str, str], kept: Path | None = None) -> tuple[int, str]:
    """Run a command in a folder with these files, unless the cache has its output.

    Args:
        command: Program and arguments.
        files: Text of each file by its name.
        kept: Folder of the cache; None: run the command always.

    Returns:
        The exit code, and stdout followed by stderr.
    """
    if kept is None:
        return _run_tool(command, files)
    key = json.dumps([version(command[0]), command, files])
    file = kept / hashlib.sha256(key.encode()).hexdigest()
    if not file.exists():
        kept.mkdir(parents=True, exist_ok=True)
        output = json.dumps(_run_tool(command, files))
        file.with_suffix(".new").write_text(output)
        file.with_suffix(".new").replace(file)
    code, text = json.loads(file.read_text())
    return code, text


@cache
def version(tool: str) -> str:
    """Return what the tool prints for --version."""
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout


def _run_tool(command: Sequence[str], files: Mapping[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as place:
        for name, text in files.items():
            (Path(place) / name).write_text(text)
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
