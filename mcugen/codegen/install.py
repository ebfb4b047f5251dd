# SPDX-License-Identifier: Apache-2.0
"""Writing of generated files into a folder that may be part of a project; the user's files are kept.

A manifest in the folder contains the hashes of the files that mcugen wrote. A file that differs from its hash was
edited, and is not overwritten unless the user forces it. A file that the new package does not contain is removed if it
was not edited.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from mcugen.codegen.atomic import staging, write_synced
from mcugen.core.errors import OutputError, listed
from mcugen.core.limits import read_bounded
from mcugen.core.version import __version__

Files = Mapping[str, str | bytes]
"""Files of a package by their path in it, with slashes."""

MANIFEST = ".mcugen-manifest.json"
"""Name of the manifest, a JSON file with the name of the package, and the hashes of the files by path.

A file has several hashes if an export was killed and may have left the old or the new file.
"""

_MANIFEST_BYTES = 1 << 20
_FINAL = ".final"
"""The staged manifest that knows the new files alone."""


@dataclass(frozen=True)
class InstallResult:
    """The files that an export wrote to a folder, removed from it, and kept in it; names are relative to the folder."""

    folder: Path
    """The folder of the export."""
    written: tuple[str, ...]
    """Files that were written, new or in place of an older version."""
    removed: tuple[str, ...]
    """Files of an older export that were removed because the new package does not contain them."""
    kept: tuple[str, ...]
    """Files of an older export that the new package does not contain; they stay because the user edited them."""


@dataclass(frozen=True)
class _Manifest:
    package: str
    hashes: Mapping[str, tuple[str, ...]]


def install(
    files: Files, folder: Path, package: str, *, force: bool = False, any_package: bool = False
) -> InstallResult:
    """Write the files of a package to a folder; keep the user's own files in the folder.

    Unedited files of an older export that the new package does not contain are removed.

    Args:
        files: The files, by path in the folder.
        folder: The folder, which may exist.
        package: Name of the package, which the manifest records.
        force: Whether files that were edited, or that mcugen did not write, are overwritten.
        any_package: Whether unedited files of another package in the folder are replaced.

    Raises:
        OutputError: Nothing can be written; or, without `force`, a file was edited or was not written by mcugen, or the
            folder contains another package. The folder is then unchanged.
    """
    target = Path(os.path.realpath(folder))
    is_new = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with staging(target) as fresh:
            known = _known(target, package, force or any_package)
            _require_places(target, [*files, *known.hashes, MANIFEST], folder)
            _require_unedited(target, files, known, folder, force)
            return _replace(target, fresh, files, known, folder)
    except OSError as error:
        rule = f"{folder}: the output must be a folder that can be written"
        raise OutputError(rule, error.strerror or str(error), "check space and permissions") from error
    finally:
        if is_new:
            with suppress(OSError):
                target.rmdir()  # only if nothing came of it


def holds_only_unedited(target: Path, files: Files, package: str, folder: Path, *, force: bool) -> bool:
    """Return whether a folder may be replaced as a whole, because it holds no file that must be kept.

    The result is True for a folder that does not exist.

    Args:
        target: The folder, which may not exist, without links in its path.
        files: The new files, by path in the folder.
        package: Name of the package.
        folder: The same folder as the user named it, for messages.
        force: Whether edited files are overwritten.

    Raises:
        OutputError: Without `force`, a file that would be overwritten was edited or was not written by mcugen.
    """
    if not target.exists():
        return True
    known = _known(target, package, True)
    _require_unedited(target, files, known, folder, force)
    return all(_is_replaceable(path, known, files) for path in target.iterdir() if path.name != MANIFEST)


def _is_replaceable(path: Path, known: _Manifest, files: Files) -> bool:
    """Return whether a path in the folder is a file that the new files replace, or an unedited one of the old files."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.name in files or _is_ours(path, path.name, known)


def manifest(files: Files, package: str) -> bytes:
    """Return the JSON manifest of a folder with these files: the package's name, and a digest of each file."""
    return _manifest(package, {path: (digest(_bytes(content)),) for path, content in files.items()})


def digest(data: bytes) -> str:
    """Return the SHA-256 of a file for the manifest, in hexadecimal.

    Line ends are normalized first, because version control may change them.
    """
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


def _known(target: Path, package: str, force: bool) -> _Manifest:
    """Return the folder's manifest, or an empty one.

    Raises:
        OutputError: The manifest is damaged, or belongs to another package.
    """
    none = _Manifest(package, {})
    path = target / MANIFEST
    if not path.is_file() or path.is_symlink():
        return none
    try:
        known = _parsed(read_bounded(path, _MANIFEST_BYTES))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if force:
            return none
        raise OutputError(f"{path}: must be as mcugen wrote it", str(error), "remove it, and use --force") from error
    if known.package != package and not force:
        rule = f"{target}: a folder holds one package"
        remedy = f"give --output FOLDER for '{package}', or --force to replace the package"
        raise OutputError(rule, f"'{known.package}'", remedy)
    return _Manifest(package, known.hashes)


