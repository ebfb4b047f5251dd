# SPDX-License-Identifier: Apache-2.0
"""Digests of what a result depends on: the contents of files, the values of arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from mcugen.core.limits import open_regular


def fingerprint(*causes: Any) -> str:
    """Return the SHA-256, in hex, of values on which a cached result depends.

    The values may be dataclasses, collections, arrays, plain values, and paths of files or folders, whose contents
    count. The order of elements of a set does not matter.

    Raises:
        OSError: If a file cannot be read.
    """
    return hashlib.sha256(json.dumps([_plain(cause) for cause in causes], sort_keys=True).encode()).hexdigest()


def file_named_by(text: str) -> str | Path:
    """Return the path of the file that the value of an option names, as FILE or FILE:NAME, if the file exists.

    Otherwise return the value itself.
    """
    for name in (text, text.rpartition(":")[0]):
        if name and len(name) < 4096 and "\0" not in name and Path(name).is_file():
            return Path(name)
    return text


def _plain(value: Any) -> Any:
    """Return the value as plain data for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, {f.name: _plain(getattr(value, f.name)) for f in fields(value)}]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(json.dumps, map(_plain, value)))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, Path):
        return _contents(value)
    if isinstance(value, Enum):
        return _plain(value.value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _contents(path: Path) -> Any:
    """Return the digest of a file, or for a folder those of all files in it."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return [[str(p.relative_to(path)), _contents(p)] for p in files]
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
