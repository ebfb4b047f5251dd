# SPDX-License-Identifier: Apache-2.0
"""Settings of a project: options of commands in `mcugen.toml`, in the working directory or the nearest one above it.

The file is data: its options can neither run code nor write files, as it may come with a foreign repository. It is read
only if no other user could have written it.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import read_bounded
from mcugen.options.table import OPTIONS

FILE = "mcugen.toml"
"""Name of a settings file."""
MAX_SETTINGS_BYTES = 1 << 16
"""Largest size of a settings file in bytes."""
SAFE_FOLDERS_VARIABLE = "MCUGEN_SAFE_DIRECTORY"
"""Environment variable with folders whose settings files are read whoever owns them, like git's safe.directory.

The value is a list of paths in the form of PATH, or * for all folders.
"""
_REPOSITORY_MARKS = (".git", ".hg", ".jj")
"""Names of entries in the root folder of a repository; the search for settings ends there."""
_ROOT = 0
"""Number of the user and the group that can change any file."""
MODEL = "model"
"""Key in a settings file for the model, the only positional argument that the file may give."""

Kinds = Mapping[str, type[Any]]
"""Types of the options that a file may give, by name: bool, int, float, str, Path, or list (of texts)."""


def settings_kinds() -> Kinds:
    """Return the Python types of the values of the options that a settings file may contain, by option name."""
    return {MODEL: Path} | {option.name: option.base for option in OPTIONS if option.is_in_settings}


@dataclass(frozen=True)
class Settings:
    """The contents of a settings file (`mcugen.toml`).

    Attributes:
        path: The file.
        values: The texts of each option on the command line, by option name without dashes; an empty sequence for a
            flag.
    """

    path: Path
    values: Mapping[str, Sequence[str]]

    @property
    def arguments(self) -> list[str]:
        """Return the settings as command-line arguments."""
        return [argument for name, texts in self.values.items() for argument in _arguments(name, texts)]


def _arguments(name: str, texts: Sequence[str]) -> list[str]:
    """Return the command-line arguments for the texts of one option; an option without texts is a flag."""
    if name == MODEL:
        return list(texts)
    return [f"--{name}={text}" for text in texts] or [f"--{name}"]


def find_settings(folder: Path) -> Path | None:
    """Return the settings file of a folder, or else of the nearest folder above it; None if there is none.

    The search ends at the root of a repository and at the border of a file system.
    """
    device = folder.stat().st_dev
    for place in (folder, *folder.parents):
        if place.stat().st_dev != device:
            return None
        if os.path.lexists(place / FILE):
            return place / FILE
        if any(os.path.lexists(place / mark) for mark in _REPOSITORY_MARKS):
            return None
    return None


def _require_trusted(path: Path) -> None:
    """Raise UsageError if another user owns or can write the file, a link to the file, or the folder of either."""
    if not hasattr(os, "getuid") or _is_declared_safe(path.parent):
        return
    file = Path(os.path.realpath(path))
    for place in dict.fromkeys((path, path.parent, file, file.parent)):
        risk = _writable_by_others(place.lstat())
        if risk:
            remedy = f"--no-settings; or {SAFE_FOLDERS_VARIABLE}={path.parent} in the environment, if you trust it"
            raise UsageError(f"{path}: no other user may own or write settings", f"'{place}' {risk}", remedy)


def _is_declared_safe(folder: Path) -> bool:
    declared = os.environ.get(SAFE_FOLDERS_VARIABLE, "").split(os.pathsep)
    return "*" in declared or os.path.realpath(folder) in map(os.path.realpath, filter(None, declared))


def _writable_by_others(known: os.stat_result) -> str:
    """Return who else can change a file, link or folder, or "" if it is this user and root alone."""
    mode = known.st_mode
    if known.st_uid not in _trusted_users():
        return f"belongs to user {known.st_uid}"
    # In a sticky folder, only the owner of a file can replace it.
    is_protected = stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)
    if is_protected:
        return ""
    if mode & stat.S_IWOTH:
        return "can be written by all users"
    if mode & stat.S_IWGRP and not _is_private_group(known.st_gid):
        return f"can be written by group {known.st_gid}"
    return ""


def _trusted_users() -> set[int]:
    """Return the numbers of this user, of root, and of the user who became root by sudo."""
    sudo = os.environ.get("SUDO_UID", "") if os.getuid() == _ROOT else ""
    return {_ROOT, os.getuid(), *([int(sudo)] if sudo.isascii() and sudo.isdecimal() and len(sudo) < 11 else [])}


def _is_private_group(group: int) -> bool:
    """Return whether nobody else is in a group: root's group, or the own group that many systems give each user."""
    import grp
    import pwd

    if group == _ROOT:
        return True
    try:
        known, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
    except KeyError:  # The user or group has no entry, in a container, for example.
        return group == os.getgid()
    return (known.gr_name, user.pw_gid) == (user.pw_name, group) and set(known.gr_mem) <= {user.pw_name}


