# SPDX-License-Identifier: Apache-2.0
"""`mcugen init` and the file that it writes: what commands take from it, and what it cannot say."""

from __future__ import annotations

import json
import os
import shlex
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from command_line import mcugen

from mcugen.cli.app import app
from mcugen.core.errors import UsageError
from mcugen.options.keywords import settings_keywords
from mcugen.options.settings import (
    FILE,
    SAFE_FOLDERS_VARIABLE,
    find_settings,
    read_settings,
    settings_command,
    settings_kinds,
    settings_text,
)

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODEL = DIGITS / "digits_f32.onnx"
KINDS = settings_kinds()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model and samples."""
    (tmp_path / "net.onnx").write_bytes(MODEL.read_bytes())
    (tmp_path / "some.npz").write_bytes((DIGITS / "calibration.npz").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_what_commands_read_here_and_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = mcugen("init", "net.onnx", "-b", "rt1060", "--calibration", "some.npz", "--place", "arena=dtcm", "--helpers")
    assert done.code == 0, done.err
    assert tomllib.loads((project / FILE).read_text()) == {
        **{"model": "net.onnx", "board": "rt1060", "place": ["arena=dtcm"], "helpers": True},
        "calibration": "some.npz",
    }
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    done = mcugen("compile", "-o", "by_file")
    assert done.code == 0, done.err
    assert "settings of ../mcugen.toml: model, board, place, helpers, calibration\n" in done.err
    spelt = ["../net.onnx", "-b", "rt1060", "--calibration", "../some.npz", "--place", "arena=dtcm", "--helpers"]
    assert mcugen("--no-settings", "compile", *spelt, "-o", "spelt").code == 0
    files = sorted(p.name for p in Path("spelt").iterdir())
    assert files == sorted(p.name for p in Path("by_file").iterdir())
    assert all(Path("spelt", f).read_bytes() == Path("by_file", f).read_bytes() for f in files if f != "report.json")


def test_a_command_line_wins(project: Path) -> None:
    (project / FILE).write_text('model = "missing.onnx"\nboard = "rt1060"\nname = "a"\nplace = ["arena=dtcm"]\n')
    assert mcugen("compile", "net.onnx", "--name", "b", "-o", "out", "--place", "arena=ocram2").code == 0
    assert (project / "out" / "b.h").exists()
    assert mcugen("compile", "-o", "out", "--quiet").err.startswith("error: missing.onnx")
    assert "--board" in mcugen("--no-settings", "compile", "net.onnx", "-o", "out").err


def test_a_report_tells_its_command_in_full(project: Path) -> None:
    (project / FILE).write_text('model = "net.onnx"\nboard = "host"\nsteps = false\n')
    done = mcugen("report", "--json", "-")
    assert done.code == 0, done.err
    command = json.loads(done.out)["command"]
    assert shlex.split(command) == ["mcugen", "report", "net.onnx", "--board=host", "--json", "-"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("borad = 'rt1060'", "'board'"),
        ("plugin = ['evil.py']", "found: 'plugin'"),
        ("metric = 'evil.py:f'", "cannot name code"),
        ("json = '/etc/passwd'", "found: 'json'"),
        ("helpers = 'yes'", "true or false"),
        ("board = true", "must be a text"),
        ("cores = 'two'", "a whole number"),
        ("min-sqnr = 'a'", "a number"),
        ("dim = 'N=1'", "a list of texts"),
        ('name = "a\\u001b[31m"', "printable"),
        ('"a\\u001b[31m" = 1', "·[31m"),
        ("[options]\nname = 'a'", "found: 'options'"),
        ("board = ", "must be TOML"),
        ("a = " + "[" * 5000, "must be TOML"),
        ("cores = " + "9" * 5000, "must be TOML"),
        ("cores = 0x" + "f" * 5000, "must be TOML"),
        ("dim = [0x" + "f" * 5000 + "]", "must be TOML"),
        ("#" * 70000, "65,536 bytes"),
    ],
)
def test_what_a_file_cannot_say_is_one_error(project: Path, text: str, told: str) -> None:
    (project / FILE).write_text(text)
    done = mcugen("inspect", "net.onnx")
    assert done.code == 2
    assert told in done.err
    assert FILE in done.err
    assert "\x1b" not in done.err
    assert done.err.count("error:") == 1
    assert done.out == ""


def test_help_and_other_commands_need_no_readable_file(project: Path) -> None:
    (project / FILE).write_text("no TOML")
    assert mcugen("report", "--help").code == 0
    assert mcugen("compile", "--help-all").code == 0
    assert mcugen("--no-settings", "inspect", "net.onnx").code == 0


def test_a_model_named_like_an_option_stays_a_file(project: Path) -> None:
    (project / FILE).write_text('model = "--board"\nboard = "rt1060"\n')
    assert mcugen("compile", "-o", "out", "-q").err.startswith("error: --board: the model must be a readable file")


def test_init_refuses_what_would_be_lost_or_wrong(project: Path) -> None:
    for arguments, told in (
        (["net.onnx"], "try: mcugen init model.onnx --board nrf52840"),
        (["none.onnx", "-b", "rt1060"], "none.onnx"),
        (["net.onnx", "-b", "nowhere"], "nowhere"),
        (["net.onnx", "-b", "rt1060", "--max-ram", "much"], "--max-ram"),
        (["net.onnx", "-b", "rt1060", "--plugin", "own.py"], "--plugin"),
    ):
        done = mcugen("init", *arguments)
        assert done.code == 2
        assert told in done.err
        assert not (project / FILE).exists()
    (project / FILE).write_text("name = 'kept'\n")
    assert "--force" in mcugen("init", "net.onnx", "-b", "rt1060").err
    assert (project / FILE).read_text() == "name = 'kept'\n"
    assert mcugen("init", "net.onnx", "-b", "rt1060", "--force").code == 0
    assert "kept" not in (project / FILE).read_text()


def test_init_asks_on_a_terminal(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["net.onnx", "rt1060"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    assert mcugen("init").code == 0
    assert tomllib.loads((project / FILE).read_text()) == {"model": "net.onnx", "board": "rt1060"}


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    names = ['a "quoted" \\ name', "ünïcode", "# no remark", "'''", "N=1]"]
    (tmp_path / FILE).write_text(settings_text({"name": names[0], "dim": names}))
    assert read_settings(tmp_path / FILE, KINDS).values == {"name": [names[0]], "dim": names}
    with pytest.raises(UsageError, match="printable"):
        settings_text({"dim": ["a\x7f"]})


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / FILE).touch()
    assert find_settings(tmp_path / "a" / "b") == tmp_path / FILE
    (tmp_path / "a" / FILE).touch()
    assert find_settings(tmp_path / "a" / "b") == tmp_path / "a" / FILE


@pytest.mark.parametrize("mark", [".git", ".hg", ".jj"])
@pytest.mark.parametrize("is_file", [False, True], ids=["folder", "file"])
def test_the_search_ends_at_the_root_of_a_repository(tmp_path: Path, mark: str, is_file: bool) -> None:
    """A worktree and a submodule have a file `.git`."""
    root, below = tmp_path / "root", tmp_path / "root" / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / FILE).touch()
    assert find_settings(below) == tmp_path / FILE
    (root / mark).touch() if is_file else (root / mark).mkdir()
    assert find_settings(below) is None
    (root / FILE).touch()
    assert find_settings(below) == find_settings(root) == root / FILE


def test_the_search_ends_at_the_border_of_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "mounted"
    (mounted / "a").mkdir(parents=True)
    (tmp_path / FILE).touch()
    plain = Path.stat

    def stat_of(path: Path, **words: bool) -> os.stat_result:
        known = plain(path, **words)
        device = known.st_dev + path.is_relative_to(mounted)
        return os.stat_result((*known[:2], device, *known[3:]))

    monkeypatch.setattr(Path, "stat", stat_of)
    assert find_settings(mounted / "a") is None
    assert find_settings(tmp_path) == tmp_path / FILE


# ------------------------------------------------------------------------------------------------- who wrote a file

OTHER = 54_321
"""The number of a user, and of a group, that nobody here has."""


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """What makes a file, or a link itself, another user's."""
    if os.getuid() == 0:
        return lambda path: os.chown(path, OTHER, OTHER, follow_symlinks=False)
    given: set[Path] = set()
    plain = Path.lstat

    def lstat_of(path: Path) -> os.stat_result:
        known = plain(path)
        owner = OTHER if path in given else known.st_uid
        return os.stat_result((*known[:4], owner, *known[5:]))

    monkeypatch.setattr(Path, "lstat", lstat_of)
    return given.add


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has settings, with the working directory below it."""
    folder = tmp_path / "shared"
    (folder / "work").mkdir(parents=True)
    (folder / FILE).write_text('board = "rt1060"\n')
    monkeypatch.chdir(folder / "work")
    monkeypatch.delenv(SAFE_FOLDERS_VARIABLE, raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    return folder


def require_refused(folder: Path, found: str) -> None:
    done = mcugen("compile", MODEL, "-o", "out", "--json", "-")
    assert (done.code, done.out) == (2, "")
    assert f"{folder / FILE}: no other user may own or write settings" in done.err
    assert found in done.err
    assert "--no-settings" in done.err and SAFE_FOLDERS_VARIABLE in done.err
    assert not Path("out").exists()
    assert "--board" in mcugen("--no-settings", "compile", MODEL, "-o", "out").err


def is_taken(folder: Path) -> bool:
    return dict(read_settings(folder / FILE, KINDS).values) == {"board": ["rt1060"]}


@pytest.mark.parametrize("which", [".", FILE])
def test_settings_of_another_user_are_refused(which: str, nested: Path, give_away: Callable[[Path], None]) -> None:
    give_away(nested / which)
    require_refused(nested, f"belongs to user {OTHER}")


@pytest.mark.parametrize("which", ["link", "target", "folder"])
def test_links_are_as_safe_as_what_they_lead_over(
    which: str, nested: Path, tmp_path: Path, give_away: Callable[[Path], None]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = (nested / FILE).rename(tmp_path / "elsewhere" / "some.toml")
    (nested / FILE).symlink_to(target)
    assert is_taken(nested)
    give_away({"link": nested / FILE, "target": target, "folder": target.parent}[which])
    require_refused(nested, f"belongs to user {OTHER}")


@pytest.mark.parametrize(
    ("which", "mode", "group", "found"),
    [
        (FILE, 0o644, None, ""),
        (FILE, 0o600, None, ""),
        (FILE, 0o646, None, "all users"),
        (FILE, 0o666, None, "all users"),
        (FILE, 0o664, OTHER, f"group {OTHER}"),
        (FILE, 0o644, OTHER, ""),
        (".", 0o755, None, ""),
        (".", 0o777, None, "all users"),
        (".", 0o775, OTHER, f"group {OTHER}"),
        (".", 0o755, OTHER, ""),
        (".", 0o1777, None, ""),  # as /tmp: nobody can replace others' files
    ],
)
def test_settings_that_others_can_write_are_refused(
    which: str, mode: int, group: int | None, found: str, nested: Path
) -> None:
    if group is not None:
        if os.getuid() != 0:
            pytest.skip("only root may give a file to a group it is not in")
        os.chown(nested / which, -1, group)
    (nested / which).chmod(mode)
    assert stat.S_IMODE((nested / which).stat().st_mode) == mode
    if found:
        require_refused(nested, f"can be written by {found}")
    else:
        assert is_taken(nested)


def test_a_group_of_ones_own_is_nobody_else(nested: Path) -> None:
    """Many systems give each user a group, and files of it that it may write."""
    os.chown(nested / FILE, -1, os.getgid())
    (nested / FILE).chmod(0o664)
    assert is_taken(nested)


@pytest.mark.parametrize(("trusted", "taken"), [("*", True), ("{}", True), ("/x:{}", True), ("", False), ("/", False)])
def test_folders_may_be_declared_safe(
    trusted: str, taken: bool, nested: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(nested / FILE)
    monkeypatch.setenv(SAFE_FOLDERS_VARIABLE, trusted.format(nested))
    if taken:
        assert is_taken(nested)
    else:
        require_refused(nested, "belongs to")


def test_who_became_root_by_sudo_is_no_other_user(
    nested: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(nested / FILE)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert is_taken(nested)
    monkeypatch.setenv("SUDO_UID", str(OTHER + 1))
    with pytest.raises(UsageError, match="belongs to"):
        is_taken(nested)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "circle"])
def test_settings_that_are_no_file_are_refused_at_once(kind: str, project: Path) -> None:
    makes: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
        "link": lambda path: path.symlink_to("nowhere"),
        "circle": lambda path: path.symlink_to(FILE),
    }
    makes[kind](project / FILE)
    done = mcugen("inspect", "net.onnx")
    assert done.code == 2
    assert f"{FILE}: " in done.err


def test_each_key_is_an_option_of_some_command() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    known = {option for command in commands for p in command.params for option in p.opts}
    assert {f"--{name}" for name in KINDS} - {"--model"} <= known


def test_a_command_has_the_settings_that_it_takes() -> None:
    settings = {
        "model": "a b.onnx",
        "board": "rp2040",
        "monitor": True,
        "wide": False,
        "dim": ["N=1", "T=2"],
        "port": 0,
    }
    report = "mcugen report 'a b.onnx' --board rp2040 --monitor --dim N=1 --dim T=2"
    assert settings_command("report", settings) == report
    assert (
        settings_command("report", {**settings, "monitor": "", "dim": []}) == "mcugen report 'a b.onnx' --board rp2040"
    )
    assert settings_command("ui", {"port": 0}) == "mcugen ui --port 0"
    assert settings_keywords("compile", settings) == {"dim": ["N=1", "T=2"], "monitor": True}
