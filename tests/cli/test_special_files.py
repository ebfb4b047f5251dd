# SPDX-License-Identifier: Apache-2.0
"""Pipes, sockets, devices, folders and broken links in the place of files: refused at once, by one message."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Done, mcugen
from onnx_models import Net

from mcugen.core.limits import open_regular

SECONDS = 60
"""Of a whole command on a busy computer: what waits for a writer would wait for ever."""


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # addresses of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
    "folder": Path.mkdir,
    "nowhere": lambda path: path.symlink_to("nothing"),
    "circle": lambda path: path.symlink_to(path.name),
}

MODEL = "tiny.onnx"
BOARD = ("--board", "nrf52840")
COMPILE = ("compile", MODEL, *BOARD, "-o", "out")

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "compile_model": ("s.onnx", ("compile", "s.onnx", *BOARD, "-o", "out")),
    "report_model": ("s.onnx", ("report", "s.onnx", *BOARD)),
    "inspect_model": ("s.onnx", ("inspect", "s.onnx")),
    "quantize_model": ("s.onnx", ("quantize", "s.onnx", "--synthetic", "-1..1", "-o", "out")),
    "profile_model": ("s.onnx", ("profile", "s.onnx", "--calibration", "some.npz", "-o", "out")),
    "run_model": ("s.onnx", ("run", "s.onnx", *BOARD, "--inputs", "some.npz", "-o", "out")),
    "explore_model": ("s.onnx", ("explore", "s.onnx", "--boards", "rp2040", "--no-simulate", "--jobs", "1")),
    "fits_model": ("s.onnx", ("boards", "--fits", "s.onnx")),
    "export_model": ("s.onnx", ("export", "s.onnx", *BOARD, "--format", "make", "-o", "out")),
    "link_model": ("s.onnx", ("link", "s.onnx", MODEL, *BOARD, "-o", "out")),
    "evidence_model": ("s.onnx", ("evidence", "s.onnx", *BOARD, "-o", "out")),
    "validate_model": ("s.onnx", ("validate", "s.onnx", *BOARD, "--port", "none")),
    "init_model": ("s.onnx", ("init", "s.onnx", *BOARD)),
    "update_model": ("s.onnx", ("update", "s.onnx", *BOARD, "--for", ".", "-o", "out")),
    "update_folder": ("old_weights.bin", ("update", MODEL, *BOARD, "--for", ".", "-o", "out")),
    "weights": ("s.data", ("compile", "external.onnx", *BOARD, "-o", "out")),
    "board": ("s.toml", ("compile", MODEL, "--board", "s.toml", "-o", "out")),
    "boards": ("s.toml", ("explore", MODEL, "--boards", "s.toml", "--no-simulate", "--jobs", "1")),
    "show": ("s.toml", ("boards", "show", "s.toml")),
    "inherited_board": ("s.toml", ("boards", "show", "heir.toml")),
    "core": ("s.toml", ("boards", "show", "cores.toml")),
    "labels": ("s.txt", (*COMPILE, "--labels", "s.txt")),
    "calibration_npz": ("s.npz", (*COMPILE, "--calibration", "s.npz")),
    "calibration_npy": ("s.npy", (*COMPILE, "--calibration", "s.npy")),
    "calibration_folder_npy": ("samples/s.npy", (*COMPILE, "--calibration", "samples")),
    "calibration_folder_npz": ("samples/s.npz", (*COMPILE, "--calibration", "samples")),
    "calibration_folder_png": ("samples/s.png", (*COMPILE, "--calibration", "samples")),
    "data": ("s.npz", ("report", MODEL, *BOARD, "--data", "s.npz")),
    "profile": ("s.json", (*COMPILE, "--profile", "s.json")),
    "bind": ("s.npy", (*COMPILE, "--bind", "x=s.npy")),
    "plugin": ("s.py", (*COMPILE, "--plugin", "s.py")),
    "metric": ("s.py", ("report", MODEL, *BOARD, "--data", "some.npz", "--metric", "s.py:f")),
    "input_pipeline": ("s.txt", (*COMPILE, "--input-pipeline", "s.txt")),
    "lesson": ("s.npz", ("report", MODEL, *BOARD, "--train", "last:1", "--lesson", "s.npz")),
    "run_inputs": ("s.npz", ("run", MODEL, *BOARD, "--inputs", "s.npz", "-o", "out")),
    "view": ("s.json", ("view", "s.json")),
    "diff": ("s.json", ("diff", "s.json", "s.json")),
    "runs": ("s.json", ("calibrate-board", "nrf52840", "--from", "s.json", "--model", MODEL, "-o", "out.toml")),
}
"""By option: the file that is none, and a command that reads it."""

HARMLESS = {("plugin", "folder"), ("calibration_npz", "folder"), ("calibration_npy", "folder"), ("data", "folder")}
"""Where a folder may stand in the place of a file; an empty one is an error of its own."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands need besides."""
    folder = tmp_path_factory.mktemp("files")
    net = Net()
    net.output(net.op("Relu", net.op("MatMul", net.input("x", 1, 4), net.const(np.eye(4, 3))), out="y"))
    model = net.model()
    onnx.save(model, folder / MODEL)
    np.savez(folder / "some.npz", x=np.ones((2, 1, 4), np.float32), y=np.zeros(2, np.int64))
    for tensor in model.graph.initializer:
        tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
        onnx.external_data_helper.set_external_data(tensor, "s.data")
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    (folder / "heir.toml").write_text('inherits = "s"\n')
    (folder / "cores.toml").write_text(
        'inherits = "nrf52840"\ncores = [{ name = "a" }, { name = "b", board = "s", pace = 1 }]\n'
    )
    return folder


