# SPDX-License-Identifier: Apache-2.0
"""Declaration of a package format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcugen.core.board import Board
    from mcugen.export.package import Package

Files = Mapping[str, str | bytes]
"""Files of a package by their path in it, with slashes."""


def nothing(package: Package) -> Files:
    """Return no files: for formats whose files are all templates."""
    return {}


def any_board(board: Board) -> None:
    """Accept the board: for tools that build for all boards."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A form that an IDE or a build system takes as it is. In its texts, {name} and {version} are the package's."""

    name: str
    tool: str
    """Who takes it."""
    steps: tuple[str, ...]
    """How a person brings it into a project, and sees the self-test pass: a sentence each."""
    checked: str
    """How it is checked that the tool takes it, for docs/export.md."""
    code: str = "src/"
    """The folder of the C files, with a slash; "" for the top."""
    beside: str = "extras/"
    """The same of what no compiler reads."""
    carries_code: bool = True
    """Whether these files lie in the package, besides in a pack."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Files of the package, and the templates below templates/export that they are made of."""
    made: Callable[[Package], Files] = nothing
    """Files that a library writes: XML, JSON, archives."""
    archive: str = ""
    """The file name of the package as one zipped file, where the tool takes that."""
    top: str = ""
    """The folder in that archive which holds all, with a slash."""
    require_board: Callable[[Board], object] = any_board
    """Raises UsageError for a board that the tool does not build for."""
    archived: Callable[[Package], Files] | None = None
    """What is in the archive, where that is not the package itself."""
