# SPDX-License-Identifier: Apache-2.0
"""The description of a compiled model for package formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.environment import environment
from mcugen.codegen.identifiers import comment
from mcugen.codegen.install import MANIFEST
from mcugen.codegen.libraries import Library
from mcugen.core.board import Board, Frameworks
from mcugen.core.errors import UsageError, shortened
from mcugen.core.options import CompileOptions
from mcugen.core.resources import resource_dir
from mcugen.core.version import __version__
from mcugen.driver.compiled import CompiledModel
from mcugen.simulation.toolchain import ARM, RISCV, XTENSA

_PLAIN_FLAG = re.compile(r"[-\w=+.,/]+", re.ASCII)
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)

_TARGETS = frozenset(
    "all clean edit_cache help install package package_source rebuild_cache test app kernel zephyr".split()  # noqa: SIM905
)
"""Names that CMake and Zephyr use for their own targets."""

_SIMULATED_ZEPHYR_BOARDS = {
    "cortex-m0plus": "mps2/an385",
    "cortex-m3": "mps2/an385",
    "cortex-m4": "mps2/an386",
    "cortex-m7": "mps2/an500",
    "cortex-m33": "mps2/an521/cpu0",
    "cortex-m55": "mps3/corstone300/an547",
    "host": "native_sim",
}
"""Zephyr boards that QEMU simulates, by CPU (Zephyr 3.7); a Cortex-M3 runs the code of a Cortex-M0+ as well."""

_LIBRARY_FLAGS = {
    ARM.name: (*ARM.library, "--specs=nosys.specs"),
    RISCV.name: (*RISCV.library, "--oslib=semihost"),
    XTENSA.name: XTENSA.library,
}
"""Flags that link a program with its small C library where the project does not say how, by toolchain."""


_URL = re.compile(r"https?://[A-Za-z0-9][\w.~:/?#@!&()*+,;=%-]{2,499}", re.ASCII)


def check_package(version: str, url: str, board: Board, options: CompileOptions) -> None:
    """Check the version, the web page, the board and the options of a package, before the model is compiled.

    Raises:
        UsageError: The version is not MAJOR.MINOR.PATCH, the web page is not a URL, a flag of the board has characters
            that shells and build files treat specially, or the weights are not in memory.
    """
    if url and not _URL.fullmatch(url):
        raise UsageError("--url must be a web page", repr(shortened(url, 100)), "e.g. https://example.com/model")
    if not _VERSION.fullmatch(version):
        raise UsageError("--package-version must read MAJOR.MINOR.PATCH", f"'{version}'", "e.g. 1.0.0")
    for flag in board.cflags:
        if not _PLAIN_FLAG.fullmatch(flag):
            rule = f"board '{board.name}': flags in build files must be of letters, digits and -_=+.,/"
            raise UsageError(rule, f"'{flag}'", "correct `cflags` in the board's file")
    if options.weights_reader:
        rule = "the example of a package must have its weights in memory"
        raise UsageError(rule, "--weights-reader", "export with --weights-blob, or compile")


@dataclass(frozen=True)
class Package:
    """A compiled model with a version, and the names, files and flags that package formats need.

    Raises:
        UsageError: `check_package` refuses it, or the model's name is reserved by build systems.
    """

    compiled: CompiledModel
    """The compiled model."""
    version: str = __version__
    """Version of the package, MAJOR.MINOR.PATCH."""
    url: str = ""
    """Web page of the package, for the metadata of package managers; "" for none."""
    requested_board: str = ""
    """Name by which the user named the board, such as that of a kit; "" for the board's own."""

    def __post_init__(self) -> None:
        check_package(self.version, self.url, self.board, self.compiled.options)
        if self.name in _TARGETS:
            raise UsageError(
                "a package must not be called like a build system's own target", self.name, "another --name"
            )

    @property
    def bundle(self) -> Bundle:
        """Return the generated C files, with the facts to call them."""
        return self.compiled.bundle

    @property
    def board(self) -> Board:
        """Return the board that the model was compiled for."""
        return self.compiled.board

    @property
    def name(self) -> str:
        """Return the prefix of the model's C symbols, which is also the package's name."""
        return self.bundle.name

    @property
    def macro(self) -> str:
        """Return the prefix of the model's C macros: its name in upper case."""
        return self.name.upper()

    @property
    def cpu(self) -> str:
        """Return the CPU's name in printable ASCII."""
        return comment(self.board.cpu)

    @property
    def cpu_word(self) -> str:
        """Return the CPU's name in letters, digits and hyphens only, such as "cortex-m4"."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.board.cpu).strip("-") or "generic"

    @property
    def title(self) -> str:
        """Return a one-line description for lists of packages."""
        return f"{self.name}: a neural network as C, for {self.cpu}"

    @property
    def details(self) -> str:
        """Return a sentence that names mcugen, the board, the model and the sizes."""
        model = self.compiled.report.model
        return (
            f"Generated by mcugen {__version__} for board {comment(self.board.name)} from the ONNX model "
            f"with SHA-256 {model.sha256}: arena {self.bundle.arena_size} bytes, "
            f"weights {self.weights_bytes} bytes, {model.macs} MACs."
        )

    @property
    def description(self) -> str:
        """Return the title and the details, for formats with one description."""
        return f"{self.title}. {self.details}"

    @property
    def simulated_zephyr_board(self) -> str:
        """Return the name of a Zephyr board with the same CPU that QEMU simulates; "" if there is none."""
        return _SIMULATED_ZEPHYR_BOARDS.get(self.board.cpu, "")

    @property
    def manifest(self) -> str:
        """Return the name of the file in which `install` lists the files that it wrote.

        Published packages do not contain this file.
        """
        return MANIFEST

    @property
    def weights_bytes(self) -> int:
        """Return the size of the weights in bytes."""
        return self.compiled.report.flash.weights

    @property
    def frameworks(self) -> Frameworks:
        """Return the names of the board in embedded frameworks."""
        return self.board.frameworks

    @property
    def selftest(self) -> str:
        """Return the C expression that calls the self-test with the model's own arena and weights."""
        several = len(self.bundle.arena_sizes) > 1
        weights = f", {self.name}_default_weights()" * (self.bundle.weights_blob is not None)
        return f"{self.name}_selftest({self.name}_default_arena{'s' * several}(){weights})"

    @cached_property
    def code(self) -> Mapping[str, str]:
        """Return the C files and headers by name, with the runtime header."""
        return {name: text for name, text in sorted(self.bundle.files.items()) if Path(name).suffix in (".c", ".h")}

    @cached_property
    def beside(self) -> Mapping[str, str | bytes]:
        """Return the files that no compiler reads, by name: report, linker script, and file of weights."""
        kinds = (".json", ".ld")
        files: dict[str, str | bytes] = {**self.bundle.files, **self.bundle.blobs}
        return {name: files[name] for name in sorted(files) if name in self.bundle.blobs or Path(name).suffix in kinds}

    @property
    def sources(self) -> list[str]:
        """Return the names of the C files to compile, including the self-test."""
        return [name for name in self.code if name.endswith(".c")]

    @property
    def libraries(self) -> tuple[Library, ...]:
        """Return the libraries that the generated code calls, which the project must provide."""
        return self.bundle.libraries

    @property
    def toolchain(self) -> str:
        """Return the prefix of the compiler's programs, such as "arm-none-eabi"; "" for this computer's compiler."""
        return self.board.toolchain

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the compiler flags that select the CPU. All code of a program must be compiled with the same flags."""
        return self.board.cflags

    @property
    def library_flags(self) -> tuple[str, ...]:
        """Return the linker flags that select the toolchain's small C library, for the example programs."""
        return _LIBRARY_FLAGS.get(self.toolchain, ())

    @property
    def needs_libm(self) -> bool:
        """Return whether the code calls functions of math.h."""
        return any("#include <math.h>" in text for text in self.code.values())

    @property
    def has_fpu(self) -> bool:
        """Return whether the CPU has a floating-point unit."""
        return "fpu" in self.board.features

    def filled(self, text: str) -> str:
        """Return a text with placeholders such as {name} replaced by this package's values.

        They are {name}, {NAME}, {version}, {zephyr_board}, {idf_target} and {pico_board}.
        """
        texts = {
            "{name}": self.name,
            "{NAME}": self.macro,
            "{version}": self.version,
            "{zephyr_board}": self.frameworks.zephyr or "YOUR_BOARD",
            "{idf_target}": self.frameworks.esp_idf or "YOUR_CHIP",
            "{pico_board}": self.frameworks.pico_sdk or "YOUR_BOARD",
        }
        for word, value in texts.items():
            text = text.replace(word, value)
        return text

    @property
    def notes(self) -> list[str]:
        """Return notes on libraries and linker scripts that the project must provide, one sentence each."""
        texts = [f"{self.name} calls {library.versions}, which your project brings" for library in self.libraries]
        texts += [f"{library.title}: {library.setup}" for library in self.libraries if library.setup]
        if self.bundle.sections:
            texts.append(f"parts of it lie in memories of their own: see {self.name}_memory.ld")
        return texts

    @property
    def licence(self) -> str:
        """Return the text of the licence of the generated code."""
        return (resource_dir("LICENSES") / "0BSD.txt").read_text("utf-8")

    def rendered(self, template: str, **context: object) -> str:
        """Render a template below templates/export for this package, with further variables."""
        return environment().get_template(f"export/{template}").render(package=self, name=self.name, **context)
