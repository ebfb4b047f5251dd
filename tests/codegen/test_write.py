# SPDX-License-Identifier: Apache-2.0
"""Writing: the whole folder or nothing, and nobody else's files."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import IO

import numpy as np
import pytest
from onnx_models import Net

from mcugen.codegen import atomic
from mcugen.codegen.atomic import exchange, restore
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.install import MANIFEST
from mcugen.codegen.write import check_folder, replace_file, write_folder, write_text
from mcugen.core.errors import OutputError, UsageError
from mcugen.core.options import CompileOptions, Training
from mcugen.core.resources import runtime_headers
from mcugen.driver.compiler import compile_model

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
    """Return the texts of the files in a folder by name, without the manifest."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name != MANIFEST}


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


@pytest.mark.parametrize("options", [CompileOptions(cores=2), CompileOptions(training=Training("last:1"))])
def test_headers_of_the_runtime_are_our_own(tmp_path: Path, options: CompileOptions):
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, 4), net.const(np.ones((4, 3)))))
    made = compile_model(net.model(), "rp2040", options).bundle
    folder = write_folder(made, tmp_path / "out")
    before = contents(folder)
    assert set(runtime_headers()) & before.keys() - {"mcugen.h"}
    assert contents(write_folder(made, folder)) == before


def test_an_empty_folder_is_taken(tmp_path: Path):
    (tmp_path / "out").mkdir()
    assert contents(write_folder(bundle(), tmp_path / "out")) == FILES


