# SPDX-License-Identifier: Apache-2.0
"""What the tests keep of compilations: only what the same bytes gave."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from object_cache import cached

from mcugen.core.errors import VerificationError
from mcugen.simulation.toolchain import Compiler, Unit

UNIT = Unit("model/net.c", "model/net.o", ("-Wall",))
FILES = {
    "model/net.c": '#include "net.h"\nint x = 1;\n',
    "model/net.h": "#include <deep.h>\n",
    "harness/deep.h": "\n",
    "harness/forced.h": "\n",
    "gcc": "",
}


class Counting:
    """A folder of sources whose compiler leaves one more number at each run."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        self.runs = 0
        flags = ("-I", "model", "-isystem", "harness", "-include", "harness/forced.h")
        self.compiler = Compiler((str(folder / "gcc"),), flags, folder)
        for name in FILES:
            self.write(name, FILES[name])

    def write(self, name: str, text: str) -> None:
        path = self.compiler.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def object(self, unit: Unit = UNIT) -> int:
        cached(self._compile, self.store)(self.compiler, unit)
        return int((self.compiler.folder / unit.object).read_text())

    def _compile(self, compiler: Compiler, unit: Unit) -> None:
        self.runs += 1
        (compiler.folder / unit.object).write_text(str(self.runs))


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


def test_the_same_bytes_are_compiled_once(counting: Counting):
    assert [counting.object() for _ in range(3)] == [1, 1, 1]
    counting.write("harness/other.h", "nobody includes this")
    assert counting.object(replace(UNIT, object="model/again.o")) == 1


@pytest.mark.parametrize(
    "change",
    [
        *(lambda c, name=name: c.write(name, FILES[name] + "/* */") for name in FILES if name != "gcc"),
        lambda c: setattr(c, "compiler", replace(c.compiler, flags=(*c.compiler.flags, "-O1"))),
        lambda c: setattr(c, "compiler", replace(c.compiler, program=(*c.compiler.program, "-static"))),
        lambda c: os.utime(c.compiler.program[0], (1, 1)),
    ],
)
def test_whatever_changes_is_compiled_again(counting: Counting, change: Callable[[Counting], None]):
    assert counting.object() == 1
    change(counting)
    assert counting.object() == 2


def test_other_flags_of_the_unit(counting: Counting):
    assert [counting.object(), counting.object(replace(UNIT, flags=())), counting.object()] == [1, 2, 1]


def test_failures_are_not_kept(counting: Counting):
    def fail(compiler: Compiler, unit: Unit) -> None:
        raise VerificationError("must compile", "not")

    for _ in range(2):
        with pytest.raises(VerificationError):
            cached(fail, counting.store)(counting.compiler, UNIT)
    assert list(counting.store.iterdir()) == []
