# SPDX-License-Identifier: Apache-2.0
"""Files, command lines and code of mcugen 0.1.0 with this version: what still works, and what the messages say.

golden/v0.1.0 has files that mcugen 0.1.0 (commit 535ba17a7) wrote for tiny.onnx on the board nrf52840: a report,
settings of `mcugen init`, the folder of `mcugen compile` (mcugen.h without what follows its codes), and the names of
its public interface. The next minor version replaces them by files of this one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import warnings
from pathlib import Path

import pytest
import typer
from command_line import mcugen

import mcugen as package
from mcugen import __version__
from mcugen.cli.app import app
from mcugen.codegen.install import MANIFEST
from mcugen.codegen.render import ABI_VERSION
from mcugen.core.board import board_names
from mcugen.core.errors import OutputError
from mcugen.core.version import RELEASE_DATE
from mcugen.export.formats import FORMATS
from mcugen.options.settings import FILE, settings_kinds

ROOT = Path(__file__).resolve().parents[1]
EARLIER = Path(__file__).parent / "golden" / "v0.1.0"
MODEL, REPORT, CODE = EARLIER / "tiny.onnx", EARLIER / "report.json", EARLIER / "tiny"
INTERFACE = json.loads((EARLIER / "interface.json").read_text())
MAX_CHANGELOG_WORDS = 2_000
"""Most words of the changelog of one version, so that users read all of it."""


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """The same model, compiled by this version."""
    folder = tmp_path / "ours"
    done = mcugen("compile", MODEL, "--board", "nrf52840", "-o", folder)
    assert done.code == 0, done.err
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------------------- version


def test_all_files_name_the_same_version() -> None:
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == __version__
    assert f'date-released: "{RELEASE_DATE}"\n' in (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "mcugen/core/version.py"


def test_the_changelog_has_a_short_section_of_this_version() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert titles[0] == "[Unreleased]"
    assert titles[1] == f"[{__version__}] - {RELEASE_DATE}"
    assert all(len(section.split()) <= MAX_CHANGELOG_WORDS for section in sections)


# ------------------------------------------------------------------------------------------------------------- reports


@pytest.mark.qemu
def test_a_report_is_compared_with_one_of_this_version(tmp_path: Path) -> None:
    after = tmp_path / "after.json"
    done = mcugen("report", MODEL, "--board", "nrf52840", "--json", after, "--quiet")
    assert done.code == 0, done.err
    done = mcugen("diff", REPORT, after, "--json", "-")
    assert done.code == 0, done.err
    difference = json.loads(done.out)
    assert {"what": "mcugen", "before": "0.1.0", "after": __version__} in difference["causes"]
    assert [layer["what"] for layer in difference["layers"] if layer["what"] in ("new", "gone")] == []
    assert missing_keys(json.loads(REPORT.read_text()), json.loads(after.read_text())) == []


def missing_keys(before: object, after: object, place: str = "") -> list[str]:
    """Return the keys of a report that another one lacks; values that are not known (null) are not compared."""
    if isinstance(before, dict) and isinstance(after, dict) and not place.endswith(".functions"):
        found = [f"{place}.{key}" for key in before if key not in after]
        return found + [
            name for key in before.keys() & after for name in missing_keys(before[key], after[key], f"{place}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and before and after:
        return missing_keys(before[0], after[0], f"{place}[]")
    return []


def test_layers_are_matched_by_their_nodes() -> None:
    """0.1.0 called them `a` and `y`, after their tensors."""
    report = json.loads(REPORT.read_text())
    assert [layer["name"] for layer in report["layers"]] == ["a", "y"]
    renamed = [
        {**layer, "name": name, "reason": "-"}
        for layer, name in zip(report["layers"], ("rectify", "scores"), strict=True)
    ]
    renamed[1]["cycles_estimate"] += 9
    assert changes(report, {**report, "layers": renamed}) == ["scores"]


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    from mcugen.reporting.differences import differences
    from mcugen.reporting.stored import _adapter

    read = _adapter().validate_python
    return [change.title for change in differences(read(before), read(after)).layers]


def test_layers_that_share_their_nodes_are_not_matched() -> None:
    report = json.loads(REPORT.read_text())
    layers = [{**layer, "origin": ["scores"]} for layer in report["layers"]]
    renamed = [{**layer, "name": f"scores_{i}"} for i, layer in enumerate(layers)]
    assert sorted(changes({**report, "layers": layers}, {**report, "layers": renamed})) == [
        "a",
        "scores_0",
        "scores_1",
        "y",
    ]


def test_a_page_is_made_of_a_report(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = mcugen("view", REPORT, "-o", page)
    assert done.code == 0, done.err
    assert "0.1.0" in page.read_text()


# ---------------------------------------------------------------------------------------------------------------- code


def compile_c(folder: Path, source: str, *include: Path) -> subprocess.CompletedProcess[str]:
    (folder / "mixed.c").write_text(source)
    command = ["gcc", "-std=c99", "-fsyntax-only", *(f"-I{path}" for path in include), "mixed.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("source", "include"),
    [
        ('#include "ours/mcugen.h"\n#include "earlier/tiny.h"\n', ()),
        ('#include "earlier/mcugen.h"\n#include "ours/tiny.h"\n', ()),
        ('#include "tiny.h"\n', ("earlier_without_header", "ours")),
        ('#include "tiny.h"\n', ("ours_without_header", "earlier")),
    ],
)
def test_code_of_two_versions_does_not_compile_together(
    ours: Path, tmp_path: Path, source: str, include: tuple[str, ...]
) -> None:
    shutil.copytree(CODE, tmp_path / "earlier")
    for name in ("ours", "earlier"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}_without_header")
        (tmp_path / f"{name}_without_header" / "mcugen.h").unlink()
    done = compile_c(tmp_path, source, *(tmp_path / name for name in include))
    assert done.returncode != 0
    assert "tiny was generated for another version of mcugen.h: take that beside it" in done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("version", ["earlier", "ours"])
def test_code_of_one_version_compiles(ours: Path, version: str) -> None:
    done = compile_c(ours.parent, '#include "tiny.h"\n', CODE if version == "earlier" else ours)
    assert done.returncode == 0, done.stderr


def test_symbols_and_codes_are_kept(ours: Path) -> None:
    """The ABI version counts changes of the header; names and values that callers use stay."""
    symbol = re.compile(r"\btiny_\w+(?=\()|\b(?:TINY|MCUGEN)_\w+")
    before, after = (set(symbol.findall((folder / "tiny.h").read_text())) for folder in (CODE, ours))
    assert {"tiny_run", "tiny_selftest", "TINY_ARENA_SIZE", "TINY_INPUT_BYTES"} <= before <= after
    value = re.compile(r"#define (MCUGEN_(?:ERROR_\w+|OK|DONE|AGAIN)) (\S+)")
    before, after = (set(value.findall((folder / "mcugen.h").read_text())) for folder in (CODE, ours))
    assert len(before) > 20 and before <= after
    assert f"#define MCUGEN_ABI_VERSION {ABI_VERSION}\n" in (ours / "mcugen.h").read_text() and ABI_VERSION > 2


def test_a_folder_of_0_1_0_needs_force_once(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(CODE, folder)
    arguments = ("compile", MODEL, "--board", "nrf52840", "-o", folder)
    done = mcugen(*arguments)
    message = " ".join(done.err.split())
    assert done.code == OutputError.exit_code
    assert "mcugen 0.1.0 wrote these files without their hashes, so edits cannot be told" in message
    assert "save your edits, then give --force once" in message and message.endswith(f"-o {folder} --force")
    assert contents(folder) == contents(CODE)
    assert [mcugen(*arguments, *more).code for more in (("--force",), ())] == [0, 0]
    assert (folder / MANIFEST).exists()


def test_a_file_of_the_user_is_not_taken_for_one_of_0_1_0(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "tiny.c").write_text("/* Generated by mcugen 0.1.0 from memory */ int mine;\n")
    done = mcugen("compile", MODEL, "--board", "nrf52840", "-o", folder)
    assert done.code == OutputError.exit_code and "files that mcugen did not write" in " ".join(done.err.split())


# ----------------------------------------------------------------------------------------------------------- interface


def test_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE, MODEL.name, "samples.npz"):
        shutil.copy(EARLIER / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    done = mcugen("compile", "-o", "out")
    assert done.code == 0, done.err
    assert "settings of mcugen.toml: model, board, optimize, place" in done.err
    assert (tmp_path / "out" / "tiny.h").exists()
    assert [key for key in INTERFACE["settings"] if key not in settings_kinds()] == []


def test_commands_and_options_are_kept() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    missing = [
        f"{name} {option}"
        for name, options in INTERFACE["commands"].items()
        for option in options
        if not any(option in (*p.opts, *p.secondary_opts) for p in commands[name].params)
    ]
    assert len(INTERFACE["commands"]) == 20 and missing == []


def test_formats_and_boards_are_kept() -> None:
    assert set(INTERFACE["formats"]) <= set(FORMATS)
    assert set(INTERFACE["boards"]) <= set(board_names())


def test_python_names_work_and_those_that_go_say_so() -> None:
    for name in INTERFACE["python"]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert getattr(package, name) is not None
        is_deprecated = [issubclass(w.category, DeprecationWarning) for w in caught] == [True]
        assert is_deprecated != (name in package.__all__), name
