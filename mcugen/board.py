# SPDX-License-Identifier: Apache-2.0
"""Boards: what the hardware is, read from TOML files that inherit from a shared CPU file.

A board says nothing about how to compile; that is `CompileOptions`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from mcugen.errors import UsageError, shortened
from mcugen.limits import BOARD_BYTES, read_bounded
from mcugen.resources import resource_dir

T = TypeVar("T")

FEATURES = frozenset({"thumb1", "thumb2", "rv32", "dsp", "fpu", "fpu64", "mve", "mve_float"})
"""What a CPU may have beyond plain C: `thumb1`, `thumb2` and `rv32` name its instruction set where that is all it has
for integers, `fpu64` is double precision, `mve` is Helium."""

_REQUIRES = {"fpu64": "fpu", "mve": "dsp", "mve_float": "mve"}
_MEMORY_KINDS = ("ram", "flash")
_LONGEST_NAME = 100
"""Characters of a board's name: file systems take 255 bytes."""


NULL_GUARD = 16
"""Bytes that stay free at the beginning of a memory at address 0: keeps the alignment of what lies behind them."""


@dataclass(frozen=True)
class Memory:
    """One address range of the board: `origin` is its first address, `size` its length in bytes."""

    name: str
    kind: Literal["ram", "flash"]
    origin: int
    size: int
    speed: int
    """Relative wait: 1 is zero wait, bigger is slower."""

    @property
    def end(self) -> int:
        """The first address behind the memory."""
        return self.origin + self.size

    @property
    def room(self) -> int:
        """Bytes for data: none lie at address 0, where a pointer to them would be a null pointer."""
        return self.size if self.origin else self.size - NULL_GUARD


@dataclass(frozen=True)
class Board:
    """The hardware a model is compiled for."""

    name: str
    description: str
    cpu: str
    features: frozenset[str]
    memories: tuple[Memory, ...]
    clock_hz: int
    toolchain: str
    """Name of the compiler and library that build for it (mcugen.simulate.toolchain), or "" for this computer's."""
    cflags: tuple[str, ...]
    qemu: str
    """Name of the QEMU machine that stands in for the board, or "" to run on this computer."""
    arena_memory: str
    """Name of the RAM that holds the arena unless the user says otherwise."""
    weights_memory: str
    """Name of the memory that holds the weights unless the user says otherwise."""

    def memory(self, name: str) -> Memory:
        """The memory of that name; UsageError names those that exist."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise UsageError(
            f"board '{self.name}' has no memory '{name}'",
            remedy=_nearest(name, [m.name for m in self.memories]),
        )

    @property
    def total_flash(self) -> int:
        """Bytes of flash, all flash memories together."""
        return sum(memory.size for memory in self.memories if memory.kind == "flash")

    @property
    def total_ram(self) -> int:
        """Bytes of RAM, all RAM memories together."""
        return sum(memory.size for memory in self.memories if memory.kind == "ram")


def board_names() -> list[str]:
    """Names of the boards that can be compiled for, sorted; the shared CPU files are not among them."""
    return sorted(
        path.stem for path in resource_dir("boards").glob("*.toml") if not _read_toml(path).get("abstract", False)
    )


def load_board(name_or_path: str) -> Board:
    """The board of that name, or of that TOML file; UsageError if there is none or a field is wrong."""
    path = _board_file(name_or_path)
    fields = _Fields(path, _inherited(path, ()))
    if fields.flag("abstract"):
        raise UsageError(
            f"'{path.stem}' is a CPU that boards inherit from, not a board",
            remedy=_nearest("", board_names()),
        )
    board = _board(path.stem, fields)
    fields.finish()
    return board


def _board_file(name_or_path: str) -> Path:
    if name_or_path.endswith(".toml"):
        return Path(name_or_path)
    path = resource_dir("boards") / f"{shortened(name_or_path, _LONGEST_NAME)}.toml"
    if path.parent != resource_dir("boards") or not path.is_file():
        names = board_names()
        raise UsageError("the board must exist", f"'{name_or_path}'", _nearest(name_or_path, names))
    return path


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return "one of " + ", ".join(near or names)


def _inherited(path: Path, heirs: tuple[Path, ...]) -> dict[str, Any]:
    """The file's keys over those of the file it inherits from; only `abstract` is not passed on."""
    if path in heirs:
        raise UsageError(f"{path.name}: 'inherits' must not go in circles", " -> ".join(p.stem for p in heirs))
    own = _read_toml(path)
    parent = own.pop("inherits", None)
    if parent is None:
        return own
    if not isinstance(parent, str) or "/" in parent:
        raise UsageError(f"{path.name}: 'inherits' must be the name of a board file", repr(parent))
    beside = path.with_name(f"{parent}.toml")
    source = beside if beside.is_file() else resource_dir("boards") / f"{parent}.toml"
    shared = _inherited(source, (*heirs, path))
    shared.pop("abstract", None)
    return shared | own


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(read_bounded(path, BOARD_BYTES).decode())
        return _with_short_numbers(document)
    except OSError as error:
        raise UsageError(f"{path.name}: the board file must be readable", error.strerror or "") from error
    except RecursionError as error:
        raise UsageError(f"{path.name}: a board file must be TOML", "values within values within values") from error
    except ValueError as error:  # of TOML, of UTF-8, of numbers with thousands of digits
        raise UsageError(f"{path.name}: a board file must be TOML", str(error)) from error


