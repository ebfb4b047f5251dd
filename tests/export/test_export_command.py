# SPDX-License-Identifier: Apache-2.0
"""`mcugen export`: what it says and writes, and names that would rather be something else."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from command_line import mcugen
from export_packages import DIGITS, ROOT, board_for, need, run

from mcugen.export.formats import FORMATS

yaml = pytest.importorskip("yaml")

HOSTILE = "a'$(touch owned)`id`\"; rm -rf <b>&amp;]]>-->\n#{{ 7*7 }}%s\\"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With a name that shells, XML, YAML, templates and lines of properties would read as theirs."""
    path = tmp_path / f"{HOSTILE.replace('/', '')}.onnx"
    shutil.copy(DIGITS, path)
    return path


def test_it_says_where_to_click(tmp_path: Path) -> None:
    done = mcugen("export", DIGITS, "--board", "nrf52840", "--format", "arduino", "-o", tmp_path / "digits")
    assert (done.code, done.out) == (0, "")
    assert "files for the Arduino IDE" in done.err
    assert "Sketch > Include Library > Add .ZIP Library" in done.err


def test_json_has_the_files_and_the_report(tmp_path: Path) -> None:
    command = ("export", DIGITS, "--board", "nrf52840", "--format", "make", "-o", tmp_path / "digits", "--json", "-")
    mcugen(*command[:2], *command[2:4], "--format", "cmake", *command[6:])
    done = mcugen(*command, "--quiet")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["format"] == "make"
    assert "Makefile" in found["written"]
    assert "CMakeLists.txt" in found["removed"]
    assert found["report"]["board"] == "nrf52840"


def test_a_package_is_called_like_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mcugen("export", DIGITS, "--board", "host", "--format", "make", "--quiet").code == 0
    assert (tmp_path / "digits_int8" / "digits_int8.mk").is_file()


def test_zip_makes_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    command = ("export", DIGITS, "--board", "host", "--zip", "-o", folder, "--format")
    assert mcugen(*command, "arduino", "--package-version", "2.0.1").code == 0
    assert [path.name for path in folder.glob("[!.]*")] == ["digits_int8-2.0.1.zip"]
    done = mcugen(*command, "make")
    assert done.code == 2
    assert "takes one zipped file" in done.err.replace("take one", "takes one")


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    done = mcugen("export", DIGITS, "--board", "host", "--format", "platform-io")
    assert done.code == 2
    assert "platformio" in done.err


def test_an_edited_file_ends_with_9_and_force_overwrites_it(tmp_path: Path) -> None:
    command = ("export", DIGITS, "--board", "host", "--format", "make", "-o", tmp_path / "digits")
    assert mcugen(*command).code == 0
    makefile = tmp_path / "digits" / "Makefile"
    makefile.write_text("edited\n")
    done = mcugen(*command)
    assert done.code == 9
    assert "Makefile" in done.err
    assert "--force" in done.err
    assert makefile.read_text() == "edited\n"
    assert mcugen(*command, "--force").code == 0
    assert makefile.read_text() != "edited\n"


def test_an_edited_file_of_an_older_export_is_told(tmp_path: Path) -> None:
    command = ("export", DIGITS, "--board", "host", "-o", tmp_path / "digits", "--format")
    assert mcugen(*command, "make").code == 0
    (tmp_path / "digits" / "Makefile").write_text("edited\n")
    done = mcugen(*command, "cmake")
    assert done.code == 0
    assert "edited, and kept though the package has it no more: Makefile" in done.err


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("given", ["file", "option"])
def test_hostile_names_stay_names(format_: str, given: str, model: Path, tmp_path: Path) -> None:
    """Of the model's file, of the option, and of the folder: files are inside, documents parse and say no more."""
    folder = tmp_path / f"out {HOSTILE.replace('/', '')}"
    named = ("--name", f"../../{HOSTILE}") if given == "option" else ()
    done = mcugen("export", model, "--board", board_for(format_), "--format", format_, "-o", folder, *named)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.iterdir()} == {model.name, folder.name}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert re.fullmatch(r"[\w.-]+", path.name), path.name
        if path.suffix == ".pack":
            archive = zipfile.ZipFile(path)
            assert all(re.fullmatch(r"[\w./-]+", name) and ".." not in name for name in archive.namelist())
            (described,) = (name for name in archive.namelist() if name.endswith(".pdsc"))
            assert "touch owned" in str(ET.fromstring(archive.read(described)).findtext("description"))
        if path.suffix in (".c", ".h", ".pack", ".json"):
            continue  # C is held by tests/codegen
        text = path.read_text()
        assert "touch" not in text.replace("a_touch_owned", ""), path.name
    parsers = {".json": json.loads, ".yml": yaml.safe_load, ".yaml": yaml.safe_load}
    xml = dict.fromkeys((".project", ".cproject", ".ipcf", ".custom_argvars", ".uvprojx"), ET.fromstring)
    for path in folder.rglob("*"):
        parse = {**parsers, **xml}.get(path.suffix or path.name)
        if parse is not None and path.is_file():
            parse(path.read_text())


def test_a_package_in_a_folder_with_a_hostile_name_builds(model: Path, tmp_path: Path) -> None:
    need("cmake", "gcc")
    folder = tmp_path / "this is & (that) folder"
    assert mcugen("export", model, "--board", "host", "--format", "cmake", "-o", folder).code == 0
    run(["cmake", "-S", folder / "example", "-B", tmp_path / "build"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert not list(ROOT.glob("owned"))


COMMANDS = re.findall(r"^mcugen export .*$", (ROOT / "docs" / "how-to" / "export.md").read_text(), re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documents_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    done = mcugen(*command.split()[1:])
    assert done.code == 0, done.err