@pytest.mark.parametrize("name", ["thesis.tex", "my_notes.txt", "main.c", "other.h"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_of_the_user_is_kept_and_does_not_block(tmp_path: Path, name: str, is_first: bool):
    folder = tmp_path / "out"
    folder.mkdir()
    if not is_first:
        write_folder(bundle(net_c="old", net_weights_c="old"), folder)
    (folder / name).write_text("mine")
    for force in (False, True):
        write_folder(bundle(), folder, force=force)
        assert contents(folder) == FILES | {name: "mine"}


def test_folders_and_links_of_the_user_are_kept(tmp_path: Path):
    folder = write_folder(bundle(net_c="old"), tmp_path / "out")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    write_folder(bundle(), folder)
    assert (folder / ".git" / "HEAD").read_text() == "mine"
    assert (folder / "link").is_symlink()
    assert (folder / "net.c").read_text() == FILES["net.c"]


@pytest.mark.parametrize("has_stray", [True, False])
@pytest.mark.parametrize("name", ["net.c", "net.h"])
def test_an_edited_file_is_overwritten_by_force_alone(tmp_path: Path, name: str, has_stray: bool):
    folder = write_folder(bundle(), tmp_path / "out")
    (folder / name).write_text("edited")
    if has_stray:
        (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    with pytest.raises(OutputError, match=rf"edited, are not overwritten\. found: {name}\. try: .*--force"):
        write_folder(bundle(net_weights_c="new"), folder)
    assert contents(folder) == before
    write_folder(bundle(), folder, force=True)
    assert contents(folder) == before | {name: FILES[name]}


def test_an_edited_file_that_is_not_written_any_more_is_kept(tmp_path: Path):
    folder = write_folder(bundle(net_weights_c="old", net_old_h="old"), tmp_path / "out")
    (folder / "net_weights.c").write_text("edited")
    write_folder(bundle(), folder)
    assert contents(folder) == FILES | {"net_weights.c": "edited"}


def test_a_file_of_the_user_with_the_name_of_a_new_file_is_kept(tmp_path: Path):
    folder = write_folder(bundle(), tmp_path / "out")
    (folder / "net_weights.c").write_text("mine")
    with pytest.raises(OutputError, match=r"found: net_weights\.c"):
        write_folder(bundle(net_weights_c="new"), folder)
    assert contents(folder) == FILES | {"net_weights.c": "mine"}


@pytest.mark.parametrize("has_stray", [True, False])
def test_another_models_folder_is_replaced(tmp_path: Path, has_stray: bool):
    folder = write_folder(bundle(), tmp_path / "out")
    strays = {"notes.txt": "mine"} if has_stray else {}
    for name, text in strays.items():
        (folder / name).write_text(text)
    renamed = {name.replace("net", "two"): text for name, text in FILES.items()}
    two = Bundle("two", renamed, 16, (), (), ())
    write_folder(two, folder)
    assert contents(folder) == renamed | strays
    (folder / "two.c").write_text("edited")
    write_folder(bundle(), folder)
    assert contents(folder) == FILES | strays | {"two.c": "edited"}


def test_a_folder_is_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    check_folder(tmp_path / "new" / "out")
    with pytest.raises(UsageError, match="must be a folder"):
        check_folder(tmp_path / "file")
    with pytest.raises(OutputError, match=r"the output must be writable.*'.*file' is a file"):
        check_folder(tmp_path / "file" / "out")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match="no permission to write to"):
        check_folder(tmp_path / "new" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_file_in_the_place_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="the output must be a folder"):
        write_folder(bundle(), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


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


# ------------------------------------------------------------------------------------------ what is in the place


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_permissions_are_by_umask(tmp_path: Path):
    write_text(tmp_path / "report.json", "new")
    folder = write_folder(bundle(), tmp_path / "out")
    assert (mode(tmp_path / "report.json"), mode(folder), mode(folder / "net.c")) == (0o640, 0o750, 0o640)


@pytest.mark.usefixtures("umask")
def test_permissions_of_what_is_replaced_stay(tmp_path: Path):
    path, folder = tmp_path / "report.json", tmp_path / "out"
    path.write_text("old")
    path.chmod(0o604)
    folder.mkdir()
    folder.chmod(0o705)
    write_text(path, "new")
    write_folder(bundle(), folder)
    assert (mode(path), mode(folder)) == (0o604, 0o705)


@pytest.mark.parametrize("content", ["old", None], ids=["to a file", "to nothing"])
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path, content: str | None):
    target, link = tmp_path / "target.json", tmp_path / "links" / "report.json"
    link.parent.mkdir()
    link.symlink_to("../target.json")
    if content:
        target.write_text(content)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert [path.name for path in link.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_folder_stays(tmp_path: Path, is_there: bool):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to("target")
    if is_there:
        write_folder(bundle(net_c="old"), target)
    write_folder(bundle(), link)
    assert link.is_symlink() and contents(target) == FILES


def test_a_pipe_is_refused_and_stays(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"a regular file or a new name. found: a pipe. try: name a file"):
        write_text(pipe, "text")
    with pytest.raises(UsageError, match=r"the output must be a folder\. found: a pipe"):
        write_folder(bundle(), pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_socket_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(UsageError, match=r"a regular file or a new name\. found: a socket"):
            write_text(Path("socket"), "text")
    assert stat.S_ISSOCK(Path("socket").stat().st_mode)


def test_a_device_is_written_to(tmp_path: Path):
    """Of a link to one, as /dev/stdout is."""
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    before = Path("/dev/null").stat()
    for path in (Path("/dev/null"), link):
        write_text(path, "text")
    with pytest.raises(UsageError, match=r"the output must be a folder\. found: a device"):
        write_folder(bundle(), Path("/dev/null"))
    after = Path("/dev/null").stat()
    assert stat.S_ISCHR(after.st_mode) and (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert link.is_symlink()


def test_a_file_without_a_name_is_refused(tmp_path: Path):
    with (tmp_path / "gone").open("w") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(UsageError, match="the output must have a name"):
            write_text(Path(f"/dev/fd/{file.fileno()}"), "text")
    assert list(tmp_path.iterdir()) == []


def test_the_working_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"a folder of its own\. found: the working directory"):
        write_folder(bundle(), Path())


def test_the_root_of_all_folders_is_refused():
    with pytest.raises(UsageError, match=r"a folder of its own\. found: the root"):
        write_folder(bundle(), Path("/"))


# --------------------------------------------------------------------------------------------- interruptions


READING = {"stat", "lstat", "fstat", "getcwd", "listdir", "scandir", "readlink", "fspath", "urandom", "umask"}
"""What changes nothing: what is there before it is there behind it, too."""


class Interrupted:
    """Does something in place of the `number`th call of the operating system that changes something.

    `spared` are calls that it leaves alone.
    """

    def __init__(self, number: int, action: Callable[[], object], spared: Collection[str] = ()) -> None:
        self.left, self.action, self.spared = number, action, {*READING, *spared}

    def __enter__(self) -> Interrupted:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and self._is_change(called):
            self.left -= 1
            if self.left == 0:
                self.action()

    def _is_change(self, called: object) -> bool:
        module, name = getattr(called, "__module__", None), getattr(called, "__name__", "")
        if name in self.spared:
            return False
        if isinstance(getattr(called, "__self__", None), io.IOBase):
            return name in ("write", "flush", "close", "__exit__")
        return (module in ("posix", "fcntl") and not name.startswith("_")) or (
            module in ("io", "_io") and name == "open"
        )


NEW = FILES | {"net.c": "new"}


def two_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system cannot exchange names."""
    monkeypatch.setattr(atomic, "exchange", lambda a, b: False)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed(number: int, work: Callable[[], object]) -> bool:
    """Whether a process that is killed in place of its `number`th call of the system comes so far."""
    child = os.fork()
    if not child:
        with suppress(BaseException), Interrupted(number, kill):
            work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("has_exchange", [True, False], ids=["exchange", "two renames"])
def test_a_writer_killed_at_any_call_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
):
    if not has_exchange:
        two_renames(monkeypatch)
    folder, seen, number = tmp_path / "out", [], 0
    for number in count(1):
        write_folder(bundle(), folder)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left of the one before
        if not is_killed(number, lambda: write_folder(bundle(net_c="new"), folder)):
            break
        if not has_exchange:
            restore(folder)  # as the next writer does
        seen.append(contents(folder))
    assert number > 25 and all(found in (FILES, NEW) for found in seen)
    assert FILES in seen and NEW in seen and contents(folder) == NEW


def test_a_first_writer_killed_at_any_call_leaves_nothing_or_all(tmp_path: Path):
    for number in count(1):
        folder = tmp_path / str(number)
        if not is_killed(number, lambda folder=folder: write_folder(bundle(), folder / "out")):
            break
        assert not (folder / "out").exists() or contents(folder / "out") == FILES
    assert number > 20 and contents(folder / "out") == FILES


def test_a_writer_of_a_file_killed_at_any_call_leaves_the_old_or_the_new(tmp_path: Path):
    path, seen, number = tmp_path / "report.json", [], 0
    for number in count(1):
        write_text(path, "old")
        assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
        if not is_killed(number, lambda: write_text(path, "new")):
            break
        seen.append(path.read_text())
    assert number > 10 and set(seen) == {"old", "new"}


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("action", "error"), [(no_space, OutputError), (interrupt, KeyboardInterrupt)])
@pytest.mark.parametrize("has_exchange", [True, False], ids=["exchange", "two renames"])
def test_a_failure_at_any_call_leaves_the_old_or_the_new(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[], object],
    error: type[BaseException],
    has_exchange: bool,
):
    if not has_exchange:
        two_renames(monkeypatch)
    folder, failures = tmp_path / "out", 0
    for number in count(1):
        write_folder(bundle(), folder)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        with Interrupted(number, action, {"close"}) as writer, suppress(error):  # a lock that stays would tell others
            write_folder(bundle(net_c="new"), folder)
            failures -= 1  # of what does not matter, such as a folder's synchronization
        failures += 1
        restore(folder)  # where bringing the old back failed, too
        assert contents(folder) in (FILES, NEW)
        if writer.left > 0:
            break
    assert failures > 15 and contents(folder) == NEW


@pytest.mark.parametrize("call", ["fsync", "chmod", "mkdir", "flush", "write", "replace", "rename"])
def test_a_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    two_renames(monkeypatch)
    folder, path = write_folder(bundle(), tmp_path / "out"), tmp_path / "report.json"
    write_text(path, "old")
    others = {"fsync", "chmod", "mkdir", "flush", "write", "replace", "rename", "flock"} - {call}
    for number in count(1):
        with (
            Interrupted(number, no_space, {*others, "open", "close", "__exit__", "unlink", "rmdir"}) as writer,
            suppress(OutputError),
        ):
            write_folder(bundle(net_c="new"), folder)
            write_text(path, "new")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "report.json"]
        assert contents(folder) in (FILES, NEW) and path.read_text() in ("old", "new")
        if writer.left > 0:
            break
    assert number > 1


CHANGES = "mkdir,rename,renameat,renameat2,unlink,unlinkat,rmdir,write,fsync,flock,chmod,fchmod,openat,close"
WRITER = """
import sys, types
package = types.ModuleType("mcugen")
package.__path__ = [sys.argv[1]]  # without all that the package imports
sys.modules["mcugen"] = package
bundles = sys.modules["mcugen.codegen.bundle"] = types.ModuleType("mcugen.codegen.bundle")
bundles.Bundle = types.SimpleNamespace
from pathlib import Path
from mcugen.codegen import atomic, write
if sys.argv[3] == "renames":
    atomic.exchange = lambda a, b: False
files = {"net.c": "new", "net_selftest.c": "new"}
write.write_folder(types.SimpleNamespace(name="net", files=files, blobs={}), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_writer_killed_at_any_system_call_leaves_the_old_or_the_new(tmp_path: Path, way: str):
    """The calls themselves, as the system sees them; those before the first of the writer kill nothing."""
    folder, program = tmp_path / "work" / "out", tmp_path / "writer.py"
    program.write_text(WRITER)
    package = Path(atomic.__file__).parents[1]
    command = [sys.executable, "-S", "-B", program, package, folder, way]

    def traced(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["strace", "-f", *options, *command], capture_output=True, text=True)

    def old() -> None:
        shutil.rmtree(folder.parent, ignore_errors=True)
        write_folder(bundle(), folder)

    old()
    calls = traced("-e", f"trace={CHANGES}").stderr.splitlines()
    if not any("flock" in line for line in calls):
        pytest.skip("processes must not be traced here")
    new, seen = contents(folder), []
    assert set(new.values()) == {"new"}
    names = [line.split("(")[0].split()[-1] for line in calls if "(" in line]
    first = next(i for i, line in enumerate(calls) if "work" in line)
    counts: Counter[str] = Counter(names[:first])
    for name in names[first:]:
        counts[name] += 1
        old()
        killed = traced("-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={counts[name]}")
        assert "killed by SIGKILL" in killed.stderr
        if way == "renames":
            restore(folder)
        seen.append(contents(folder))
        write_folder(bundle(), folder)
        assert [path.name for path in folder.parent.iterdir()] == ["out"]
    assert all(found in (FILES, new) for found in seen)
    assert FILES in seen and new in seen


# ------------------------------------------------------------------------------------------------ several at once

VERSIONS, WRITERS = 20, 3


def write_versions(folder: Path, writer: int) -> None:
    for number in range(VERSIONS):
        text = f"{writer}.{number}"
        write_folder(Bundle("net", dict.fromkeys(FILES, text), 16, (), (), ()), folder)


def look(folder: Path) -> set[str] | None:
    """The versions in the folder; None if another took its place meanwhile."""
    opened = os.open(folder, os.O_RDONLY)  # as long as it is, no other folder gets its number
    try:
        names, texts = None, set()
        with suppress(OSError):  # the folder that was opened is taken away behind the new one
            names = sorted(path.name for path in folder.iterdir())
            texts = {(folder / name).read_text() for name in FILES}
        if folder.stat().st_ino != os.fstat(opened).st_ino:
            return None
    finally:
        os.close(opened)
    assert names == sorted([*FILES, MANIFEST])
    return texts


def test_readers_find_one_whole_version_while_several_write(tmp_path: Path):
    folder = tmp_path / "out"
    write_folder(Bundle("net", dict.fromkeys(FILES, "first"), 16, (), (), ()), folder)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_versions, args=(folder, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        found = look(folder)
        assert found is None or len(found) == 1, found
        seen |= found or set()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert look(folder) in [{f"{writer}.{VERSIONS - 1}"} for writer in range(WRITERS)]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_writer_waits_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with atomic.staging(tmp_path) as fresh:
        fresh.mkdir()
        other = threading.Thread(target=write_folder, args=(bundle(), tmp_path / "out"))
        other.start()
        other.join(0.1)
        assert other.is_alive() and fresh.is_dir() and not (tmp_path / "out").exists()
        monkeypatch.setattr(atomic, "LOCK_SECONDS", 0.0)
        with pytest.raises(OutputError, match="one program at a time"):
            write_text(tmp_path / "report.json", "text")
        monkeypatch.undo()
    other.join()
    assert contents(tmp_path / "out") == FILES


def test_without_locks_nothing_of_others_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    other = ".mcugen-0123456789abcdef"
    (tmp_path / other).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(atomic.fcntl, "flock", refuse)
        write_folder(bundle(), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other, "out"]
    (tmp_path / ".mcugen-cache").mkdir()  # somebody else's: never removed
    write_folder(bundle(), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mcugen-cache", "out"]


def test_linux_and_macos_exchange_names(tmp_path: Path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    (a / "file").write_text("")
    if not exchange(a, b):
        pytest.skip("this file system cannot")
    assert not list(a.iterdir()) and (b / "file").exists()
    with pytest.raises(OSError, match="No such file"):
        exchange(a, tmp_path / "none")
