# SPDX-License-Identifier: Apache-2.0
"""Finds templates/, runtime_c/, boards/ and LICENSES/, both in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_dir(name: str) -> Path:
    """A folder beside the package in a checkout, in a wheel in it: `templates`, `runtime_c`, `boards`, `LICENSES`."""
    packaged = _PACKAGE / "_resources" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def runtime_headers() -> dict[str, Path]:
    """The headers that generated folders may have besides their own, by name."""
    return {path.name: path for path in sorted((resource_dir("runtime_c") / "include").glob("*.h"))}
