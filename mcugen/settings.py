# SPDX-License-Identifier: Apache-2.0
"""A team's settings: `mcugen.toml` of the working directory, or of the nearest one above it, says options of commands.

The file is data: what it says can neither run code nor write files, as it may come with somebody's repository.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mcugen.errors import UsageError, shortened
from mcugen.limits import read_bounded

FILE = "mcugen.toml"
MOST_BYTES = 1 << 16
MODEL = "model"
"""The key of the one argument that a file may give beside options."""

Kinds = Mapping[str, type[Any]]
"""What a file may say: the types of options by their names: bool, int, float, str, Path, or list of texts."""


@dataclass(frozen=True)
class Settings:
    """What a file says: texts by the options' names, as a command line has them; none for a flag that is set."""

    path: Path
    values: Mapping[str, Sequence[str]]

    @property
    def arguments(self) -> list[str]:
        """As on a command line."""
        return [argument for name, texts in self.values.items() for argument in _arguments(name, texts)]


def _arguments(name: str, texts: Sequence[str]) -> list[str]:
    if name == MODEL:
        return list(texts)
    return [f"--{name}={text}" for text in texts] or [f"--{name}"]


def find_settings(folder: Path) -> Path | None:
    """The file that holds in this folder."""
    return next((f / FILE for f in (folder, *folder.parents) if (f / FILE).is_file()), None)


def read_settings(path: Path, kinds: Kinds) -> Settings:
    """The file's settings; UsageError for what is no TOML, for unknown keys, and for values of another type."""
    try:
        document = tomllib.loads(read_bounded(path, MOST_BYTES).decode())
        json.dumps(document, default=str)  # TOML reads hexadecimal numbers of any length, which Python does not tell
    except OSError as error:
        raise UsageError(f"{path}: the settings must be readable", error.strerror or "") from error
    except RecursionError as error:
        raise UsageError(f"{path}: the settings must be TOML", "values within values within values") from error
    except ValueError as error:  # of TOML, of UTF-8, of numbers with thousands of digits
        raise UsageError(f"{path}: the settings must be TOML", shortened(str(error), 200)) from error
    for key in document:
        _require_known(path, key, kinds)
    texts = {key: _texts(path, key, value, kinds[key]) for key, value in document.items()}
    return Settings(path, {key: found for key, found in texts.items() if found is not None})


def _require_known(path: Path, key: str, kinds: Kinds) -> None:
    if key not in kinds:
        near = get_close_matches(key[:40], kinds, 1)
        remedy = f"'{near[0]}'" if near else f"one of: {', '.join(sorted(kinds))}"
        raise UsageError(f"{path}: keys must be options that a file may set", f"'{shortened(key, 80)}'", remedy)


def _texts(path: Path, key: str, value: object, kind: type[Any]) -> list[str] | None:
    """As a command line has it; None for a flag that is not set."""
    if kind is bool and isinstance(value, bool):
        return [] if value else None
    if kind is list and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return [_placed(path, key, text, kind) for text in value] or None
    numbers = {int: (int,), float: (int, float), str: (int, str), Path: (str,)}.get(kind, ())
    if isinstance(value, numbers) and not isinstance(value, bool):
        return [_placed(path, key, str(value), kind)]
    wanted = {bool: "true or false", list: 'a list of texts: ["…"]', int: "a whole number", float: "a number"}
    raise UsageError(
        f"{path}: '{key}' must be {wanted.get(kind, 'a text')}", shortened(json.dumps(value, default=str), 80)
    )


def _placed(path: Path, key: str, text: str, kind: type[Any]) -> str:
    """The text; of a file's path the way to it from the working directory. UsageError for what nobody would type."""
    if not text.isprintable():
        raise UsageError(f"{path}: '{key}' must be printable text", shortened(repr(text), 80))
    if key == "metric" and ":" in text:
        remedy = f"give it on the command line: --metric {shortened(text, 80)}"
        raise UsageError(f"{path}: a file cannot name code that is run", f"metric '{shortened(text, 80)}'", remedy)
    if key == "bind" and text.endswith(".npy"):
        name, _, file = text.partition("=")
        return f"{name}={_from_here(path, file)}"
    is_file = kind is Path or (key == "board" and text.endswith(".toml"))
    is_file |= key == "input-pipeline" and (path.parent / text).is_file()
    return _from_here(path, text) if is_file else text


def _from_here(path: Path, file: str) -> str:
    """A file named in the settings, from the working directory; never what could be read as an option."""
    found = os.path.relpath(path.parent / file)
    return f"./{found}" if found.startswith("-") else found


def settings_text(values: Mapping[str, object]) -> str:
    """The file of these settings: texts, numbers, flags, and lists of texts. UsageError for what no file may hold.

    JSON's texts are TOML's, as long as all of their characters are printable.
    """
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    for key, value in values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isprintable():
                raise UsageError(f"'{key}' must be printable text", shortened(repr(text), 80))
    return "".join(("# Options of all mcugen commands here and below; what a command line says wins.\n", *lines))
