# SPDX-License-Identifier: Apache-2.0
"""New files of weights for existing code, from a retrained model of the same structure."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.memory import HEAD_BYTES, HEADER_BYTES, WEIGHTS_MAGIC
from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import open_regular, read_bounded

SLOTS_MAGIC, SLOTS_FORMAT, SLOTS_DATA = b"MCSL", 1, 128
"""First bytes, version and offset of the file in the image of a slot (mcugen_slots.h)."""

_SUFFIX = "_weights.bin"
_LARGEST = 1 << 26
"""Largest size in bytes of a file that is read."""


MAX_SIGNATURE_BYTES = 1 << 16
"""Largest size in bytes of a file with a signature."""


def read_signature(path: Path | None) -> bytes:
    """Return the bytes of a signature; none for no path.

    Raises:
        UsageError: The file cannot be read, or is too large.
    """
    try:
        return b"" if path is None else read_bounded(path, MAX_SIGNATURE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: the signature must be readable", error.strerror or "") from error


def slot_image(file: bytes, sequence: int) -> bytes:
    """Return the contents of a slot (mcugen_slots.h) that firmware tests at its next start; the rest of it is erased.

    Args:
        file: The file of weights, with a signature behind it if the firmware demands one.
        sequence: Sequence number, which must exceed that of the slot in use by 1 or more.
    """
    words = struct.pack("<3I", sequence, len(file), zlib.crc32(file)) + bytes(8)
    head = SLOTS_MAGIC + SLOTS_FORMAT.to_bytes(4, "little") + words
    return (head + zlib.crc32(head).to_bytes(4, "little")).ljust(SLOTS_DATA, b"\xff") + file


@dataclass(frozen=True)
class InstalledCode:
    """The generated code in a folder that `mcugen compile --updatable` wrote."""

    folder: Path
    """The folder."""
    name: str
    """Name of the model in C."""
    version: int
    """Version number of the current file of weights."""
    head: bytes
    """First bytes of the header of all weights files for the installed code (mcugen.codegen.memory.HEAD_BYTES)."""

    @classmethod
    def of(cls, folder: Path) -> InstalledCode:
        """Return the installed code of a folder.

        Raises:
            UsageError: The folder has no code with an updatable file of weights.
        """
        weights_files = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
        if len(weights_files) != 1:
            remedy = "name a folder that `mcugen compile --updatable` wrote"
            raise UsageError(
                f"{folder}: there must be one file of weights", f"{len(weights_files)} of *{_SUFFIX}", remedy
            )
        with open_regular(weights_files[0]) as file:
            start = file.read(HEADER_BYTES + 4)
        if len(start) < HEADER_BYTES + 4 or start[:4] != WEIGHTS_MAGIC or start[4:8] != (2).to_bytes(4, "little"):
            remedy = "compile with --updatable first"
            raise UsageError(f"{weights_files[0]}: the file of weights must be updatable", "another format", remedy)
        version = int.from_bytes(start[HEADER_BYTES:], "little")
        return cls(folder, weights_files[0].name.removesuffix(_SUFFIX), version, start[:HEAD_BYTES])

    def update(self, bundle: Bundle) -> bytes:
        """Return the contents of a new file of weights for the installed code, with the weights of `bundle`.

        Raises:
            UsageError: The code of the bundle differs from that in the folder; the message shows a difference.
        """
        file = bundle.weights_blob
        assert file is not None, "an update is a file of weights"
        if file[:HEAD_BYTES] != self.head:
            remedy = "compile with the same board and options, or replace the firmware"
            rule = f"{self.folder}: an update must be of a model of the same structure"
            raise UsageError(rule, self._difference(bundle), remedy)
        return file

    def _difference(self, bundle: Bundle) -> str:
        """Return the first difference: of layers by the reports, else of lines of the code."""
        report = f"{self.name}_report.json"
        if layers := _layer_difference(self._text(report), bundle.files[report]):
            return layers
        for name in (f"{self.name}.c", f"{self.name}_kernels.h", f"{self.name}.h"):
            pairs = zip_longest(_lines(self._text(name)), _lines(bundle.files[name]), fillvalue="nothing")
            for old, new in pairs:
                if old != new:
                    return f"in {name} '{shortened(new, 100)}' for '{shortened(old, 100)}'"
        return "another output that is constant"

    def _text(self, name: str) -> str:
        path = self.folder / name
        try:
            with TextIOWrapper(open_regular(path), encoding="utf-8") as file:
                return file.read(_LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{path}: the file must be readable", type(error).__name__, "compile the model again"
            ) from error


def _layer_difference(old_report: str, new_report: str) -> str:
    try:
        old, new = ([_layer(layer) for layer in json.loads(text)["layers"]] for text in (old_report, new_report))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if len(old) != len(new):
        return f"{len(new)} layers for {len(old)}"
    pairs = enumerate(zip(old, new, strict=True))
    return next((f"layer {i} is {b} for {a}" for i, (a, b) in pairs if a != b), "")


def _layer(layer: dict[str, object]) -> str:
    return f"{layer['op']} of {layer['macs']:,} MACs by {layer['kernel']}"


def _lines(text: str) -> list[str]:
    """Return the lines of the code, without banner, comments and the words of the weights' header."""
    code = text[text.find("\n#") + 1 :]
    lines = [line.strip() for line in code.splitlines()]
    return [line for line in lines if line and not line.startswith(("/*", "*", "0x"))]
