# SPDX-License-Identifier: Apache-2.0
"""Which generated files differ between this source tree and another, over models, boards and goals.

Equal C has equal bits and equal instructions: the safety net of a change that shall move code and nothing else.

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
    """0 if all files are equal, 1 if some differ; prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="root of the other source tree")
    parser.add_argument("--models", nargs="*", type=Path, help="ONNX files; else all shared ones")
    parser.add_argument("--boards", default=BOARDS)
    parser.add_argument("--goals", default=GOALS)
    parser.add_argument("--digests", action="store_true", help="prints digests of the tree that Python imports, alone")
    asked = parser.parse_args()
    models = asked.models or sorted([*(SHARED / "models").glob("*.onnx"), *(SHARED / "zoo").glob("*.onnx")])
    wanted = [f"--boards={asked.boards}", f"--goals={asked.goals}", "--models", *(str(m.resolve()) for m in models)]
    if asked.digests:
        for line in _digests(models, asked.boards.split(","), asked.goals.split(",")):
            print(json.dumps(line), flush=True)
        return 0
    if asked.against is None:
        parser.error("--against names the other tree")
    mine, other = (_started(tree, wanted) for tree in (ROOT, asked.against))
    return _compared(mine, other)


def _digests(models: list[Path], boards: list[str], goals: list[str]) -> Iterator[list[object]]:
    """Of each compilation its model, board and goal, and by file a digest; or the error."""
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


def _started(tree: Path, wanted: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--digests", *wanted]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
    return subprocess.Popen(command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True)


def _compared(mine: subprocess.Popen[str], other: subprocess.Popen[str]) -> int:
    """Line by line, as both come."""
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
