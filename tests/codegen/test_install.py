# SPDX-License-Identifier: Apache-2.0
"""Exports into folders that exist: what is the user's stays, and a failure changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from mcugen.codegen import install as module
from mcugen.codegen.install import MANIFEST, holds_only_unedited, install
from mcugen.core.errors import OutputError

FIRST = {"src/a.c": "a 1\n", "src/b.c": "b 1\n", "old/c.c": "c 1\n", "data.bin": b"\0\1"}
SECOND = {"src/a.c": "a 2\n", "src/b.c": "b 1\n", "new/d.c": "d 2\n", "data.bin": b"\0\2"}


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With a package in it, and files of the user's."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("mine\n")
    (folder / "README").write_text("mine, too\n")
    install(FIRST, folder, "net")
    return folder


def test_a_new_folder_holds_the_files_and_their_hashes(tmp_path: Path) -> None:
    done = install(FIRST, tmp_path / "a" / "b", "net")
    found = state(tmp_path / "a" / "b")
    manifest = json.loads(found.pop(MANIFEST))
    assert found == {path: text if isinstance(text, bytes) else text.encode() for path, text in FIRST.items()}
    assert manifest["package"] == "net"
    assert manifest["files"].keys() == FIRST.keys()
    assert set(done.written) == FIRST.keys()


def test_only_our_own_files_change(project: Path) -> None:
    done = install(SECOND, project, "net")
    found = state(project)
    assert found.pop("src/main.c") == b"mine\n"
    assert found.pop("README") == b"mine, too\n"
    found.pop(MANIFEST)
    assert found == {path: text if isinstance(text, bytes) else text.encode() for path, text in SECOND.items()}
    assert done.removed == ("old/c.c",)
    assert not (project / "old").exists()
    assert install(SECOND, project, "net").removed == ()


def test_an_edited_file_is_not_overwritten(project: Path) -> None:
    (project / "src" / "a.c").write_text("edited\n")
    before = state(project)
    with pytest.raises(OutputError, match=r"were edited, are not overwritten. found: src/a\.c.*--force") as caught:
        install(SECOND, project, "net")
    assert caught.value.exit_code == 9
    assert state(project) == before
    install(SECOND, project, "net", force=True)
    assert (project / "src" / "a.c").read_text() == "a 2\n"


def test_a_file_of_the_users_is_not_overwritten(project: Path) -> None:
    (project / "new").mkdir()
    (project / "new" / "d.c").write_text("mine\n")
    before = state(project)
    with pytest.raises(OutputError, match=r"new/d\.c"):
        install(SECOND, project, "net")
    assert state(project) == before


def test_an_edit_that_is_what_would_be_written_is_none(project: Path) -> None:
    (project / "src" / "a.c").write_text("a 2\n")
    install(SECOND, project, "net")


def test_line_ends_of_version_control_are_no_edit(project: Path) -> None:
    (project / "src" / "a.c").write_bytes(b"a 1\r\n")
    install(SECOND, project, "net")
    assert (project / "src" / "a.c").read_bytes() == b"a 2\n"


def test_an_edited_file_that_does_not_belong_any_more_stays(project: Path) -> None:
    (project / "old" / "c.c").write_text("edited\n")
    done = install(SECOND, project, "net", force=True)
    assert (done.removed, done.kept) == ((), ("old/c.c",))
    assert (project / "old" / "c.c").read_text() == "edited\n"
    assert install(SECOND, project, "net").kept == (), "it is the user's from now on"


def test_a_file_that_the_user_removed_comes_back(project: Path) -> None:
    (project / "src" / "b.c").unlink()
    install(SECOND, project, "net")
    assert (project / "src" / "b.c").read_text() == "b 1\n"


def test_a_folder_holds_one_package(project: Path) -> None:
    before = state(project)
    with pytest.raises(OutputError, match="'net'"):
        install(SECOND, project, "other")
    assert state(project) == before
    assert install(SECOND, project, "other", force=True).removed == ("old/c.c",)
    assert json.loads((project / MANIFEST).read_text())["package"] == "other"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            '{"package": "net"}',
            '{"package": "net", "files": []}',
            '{"package": "net", "files": {"a": 1}}',
        ),
        *('{"package": "net", "files": {"../outside": []}}', '{"package": "net", "files": {"/etc/passwd": []}}'),
        *('{"package": "net", "files": {"a\\\\b": []}}', "[" * 100_000),
    ],
)
def test_a_damaged_manifest_is_refused(text: str, project: Path) -> None:
    (project / MANIFEST).write_text(text)
    before = state(project)
    with pytest.raises(OutputError, match="as mcugen wrote it"):
        install(SECOND, project, "net")
    assert state(project) == before
    install(SECOND, project, "net", force=True)


def test_no_manifest_removes_files_outside(project: Path, tmp_path: Path) -> None:
    """Nor by a link in the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious\n")
    (project / "link").symlink_to(outside)
    manifest = json.loads((project / MANIFEST).read_text())
    manifest["files"]["link/file"] = [module.digest(b"precious\n")]
    (project / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(OutputError, match="must be in the folder"):
        install(SECOND, project, "net")
    assert (outside / "file").read_text() == "precious\n"
    with pytest.raises(OutputError, match="a link to another folder"):
        install({"link/file": "x"}, project, "net", force=True)
    assert (outside / "file").read_text() == "precious\n"


@pytest.mark.parametrize("place", ["src/a.c", "src"])
def test_something_else_in_a_files_place_is_refused(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    if place == "src":
        (folder / "src").write_text("a file\n")
    else:
        (folder / place).mkdir(parents=True)
    before = state(folder)
    with pytest.raises(OutputError):
        install(FIRST, folder, "net", force=True)
    assert state(folder) == before


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    with pytest.raises(OutputError, match="must be a folder"):
        install(FIRST, tmp_path / "file", "net")
    assert (tmp_path / "file").read_text() == "mine\n"


@pytest.mark.parametrize("failing", range(6))
def test_a_failure_in_the_middle_changes_nothing(failing: int, project: Path) -> None:
    before, replace = state(project), Path.replace
    calls = 0

    def fails(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    with mock.patch.object(Path, "replace", fails), pytest.raises(OutputError, match="No space left"):
        install(SECOND, project, "net")
    assert state(project) == before
    install(SECOND, project, "net")


def test_nothing_is_left_of_a_new_folder_that_could_not_be_filled(tmp_path: Path) -> None:
    full = mock.patch.object(module, "_stage", side_effect=OSError(28, "No space left on device"))
    with full, pytest.raises(OutputError):
        install(FIRST, tmp_path / "new", "net")
    assert not (tmp_path / "new").exists()


def test_a_killed_export_is_taken_up_again(project: Path) -> None:
    """It leaves some files old and some new, which the manifest knows both."""

    class Killed(BaseException):
        pass

    killed = mock.patch.object(Path, "unlink", side_effect=Killed)
    with mock.patch.object(module, "_undo"), killed, pytest.raises(Killed):
        install(SECOND, project, "net")
    assert (project / "src" / "a.c").read_text() == "a 2\n"
    assert (project / "old" / "c.c").exists()
    assert install(SECOND, project, "net").removed == ("old/c.c",)


def test_permissions_stay(project: Path) -> None:
    (project / "src" / "a.c").chmod(0o600)
    install(SECOND, project, "net")
    assert (project / "src" / "a.c").stat().st_mode & 0o777 == 0o600


def test_an_empty_file_of_the_users_stays(tmp_path: Path) -> None:
    """An empty file has the hash of no file that mcugen wrote."""
    folder = tmp_path / "folder"
    install({"a.c": "int a;"}, folder, "net")
    (folder / "mine.txt").touch()
    assert not holds_only_unedited(folder, {"a.c": "int b;"}, "net", folder, force=False)
    (folder / "a.c").write_text("")
    with pytest.raises(OutputError, match=r"a\.c"):
        install({"a.c": "int b;"}, folder, "net")
    assert (folder / "a.c").read_text() == ""
