# SPDX-License-Identifier: Apache-2.0
"""Writing: the whole folder or nothing, and nobody else's files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

import pytest

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.write import replace_file, write_folder, write_text
from mcugen.errors import OutputError, UsageError

FILES = {
    "mcugen.h": "/* runtime */\n",
    "net.c": "int ü;\n",
    "net.h": "/* header */\n",
    "net_selftest.c": "/* test */\n",
}


def bundle(**changes: str) -> Bundle:
    """The files above, some with other text: `net_c="new"`."""
    files = FILES | {f"{name[:-2]}.{name[-1]}": text for name, text in changes.items()}
    return Bundle("net", files, 16, (), (), ())


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_new_folder(tmp_path: Path):
    folder = tmp_path / "a" / "b"
    assert write_folder(bundle(), folder) == folder
    assert contents(folder) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["b"]


def test_files_end_lines_with_a_newline_alone(tmp_path: Path):
    write_folder(bundle(), tmp_path / "out")
    assert (tmp_path / "out" / "net.c").read_bytes() == "int ü;\n".encode()


def test_an_earlier_result_is_replaced_as_a_whole(tmp_path: Path):
    folder = tmp_path / "out"
    write_folder(bundle(net_weights_c="old"), folder)
    write_folder(bundle(net_c="new"), folder)
    assert contents(folder) == FILES | {"net.c": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_taken(tmp_path: Path):
    (tmp_path / "out").mkdir()
    assert contents(write_folder(bundle(), tmp_path / "out")) == FILES


def test_a_folder_of_other_files_is_refused_and_kept(tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="an existing folder is replaced only if mcugen wrote it") as error:
        write_folder(bundle(), folder)
    assert error.value.exit_code == 2
    assert contents(folder) == {"thesis.tex": "years of work"}


@pytest.mark.parametrize("name", ["my_notes.txt", "main.c", "other.h", ".git"])
def test_a_file_of_the_users_beside_our_own_is_not_deleted(tmp_path: Path, name: str):
    folder = write_folder(bundle(), tmp_path / "out")
    (folder / name).write_text("mine")
    with pytest.raises(UsageError, match=f"found: '{name}' in it"):
        write_folder(bundle(net_c="new"), folder)
    assert contents(folder) == FILES | {name: "mine"}


def test_another_models_folder_is_replaced(tmp_path: Path):
    folder = write_folder(bundle(), tmp_path / "out")
    renamed = {name.replace("net", "two"): text for name, text in FILES.items()}
    write_folder(Bundle("two", renamed, 16, (), (), ()), folder)
    assert contents(folder) == renamed


def test_a_file_in_the_place_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="the output must be a folder"):
        write_folder(bundle(), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def fail_at(monkeypatch: pytest.MonkeyPatch, method: str, name: str) -> None:
    """Lets Path.`method` run out of space on paths of that name."""
    original = getattr(Path, method)

    def full(self: Path, *args: object, **options: object) -> object:
        if self.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, *args, **options)

    monkeypatch.setattr(Path, method, full)


@pytest.mark.parametrize(("method", "name"), [("write_text", "net.h"), ("replace", "new"), ("replace", "out")])
def test_a_failure_in_the_middle_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
):
    folder = write_folder(bundle(), tmp_path / "out")
    with monkeypatch.context() as patch, pytest.raises(OutputError, match="No space left on device") as error:
        fail_at(patch, method, name)
        write_folder(bundle(net_c="new"), folder)
    assert error.value.exit_code == 9
    assert contents(folder) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_on_the_first_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch, pytest.raises(OutputError):
        fail_at(patch, "write_text", "net.h")
        write_folder(bundle(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_folder(bundle(), tmp_path / "out")

    def interrupt(self: Path, *args: object, **options: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", interrupt)
        write_folder(bundle(net_c="new"), folder)
    assert contents(folder) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_parent_that_is_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="the output must be writable"):
        write_folder(bundle(), tmp_path / "file" / "out")


# ------------------------------------------------------------------------------------------- single files


def test_text_replaces_a_file(tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_text("old")
    write_text(path, "ü")
    assert path.read_bytes() == "ü".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "outputs.npz"
    path.write_text("old")

    def half(file: IO[bytes]) -> None:
        file.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match="No space left"):
        replace_file(path, half)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["outputs.npz"]


@pytest.mark.parametrize("name", ["missing/report.json", "folder"])
def test_impossible_paths(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("")
    with pytest.raises(OutputError, match="the output must be writable"):
        write_text(tmp_path / name, "text")
