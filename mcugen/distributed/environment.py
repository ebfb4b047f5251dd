# SPDX-License-Identifier: Apache-2.0
"""Versions of the installed software that results depend on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from mcugen.core.cache import code_digest
from mcugen.core.errors import ToolMissingError
from mcugen.core.version import __version__

PACKAGES = ("numpy", "onnx", "onnxruntime", "ml_dtypes", "ortools")
"""Names of the packages whose versions affect results, so that all workers must have the same versions."""


@cache
def environment() -> Mapping[str, str]:
    """Return the versions of mcugen, Python and PACKAGES by name; "none" for a package that is not installed.

    The version of mcugen includes a digest of its source code, since code changes between releases.
    """
    own = {"mcugen": f"{__version__} ({code_digest()[:12]})", "python": platform.python_version()}
    return own | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def require_same(expected: Mapping[str, str]) -> None:
    """Raise ToolMissingError if a version on this computer differs from the expected one.

    The message names the computer and the differing versions.

    Args:
        expected: Versions of mcugen, Python and PACKAGES by name, as `environment` returns them on another computer.
    """
    own = environment()
    differing = [
        f"{name} {own.get(name, 'none')}, not {expected_version}"
        for name, expected_version in expected.items()
        if own[name] != expected_version
    ]
    if differing:
        problem = f"on {platform.node()}: {'; '.join(differing)}"
        remedy = "install the same versions there: pip install -c tools/constraints.txt 'mcugen[cluster]'"
        raise ToolMissingError("workers of a cluster must have the versions of this computer", problem, remedy)
