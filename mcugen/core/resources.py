# SPDX-License-Identifier: Apache-2.0
"""The folders templates/, runtime_c/, boards/ and LICENSES/, in a checkout or an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_dir(name: str) -> Path:
    """Return the path of a folder of resources, which is inside the package in a wheel and beside it in a checkout.

    `name` is `templates`, `runtime_c`, `boards`, `LICENSES` or `examples` (a wheel has those of the web page only).
    """
    packaged = _PACKAGE / "_resources" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def runtime_headers() -> dict[str, Path]:
    """Return the paths of the runtime headers that generated folders may include, by file name."""
    return {path.name: path for path in sorted((resource_dir("runtime_c") / "include").glob("*.h"))}
