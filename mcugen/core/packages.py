# SPDX-License-Identifier: Apache-2.0
"""Packages that only some commands need: `pip install mcugen` leaves them out, and an extra of mcugen installs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import requires

from mcugen.core.errors import ToolMissingError

PROGRAM = "mcugen"
"""Name under which mcugen is installed: its Python distribution and its command."""

EXTRAS: Mapping[str, str] = {
    "quantize": "quantization, and comparison with ONNX Runtime",
    "report": "reports: measured programs, charts, images",
    "planning": "memory plans: exact where a short search is not",
    "validate": "boards on a serial port",
    "evidence": "evidence: bill of materials",
    "cluster": "work on a cluster",
    "ui": "the web page of `mcugen ui`",
}
"""Purpose of each extra of mcugen (`pip install mcugen[NAME]`), by name."""

FRAMEWORKS: Mapping[str, str] = {
    "torch": "PyTorch modules and .pt2 files",
    "keras": "Keras models and .keras files",
    "sklearn": "scikit-learn, XGBoost and LightGBM models",
}
"""Models that each further extra converts, by name: `all` leaves these extras out, as their packages are large."""

_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+)(?:.*;.*\bextra == ["']([^"']+)["'])?""")


@contextmanager
def optional_package(extra: str, purpose: str) -> Iterator[None]:
    """Turn the failed import of a package within a `with` block into an error that says how to install it.

    Args:
        extra: The extra of mcugen that installs the package (one of EXTRAS or FRAMEWORKS).
        purpose: What needs the package, as the beginning of the message.

    Raises:
        ToolMissingError: If the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        rule = f"{purpose} needs the package '{error.name}'"
        raise ToolMissingError(rule, "not installed", f"pip install 'mcugen[{extra}]'") from error


def requirements_of(package: str) -> Iterator[tuple[str, str]]:
    """Yield the packages that an installed package requires.

    Args:
        package: The name of the installed package.

    Yields:
        The name of a required package, and the extra that requires it; "" if it is always required.
    """
    for requirement in requires(package) or ():
        match = _REQUIREMENT.match(requirement)
        if match:
            yield match[1], match[2] or ""
