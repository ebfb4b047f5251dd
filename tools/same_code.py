# SPDX-License-Identifier: Apache-2.0
"""Compares the generated C of this source tree and another, over models, boards and goals.

Equal C has equal results and equal instructions. Use it after a refactoring that must not change generated code.

    git worktree add /tmp/before main
    tools/same_code.py --against /tmp/before --boards nrf52840,rp2040
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
BOARDS = "host,rp2040,nrf52840,stm32h743,corstone300,gd32vf103"
GOALS = "balanced,speed,ram,flash"


def main() -> int:
    """Print the files that differ; return 0 if all files are equal, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="root of the other source tree")
    parser.add_argument("--models", nargs="*", type=Path, help="ONNX files; else all shared ones")
    parser.add_argument("--boards", default=BOARDS)
    parser.add_argument("--goals", default=GOALS)
    parser.add_argument("--digests", action="store_true", help="only print digests of the tree that Python imports")
    options = parser.parse_args()
    models = options.models or sorted([*(SHARED / "models").glob("*.onnx"), *(SHARED / "zoo").glob("*.onnx")])
    arguments = [
        f"--boards={options.boards}",
        f"--goals={options.goals}",
        "--models",
        *(str(m.resolve()) for m in models),
    ]
    if options.digests:
        for line in _compile_all(models, options.boards.split(","), options.goals.split(",")):
            print(json.dumps(line), flush=True)
        return 0
    if options.against is None:
        parser.error("--against names the other tree")
    mine, other = (_start_digests(tree, arguments) for tree in (ROOT, options.against))
    return _compare(mine, other)


def _compile_all(models: list[Path], boards: list[str], goals: list[str]) -> Iterator[list[object]]:
    """Yield model, board, goal and digests by file (or the error) of each compilation."""
    from mcugen.core.errors import McugenError
    from mcugen.core.options import CompileOptions
    from mcugen.driver.compiler import compile_model

    for model in models:
        for board in boards:
            for goal in goals:
                try:
                    files = compile_model(model, board, CompileOptions(optimize=goal)).bundle.files
                except McugenError as error:
                    files = {"error": str(error)}
                digests = {file: hashlib.sha256(text.encode()).hexdigest() for file, text in files.items()}
                yield [model.name, board, goal, digests]


def _start_digests(tree: Path, arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--digests", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
    return subprocess.Popen(command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True)


def _compare(mine: subprocess.Popen[str], other: subprocess.Popen[str]) -> int:
    """Compare the digests of both processes line by line; return the exit code."""
    assert mine.stdout is not None and other.stdout is not None
    compilations = files = differing = 0
    for line, before in zip(map(json.loads, mine.stdout), map(json.loads, other.stdout), strict=True):
        changed = sorted(file for file in {*line[3], *before[3]} if line[3].get(file) != before[3].get(file))
        compilations, files, differing = compilations + 1, files + len(line[3]), differing + len(changed)
        if changed:
            print(f"{line[0]} on {line[1]}, {line[2]}: {', '.join(changed)}")
    print(f"{compilations} compilations, {files} files: {differing} differ")
    return int(bool(differing or mine.wait() or other.wait() or not compilations))


if __name__ == "__main__":
    sys.exit(main())