@contextmanager
def time_limit(what: str) -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError(f"{what} waits for something")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ended(command: tuple[str, ...]) -> Done:
    with time_limit(" ".join(command)):
        return mcugen("--no-settings", *command)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_special_file_is_refused_at_once(
    option: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, command = OPTIONS[option]
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "samples").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kind, make in KINDS.items():
        place = tmp_path / name
        make(place)
        done = ended(command)
        assert done.code in (2, 3), f"{kind}: {done}"
        assert done.err.count("error:") == 1, kind
        assert "internal" not in done.err, kind
        assert not list(tmp_path.glob("out*")), kind
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()


@pytest.mark.parametrize("option", ["compile_model", "board", "labels", "data", "view"])
@pytest.mark.parametrize("kind", ["pipe", "zeros", "socket"])
def test_the_message_names_the_file_and_its_kind(
    option: str, kind: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, command = OPTIONS[option]
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    KINDS[kind](tmp_path / name)
    done = ended(command)
    assert name in done.err
    assert {"pipe": "a pipe", "zeros": "a device", "socket": "a socket"}[kind] + ", not a file" in done.err


def test_regular_files_are_read_as_ever(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with open_regular(tmp_path / name) as file:
            assert (file.read(), file.seek(1), file.read()) == (b"abc", 1, b"bc")


@pytest.mark.parametrize("command", ['"gcc', "'", "gcc \\", '""', "'gcc -O2"])
def test_a_host_compiler_that_is_no_command_is_a_usage_error(
    command: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    for words in (("report", files / MODEL, "--board", "host"), ("doctor",)):
        done = mcugen("--no-settings", *words)
        assert done.code == 2
        assert "CC in the environment must be a command" in done.err
        assert "Traceback" not in done.err and "internal" not in done.err


# ------------------------------------------------------------------------------------------------------ cache folder


@pytest.fixture(params=["file", "process", "device", "read_only", "no_home"])
def no_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that cannot be made or written."""
    folders = {
        "file": tmp_path / "file",
        "process": Path("/proc/none"),
        "device": Path("/dev/null"),
        "no_home": Path("x"),
    }
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders.get(request.param, tmp_path / "fixed")))
    if request.param == "no_home":

        def home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", home)
    if request.param == "read_only":
        if os.getuid() == 0:
            pytest.skip("root may write everywhere")
        (tmp_path / "fixed").mkdir(mode=0o500)


@pytest.mark.usefixtures("no_cache")
def test_pages_need_no_cache(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that draws charts takes seconds to make, which is why it is kept."""
    from mcugen.reporting import charts

    charts.vega.cache_clear()
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "drawing()")
    command = ("explore", files / MODEL, "--boards", "rp2040", "--no-simulate", "--jobs", "1")
    data = ("--calibration", files / "some.npz")
    done = mcugen("--no-settings", *command, *data, "--html", tmp_path / "page.html", "--quiet")
    charts.vega.cache_clear()
    assert done.code == 0, done.err
    assert "drawing()" in (tmp_path / "page.html").read_text()
    assert mcugen("boards", "--fits", files / MODEL, "--json").code == 0


def test_a_full_disk_ends_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcugen.core.cache import Store
    from mcugen.reporting import charts

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    charts.vega.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Store, "write", full)
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "drawing()")
    assert charts.vega() == "drawing()"
    charts.vega.cache_clear()