def read_settings(path: Path, kinds: Kinds) -> Settings:
    """Read and check a settings file. `kinds` has the value types of all options that it may contain, by name.

    Raises:
        UsageError: Another user may have written the file, it is not TOML, a key is unknown, or a value has a wrong
            type.
    """
    try:
        _require_trusted(path)
        document = tomllib.loads(read_bounded(path, MAX_SETTINGS_BYTES).decode())
        json.dumps(document, default=str)  # Reject hexadecimal numbers that Python is not able to print in decimal.
    except OSError as error:
        raise UsageError(f"{path}: the settings must be readable", error.strerror or "") from error
    except RecursionError as error:
        raise UsageError(f"{path}: the settings must be TOML", "values within values within values") from error
    except ValueError as error:  # Raised for invalid TOML or UTF-8, and for numbers with thousands of digits.
        raise UsageError(f"{path}: the settings must be TOML", shortened(str(error), 200)) from error
    for key in document:
        _require_known(path, key, kinds)
    texts = {key: _option_texts(path, key, value, kinds[key]) for key, value in document.items()}
    return Settings(path, {key: option_texts for key, option_texts in texts.items() if option_texts is not None})


def _require_known(path: Path, key: str, kinds: Kinds) -> None:
    """Raise UsageError with the nearest option if a key of a settings file is no option that it may contain."""
    if key not in kinds:
        near = get_close_matches(key[:40], kinds, 1)
        remedy = f"'{near[0]}'" if near else f"one of: {', '.join(sorted(kinds))}"
        raise UsageError(f"{path}: keys must be options that a file may set", f"'{shortened(key, 80)}'", remedy)


def _option_texts(path: Path, key: str, value: object, kind: type[Any]) -> list[str] | None:
    """Return the command-line texts of a value; None for a flag that is false.

    Raises:
        UsageError: The value does not have the type of the option.
    """
    if kind is bool and isinstance(value, bool):
        return [] if value else None
    if kind is list and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return [_command_line_text(path, key, text, kind) for text in value] or None
    numbers = {int: (int,), float: (int, float), str: (int, str), Path: (str,)}.get(kind, ())
    if isinstance(value, numbers) and not isinstance(value, bool):
        return [_command_line_text(path, key, str(value), kind)]
    type_names = {bool: "true or false", list: 'a list of texts: ["…"]', int: "a whole number", float: "a number"}
    raise UsageError(
        f"{path}: '{key}' must be {type_names.get(kind, 'a text')}", shortened(json.dumps(value, default=str), 80)
    )


def _command_line_text(path: Path, key: str, text: str, kind: type[Any]) -> str:
    """Return a text, with paths relative to the working directory instead of the settings file.

    Raises:
        UsageError: The text is not printable, or it names code to run.
    """
    if not text.isprintable():
        raise UsageError(f"{path}: '{key}' must be printable text", shortened(repr(text), 80))
    if key == "metric" and ":" in text:
        remedy = f"give it on the command line: --metric {shortened(text, 80)}"
        raise UsageError(f"{path}: a file cannot name code that is run", f"metric '{shortened(text, 80)}'", remedy)
    if key == "bind" and text.endswith(".npy"):
        name, _, file = text.partition("=")
        return f"{name}={_path_from_here(path, file)}"
    is_file = kind is Path or (key == "board" and text.endswith(".toml"))
    is_file |= key == "input-pipeline" and (path.parent / text).is_file()
    return _path_from_here(path, text) if is_file else text


def _path_from_here(path: Path, file: str) -> str:
    """Return the path of a file in the settings from the working directory; it never looks like an option."""
    relative_path = os.path.relpath(path.parent / file)
    return f"./{relative_path}" if relative_path.startswith("-") else relative_path


def settings_command(command: str, values: Mapping[str, Any]) -> str:
    """Return the command for a shell that has the options of a settings file on its command line.

    Args:
        command: Name of the command.
        values: The values by option; "" leaves an option out, as does an option that the command does not have.
    """
    options = {option.name for option in OPTIONS if command in option.commands}
    words = ["mcugen", command, *([str(values[MODEL])] if MODEL in values else [])]
    for name, value in values.items():
        for text in value if isinstance(value, list) else [value]:
            if name in options and text is not False and text != "":
                words += [f"--{name}"] if text is True else [f"--{name}", str(text)]
    return shlex.join(words)


def settings_text(values: Mapping[str, object]) -> str:
    """Return the text of a settings file with these values: texts, numbers, flags and lists of texts.

    Values are written as JSON strings, which are valid TOML strings if all characters are printable.

    Raises:
        UsageError: A text is not printable.
    """
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    for key, value in values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isprintable():
                raise UsageError(f"'{key}' must be printable text", shortened(repr(text), 80))
    return "".join(("# Options of all mcugen commands here and below; what a command line says wins.\n", *lines))
