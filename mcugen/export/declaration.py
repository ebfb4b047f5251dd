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
    """Return no files; it is the default of `Format.made`, for formats whose files are all templates."""
    return {}


def any_board(board: Board) -> bool:
    """Return True for all boards; it is the default of `Format.supports_cpu`."""
    return True


@dataclass(frozen=True, kw_only=True)
class Format:
    """The declaration of a package format.

    In its texts, {name}, {version}, {zephyr_board}, {idf_target} and {pico_board} stand for those of the package.
    """

    name: str
    """Value of `--format`."""
    tool: str
    """The tools that use the format, for docs/export.md."""
    steps: tuple[str, ...]
    """Steps for the user to add a package to a project and to run the self-test, one sentence each."""
    checked: str
    """How the format is tested, for docs/export.md."""
    code: str = "src/"
    """Folder of the C files in the package, with a slash; "" for the package's root."""
    beside: str = "extras/"
    """Folder of the files that no compiler reads, in the same form."""
    carries_code: bool = True
    """Whether the package contains the files themselves, not only a pack that contains them."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Files of the package by path, each with its template below templates/export."""
    made: Callable[[Package], Files] = nothing
    """Returns further files, which are not templates: XML, JSON, archives."""
    archive: str = ""
    """File name of the package as one zipped file; "" if the tool does not accept that."""
    top: str = ""
    """Folder in the archive that contains all files, with a slash; "" for none."""
    demands_url: bool = False
    """Whether the tool's own checks demand a web page in the metadata."""
    supports_cpu: Callable[[Board], bool] = any_board
    """Returns whether the tool supports the CPU of a board."""
    framework: str = ""
    """Field of `Frameworks` that boards of this tool have; "" for tools that are not bound to boards.

    A board that names other frameworks, but not this one, is refused; a board file that names none is accepted.
    """
    archived: Callable[[Package], Files] | None = None
    """Returns the files of the archive if they differ from those of the package."""

    def supports(self, board: Board) -> bool:
        """Return whether the tool can build for a board, as far as the board file tells."""
        is_named = not self.framework or bool(getattr(board.frameworks, self.framework))
        return self.supports_cpu(board) and (is_named or not board.frameworks)
