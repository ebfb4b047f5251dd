# SPDX-License-Identifier: Apache-2.0
"""The user's kernel library that a model is linked with: checks before a build, and error messages on failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.libraries import Library
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.limits import open_regular
from mcugen.core.options import LibraryFiles

_ARCHIVES = (b"!<arch>\n", b"!<thin>\n")
"""First bytes of archives of object files."""


@dataclass(frozen=True)
class Linked:
    """The user's kernel library that a build links the model with.

    Attributes:
        library: The library; None if the model calls none.
        include: Folder of the library's headers; empty without a library.
        archive: Path of the library's archive; empty without a library.
    """

    library: Library | None = None
    include: Path = Path()
    archive: Path = Path()

    @classmethod
    def of(cls, bundle: Bundle, files: LibraryFiles | None, cpu: str) -> Linked:
        """Return the user's copy of the kernel library (such as CMSIS-NN) that the code of a model calls.

        Without such calls, all attributes of the result are empty.

        Args:
            bundle: The generated code of the model.
            files: The user's copy of the library; None if there is none, which is an error if the code needs it.
            cpu: Name of the CPU, which selects the archive.

        Raises:
            UsageError: Files of the library are missing.
        """
        libraries = [library for library in bundle.libraries if not library.stand_in]
        if not libraries:
            return cls()
        (library,) = libraries
        include, archive = library.options
        if files is None:
            variables = " and ".join(library.variables)
            remedy = f"give {include} DIR and {archive} FILE (or set {variables}), or take --kernels own"
            raise UsageError(f"a model that calls {library.versions} must be linked with it to run", "none", remedy)
        linked = cls(library, *(Path(os.path.realpath(path)) for path in (files.include, files.archive_for(cpu))))
        if not (linked.include / library.header).is_file():
            rule = f"{include} must be the folder of {library.title} that holds {library.header}"
            raise UsageError(rule, f"no such file in '{files.include}'", "give the library's folder Include")
        if not linked.archive.is_file() or not _is_archive(linked.archive):
            rule = f"{archive} must be {library.title} as built for {cpu}, an archive of object files"
            what = "another kind of file" if linked.archive.exists() else "no such file"
            raise UsageError(rule, f"{what}: '{files.archive_for(cpu)}'", "give the path of a libcmsis-nn.a, say")
        return linked

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the compiler flags for the library's headers, as system headers, whose warnings are not shown."""
        return ("-isystem", str(self.include)) if self.library else ()

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the path of the library's archive, to be linked; empty if the code calls no library."""
        return (str(self.archive),) if self.library else ()

    def blamed_for_headers(self) -> AbstractContextManager[None]:
        """Return a context manager that reports compilation failures as a problem of the library's headers."""
        return self._blamed("compile with the headers of", 0, "they")

    def blamed_for_archive(self, flags: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context manager that reports link failures as a problem of the library's archive.

        Args:
            flags: The compiler flags that the archive must be built with, for the message.
        """
        return self._blamed("link with", 1, "it", f", built with {' '.join(flags)}")

    @contextmanager
    def _blamed(self, what: str, option: int, files: str, built: str = "") -> Iterator[None]:
        """Report failures within the block as a problem of the files that an option of the library names."""
        try:
            yield
        except VerificationError as error:
            if self.library is None:
                raise
            rule = f"the model must {what} {self.library.options[option]}"
            required = f"{self.library.versions}, from {self.library.first_version} on{built}"
            raise UsageError(rule, error.found, f"{files} must be {required}") from error


def _is_archive(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(_ARCHIVES[0])) in _ARCHIVES
