# SPDX-License-Identifier: Apache-2.0
"""No declared kernel breaks a required rule of MISRA C:2012 without a reason, in its own example, as each CPU sees it.

`make lint-c` looks at whole models, by more tools.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from lint_c import CPUS, Finding, misra
from lint_variants import cpu_of
from portable_models import portable_models

pytestmark = pytest.mark.skipif(shutil.which("cppcheck") is None, reason="needs sudo apt-get install cppcheck")

_PIECE = re.compile(r"(?ms)^(?:typedef struct \{.*?^\} (\w+);|static [^;=\n]*?(\w+)\([^;{]*\)\n\{\n.*?^\})$")
"""A type or a function, and its name."""


def kernel_headers(cpu: str) -> Iterator[tuple[str, str]]:
    """Of the examples that are for a CPU: file and text."""
    for portable in portable_models():
        if cpu in ("plain", cpu_of(portable.model.board)):
            file = f"{portable.name}_kernels.h"
            yield file, portable.model.bundle.files[file]


def _agree(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    return all(some.get(name, text) == text for name, text in others.items())


def files_of(headers: Iterable[tuple[str, str]]) -> Iterator[Mapping[str, str]]:
    """C files that include as many of them as define nothing in two ways: cppcheck reads mcugen.h once for these."""
    (known,) = {portable.model.bundle.files["mcugen.h"] for portable in portable_models()}
    groups = list[tuple[dict[str, str], dict[str, str]]]()
    for file, text in headers:
        pieces = {piece[1] or piece[2]: piece[0] for piece in _PIECE.finditer(text)}
        defined, group = next((both for both in groups if _agree(both[0], pieces)), ({}, {"mcugen.h": known}))
        if len(group) == 1:
            groups.append((defined, group))
        for name, piece in pieces.items():
            text = text.replace(piece, "") if name in defined else text
        group[file] = text
        defined |= pieces
    for _, group in groups:
        included = "".join(f'#include "{file}"\n' for file in group)
        yield {**group, "kernels.c": included}


@pytest.mark.parametrize("cpu", CPUS)
def test_no_kernel_breaks_a_required_rule_without_a_reason(cpu: str, tmp_path: Path):
    seen, found = set[str](), set[Finding]()
    for number, files in enumerate(files_of(kernel_headers(cpu))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        found |= misra(folder, cpu, seen)
    assert sorted(finding for finding in found if finding.is_required) == []
