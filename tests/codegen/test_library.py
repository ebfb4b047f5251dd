# SPDX-License-Identifier: Apache-2.0
"""A model that calls CMSIS-NN: its folder names the library and never holds it; the wrong one is found in time."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from cmsis_checks import linked, skip_unless_reference
from cmsis_nn_library import IS_REAL, SOURCES, library
from onnx_models import Net, random_feeds
from test_conv import quantized_conv

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CMSIS_NN, OWN, CompileOptions, LibraryFiles
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

WINDOW = ((1, 4, 9, 8), 6, (3, 3), {"pads": [1] * 4})


def model(family: str = CMSIS_NN, board: str = "host") -> CompiledModel:
    """One convolution of int8."""
    net = Net()
    quantized_conv(net, "y", WINDOW, False)
    return compile_model(net.model(), load_board(board), CompileOptions("net", family=family))


@pytest.fixture(scope="module")
def calling() -> CompiledModel:
    return model()


# ---------------------------------------------------------------------------------------------- the folder


def test_the_folder_includes_the_library_and_holds_nothing_of_it(calling: CompiledModel) -> None:
    files = calling.bundle.files
    assert '#include "arm_nnfunctions.h"' in files["net_kernels.h"]
    assert not [name for name in files if name.startswith("arm_") or name == "arm_nnfunctions.h"]
    own = {"net.c", "net.h", "net_kernels.h", "net_weights.c", "net_weights.h", "net_selftest.c", "mcugen.h"}
    assert {name for name in files if name.endswith((".c", ".h"))} == own
    defined = re.findall(r"^\w[\w *]*\b(arm_\w+)\(", "\n".join(files.values()), re.M)
    assert not defined, "a function of the library's is declared or defined"


def test_nothing_names_the_library_where_none_is_called() -> None:
    named = [name for name, text in model(OWN).bundle.files.items() if "cmsis" in text.lower()]
    assert named == ["mcugen.net.pdsc"]  # the kind of file that it is


@pytest.mark.parametrize("family", [OWN, CMSIS_NN])
def test_the_pack_lists_all_files(family: str, tmp_path: Path) -> None:
    bundle = model(family).bundle
    pack = ElementTree.fromstring(bundle.files["mcugen.net.pdsc"])
    assert (pack.findtext("vendor"), pack.findtext("name")) == ("mcugen", "net")
    assert re.fullmatch(r"\d+\.\d+\.\d+", pack.find("releases/release").get("version"))
    listed = {f.get("name"): f.get("category") for f in pack.iterfind("components/component/files/file")}
    assert listed.keys() == bundle.files.keys() - {"CMakeLists.txt", "mcugen.net.pdsc"}
    assert (listed["net.c"], listed["net.h"], listed["net_report.json"]) == ("source", "header", "other")


def test_the_pack_names_the_library(calling: CompiledModel) -> None:
    pack = ElementTree.fromstring(calling.bundle.files["mcugen.net.pdsc"])
    (package,) = pack.iterfind("requirements/packages/package")
    assert package.attrib == {"vendor": "ARM", "name": "CMSIS-NN", "version": "7.0.0:7.99.99"}
    condition = pack.find("components/component").get("condition")
    (require,) = pack.iterfind(f"conditions/condition[@id='{condition}']/require")
    assert require.attrib == {"Cclass": "CMSIS", "Cgroup": "NN Lib"}
    without = ElementTree.fromstring(model(OWN).bundle.files["mcugen.net.pdsc"])
    assert without.find("requirements") is None
    assert without.find("components/component").get("condition") is None


def test_the_pack_is_xml_whatever_the_options_say() -> None:
    net = Net()
    quantized_conv(net, "y", WINDOW, False)
    options = CompileOptions("net", bound={'<&"--> \x01ü': np.zeros(1)})
    (text,) = [e.text for e in ElementTree.fromstring(_pack(net, options)).iter("release")]
    assert '<&"-->' in text


def _pack(net: Net, options: CompileOptions) -> str:
    net.input('<&"--> \x01ü', 1)
    return compile_model(net.model(), "host", options).bundle.files["mcugen.net.pdsc"]


# -------------------------------------------------------------------------------------------------- CMake


def configured(folder: Path, lines: str, *definitions: str) -> subprocess.CompletedProcess[str]:
    """What CMake says of a project that holds the folder `net`."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    text = f"cmake_minimum_required(VERSION 3.13)\nproject(firmware C)\n{lines}\nadd_subdirectory(net)\n"
    (folder / "CMakeLists.txt").write_text(text)
    command = ["cmake", "-S", ".", "-B", "build", *(f"-D{definition}" for definition in definitions)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def pack_of(folder: Path, version: str) -> Path:
    """A folder of headers as in a pack of that version."""
    include = folder / "pack" / "Include"
    include.mkdir(parents=True)
    (include / "arm_nnfunctions.h").touch()
    release = f'<releases>\n <release version="{version}">\n <release version="1.0.0">\n'
    (folder / "pack" / "ARM.CMSIS-NN.pdsc").write_text(release)
    return include


TARGET = "add_library(cmsis-nn STATIC lib.c)\ntarget_include_directories(cmsis-nn PUBLIC {include})"


def test_cmake_takes_the_target(calling: CompiledModel, tmp_path: Path) -> None:
    calling.write(tmp_path / "net")
    (tmp_path / "lib.c").write_text("int lib;\n")
    lines = TARGET.format(include=SOURCES / "include")
    done = configured(tmp_path, lines)
    assert done.returncode == 0, done.stderr
    subprocess.run(["cmake", "--build", "build"], cwd=tmp_path, check=True, capture_output=True)


def test_cmake_takes_a_folder_of_headers(calling: CompiledModel, tmp_path: Path) -> None:
    calling.write(tmp_path / "net")
    done = configured(tmp_path, "", f"CMSIS_NN_INCLUDE={SOURCES / 'include'}")
    assert done.returncode == 0, done.stderr
    subprocess.run(["cmake", "--build", "build"], cwd=tmp_path, check=True, capture_output=True)


def test_cmake_says_what_is_missing(calling: CompiledModel, tmp_path: Path) -> None:
    calling.write(tmp_path / "net")
    done = configured(tmp_path, "")
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "net calls CMSIS-NN 7.x: add its target cmsis-nn before this folder, or set CMSIS_NN_INCLUDE" in said
    done = configured(tmp_path, "", f"CMSIS_NN_INCLUDE={tmp_path}")
    assert done.returncode != 0
    assert "the folder with arm_nnfunctions.h" in " ".join(done.stderr.split())


@pytest.mark.parametrize(("version", "fits"), [("7.0.0", 1), ("7.3.1", 1), ("0.0.0", 1), ("6.0.0", 0), ("8.0.0", 0)])
@pytest.mark.parametrize("by_target", [False, True])
def test_cmake_checks_the_version_of_a_pack(
    calling: CompiledModel, tmp_path: Path, version: str, fits: int, by_target: bool
) -> None:
    calling.write(tmp_path / "net")
    include = pack_of(tmp_path, version)
    (tmp_path / "lib.c").write_text("int lib;\n")
    lines = TARGET.format(include=include)
    done = configured(tmp_path, lines) if by_target else configured(tmp_path, "", f"CMSIS_NN_INCLUDE={include}")
    assert (done.returncode == 0) == bool(fits), done.stderr
    if not fits:
        assert f"found {version} in" in " ".join(done.stderr.split())


def test_cmake_needs_no_library_where_none_is_called(tmp_path: Path) -> None:
    model(OWN).write(tmp_path / "net")
    done = configured(tmp_path, "")
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------- the library at hand


def refusal(compiled: CompiledModel, files: LibraryFiles | None) -> str:
    """What is said of a library that does not fit."""
    given = replace(compiled, options=replace(compiled.options, library=files))
    with pytest.raises(UsageError) as caught:
        given.simulate([feeds()], measure=False)
    return str(caught.value)


def feeds() -> dict[str, np.ndarray]:
    net = Net()
    quantized_conv(net, "y", WINDOW, False)
    return random_feeds(net.model())


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """A copy of the reference implementation's."""
    return Path(shutil.copytree(SOURCES / "include", tmp_path / "include"))


def archive(folder: Path, compiler: str, *flags: str, code: str = "") -> Path:
    """A library of nothing but this."""
    (folder / "lib.c").write_text(code or "int lib;\n")
    archiver = "ar" if compiler == "gcc" else "arm-none-eabi-ar"
    subprocess.run([compiler, *flags, "-c", "lib.c"], cwd=folder, check=True)
    subprocess.run([archiver, "rcs", "lib.a", "lib.o"], cwd=folder, check=True)
    return folder / "lib.a"


def test_no_library(calling: CompiledModel) -> None:
    said = refusal(calling, None)
    for word in ("--cmsis-nn-include", "--cmsis-nn-lib", "MCUGEN_CMSIS_NN_LIB", "--kernels own", "CMSIS-NN 7.x"):
        assert word in said


def test_no_headers(calling: CompiledModel, tmp_path: Path) -> None:
    said = refusal(calling, LibraryFiles(tmp_path, tmp_path / "lib.a"))
    assert "--cmsis-nn-include" in said and "arm_nnfunctions.h" in said


def test_no_archive(calling: CompiledModel, headers: Path, tmp_path: Path) -> None:
    assert "--cmsis-nn-lib" in refusal(calling, LibraryFiles(headers, tmp_path / "lib.a"))
    (tmp_path / "lib.a").write_text("no archive")
    assert "another kind of file" in refusal(calling, LibraryFiles(headers, tmp_path / "lib.a"))
    assert "'" + str(tmp_path / "host.a") in refusal(calling, LibraryFiles(headers, tmp_path / "{cpu}.a"))


def test_headers_of_another_version(calling: CompiledModel, headers: Path, tmp_path: Path) -> None:
    for path in headers.glob("*.h"):
        path.write_text(re.sub(r"\barm_convolve_wrapper_s8\b", "arm_convolve_wrapper_other", path.read_text()))
    said = refusal(calling, LibraryFiles(headers, archive(tmp_path, "gcc")))
    for word in ("--cmsis-nn-include", "arm_convolve_wrapper_s8", "CMSIS-NN 7.x, from 7.0.0 on"):
        assert word in said


def test_archive_without_the_functions(calling: CompiledModel, headers: Path, tmp_path: Path) -> None:
    said = refusal(calling, LibraryFiles(headers, archive(tmp_path, "gcc")))
    for word in ("--cmsis-nn-lib", "arm_convolve_wrapper_s8", "CMSIS-NN 7.x, from 7.0.0 on"):
        assert word in said


@pytest.mark.qemu
@pytest.mark.parametrize("flags", [("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft"), ("-mcpu=cortex-a7",)])
def test_archive_for_another_cpu_or_abi(flags: tuple[str, ...], headers: Path, tmp_path: Path) -> None:
    sources = f'#include "{SOURCES / "convolution.c"}"\nfloat library_float(float x) {{ return x; }}\n'
    built = archive(tmp_path, "arm-none-eabi-gcc", *flags, "-I", str(headers), "-I", str(SOURCES), code=sources)
    said = refusal(model(board="nrf52840"), LibraryFiles(headers, built))
    assert "--cmsis-nn-lib" in said and "-mfloat-abi=hard" in said


@pytest.mark.spread(3)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "nrf52840"])
@pytest.mark.parametrize("macro", ["REFERENCE_GREEDY", "REFERENCE_REFUSES"])
def test_a_library_that_wants_more_or_refuses_is_an_error(board: str, macro: str) -> None:
    skip_unless_reference()
    compiled = model(board=board)
    assert "it refused a call, or needs more memory than planned" in refusal(compiled, library(compiled.board, macro))