def _with_short_numbers(value: T) -> T:
    """The value; ValueError where it holds a number beyond 64 bits: TOML has none, and Python cannot even print all."""
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"a number of {value.bit_length():,} bits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _with_short_numbers(item)
    return value


class _Fields:
    """Typed access to the keys of one TOML table; every complaint names the file and the key."""

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._table, self._prefix = path, table, prefix
        self._used: set[str] = set()

    def fail(self, key: str, rule: str, found: str, remedy: str = "") -> NoReturn:
        raise UsageError(f"{self._path.name}: '{self._prefix}{key}' {rule}", found, remedy)

    def text(self, key: str, *, empty: bool = False) -> str:
        value = self._get(key, str, "a text")
        if not (value or empty):
            self.fail(key, "must not be empty", repr(value))
        return str(value)

    def number(self, key: str, least: int) -> int:
        value = self._get(key, int, "a whole number")
        if isinstance(value, bool) or value < least:
            self.fail(key, f"must be a whole number of at least {least}", repr(value))
        return int(value)

    def flag(self, key: str) -> bool:
        return key in self._table and bool(self._get(key, bool, "true or false"))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key, list, "a list of texts")
        if not all(isinstance(item, str) and item for item in value):
            self.fail(key, "must be a list of texts", repr(value))
        return tuple(value)

    def tables(self, key: str) -> list[_Fields]:
        value = self._get(key, list, "a list of tables")
        if not value or not all(isinstance(item, dict) for item in value):
            self.fail(key, "must be a list of at least one table", repr(value), f"[[{key}]]")
        return [_Fields(self._path, item, f"{key}[{i}].") for i, item in enumerate(value)]

    def finish(self) -> None:
        """Refuses keys that nobody asked for: they are misspelt."""
        for key in sorted(set(self._table) - self._used):
            self.fail(key, "is not a key of a board file", repr(key), _nearest(key, sorted(self._used)))

    def _get(self, key: str, kind: type, rule: str) -> Any:
        self._used.add(key)
        if key not in self._table:
            self.fail(key, "must be given", "nothing", f"{key} = {rule}")
        value = self._table[key]
        if not isinstance(value, kind):
            self.fail(key, f"must be {rule}", repr(value))
        return value


def _board(name: str, fields: _Fields) -> Board:
    memories = _memories(fields)
    return Board(
        name=name,
        description=fields.text("description"),
        cpu=fields.text("cpu"),
        features=_features(fields),
        memories=memories,
        clock_hz=fields.number("clock_hz", 1),
        toolchain=fields.text("toolchain", empty=True),
        cflags=fields.texts("cflags"),
        qemu=fields.text("qemu", empty=True),
        arena_memory=_memory_name(fields, "arena_memory", [m.name for m in memories if m.kind == "ram"]),
        weights_memory=_memory_name(fields, "weights_memory", [m.name for m in memories]),
    )


def _features(fields: _Fields) -> frozenset[str]:
    features = fields.texts("features")
    for feature in features:
        if feature not in FEATURES:
            fields.fail("features", "must name known features", repr(feature), _nearest(feature, sorted(FEATURES)))
        needed = _REQUIRES.get(feature, feature)
        if needed not in features:
            fields.fail("features", f"must name '{needed}' where it names '{feature}'", repr(list(features)))
    return frozenset(features)


def _memories(fields: _Fields) -> tuple[Memory, ...]:
    memories: list[Memory] = []
    for table in fields.tables("memories"):
        memory = _memory(table)
        for other in memories:
            if other.name == memory.name:
                table.fail("name", "must be unique", repr(memory.name))
            if memory.origin < other.end and other.origin < memory.end:
                table.fail("origin", f"must not lie in memory '{other.name}'", f"{memory.origin:#x}")
        memories.append(memory)
    return tuple(memories)


def _memory(table: _Fields) -> Memory:
    kind = table.text("kind")
    if kind not in _MEMORY_KINDS:
        table.fail("kind", "must be ram or flash", repr(kind))
    memory = Memory(
        name=table.text("name"),
        kind="ram" if kind == "ram" else "flash",
        origin=table.number("origin", 0),
        size=table.number("size", 1),
        speed=table.number("speed", 1),
    )
    if memory.end > 1 << 32:
        table.fail("size", "must end within 32 bits of address", f"{memory.origin:#x} + {memory.size:#x}")
    table.finish()
    return memory


def _memory_name(fields: _Fields, key: str, names: list[str]) -> str:
    name = fields.text(key)
    if name not in names:
        fields.fail(key, "must name one of the board's memories", repr(name), _nearest(name, names))
    return name
