# SPDX-License-Identifier: Apache-2.0
"""Board files are data: whatever one says, no program runs and no file is read or written that its user did not name.

A board file comes with somebody's repository, beside the `mcugen.toml` that names it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import mcugen
from export_packages import tiny

from mcugen.core.board import Board, board_names, load_board
from mcugen.core.errors import UsageError
from mcugen.core.resources import resource_dir
from mcugen.export.assemble import package_files
from mcugen.export.formats import FORMATS
from mcugen.export.kits import load_kit
from mcugen.export.package import Package

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_f32.onnx"
SHIPPED = {path.stem: tomllib.loads(path.read_text()) for path in sorted(resource_dir("boards").glob("*.toml"))}

ATTACKS: dict[str, list[str]] = {
    "wrapper": ["-wrapper", "{script}"],
    "wrapper_behind_others": ["-mthumb", "-O2", "-wrapper", "{script}"],
    "plugin": ["-fplugin={script}"],
    "plugin_argument": ["-fplugin-arg-x-y=1"],
    "programs_folder": ["-B{folder}"],
    "programs_folder_apart": ["-B", "{folder}"],
    "specs": ["-specs={script}"],
    "specs_long": ["--specs={script}"],
    "sysroot": ["--sysroot={folder}"],
    "include": ["-include", "{script}"],
    "include_joined": ["-include{script}"],
    "macros": ["-imacros", "{script}"],
    "response_file": ["@{script}"],
    "linker": ["-Wl,-o,{canary}"],
    "linker_word": ["-Xlinker", "-o{canary}"],
    "assembler": ["-Wa,-o,{canary}"],
    "assembler_word": ["-Xassembler", "-o{canary}"],
    "preprocessor": ["-Wp,-MD,{canary}"],
    "preprocessor_word": ["-Xpreprocessor", "-MD"],
    "output": ["-o", "{canary}"],
    "output_joined": ["-o{canary}"],
    "dependencies": ["-MD", "-MF", "{canary}"],
    "dumps": ["-fdump-tree-all={canary}"],
    "dump_base": ["-dumpbase", "{canary}"],
    "dump_folder": ["-dumpdir", "{folder}"],
    "save_temps": ["-save-temps=obj"],
    "aux_info": ["-aux-info", "{canary}"],
    "stack_usage": ["-fcallgraph-info"],
    "optimization_records": ["-fopt-info-all={canary}"],
    "profile_use": ["-fprofile-use={script}"],
    "profile_folder": ["-fprofile-dir={folder}"],
    "profile_generate": ["-fprofile-generate={folder}"],
    "prefix_map": ["-ffile-prefix-map=a=b"],
    "sanitizer_list": ["-fsanitize-ignorelist={script}"],
    "other_linker": ["-fuse-ld={script}"],
    "lto_plugin": ["-fuse-linker-plugin", "-flto-partition={script}"],
    "lto_wrapper": ["-flto={script}"],
    "language": ["-x", "c++"],
    "include_folder": ["-I{folder}"],
    "include_folder_apart": ["-I", "{folder}"],
    "quote_folder": ["-iquote", "{folder}"],
    "system_folder": ["-isystem{folder}"],
    "linker_script": ["-T", "{script}"],
    "linker_script_joined": ["-T{script}"],
    "library": ["-levil"],
    "library_folder": ["-L{folder}"],
    "source": ["{script}"],
    "source_here": ["evil.c"],
    "parameter": ["--param", "ggc-min-expand={script}"],
    "llvm": ["-mllvm", "-load={script}"],
    "llvm_joined": ["-mllvm=-load={script}"],
    "clang": ["-Xclang", "-load"],
    "xtensa_library": ["-mdynconfig={script}"],
    "xtensa_library_here": ["-mdynconfig=evil.so"],
    "device_specs": ["-mmcu=../{script}"],
    "cpu_and_more": ["-mcpu=cortex-m4 -wrapper {script}"],
    "cpu_on_lines": ["-mcpu=cortex-m4\n-wrapper\n{script}"],
    "cpu_expanded": ["-mcpu=$(touch {canary})"],
    "cpu_path": ["-mcpu={script}"],
    "define_expanded": ["-DX=$(touch {canary})"],
    "define_make": ["-DX=$(shell touch {canary})"],
    "define_cmake": ["-DX=${ENV}{A}"],
    "define_list": ["-DX=1;-wrapper;{script}"],
    "define_backticks": ["-DX=`touch {canary}`"],
    "define_quotes": ['-DX="; touch {canary}; "'],
    "define_quote": ["-DX='"],
    "define_line": ["-DX=1\ninclude({script})"],
    "define_remark": ["-DX=1 # "],
    "define_escape": ["-DX=\\"],
    "define_macro": ["-DX(y)=system(y)"],
    "define_apart": ["-D", "X=1"],
    "undefine_apart": ["-U", "X"],
    "optimize_apart": ["-O", "-wrapper", "{script}"],
    "standard_file": ["-std={script}"],
    "debug_file": ["-gsplit-dwarf"],
    "remote": ["-fmodule-mapper=|{script}"],
    "empty": [""],
    "dash": ["-"],
    "percent": ["%{script}"],
    "unicode": ["-mcpu=cortex\u2028m4"],
    "long": ["-D" + "X" * 5000],
    "many": ["-mthumb"] * 5000,
}
"""Flags by what they would do with a script, a folder with programs, and the name of a file that must not appear."""

KEYS = ("cflags", "ldflags", "asmflags", "cxxflags", "linker_script", "include_dirs", "defines", "qemu_args", "plugins")
"""Where flags may be put: the one key of flags that board files have, and such as other tools have."""

COMMANDS = {
    "compile": ("compile", DIGITS, "--stack-bound", "-o", "out"),
    "report": ("report", DIGITS),
    "inspect": ("inspect", DIGITS),
    "explore": ("explore", DIGITS, "--jobs", "1"),
    "link": ("link", DIGITS, "-o", "out"),
    "validate": ("validate", DIGITS, "--port", "/dev/null"),
    "evidence": ("evidence", DIGITS, "-o", "out"),
    "show": ("boards", "show"),
    **{f"export_{name}": ("export", DIGITS, "--format", name, "-o", "out") for name in FORMATS},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script that makes a file `canary`, under the names of a compiler's programs, too."""
    script = tmp_path / "evil.sh"
    script.write_text(f'#!/bin/sh\ntouch {shlex.quote(str(tmp_path / "canary"))}\nexec "$@"\n')
    script.chmod(0o755)
    for name in ("cc1", "as", "ld", "collect2", "arm-none-eabi-as", "arm-none-eabi-ld"):
        shutil.copy(script, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def filled(place: Path, flags: list[str]) -> list[str]:
    words = {"{script}": place / "evil.sh", "{folder}": place, "{canary}": place / "canary"}
    for word, path in words.items():
        flags = [flag.replace(word, str(path)) for flag in flags]
    return flags


def hostile(place: Path, flags: list[str], key: str = "cflags", base: str = "nrf52840") -> Path:
    file = place / "hostile.toml"
    texts = ", ".join(map(toml_text, filled(place, flags)))
    file.write_text(f'inherits = "{base}"\n{key} = [{texts}]\n')
    return file


def toml_text(text: str) -> str:
    escaped = "".join(c if c.isalnum() or c in " -_=./" else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


def require_refused(done_code: int, told: str, place: Path, key: str) -> None:
    assert done_code == 2, told
    assert f"hostile.toml: '{key}'" in told
    assert told.count("error:") == 1
    assert not list(place.rglob("canary*"))
    assert not (place / "out").exists()


@pytest.mark.parametrize("attack", ATTACKS)
def test_flags_that_run_programs_or_name_files_are_refused(attack: str, place: Path) -> None:
    with pytest.raises(UsageError, match=r"hostile\.toml: 'cflags'") as error:
        load_board(str(hostile(place, ATTACKS[attack])))
    message = str(error.value)
    assert len(message) < 1000
    assert attack == "many" or any(repr(flag)[:30] in message for flag in filled(place, ATTACKS[attack]))


@pytest.mark.parametrize("base", ["host", "esp32c3", "rp2350", "corstone300"])
@pytest.mark.parametrize("attack", ["wrapper", "plugin", "response_file", "define_make"])
def test_no_board_may_be_given_such_flags(base: str, attack: str, place: Path) -> None:
    with pytest.raises(UsageError, match=r"hostile\.toml: 'cflags'"):
        load_board(str(hostile(place, ATTACKS[attack], base=base)))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_such_flags(command: str, place: Path) -> None:
    board = hostile(place, ATTACKS["wrapper"])
    option = {"explore": ("--boards", board), "show": (board,)}.get(command, ("--board", board))
    done = mcugen("--no-settings", *COMMANDS[command], *option)
    require_refused(done.code, done.err, place, "cflags")
    assert "'-wrapper'" in done.err


@pytest.mark.parametrize("key", KEYS[1:])
def test_there_are_no_other_keys_for_flags(key: str, place: Path) -> None:
    done = mcugen("--no-settings", "compile", DIGITS, "-o", "out", "-b", hostile(place, ATTACKS["wrapper"], key))
    require_refused(done.code, done.err, place, key)


def test_settings_cannot_bring_such_a_board_along(place: Path) -> None:
    hostile(place, ATTACKS["wrapper"])
    (place / "mcugen.toml").write_text('board = "hostile.toml"\nstack-bound = true\n')
    done = mcugen("compile", DIGITS, "-o", "out")
    require_refused(done.code, done.err, place, "cflags")


@pytest.mark.parametrize("heir", ['inherits = "hostile"', None])
def test_the_file_that_has_the_flags_is_named(heir: str | None, place: Path) -> None:
    """Where another file inherits from it, or has it as its second core."""
    hostile(place, ATTACKS["wrapper"])
    cores = 'inherits = "nrf52840"\ncores = [{ name = "a" }, { name = "b", board = "hostile", pace = 1 }]\n'
    (place / "mine.toml").write_text(heir or cores)
    with pytest.raises(UsageError, match=r"hostile\.toml: 'cflags'.*'-wrapper'"):
        load_board(str(place / "mine.toml"))


GOOD = [
    *("-mcpu=cortex-m4", "-mcpu=cortex-m33+nodsp", "-mthumb", "-marm", "-mfpu=fpv4-sp-d16", "-mfpu=fpv5-d16"),
    *(
        "-mfloat-abi=hard",
        "-mabi=ilp32f",
        "-march=rv32imac_zba_zbb",
        "-march=armv8.1-m.main+mve.fp",
        "-mtune=cortex-m7",
    ),
    *("-mstrict-align", "-mno-unaligned-access", "-mcmse", "-mslow-flash-data", "-mlong-calls", "-mcmodel=medany"),
    *("-msave-restore", "-mno-relax", "-mfp16-format=ieee", "-m32", "-mstack-protector-guard=global"),
    *("-mbranch-protection=pac-ret+leaf", "-ffast-math", "-fno-math-errno", "-ffp-contract=off", "-fno-common"),
    *("-fshort-enums", "-fsigned-char", "-ffunction-sections", "-fdata-sections", "-fno-builtin", "-ffreestanding"),
    *(
        "-fomit-frame-pointer",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-fno-exceptions",
        "-fno-tree-loop-distribute-patterns",
    ),
    *("-fno-inline-functions-called-once", "-funroll-loops", "-fno-unwind-tables", "-fstack-protector-strong"),
    *(
        "-fsingle-precision-constant",
        "-flto",
        "-fvisibility=hidden",
        "-falign-functions=16",
        "-fno-pic",
        "-fno-jump-tables",
    ),
    *(
        "-DMCUGEN_PLAIN_C",
        "-DSTM32H743xx",
        "-DCLOCK=480000000",
        "-D_X=-1.5e+3",
        "-DEMPTY=",
        "-UDEBUG",
        "-O",
        "-O0",
        "-O2",
        "-O3",
        "-Os",
    ),
    *("-Og", "-Oz", "-Ofast", "-std=c99", "-std=gnu11", "-std=c17", "-g", "-g3"),
]


@pytest.mark.parametrize("flag", GOOD)
def test_flags_that_shape_code_are_taken(flag: str, place: Path) -> None:
    assert load_board(str(hostile(place, [flag]))).cflags == (flag,)
    assert Package(replace(tiny(), board=replace(tiny().board, cflags=(flag,)))).flags == (flag,)


@pytest.mark.parametrize("name", board_names())
def test_boards_that_come_along_are_taken_as_files_too(name: str, tmp_path: Path) -> None:
    """Copied with all that they inherit from: a file of one's own has no more rights, and needs none."""
    for path in resource_dir("boards").glob("*.toml"):
        shutil.copy(path, tmp_path)
    assert load_board(str(tmp_path / f"{name}.toml")) == load_board(name)


# ---------------------------------------------------------------------------------------------------- other texts

TEXTS = ("a\nb", "a\x1b[31m", "a\0", "a\u202eb", "a\x7f", "a\u2028b")
NAMES = (
    *TEXTS,
    "a b",
    "a'b",
    'a"b',
    "$(touch canary)",
    "`touch canary`",
    "${a}",
    "a;b",
    "a/b",
    "../a",
    "*/ x /*",
    "-o",
    "a|b",
)
BASE = """
inherits = "cortex-m4"
description = "test"
clock_hz = 1_000_000
arena_memory = "sram"
core = "cortex-m4"
kits = ["kit"]
sources = ["source"]
memories = [
    { name = "flash", kind = "flash", origin = 0x0800_0000, size = 0x80000, wait_states = 1 },
    { name = "sram", kind = "ram", origin = 0x2000_0000, size = 0x20000, speed = 1 },
]
caches = [{ name = "cache", serves = ["flash"], holds = "both", size = 256, line = 16, ways = 2 }]
cores = [{ name = "first" }]
"""


def places_of_texts(names: bool) -> Iterator[tuple[str, str, str]]:
    """Keys, and lines of BASE with where the text goes in them."""
    lines = {
        "cpu": ("core =", "cpu = T\ncore ="),
        "core": ('core = "cortex-m4"', "core = T"),
        "toolchain": ("core =", "toolchain = T\ncore ="),
        "qemu": ("core =", "qemu = T\ncore ="),
        "memories[1].name": ('name = "sram"', "name = T"),
        "caches[0].name": ('name = "cache"', "name = T"),
        "cores[0].name": ('name = "first"', "name = T"),
    }
    texts = {
        "description": ('description = "test"', "description = T"),
        "kits": ('["kit"]', "[T]"),
        "sources": ('["source"]', "[T]"),
    }
    yield from ((key, *pair) for key, pair in (lines if names else texts).items())


@pytest.mark.parametrize(("key", "old", "new"), list(places_of_texts(names=True)))
def test_names_are_words(key: str, old: str, new: str, tmp_path: Path) -> None:
    """They reach file names, linker scripts, build files and, as in --cmsis-nn-lib {cpu}, paths of libraries."""
    for text in NAMES:
        (tmp_path / "mine.toml").write_text(BASE.replace(old, new.replace("T", toml_text(text))))
        with pytest.raises(UsageError, match=r"mine\.toml: '(\w|\[|\]|\.)+' must be") as error:
            load_board(str(tmp_path / "mine.toml"))
        assert key.split("[")[0] in str(error.value)


@pytest.mark.parametrize(("key", "old", "new"), list(places_of_texts(names=False)))
def test_texts_are_printable(key: str, old: str, new: str, tmp_path: Path) -> None:
    for text in TEXTS:
        (tmp_path / "mine.toml").write_text(BASE.replace(old, new.replace("T", toml_text(text))))
        with pytest.raises(UsageError, match=rf"mine\.toml: '{key}' must be printable text"):
            load_board(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("text", ["../nrf52840", "/etc/passwd", "a\\b", "x/../y"])
def test_other_board_files_lie_beside_it_or_come_along(text: str, tmp_path: Path) -> None:
    core = f'cores = [{{ name = "a" }}, {{ name = "b", board = {toml_text(text)}, pace = 1 }}]'
    for content in (f"inherits = {toml_text(text)}", BASE.replace('cores = [{ name = "first" }]', core)):
        (tmp_path / "mine.toml").write_text(content)
        with pytest.raises(UsageError, match=r"mine\.toml: '.*' must be the name of a board"):
            load_board(str(tmp_path / "mine.toml"))


def test_a_board_is_not_a_core_of_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'inherits = "nrf52840"\ncores = [{ name = "a" }, { name = "b", board = "mine", pace = 1 }]\n'
    )
    with pytest.raises(UsageError, match=r"mine\.toml: 'cores\[1\]\.board' must name a board file without 'cores'"):
        load_board(str(tmp_path / "mine.toml"))


# ------------------------------------------------------------------------------------------------------ build files


@pytest.fixture(scope="module")
def odd_board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    """A board with every text that a file may have, as odd as it may be."""
    file = tmp_path_factory.mktemp("odd") / "odd $(touch canary);`x`.toml"
    odd = "odd '\"`$(touch canary)${X};#\\\\*/ text".replace('"', '\\"')
    file.write_text(BASE.replace('"test"', f'"{odd}"').replace('"source"', f'"{odd}"').replace('"kit"', f'"{odd}"'))
    return load_board(str(file))


@pytest.mark.parametrize("format_", ["make", "cmake"])
def test_build_files_run_nothing_of_a_board_file(format_: str, odd_board: Board, tmp_path: Path) -> None:
    tool = {"make": "make", "cmake": "cmake"}[format_]
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    package = Package(replace(tiny(), board=replace(odd_board, toolchain="", cflags=())))
    for name, content in package_files(package, FORMATS[format_]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    command = {"make": ["make", "-n"], "cmake": ["cmake", "-S", "example", "-B", "build"]}[format_]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "canary" not in done.stdout
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "keil"])
def test_no_build_file_quotes_a_board_file(format_: str, odd_board: Board) -> None:
    name = load_kit("nucleo-f446re").board if format_ == "kit" else odd_board.name  # Others have no such firmware.
    model = tiny(validation=FORMATS[format_].has_validation)
    package = Package(replace(model, board=replace(odd_board, name=name, toolchain="", cflags=())))
    for name, content in package_files(package, FORMATS[format_]).items():
        if isinstance(content, str) and not name.endswith((".c", ".h", ".json", ".properties", ".yml", ".pdsc")):
            assert "canary" not in content, name
