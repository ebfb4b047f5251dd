# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users, each with the command that the hint suggests, or without a hint where none is certain.

mistakes.tsv has a mistake and its hint in each line. A hint has a command that works, but for placeholders such as
BOARD, and it keeps all other options.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
import pytest
import typer
from command_line import mcugen
from onnx_models import Net

from mcugen.cli.app import app
from mcugen.cli.corrections import corrected_command
from mcugen.core.nearest import nearest, nearest_spelling, typos

MISTAKES = [
    tuple(line.split("\t"))
    for line in (Path(__file__).with_name("mistakes.tsv")).read_text().splitlines()
    if not line.startswith("#")
]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models that the mistakes name."""
    folder, net = tmp_path_factory.mktemp("mistakes"), Net()
    net.output(net.op("Relu", net.input("x", 1, 4)))
    for name in ("m.onnx", "mobilenet_f32.onnx"):
        onnx.save(net.plain_model(), folder / name)
    return folder


def hint(mistake: str) -> str:
    """Return the command that is suggested after a mistake; "" for none, and for help."""
    done = mcugen(*shlex.split(mistake)[1:])
    assert done.code in (2, 3), done.err
    last = done.err.rstrip().splitlines()[-1]
    is_help = last.endswith(("--help", "--help-all")) and not mistake.endswith(("-h", "help", "--help-al"))
    is_look = last.startswith("    ls -l")
    return last.strip() if last.startswith("    ") and not (is_help or is_look) else ""


def test_the_corpus_is_large() -> None:
    assert len({mistake for mistake, _ in MISTAKES}) == len(MISTAKES) >= 150
    assert sum(not expected for _, expected in MISTAKES) >= 30


@pytest.mark.parametrize(("mistake", "expected"), MISTAKES, ids=[mistake for mistake, _ in MISTAKES])
def test_a_mistake_has_its_hint(mistake: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert hint(mistake) == expected


@pytest.mark.parametrize("command", sorted({expected for _, expected in MISTAKES if expected}))
def test_a_hint_needs_no_hint(command: str) -> None:
    assert corrected_command(shlex.split(command)[1:], COMMANDS) == ""


@pytest.mark.parametrize(
    ("word", "names", "expected"),
    [
        ("sped", ["speed", "ram"], "speed"),
        ("SPEED", ["speed", "ram"], "speed"),
        ("pseed", ["speed", "ram"], "speed"),
        ("int4", ["int8", "int16x8"], None),
        ("int16", ["int8", "int16x8"], "int16x8"),
        ("int", ["int8", "int16x8"], None),
        ("rom", ["ram"], None),
        ("abcdx", ["abcda", "abcdb"], None),
        ("", ["speed"], None),
        ("speed", [], None),
    ],
)
def test_the_nearest_name_is_certain_or_none(word: str, names: list[str], expected: str | None) -> None:
    assert nearest(word, names) == expected


def test_a_synonym_is_a_name_that_exists() -> None:
    assert nearest("size", ["flash", "ram"], {"size": "flash"}) == "flash"
    assert nearest("size", ["ram"], {"size": "flash"}) is None
    assert nearest_spelling("boards2", ["boards1"]) is None


@pytest.mark.parametrize(
    ("word", "name", "number"),
    [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("kitten", "sitting", 3), ("abc", "abc", 0)],
)
def test_typing_errors_are_counted(word: str, name: str, number: int) -> None:
    assert typos(word, name) == typos(name, word) == number