def test_a_greedy_library_touches_no_memory(tmp_path: Path) -> None:
    """The arena lies between guards; the function that computes is never called."""
    skip_unless_reference()
    compiled = model()
    files = library(compiled.board, "REFERENCE_GREEDY")
    folder = compiled.write(tmp_path / "net")
    (folder / "main.c").write_text(GUARDED)
    command = ["gcc", "-std=c99", "-fsanitize=address,undefined", "-isystem", str(files.include), "main.c", "net.c"]
    subprocess.run([*command, "net_weights.c", str(files.archive), "-lm", "-o", "main"], cwd=folder, check=True)
    assert subprocess.run([folder / "main"]).returncode == 0


GUARDED = """
#include <string.h>
#include "net.h"

static struct {
    unsigned char before[64];
    MCUGEN_ALIGN(NET_ARENA_ALIGN) unsigned char arena[NET_ARENA_SIZE];
    unsigned char after[4096];
} memory, untouched;

int main(void)
{
    memset(&memory, 0x77, sizeof memory);
    memset(&untouched, 0x77, sizeof untouched);
    if (net_run(memory.arena) != MCUGEN_ERROR_LIBRARY) {
        return 1;
    }
    return memcmp(&memory, &untouched, sizeof memory) != 0;
}
"""


def test_the_facts_of_the_library_are_its_own() -> None:
    """What other tests and the real library's CMake and pack say."""
    found = LIBRARIES[CMSIS_NN]
    assert (found.versions, found.pack_range, found.next_major) == ("CMSIS-NN 7.x", "7.0.0:7.99.99", "8")
    assert found.options == ("--cmsis-nn-include", "--cmsis-nn-lib")
    assert found.variables == ("MCUGEN_CMSIS_NN_INCLUDE", "MCUGEN_CMSIS_NN_LIB")


@pytest.mark.skipif(not IS_REAL, reason="needs a real CMSIS-NN")
def test_a_real_library_computes_the_same(calling: CompiledModel) -> None:
    found = linked(calling).simulate([feeds()], measure=False).outputs[0]
    np.testing.assert_array_equal(found["y"], calling.interpret(feeds())["y"])
