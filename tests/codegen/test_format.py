# SPDX-License-Identifier: Apache-2.0
"""Generated C has one format: clang-format changes nothing, and no line has more than 120 columns."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from model_variants import MODELS, OF_FILES_AND_RAW_DATA

from mcugen.core.resources import resource_dir
from mcugen.driver.compiler import compile_model

STYLE = resource_dir("templates") / ".clang-format"


def files_of(form: str) -> dict[str, str]:
    """The C files of a model, by their names."""
    make, board, options = (MODELS | OF_FILES_AND_RAW_DATA)[form]
    bundle = compile_model(make().model(), board, replace(options, validation=form in MODELS)).bundle
    return {name: text for name, text in bundle.files.items() if name.endswith((".c", ".h"))}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """Of all forms, by paths; what is the same in several once."""
    forms = enumerate((*MODELS, *OF_FILES_AND_RAW_DATA))
    paths = {text: f"{number}/{name}" for number, form in forms for name, text in files_of(form).items()}
    return {path: text for text, path in paths.items()}


def test_clang_format_changes_nothing(files: dict[str, str], tmp_path: Path):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [str(Path(sys.executable).parent / "clang-format"), f"--style=file:{STYLE}", "--dry-run", "--Werror"]
    done = subprocess.run([*command, *sorted(files)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def test_no_line_is_longer_than_120_columns(files: dict[str, str]):
    lines = [(path, line) for path, text in files.items() for line in text.split("\n")]
    assert [line for line in lines if len(line[1]) > 120] == []
    assert [line for line in lines if line[1] != line[1].rstrip()] == []
