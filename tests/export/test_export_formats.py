# SPDX-License-Identifier: Apache-2.0
"""What packages of every format have in common."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from compilers import assert_accepted
from export_packages import ROOT, board_for, export, files_of, tiny, tiny_for

from mcugen.codegen.install import MANIFEST
from mcugen.core.board import Board, Frameworks, board_names, load_board
from mcugen.core.errors import UsageError
from mcugen.core.version import PLACEHOLDER_URL
from mcugen.export.assemble import package_archive, package_files
from mcugen.export.formats import FORMATS, format_table, require_supported
from mcugen.export.package import Package
from mcugen.export.packs import pack_contents

ALL = pytest.mark.parametrize("name", FORMATS)


def test_these_formats_exist() -> None:
    names = "cmake make arduino platformio zephyr esp-idf pico-sdk cmsis-pack mcuxpresso stm32cube iar keil kit"
    assert list(FORMATS) == names.split()


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if not format_.has_validation])
def test_a_package_has_licence_readme_code_and_a_self_test(name: str) -> None:
    files = files_of(tiny_for(name), name)
    assert files["LICENSE"] == (ROOT / "LICENSES" / "0BSD.txt").read_text()
    readme = str(files["README.md"])
    steps = re.findall(r"^\d\. ", readme, re.M)
    assert 3 <= len(steps) <= 5
    assert "self-test" in readme
    packs = [zipfile.ZipFile(io.BytesIO(data)) for path, data in files.items() if path.endswith(".pack")]
    texts = [*map(str, files.values()), *(pack.read(p).decode() for pack in packs for p in pack.namelist())]
    paths = [*files, *(path for pack in packs for path in pack.namelist())]
    for file in tiny_for(name).bundle.sources:
        assert any(path.endswith(file) for path in paths)
    assert any("tiny_selftest(tiny_default_arena())" in text for text in texts)


@ALL
def test_nothing_is_left_to_fill_in(name: str) -> None:
    for path, text in files_of(tiny_for(name), name).items():
        assert "{name}" not in path
        if isinstance(text, str) and not path.endswith((".c", ".h")):
            assert not re.search(r"\{(name|NAME|version)\}|\{\{|\{%", text), path


@ALL
def test_the_same_model_gives_the_same_bytes(name: str) -> None:
    assert files_of(tiny_for(name), name) == files_of(tiny_for(name), name)


@ALL
def test_what_lands_in_firmware_is_0bsd(name: str) -> None:
    for path, text in files_of(tiny_for(name), name).items():
        if isinstance(text, str) and path.endswith((".c", ".cpp", ".ino", ".cmake", "CMakeLists.txt", ".mk", ".yml")):
            assert "SPDX-License-Identifier: 0BSD" in text.split("\n")[0], path


@ALL
def test_the_file_of_weights_goes_along(name: str) -> None:
    files = files_of(tiny_for(name, weights_blob=True), name)
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
    package = Package(tiny_for(name), "1.2.3")
    ((path, data),) = package_archive(package, FORMATS[name]).items()
    archive = zipfile.ZipFile(io.BytesIO(bytes(data) if isinstance(data, bytes) else data.encode()))
    assert archive.testzip() is None
    assert path == {"arduino": "tiny-1.2.3.zip", "cmsis-pack": "mcugen.tiny.1.2.3.pack"}[name]
    if name == "arduino":
        assert set(archive.namelist()) == {f"tiny/{file}" for file in files_of(tiny_for(name), name)}
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


def supports(format_: str, board: Board) -> bool:
    """Return the expectation by the vendors: which chips their tools build for."""
    vendor, unplaced = board.description.split()[0], not board.frameworks
    is_cortex_m = board.cpu.startswith("cortex-m")
    return {
        "esp-idf": vendor == "Espressif" or board.name == "host" or (unplaced and not is_cortex_m),
        "pico-sdk": board.name.startswith("rp2") or (unplaced and board.cpu.startswith("rv")),
        "stm32cube": "STM32" in board.description or (unplaced and is_cortex_m),
        "mcuxpresso": vendor == "NXP" or "i.MX" in board.description or (unplaced and is_cortex_m),
        "keil": is_cortex_m,
        "kit": board.name in ("stm32f446", "rp2350", "nrf52840", "esp32c3", "rt1060"),
    }.get(format_, True)


@pytest.mark.parametrize("name", FORMATS)
def test_a_board_and_a_format_that_do_not_go_together_are_refused(name: str) -> None:
    for board in map(load_board, board_names()):
        if supports(name, board):
            require_supported(FORMATS[name], board)
            continue
        with pytest.raises(UsageError, match=f"'{board.name}'") as refused:
            require_supported(FORMATS[name], board)
        assert refused.value.remedy.split(", ") == [other for other in FORMATS if supports(other, board)]


def test_a_board_file_that_names_no_framework_is_accepted() -> None:
    own = replace(load_board("stm32f411"), name="my_board", frameworks=Frameworks())
    assert [name for name, format_ in FORMATS.items() if not format_.supports(own)] == ["esp-idf", "pico-sdk", "kit"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_manifest_stays_out_of_published_packages(name: str, tmp_path: Path) -> None:
    """A folder has it. Archives, and what the tools of PlatformIO and ESP-IDF publish of a folder, do not."""
    package, format_ = Package(tiny_for(name), "1.2.3"), FORMATS[name]
    folder = export(package.compiled, name, tmp_path / "tiny")
    assert (folder / MANIFEST).is_file()
    files = package_files(package, format_)
    assert MANIFEST not in files
    archives = {**(package_archive(package, format_) if format_.archive else {}), **files}
    for path, content in archives.items():
        if path.endswith((".zip", ".pack")):
            assert isinstance(content, bytes)
            names = zipfile.ZipFile(io.BytesIO(content)).namelist()
            assert names and not [inside for inside in names if inside.endswith(MANIFEST)]
    excluding = {"platformio": "library.json", "esp-idf": "idf_component.yml"}
    if name in excluding:
        assert MANIFEST in str(files[excluding[name]])


def test_the_component_manager_publishes_no_manifest(tmp_path: Path) -> None:
    manager = pytest.importorskip("idf_component_tools.manager")
    file_tools = pytest.importorskip("idf_component_tools.file_tools")
    folder = export(tiny(), "esp-idf", tmp_path / "tiny")
    manifest = manager.ManifestManager(folder, "tiny").load()
    published = file_tools.filtered_paths(folder, exclude=manifest.exclude_set)
    names = {path.name for path in published}
    assert "tiny.c" in names and (folder / MANIFEST).is_file() and MANIFEST not in names


@pytest.mark.parametrize("url", ["example.com", "ftp://x.org/abc", "https://a b", "https://x\n", "https://x.org/<a>"])
def test_a_url_is_a_web_page(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        Package(tiny(), "1.2.3", url)


@pytest.mark.parametrize("url", ["", "https://example.org/models/tiny?a=1&b=2"])
def test_the_metadata_name_the_web_page(url: str) -> None:
    package = Package(tiny(board_for("esp-idf")), "1.2.3", url)
    shown = url or PLACEHOLDER_URL
    assert f"\nurl={shown}\n" in str(package_files(package, FORMATS["arduino"])["library.properties"])
    pack = str(pack_contents(package)["mcugen.tiny.pdsc"])
    assert ET.fromstring(pack).findtext("url") == shown
    library = json.loads(str(package_files(package, FORMATS["platformio"])["library.json"]))
    assert library.get("homepage", "") == url
    assert ("url:" in str(package_files(package, FORMATS["esp-idf"])["idf_component.yml"])) == bool(url)


def test_the_table_of_formats_is_current() -> None:
    text = (ROOT / "docs" / "how-to" / "export.md").read_text()
    assert text.split("<!-- formats:begin -->\n")[1].split("<!-- formats:end -->")[0] == format_table()