def _parsed(data: bytes) -> _Manifest:
    document = json.loads(data)
    hashes = {str(path): tuple(map(str, digests)) for path, digests in document["files"].items()}
    for path in hashes:
        pure = PurePosixPath(path)
        if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\\" in path or ":" in path or "\0" in path:
            raise ValueError(f"'{path}', which is not in the folder")
    return _Manifest(str(document["package"]), hashes)


def _require_places(target: Path, paths: Iterable[str], folder: Path) -> None:
    """OutputError where a link leads out of the folder, or where something else stands in a file's place."""
    for path in paths:
        place = target / path
        if not Path(os.path.realpath(place)).is_relative_to(target):
            raise OutputError(
                f"{folder}: '{path}' must be in the folder", "a link to another folder", "remove the link"
            )
        folders = [p for p in place.parents if p.is_relative_to(target) and p.exists()]
        if (place.exists() and not place.is_file()) or not all(p.is_dir() for p in folders):
            raise OutputError(f"{folder}: '{path}' must be a file or new", "something else", "another folder with -o")


def _require_unedited(target: Path, files: Files, known: _Manifest, folder: Path, force: bool) -> None:
    edited = [path for path in files if not force and not _is_ours(target / path, path, known, files[path])]
    if edited:
        rule = f"{folder}: files that mcugen did not write, or that were edited, are not overwritten"
        raise OutputError(rule, listed(edited), "give --output FOLDER for another folder, or --force to overwrite them")


def _is_ours(place: Path, path: str, known: _Manifest, new: str | bytes | None = None) -> bool:
    """Return whether a file is absent, is as the manifest says, or is as the `new` file to write, if any."""
    if not place.exists():
        return True
    expected = (*known.hashes.get(path, ()), *([] if new is None else [digest(_bytes(new))]))
    return place.is_file() and digest(place.read_bytes()) in expected


def _replace(target: Path, fresh: Path, files: Files, known: _Manifest, folder: Path) -> InstallResult:
    """Stages all, then puts file by file: who is killed meanwhile leaves a manifest that knows both of each."""
    data = {path: _bytes(content) for path, content in sorted(files.items())}
    new = {path: (digest(content),) for path, content in data.items()}
    leftovers = [path for path in sorted(known.hashes) if path not in files and (target / path).exists()]
    removed = [path for path in leftovers if _is_ours(target / path, path, known)]
    both = {path: (*known.hashes.get(path, ()), *new.get(path, ())) for path in {*known.hashes, *new}}
    staged = {**data, MANIFEST: _manifest(known.package, both), _FINAL: _manifest(known.package, new)}
    for path, content in staged.items():
        _stage(fresh / "new" / path, content, target / path)
    _put(target, fresh, [MANIFEST, *data], removed)
    return InstallResult(folder, tuple(data), tuple(removed), tuple(p for p in leftovers if p not in removed))


def _stage(place: Path, content: bytes, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    write_synced(place, partial(_write, content), mode)


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _put(target: Path, fresh: Path, paths: Sequence[str], removed: Sequence[str]) -> None:
    """Move staged files to their places and remove others; restore everything if any step fails."""
    moved: list[str] = []
    try:
        for path in [*paths, *removed]:
            place, old = target / path, fresh / "old" / path
            if place.exists():
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place, old)
            moved.append(path)
            if path in removed:
                place.unlink()
                _remove_empty(place.parent, target)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                (fresh / "new" / path).replace(place)
        (fresh / "new" / _FINAL).replace(target / MANIFEST)
    except BaseException:
        for path in reversed(moved):
            with suppress(OSError):
                _undo(target / path, fresh / "old" / path, target)
        raise


def _undo(place: Path, old: Path, target: Path) -> None:
    if old.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        old.replace(place)
        return
    place.unlink(missing_ok=True)
    _remove_empty(place.parent, target)


def _remove_empty(folder: Path, target: Path) -> None:
    """Folders that hold nothing any more, up to the target."""
    with suppress(OSError):
        while folder != target:
            folder.rmdir()
            folder = folder.parent


def _manifest(package: str, hashes: Mapping[str, Iterable[str]]) -> bytes:
    files = {path: sorted(set(digests)) for path, digests in sorted(hashes.items())}
    document = {"generator": f"mcugen {__version__}", "package": package, "files": files}
    return (json.dumps(document, indent=2) + "\n").encode()


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
