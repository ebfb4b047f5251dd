# SPDX-License-Identifier: Apache-2.0
"""Skips tests whose tools or data are absent, and says which."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_QEMU_TOOLS = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("qemu"):
        _skip_without_qemu()
    if item.get_closest_marker("shared") and not _SHARED.is_dir():
        pytest.skip(f"needs the models and data of {_SHARED}")


def _skip_without_qemu() -> None:
    missing = [tool for tool in _QEMU_TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(_QEMU_TOOLS[tool] for tool in missing)
        pytest.skip(f"needs {', '.join(missing)}: sudo apt-get install {packages}")
