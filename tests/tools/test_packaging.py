# SPDX-License-Identifier: Apache-2.0
"""`pip install mcugen`: wheel and source distribution work by themselves, with the packages that they require alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from mcugen.core.packages import EXTRAS, requirements_of

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
BUILDERS = ("hatchling",)


def required(extras: tuple[str, ...]) -> Iterator[str]:
    """The names of the packages that mcugen requires, with some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return (re.split("[>=]", line)[0] for line in lines)


def needed(names: Iterator[str]) -> set[str]:
    """The installed packages of these names, and what they need."""
    todo, found = list(names), set[str]()
    while todo:
        name = todo.pop()
        try:
            key = distribution(name).metadata["Name"]
        except PackageNotFoundError:  # It is for other platforms.
            continue
        if key not in found:
            found.add(key)
            todo += [other for other, extra in requirements_of(key) if not extra]
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Make installed packages importable from a folder, and no others."""
    for name in names:
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if ".." not in file.parts}:
            if not (folder / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(package.locate_file(top))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


class Environment:
    """A virtual environment with one installed package, what that requires, and extras."""

    def __init__(self, folder: Path, package: Path, extras: tuple[str, ...] = ()) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        link_packages(needed(required(extras)), site)
        builders = folder / "builders"
        builders.mkdir()
        link_packages(needed(iter(BUILDERS)), builders)
        alone = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
        self.run("-m", "pip", "install", *alone, str(package), path=builders)

    def run(self, *words: str, path: Path | None = None, code: int = 0) -> str:
        """Run Python outside of the source tree; return what it printed, errors included."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment["HOME"] = str(self.folder)
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        python = self.folder / "venv" / "bin" / "python"
        done = subprocess.run([python, *words], cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"])
def alone(packages: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Environment:
    """An environment with nothing but mcugen, from a wheel or a source distribution, and what it requires."""
    (package,) = packages.glob(request.param)
    return Environment(tmp_path_factory.mktemp("alone"), package)


def test_it_compiles_and_exports(alone: Environment) -> None:
    model = str(DIGITS / "digits_f32.onnx")
    alone.run("-m", "mcugen", "compile", model, "--board", "rt1060", "-o", "c", "--quiet")
    assert {"digits_f32.h", "mcugen.h"} <= {path.name for path in (alone.folder / "c").iterdir()}
    alone.run("-m", "mcugen", "export", model, "--board", "rp2040", "--format", "arduino", "-o", "library", "--quiet")
    assert (alone.folder / "library" / "library.properties").is_file()
    assert "rt1060" in alone.run("-m", "mcugen", "boards")


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("quantize", "MODEL", "--calibration", "SAMPLES", "-o", "q.onnx"), "onnxruntime", "quantize"),
        (("report", "MODEL", "--board", "host"), "elftools", "report"),
        (("validate", "MODEL", "--board", "rt1060", "--port", "/dev/none"), "serial", "validate"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    alone: Environment, words: tuple[str, ...], package: str, extra: str
) -> None:
    files = {"MODEL": str(DIGITS / "digits_f32.onnx"), "SAMPLES": str(DIGITS / "calibration.npz")}
    output = alone.run("-m", "mcugen", *(files.get(word, word) for word in words), code=8)
    assert f"needs the package '{package}'" in output
    assert f"pip install 'mcugen[{extra}]'" in output


def test_doctor_lists_what_is_left_out(alone: Environment) -> None:
    data = json.loads(alone.run("-m", "mcugen", "doctor", "--json"))
    assert {name for name, version in data["packages"].items() if version is None} >= {"onnxruntime", "ortools"}
    assert f"pip install 'mcugen[{','.join(sorted(EXTRAS))}]'" in data["install"]


@pytest.mark.qemu
def test_with_its_extras_it_quantizes_and_reports(packages: Path, tmp_path: Path) -> None:
    (package,) = packages.glob("*.whl")
    environment = Environment(tmp_path, package, ("quantize", "report"))
    samples = [str(DIGITS / name) for name in ("calibration.npz", "eval.npz")]
    words = ("--board", "rt1060", "--calibration", samples[0], "--data", samples[1], "--quiet", "--json", "r.json")
    environment.run("-m", "mcugen", "report", str(DIGITS / "digits_f32.onnx"), *words)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["accuracy"]["target"] > 0.97


def test_both_packages_have_types_licences_and_no_tests(packages: Path) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"mcugen/py.typed", "mcugen/_resources/LICENSES/0BSD.txt"} <= names
    assert not {name for name in names if name.startswith(("tests/", "tools/"))}
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "mcugen/py.typed", "LICENSES/0BSD.txt", "runtime_c/include/mcugen.h"} <= members
