# SPDX-License-Identifier: Apache-2.0
"""docs/recipes.md, followed to the letter in a copy of the project."""

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
RECIPES = ROOT / "docs" / "recipes.md"
PARTS = ("mcugen", "templates", "runtime_c", "boards", "tests", "tools", "examples", "docs", "pyproject.toml")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def recipes() -> dict[str, str]:
    """Their texts by title."""
    _, *parts = re.split(r"^## ", RECIPES.read_text(), flags=re.M)
    return dict(part.split("\n", 1) for part in parts)


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """(kind, file, content) of each block; the file of a new one is the last that the text before it names."""
    end = 0
    for block in _BLOCK.finditer(text):
        named = re.findall(r"`([\w./]+/[\w.]+)`", text[end : block.start()])
        yield block[1], named[-1] if named else "", block[2]
        end = block.end()


def apply(difference: str, folder: Path) -> None:
    """Lines that go or come in the only place where those around them stand."""
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
def project(tmp_path: Path) -> Path:
    """A copy, in which one recipe follows the other."""
    folder = tmp_path / "project"
    folder.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return folder


def make(kind: str, file: str, content: str, project: Path) -> None:
    """What a block says of a file: how it differs, or all of it."""
    if kind == "diff":
        apply(content, project)
    else:
        (project / file).write_text(content)


def test_what_a_recipe_changes_is_there(project: Path):
    """All of that, without the commands, which the sweep runs."""
    before = {path: path.read_text() for path in project.rglob("*.py")}
    for text in recipes().values():
        for kind, file, content in steps(text):
            if kind != "sh":
                make(kind, file, content, project)
    changed = [path for path in project.rglob("*.py") if path.read_text() != before.get(path)]
    assert len(changed) >= 5
    for path in changed:
        ast.parse(path.read_text(), str(path))


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.riscv
def test_recipes(project: Path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(project), "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    for key in [k for k in environment if k.startswith(("PYTEST_XDIST", "COV_"))]:
        del environment[key]
    assert list(recipes()) == ["An operator", "A kernel", "A pass", "A board", "A CPU"]
    for title, text in recipes().items():
        for kind, file, content in steps(text):
            if kind == "sh":
                done = subprocess.run(
                    ["sh", "-e", "-c", content], cwd=project, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{title}:\n{content}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            else:
                make(kind, file, content, project)
