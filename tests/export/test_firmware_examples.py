# SPDX-License-Identifier: Apache-2.0
"""examples/firmware, whole: exported by its README's commands, built, and run under QEMU."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest
from command_line import mcugen
from export_packages import ROOT, need, on_mps2, run

FIRMWARE = ROOT / "examples" / "firmware"
README = (FIRMWARE / "README.md").read_text()
KERNEL = "FREERTOS_KERNEL"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported as the README says."""
    folder = tmp_path_factory.mktemp("models")
    commands = re.findall(r"^mcugen (export .*)$", README, re.M)
    assert len(commands) == 2
    for command in commands:
        words = [
            word.replace("examples/", f"{ROOT}/examples/").replace("build/models", str(folder))
            for word in command.split()
        ]
        assert mcugen(*words).code == 0
    return folder


def built(example: str, models: Path, build: Path, *options: str) -> Path:
    need("cmake", "arm-none-eabi-gcc")
    toolchain = models / "digits" / "example" / "toolchain.cmake"
    command = ["cmake", "-S", FIRMWARE / example, "-B", build, "--toolchain", toolchain, f"-DMODELS={models}"]
    run([*command, *options], build.parent)
    run(["cmake", "--build", build], build.parent)
    return build


@pytest.mark.qemu
def test_bare_metal(models: Path, tmp_path: Path) -> None:
    """One arena for two models, pictures by an interrupt into two buffers."""
    told = on_mps2(built("bare_metal", models, tmp_path / "build") / "bare_metal.elf")
    assert told == "digits: 20 of 20 right, 0 lost\nkeyword: 20 of 20 self-tests passed\n"
    assert told in README


@cache
def kernel() -> Path:
    """Of FreeRTOS; no package of Debian's has it."""
    folder = Path(os.environ.get(KERNEL, ""))
    if not (folder / "tasks.c").is_file():
        pytest.skip(f"needs the sources of FreeRTOS's kernel, a folder in ${KERNEL}")
    return folder


@pytest.mark.qemu
@pytest.mark.parametrize("shared", ["OFF", "ON"])
def test_two_tasks_of_freertos(shared: str, models: Path, tmp_path: Path) -> None:
    options = (f"-DFREERTOS_KERNEL={kernel()}", f"-DSHARED_ARENA={shared}")
    told = on_mps2(built("freertos", models, tmp_path / "build", *options) / "two_tasks.elf")
    right, passed = told.splitlines()
    assert right == "digits: 20 of 20 right, 0 lost"
    counts = re.fullmatch(r"keyword: (\d+) of \1 self-tests passed", passed)
    assert counts is not None
    assert int(counts[1]) >= 20


STUBS = {
    "zephyr/kernel.h": """
#include <stdint.h>
#include <stdio.h>
typedef int k_timeout_t;
struct k_sem { int count; };
struct k_mutex { int owner; };
struct k_timer { int period; };
#define K_FOREVER (-1)
#define K_MSEC(ms) (ms)
#define K_SEM_DEFINE(name, count, limit) struct k_sem name = {count}
#define K_MUTEX_DEFINE(name) struct k_mutex name
#define K_TIMER_DEFINE(name, expired, stopped) struct k_timer name; void (*name##_expired)(struct k_timer *) = expired
#define K_THREAD_DEFINE(name, stack, entry, a, b, c, priority, options, delay) \\
    void (*const name##_entry)(void *, void *, void *) = entry
int k_sem_take(struct k_sem *, k_timeout_t);
void k_sem_give(struct k_sem *);
int k_mutex_lock(struct k_mutex *, k_timeout_t);
int k_mutex_unlock(struct k_mutex *);
void k_timer_start(struct k_timer *, k_timeout_t, k_timeout_t);
void k_timer_stop(struct k_timer *);
int k_msleep(int);
""",
    "zephyr/sys/printk.h": "#define printk printf\n",
}


@pytest.mark.parametrize("shared", [0, 1])
def test_zephyrs_example_compiles_against_stand_ins(shared: int, models: Path, tmp_path: Path) -> None:
    """Zephyr itself is no package of Debian's either."""
    need("gcc")
    for name, text in STUBS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", *([f"-DCONFIG_SHARED_ARENA={shared}"] if shared else [])]
    folders = [f"-I{folder}" for folder in (tmp_path, FIRMWARE / "board", models / "digits", models / "keyword")]
    run(["gcc", *flags, *folders, "-fsyntax-only", FIRMWARE / "zephyr" / "src" / "main.c"], tmp_path)
