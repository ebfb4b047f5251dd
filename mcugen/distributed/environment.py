# SPDX-License-Identifier: Apache-2.0
"""Properties of an installation that its results depend on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from mcugen.core.cache import code_digest
from mcugen.core.errors import ToolMissingError
from mcugen.core.version import __version__

PACKAGES = ("numpy", "onnx", "onnxruntime", "ml_dtypes", "ortools")
"""Packages that compute results."""


@cache
def environment() -> Mapping[str, str]:
    """Names with versions: of mcugen itself a digest too, as it has one version for many states."""
    own = {"mcugen": f"{__version__} ({code_digest()[:12]})", "python": platform.python_version()}
    return own | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def require_same(wanted: Mapping[str, str]) -> None:
    """ToolMissingError, with this computer's name, where its versions are others."""
    own = environment()
    differing = [f"{name} {own.get(name, 'none')}, not {which}" for name, which in wanted.items() if own[name] != which]
    if differing:
        found = f"on {platform.node()}: {'; '.join(differing)}"
        remedy = "install the same versions there: pip install -c tools/constraints.txt 'mcugen[cluster]'"
        raise ToolMissingError("workers of a cluster must have the versions of this computer", found, remedy)
