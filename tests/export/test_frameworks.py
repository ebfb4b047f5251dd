# SPDX-License-Identifier: Apache-2.0
"""Modules for Zephyr and components for ESP-IDF: read by their own tools, built with stand-ins for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_packages import export, need, run, tiny

yaml = pytest.importorskip("yaml")
kconfiglib = pytest.importorskip("kconfiglib")

ZEPHYR = """
function(zephyr_include_directories)
  include_directories(${ARGN})
endfunction()
function(zephyr_library_named name)
  add_library(${name} STATIC)
  set(ZEPHYR_CURRENT_LIBRARY ${name} PARENT_SCOPE)
endfunction()
function(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
function(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
"""
IDF = """
function(idf_component_register)
  cmake_parse_arguments(C "" "" "SRCS;INCLUDE_DIRS;PRIV_REQUIRES" ${ARGN})
  add_library(component STATIC ${C_SRCS})
  target_include_directories(component PUBLIC ${C_INCLUDE_DIRS})
  set(COMPONENT_LIB component PARENT_SCOPE)
endfunction()
"""


def kconfig(folder: Path, monkeypatch: pytest.MonkeyPatch) -> kconfiglib.Kconfig:
    monkeypatch.chdir(folder)
    found = kconfiglib.Kconfig("Kconfig", warn_to_stderr=False)
    assert found.warnings == []
    return found


def test_zephyr_reads_module_and_kconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(tiny(), "zephyr", tmp_path / "tiny")
    module = yaml.safe_load((folder / "zephyr" / "module.yml").read_text())
    assert module["name"] == "tiny"
    assert (folder / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (folder / module["build"]["kconfig"]).is_file()
    assert all((folder / sample).is_dir() for sample in module["samples"])
    options = kconfig(folder, monkeypatch)
    assert options.syms["MCUGEN_TINY_SPEED"].str_value == "n"
    for line in (folder / "samples" / "selftest" / "prj.conf").read_text().splitlines():
        if line.startswith("CONFIG_MCUGEN"):
            name, _, value = line.removeprefix("CONFIG_").partition("=")
            options.syms[name].set_value(value)
    assert options.syms["MCUGEN_TINY"].str_value == options.syms["MCUGEN_TINY_SPEED"].str_value == "y"
    sample = yaml.safe_load((folder / "samples" / "selftest" / "sample.yaml").read_text())
    assert sample["tests"]["sample.mcugen.tiny"]["harness_config"]["regex"] == ["tiny: self-test passed"]


@pytest.mark.parametrize("speed", [True, False])
def test_zephyrs_module_builds(speed: bool, tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "zephyr", tmp_path / "tiny")
    include = tmp_path / "include" / "zephyr"
    (include / "sys").mkdir(parents=True)
    (include / "kernel.h").touch()
    (include / "sys" / "printk.h").write_text("#include <stdio.h>\n#define printk printf\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(own C)\n{ZEPHYR}set(CONFIG_MCUGEN_TINY y)\n"
        f"set(CONFIG_MCUGEN_TINY_SPEED {'y' if speed else 'n'})\nadd_subdirectory(tiny)\n"
        "include_directories(include tiny/src)\nadd_executable(app tiny/samples/selftest/src/main.c)\n"
        "target_link_libraries(app tiny m)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == "tiny: self-test passed (0)\n"
    assert ("-O2" in (tmp_path / "build" / "compile_commands.json").read_text()) == speed


def test_a_module_that_is_not_wanted_builds_nothing(tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "zephyr", tmp_path / "tiny")
    text = "cmake_minimum_required(VERSION 3.20)\nproject(own C)\nadd_subdirectory(tiny)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], tmp_path)


def test_the_component_manager_takes_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pytest.importorskip("idf_component_tools.manager")
    folder = export(tiny(), "esp-idf", tmp_path / "tiny")
    manifest = manager.ManifestManager(folder, "tiny").load()
    assert str(manifest.version) == "1.2.3"
    assert manifest.license == "0BSD"
    assert "SHA-256" in manifest.description
    assert all((folder / example["path"]).is_dir() for example in manifest.examples)
    main = folder / "examples" / "selftest" / "main"
    (dependency,) = manager.ManifestManager(main, "main").load().dependencies.values()
    assert (main / dependency.override_path).resolve() == folder
    assert kconfig(folder, monkeypatch).syms["MCUGEN_TINY_SPEED"].str_value == "y"


@pytest.mark.parametrize("speed", [True, False])
def test_esp_idfs_component_builds(speed: bool, tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "esp-idf", tmp_path / "tiny")
    (tmp_path / "start.c").write_text("void app_main(void);\nint main(void) { app_main(); return 0; }\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(own C)\n{IDF}"
        f"set(CONFIG_MCUGEN_TINY_SPEED {'y' if speed else 'n'})\nadd_subdirectory(tiny)\n"
        "add_executable(app start.c tiny/examples/selftest/main/main.c)\ntarget_link_libraries(app component m)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == "tiny: self-test passed (0)\n"
    assert ("-O2" in (tmp_path / "build" / "compile_commands.json").read_text()) == speed
