# SPDX-License-Identifier: Apache-2.0
"""A team's settings: `mcugen.toml` of the working directory, or of the nearest one above it, says options of commands.

The file is data: what it says can neither run code nor write files, as it may come with somebody's repository. It is
read only where no other user could have written it.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import read_bounded

FILE = "mcugen.toml"
MOST_BYTES = 1 << 16
SAFE_FOLDERS_VARIABLE = "MCUGEN_SAFE_DIRECTORY"
"""Folders whose settings are read whoever owns them, as git's safe.directory: paths as in PATH, or * for all."""
_REPOSITORY_MARKS = (".git", ".hg", ".jj")
"""What lies in the root of a repository, above which nobody looks for settings."""
_ROOT = 0
"""The user and the group that may change every file anyhow."""
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
    """UsageError for settings that another user owns or can write: the file, a link to it, or the folder of either."""
    if not hasattr(os, "getuid") or _is_declared_safe(path.parent):
        return
    file = Path(os.path.realpath(path))
    for place in dict.fromkeys((path, path.parent, file, file.parent)):
        risk = _risk(place.lstat())
        if risk:
            remedy = f"--no-settings; or {SAFE_FOLDERS_VARIABLE}={path.parent} in the environment, if you trust it"
            raise UsageError(f"{path}: no other user may own or write settings", f"'{place}' {risk}", remedy)


def _is_declared_safe(folder: Path) -> bool:
    declared = os.environ.get(SAFE_FOLDERS_VARIABLE, "").split(os.pathsep)
    return "*" in declared or os.path.realpath(folder) in map(os.path.realpath, filter(None, declared))


def _risk(known: os.stat_result) -> str:
    """Return who else can change a file, link or folder, or "" if it is this user and root alone."""
    mode = known.st_mode
    if known.st_uid not in _trusted_users():
        return f"belongs to user {known.st_uid}"
    is_protected = stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)  # sticky: none replaces others'
    if is_protected:
        return ""
    if mode & stat.S_IWOTH:
        return "can be written by all users"
    if mode & stat.S_IWGRP and not _is_private_group(known.st_gid):
        return f"can be written by group {known.st_gid}"
    return ""


def _trusted_users() -> set[int]:
    """Return the numbers of this user, of root, and of who became root by sudo."""
    sudo = os.environ.get("SUDO_UID", "") if os.getuid() == _ROOT else ""
    return {_ROOT, os.getuid(), *([int(sudo)] if sudo.isascii() and sudo.isdecimal() and len(sudo) < 11 else [])}


def _is_private_group(group: int) -> bool:
    """Return whether nobody else is in a group: root's, or this user's own group, as many systems make one a user."""
    import grp
    import pwd

    if group == _ROOT:
        return True
    try:
        known, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
    except KeyError:  # in a container, say
        return group == os.getgid()
    return (known.gr_name, user.pw_gid) == (user.pw_name, group) and set(known.gr_mem) <= {user.pw_name}


def read_settings(path: Path, kinds: Kinds) -> Settings:
    """Return the file's settings.

    UsageError for what another user may have written, for what is no TOML, for unknown keys, and for values of another
    type.
    """
    try:
        _require_trusted(path)
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
