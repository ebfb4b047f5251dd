# SPDX-License-Identifier: Apache-2.0
"""Declaration of a package format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcugen.codegen.install import Files

if TYPE_CHECKING:
    from mcugen.core.board import Board
    from mcugen.export.package import Package


def no_files(package: Package) -> Files:
    """Return no files: the default of `Format.extra_files`."""
    return {}


def accept_any_board(board: Board) -> bool:
    """Return True for all boards; it is the default of `Format.supports_cpu`."""
    return True


@dataclass(frozen=True, kw_only=True)
class Format:
    """The declaration of a package format: its files, its steps for users, and how it is tested.

    In its texts, {name}, {version}, {zephyr_board}, {idf_target} and {pico_board} stand for those of the package.
    """

    name: str
    """Value of `--format`."""
    tool: str
    """Names of the tools that use the format, for docs/how-to/export.md."""
    steps: tuple[str, ...]
    """Steps for the user to add a package to a project and to run the self-test, one sentence each."""
    testing: str
    """Description of how mcugen's tests check the format, for docs/how-to/export.md."""
    code: str = "src/"
    """Path of the folder of C files in the package, with a slash at its end; "" for the package's root."""
    beside: str = "extras/"
    """Path of the folder of files that no compiler reads (report, weights file), with a slash; "" for the root."""
    carries_code: bool = True
    """Whether the package has the C files themselves; False if it only has a CMSIS-Pack that contains them."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Rendered files of the package: the template below templates/export, by the file's path in the package."""
    extra_files: Callable[[Package], Files] = no_files
    """Returns further files that are not rendered from templates: XML, JSON, archives."""
    archive: str = ""
    """File name of the package as one zipped file; "" if the tool does not accept such a file."""
    top: str = ""
    """Path of the folder in the zipped file that contains all other files, with a slash at its end; "" for none."""
    demands_url: bool = False
    """Whether the tool's own checks demand a web page in the metadata."""
    supports_cpu: Callable[[Board], bool] = accept_any_board
    """Returns whether the tool supports the CPU of a board."""
    has_validation: bool = False
    """Whether the package has the firmware's side of `mcugen validate`."""
    framework: str = ""
    """Field of `Frameworks` that boards of this tool have; "" for tools that are not bound to boards.

    A board that names other frameworks, but not this one, is refused; a board file that names none is accepted.
    """
    archive_files: Callable[[Package], Files] | None = None
    """Returns the files of the zipped file; None if they are the files of the package."""

    def supports(self, board: Board) -> bool:
        """Return whether the tool can build for a board, as far as the board file tells."""
        is_named = not self.framework or bool(getattr(board.frameworks, self.framework))
        return self.supports_cpu(board) and (is_named or not board.frameworks)
