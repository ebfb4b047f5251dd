# SPDX-License-Identifier: Apache-2.0
"""What packages of every format have in common."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import replace

import pytest
from compilers import assert_accepted
from export_packages import ROOT, files_of, tiny

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.export.assemble import package_archive
from mcugen.export.formats import FORMATS, format_table
from mcugen.export.package import Package

ALL = pytest.mark.parametrize("name", FORMATS)


def test_these_formats_exist() -> None:
    names = "cmake make arduino platformio zephyr esp-idf pico-sdk cmsis-pack mcuxpresso stm32cube iar keil"
    assert list(FORMATS) == names.split()


@ALL
def test_a_package_has_licence_readme_code_and_a_self_test(name: str) -> None:
    files = files_of(tiny("nrf52840"), name)
    assert files["LICENSE"] == (ROOT / "LICENSES" / "0BSD.txt").read_text()
    readme = str(files["README.md"])
    steps = re.findall(r"^\d\. ", readme, re.M)
    assert 3 <= len(steps) <= 5
    assert "self-test" in readme
    packs = [zipfile.ZipFile(io.BytesIO(data)) for path, data in files.items() if path.endswith(".pack")]
    texts = [*map(str, files.values()), *(pack.read(p).decode() for pack in packs for p in pack.namelist())]
    paths = [*files, *(path for pack in packs for path in pack.namelist())]
    for file in tiny("nrf52840").bundle.sources:
        assert any(path.endswith(file) for path in paths)
    assert any("tiny_selftest(tiny_default_arena())" in text for text in texts)


@ALL
def test_nothing_is_left_to_fill_in(name: str) -> None:
    for path, text in files_of(tiny("nrf52840"), name).items():
        assert "{name}" not in path
        if isinstance(text, str) and not path.endswith((".c", ".h")):
            assert not re.search(r"\{(name|NAME|version)\}|\{\{|\{%", text), path


@ALL
def test_the_same_model_gives_the_same_bytes(name: str) -> None:
    assert files_of(tiny("nrf52840"), name) == files_of(tiny("nrf52840"), name)


@ALL
def test_what_lands_in_firmware_is_0bsd(name: str) -> None:
    for path, text in files_of(tiny("nrf52840"), name).items():
        if isinstance(text, str) and path.endswith((".c", ".cpp", ".ino", ".cmake", "CMakeLists.txt", ".mk", ".yml")):
            assert "SPDX-License-Identifier: 0BSD" in text.split("\n")[0], path


@ALL
def test_the_file_of_weights_goes_along(name: str) -> None:
    files = files_of(tiny("nrf52840", weights_blob=True), name)
    carried = {path.rpartition("/")[2] for path in files}
    for data in (data for path, data in files.items() if path.endswith(".pack")):
        assert isinstance(data, bytes)
        carried |= set(zipfile.ZipFile(io.BytesIO(data)).namelist())
    assert "tiny_weights.bin" in carried


def test_main_passes_what_the_self_test_takes(tmp_path) -> None:
    for folder, compiled in (("plain", tiny()), ("blob", tiny(weights_blob=True))):
        place = tmp_path / folder
        place.mkdir()
        for path, text in files_of(compiled, "cmake").items():
            if path.endswith((".c", ".h")) and isinstance(text, str):
                (place / path.rpartition("/")[2]).write_text(text)
        assert_accepted(place, "main.c")


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.archive])
def test_the_archive_holds_what_the_folder_does(name: str) -> None:
    package = Package(tiny("nrf52840"), "1.2.3")
    ((path, data),) = package_archive(package, FORMATS[name]).items()
    archive = zipfile.ZipFile(io.BytesIO(bytes(data) if isinstance(data, bytes) else data.encode()))
    assert archive.testzip() is None
    assert path == {"arduino": "tiny-1.2.3.zip", "cmsis-pack": "mcugen.tiny.1.2.3.pack"}[name]
    if name == "arduino":
        assert set(archive.namelist()) == {f"tiny/{file}" for file in files_of(tiny("nrf52840"), name)}
    assert package_archive(package, FORMATS[name]) == {path: data}


def test_others_take_no_archive() -> None:
    with pytest.raises(UsageError, match="'make'"):
        package_archive(Package(tiny()), FORMATS["make"])


@pytest.mark.parametrize("version", ["1", "1.0", "v1.0.0", "1.0.0\n", "01.0.0", "1.0.0'", "1.0.0-rc1", ""])
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(UsageError, match=r"MAJOR\.MINOR\.PATCH"):
        Package(tiny(), version)


@pytest.mark.parametrize("name", ["all", "Test", "app"])
def test_a_name_of_build_systems_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="target"):
        Package(tiny(name=name))


@pytest.mark.parametrize("flag", ["-DX=$(rm -rf /)", "-DX=a b", "`id`", "-I'x", "a;b", "-DX=#"])
def test_flags_that_a_shell_would_read_are_refused(flag: str) -> None:
    board = replace(load_board("host"), cflags=(flag,))
    with pytest.raises(UsageError, match="cflags"):
        Package(replace(tiny(), board=board))


def test_keil_is_for_cortex_m() -> None:
    with pytest.raises(UsageError, match="esp32c3"):
        files_of(tiny("esp32c3"), "keil")


def test_the_table_of_formats_is_current() -> None:
    text = (ROOT / "docs" / "export.md").read_text()
    assert text.split("<!-- formats:begin -->\n")[1].split("<!-- formats:end -->")[0] == format_table()
