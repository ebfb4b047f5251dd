# SPDX-License-Identifier: Apache-2.0
"""Rewrites the generated passages of README.md and docs/operators.md (`make docs`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from markers import replace_between_markers

ROOT = Path(__file__).resolve().parents[1]
MCUGEN = Path(sys.executable).with_name("mcugen")
DEMO = (
    "report",
    "examples/digits/digits_int8.onnx",
    "--board",
    "rt1060",
    "--data",
    "examples/digits/eval.npz",
    "--quiet",
)


def output(*arguments: str) -> str:
    """What a mcugen command prints on an 80-column terminal, lines stripped on the right."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run([MCUGEN, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")


def rewrite(path: Path, name: str, content: str) -> None:
    """Puts `content` between the markers of a document."""
    path.write_text(replace_between_markers(path.read_text(), name, content))


def main() -> None:
    """All passages."""
    demo = f"What `make demo` prints (`mcugen {' '.join(DEMO)}`):\n\n```\n{output(*DEMO)}\n```"
    rewrite(ROOT / "README.md", "demo", demo)
    rewrite(ROOT / "docs" / "operators.md", "operators", output("operators"))


if __name__ == "__main__":
    main()
