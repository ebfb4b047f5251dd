# SPDX-License-Identifier: Apache-2.0
"""tools/setup.sh on machines that are imagined: a folder of its own, and a PATH of small scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from mcugen.core.packages import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
LOG = "log.txt"
PLAIN = ("sh", "tr", "dirname", "cmp", "cat", "mkdir", "chmod")
"""Programs of every system that the script and the imagined programs use."""

FOR_DEMO = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "gcc": "gcc libc6-dev",
}
FOR_TESTS = {
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    "qemu-system-riscv32": "qemu-system-misc",
    "cmake": "cmake",
    "arduino-builder": "arduino-builder arduino-core-avr",
    "avr-gcc": "gcc-avr avr-libc",
    "xtensa-lx106-elf-gcc": "gcc-xtensa-lx106 picolibc-xtensa-lx106-elf",
    "powerpc-linux-gnu-gcc": "gcc-powerpc-linux-gnu libc6-dev-powerpc-cross",
    "qemu-ppc": "qemu-user",
    "g++": "g++",
    "clang": "clang",
    "tcc": "tcc",
    "pcc": "pcc",
    "clang-tidy": "clang-tidy",
    "cppcheck": "cppcheck",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
"""Debian's packages by what they bring."""

COMPILER = 'case $1 in -print-file-name=*) echo "/lib/${1#*=}" ;; esac'
BARE_COMPILER = 'echo "${1#*=}"'
"""Without the C library: gcc then prints the name alone."""
PIP = f'echo "pip $*" >> {LOG}'
PYTHON = f"""
if [ "$2" = venv ]; then
    mkdir -p .venv/bin
    echo '{PIP}' > .venv/bin/pip
    chmod +x .venv/bin/pip
fi"""


class Machine:
    """A copy of the script beside a pyproject.toml, on a machine with a Python and the given programs."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self.folder, self.bin = folder / "project", folder / "bin"
        (self.folder / "tools").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools" / "setup.sh", self.folder / "tools")
        (self.folder / "pyproject.toml").write_text("one\n")
        (self.folder / "tools" / "constraints.txt").write_text("numpy==1\n")
        for name in PLAIN:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.install({"python3": PYTHON, "id": "echo 1000"} | programs)

    def install(self, programs: dict[str, str]) -> None:
        for name, text in programs.items():
            (self.bin / name).write_text(f"#!{self.bin}/sh\n{text}\n")
            (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "sh"), "tools/setup.sh", *arguments]
        return subprocess.run(command, cwd=self.folder, env={"PATH": str(self.bin)}, capture_output=True, text=True)

    def missing(self, purpose: str) -> list[str]:
        done = self.setup(purpose, "--list")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def log(self) -> list[str]:
        path = self.folder / LOG
        return path.read_text().splitlines() if path.exists() else []


def words(packages: dict[str, str]) -> set[str]:
    return set(" ".join(packages.values()).split())


def test_the_demo_wants_what_it_runs_and_the_tests_the_rest(tmp_path: Path):
    machine = Machine(tmp_path, {})
    assert set(machine.missing("demo")) == words(FOR_DEMO) | {"pip .[report,planning]"}
    assert set(machine.missing("test")) == words(FOR_DEMO) | words(FOR_TESTS) | {"pip .[dev]"}
    assert set(machine.missing("sweep")) == set(machine.missing("test")) | {
        "frama-c-base",
        "clang-22",
        "lld-22",
        "chibicc",
    }
    assert machine.log() == []


def test_what_is_there_is_not_installed(tmp_path: Path):
    machine = Machine(tmp_path, dict.fromkeys(FOR_DEMO, COMPILER))
    assert machine.missing("demo") == ["pip .[report,planning]"]
    assert set(machine.missing("test")) == words(FOR_TESTS) | {"pip .[dev]"}
    machine.install(dict.fromkeys(FOR_TESTS, COMPILER))
    assert machine.missing("test") == ["pip .[dev]"]


def test_a_compiler_without_its_library(tmp_path: Path):
    machine = Machine(tmp_path, dict.fromkeys(FOR_DEMO, COMPILER) | {"arm-none-eabi-gcc": BARE_COMPILER})
    assert machine.missing("demo") == ["libnewlib-arm-none-eabi", "pip .[report,planning]"]


def test_who_may_not_install_is_told_the_command(tmp_path: Path):
    machine = Machine(tmp_path, dict.fromkeys(set(FOR_DEMO) - {"gcc"}, COMPILER) | {"apt-get": f"echo no >> {LOG}"})
    done = machine.setup("demo")
    assert done.returncode == 1
    command = "sudo apt-get install -y --no-install-recommends gcc libc6-dev"
    assert done.stderr.strip() == f"setup: programs are missing. On Debian: {command}"
    assert machine.log() == []


def test_root_installs_once(tmp_path: Path):
    root = {"id": "echo 0", "apt-get": f'echo "apt $*" >> {LOG}'}
    machine = Machine(tmp_path, dict.fromkeys(set(FOR_DEMO) - {"gcc"}, COMPILER) | root)
    assert machine.setup("demo").returncode == 0
    machine.install(dict.fromkeys(FOR_DEMO | FOR_TESTS, COMPILER))
    pip = "pip install --quiet --disable-pip-version-check --no-compile -c tools/constraints.txt -e"
    apt = ["apt update -qq", "apt install -y --no-install-recommends gcc libc6-dev -qq"]
    assert machine.log() == [*apt, f"{pip} .[report,planning]"]
    for purpose in ("demo", "test", "test", "demo"):  # the tests need more, and then the demo nothing
        assert machine.setup(purpose).stdout == ""
    dev = [f"{pip} .[dev]", f"{pip.removesuffix(' -c tools/constraints.txt -e')} --no-deps tosa-tools==2026.8.0"]
    assert machine.log() == [*apt, f"{pip} .[report,planning]", *dev]
    (machine.folder / "pyproject.toml").write_text("two\n")
    machine.setup("demo")
    assert machine.log()[-1] == f"{pip} .[report,planning]"
    (machine.folder / "tools" / "constraints.txt").write_text("numpy==2\n")
    machine.setup("test")
    assert machine.log()[-2:] == dev


def test_every_direct_requirement_has_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    lines = (ROOT / "tools" / "constraints.txt").read_text().lower().splitlines()
    pinned = {line.partition("==")[0].replace("_", "-") for line in lines if "==" in line}
    extras = project["optional-dependencies"]
    wanted += [name for extra in EXTRAS for name in extras[extra]]
    names = {re.split(r"[>=\[]", name)[0].lower().replace("_", "-") for name in wanted}
    assert names - {"mcugen"} <= pinned


def test_every_extra_that_users_install_is_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["all"] == [f"mcugen[{','.join(EXTRAS)}]"]
    assert set(EXTRAS) <= set(extras)


def test_other_words_are_refused(tmp_path: Path):
    done = Machine(tmp_path, {}).setup()
    assert (done.returncode, done.stderr) == (1, "setup: usage: setup.sh demo|test|sweep [--list]\n")


@pytest.mark.parametrize("target, purpose", [("demo", "demo"), ("test", "test"), ("lint", "test"), ("sweep", "sweep")])
def test_targets_ask_for_their_set_up(target: str, purpose: str):
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert re.findall(r"tools/setup\.sh (\w+)", done.stdout) == [purpose]
