# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/recipes.md, followed to the letter in a copy of the project."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "docs" / "how-to" / "recipes.md"
PARTS = ("mcugen", "templates", "runtime_c", "boards", "tests", "tools", "examples", "docs", "pyproject.toml")
TITLES = [
    "An elementwise operator",
    "An operator",
    "A kernel",
    "A pass",
    "A transformation",
    "An accelerator",
    "A board",
    "A CPU",
    "A CPU feature",
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


PLACED = (
    "tests/core/test_board.py tests/codegen/test_features.py tests/kernels/test_declarations.py "
    "tests/passes/test_before_and_after.py tests/test_lint_variants.py tests/test_structure.py"
)
"""Tests of all boards, features, kernels and passes. Those of the documents' tables need `make docs` first."""


def recipes() -> dict[str, str]:
    """Return the text of each recipe by its title."""
    _, *parts = re.split(r"^## ", RECIPES.read_text(), flags=re.M)
    return dict(part.split("\n", 1) for part in parts)


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, file and content of each block; the file is the last one that the text before the block names."""
    end = 0
    for block in _BLOCK.finditer(text):
        named = re.findall(r"`([\w./]+/[\w.]+)`", text[end : block.start()])
        yield block[1], named[-1] if named else "", block[2]
        end = block.end()


def apply_difference(difference: str, folder: Path) -> None:
    """Replace lines of a file; the lines around them must occur once."""
    head, *hunks = re.split(r"^@@\n", difference, flags=re.M)
    path = folder / re.search(r"^\+\+\+ b/(.*)$", head, re.M)[1]  # type: ignore[index]
    for hunk in hunks:
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        text = path.read_text()
        if before.strip():
            assert text.count(before) == 1, f"{path.name}: {before}"
            path.write_text(text.replace(before, after))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of the project, which is removed afterwards."""
    folder = tmp_path / "project"
    folder.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    yield folder
    shutil.rmtree(folder)


def write_block(kind: str, file: str, content: str, project: Path) -> None:
    """Apply a difference, or write a new file."""
    if kind == "diff":
        apply_difference(content, project)
    else:
        (project / file).write_text(content)


def changed_files(title: str) -> set[str]:
    """Return the files that a recipe writes or changes, its tests left out."""
    named = ((kind, file, content) for kind, file, content in steps(recipes()[title]) if kind != "sh")
    files = {re.search(r"^\+\+\+ b/(.*)$", c, re.M)[1] if kind == "diff" else file for kind, file, c in named}  # type: ignore[index]
    return {file for file in files if not file.startswith("tests/")}


def test_a_cpu_feature_changes_at_most_five_files_which_the_recipe_lists():
    files = changed_files("A CPU feature")
    assert len(files) <= 5
    assert files == set(re.findall(r"^\| `(.*?)` \|", recipes()["A CPU feature"], re.M))


def test_recipes_apply(project: Path):
    """Apply all blocks but the commands, which test_recipes runs."""
    before = {path: path.read_text() for path in project.rglob("*.py")}
    for text in recipes().values():
        for kind, file, content in steps(text):
            if kind != "sh":
                write_block(kind, file, content, project)
    changed = [path for path in project.rglob("*.py") if path.read_text() != before.get(path)]
    assert len(changed) >= 5
    for path in changed:
        ast.parse(path.read_text(), str(path))


def run_command(command: str, project: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(project), "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    for key in [k for k in environment if k.startswith(("PYTEST_XDIST", "COV_"))]:
        del environment[key]
    done = subprocess.run(["sh", "-e", "-c", command], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.riscv
def test_recipes(project: Path):
    """Follow all recipes; with their results in place, the other tests still pass."""
    assert list(recipes()) == TITLES
    for text in recipes().values():
        for kind, file, content in steps(text):
            if kind == "sh":
                run_command(content, project)
            else:
                write_block(kind, file, content, project)
    run_command(f'pytest -q -x -m "not slow" {PLACED}', project)
