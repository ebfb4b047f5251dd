# SPDX-License-Identifier: Apache-2.0
"""A trainable model as C code built for this computer, called from Python."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.driver.compiled import CompiledModel
from mcugen.hir.types import Array
from mcugen.lir.program import aligned

OK, TARGET, RATE, DIVERGED, STORAGE, STORED = 0, 12, 13, 14, 15, 21

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
"""C type of a function that reads the storage."""
ERASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
"""C type of a function that erases the storage."""


class Storage(ctypes.Structure):
    """The C struct mcugen_storage: functions that access the storage for a trained state."""

    _fields_ = (
        ("read", READ),
        ("erase", ERASE),
        ("write", READ),
        ("context", ctypes.c_void_p),
        ("slot_bytes", ctypes.c_uint32),
    )


class Flash:
    """Two slots of simulated NOR flash: erasing sets bits, writing clears bits.

    `power` is the number of bytes that can be changed before the power fails. `outside` counts reads beyond the slots.
    """

    def __init__(self, slot_bytes: int, *, erases: bool = True) -> None:
        self.cells = np.full(2 * slot_bytes, 0x5A, np.uint8)
        self.power, self.erases = 10**9, erases
        self.outside = 0
        erase = ERASE(self._erase) if erases else ERASE()
        self.storage = Storage(READ(self._read), erase, READ(self._write), None, slot_bytes)

    def changes(self, count: int) -> int:
        """Return how many of `count` bytes can be changed before the power fails."""
        done = min(count, self.power)
        self.power -= done
        return done

    def _read(self, _context: None, offset: int, to: int, nbytes: int) -> int:
        self.outside += offset + nbytes > len(self.cells)
        data = self.cells[offset : offset + nbytes].tobytes()
        ctypes.memmove(to, data, len(data))
        return 0 if self.power else 1

    def _erase(self, _context: None, offset: int, nbytes: int) -> int:
        done = self.changes(nbytes)
        self.cells[offset : offset + done] = 0xFF
        return 0 if done == nbytes else 1

    def _write(self, _context: None, offset: int, source: int, nbytes: int) -> int:
        done = self.changes(nbytes)
        data = np.frombuffer(ctypes.string_at(source, done), np.uint8)
        old = self.cells[offset : offset + done]
        self.cells[offset : offset + done] = old & data if self.erases else data
        return 0 if done == nbytes else 1


@dataclass
class Device:
    """A trainable model in a shared library, with an arena and a state in Python's memory."""

    model: CompiledModel
    folder: Path

    def __post_init__(self) -> None:
        self.model.write(self.folder / "model")
        name, library = self.model.bundle.name, self.folder / "model.so"
        sources = [str(self.folder / "model" / file) for file in self.model.bundle.sources]
        flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
        subprocess.run(["cc", *flags, "-shared", "-fPIC", "-o", str(library), *sources, "-lm"], check=True)
        self.library = ctypes.CDLL(str(library))
        self._run, self._reset = self.library[f"{name}_run"], self.library[f"{name}_reset"]
        self._input, self._output = (self._pointer(f"{name}_{end}") for end in ("input", "output"))
        self.arena = aligned_bytes(self.model.bundle.arena_size)
        self.state = aligned_bytes(self.model.program.state_size)
        self.reset()

    def _pointer(self, name: str) -> ctypes._NamedFuncPointer:
        function = self.library[name]
        function.restype = ctypes.c_void_p
        return function

    def reset(self) -> None:
        """Reset the state to the initial weights."""
        self._reset(address(self.state))

    def run(self, x: Array) -> Array:
        """Run an inference, and return the first output."""
        self._write(x)
        assert self._run(address(self.arena), address(self.state)) == OK
        return self._read()

    def loss(self, x: Array, target: int | Array) -> tuple[int, float]:
        """Compute the loss of a sample, and return the status and the loss."""
        return self._taught("loss", x, target)

    def train(
        self, x: Array, target: int | Array, rate: float, frozen: Sequence[int] | None = None
    ) -> tuple[int, float]:
        """Run a training step on a sample, and return the status and the loss."""
        layers = None if frozen is None else (ctypes.c_uint8 * len(frozen))(*frozen)
        return self._taught("train", x, target, ctypes.c_float(rate), layers)

    def store(self, flash: Flash) -> int:
        """Write the state to flash, and return the status."""
        return self.library[f"{self.model.bundle.name}_store"](ctypes.byref(flash.storage), address(self.state))

    def load(self, flash: Flash) -> int:
        """Read the state from flash, and return the status."""
        return self.library[f"{self.model.bundle.name}_load"](ctypes.byref(flash.storage), address(self.state))

    def learned(self, name: str) -> Array:
        """Return the contents of the state whose name ends with `name`."""
        at = 0
        for endpoint in self.model.program.states:
            if endpoint.name.endswith(name):
                data = self.state[at : at + endpoint.buffer.nbytes].tobytes()
                return np.frombuffer(data, endpoint.dtype.numpy).reshape(endpoint.shape)
            at += aligned(endpoint.buffer.nbytes)
        raise KeyError(name)

    def _taught(self, what: str, x: Array, target: int | Array, *rest: object) -> tuple[int, float]:
        self._write(x)
        loss = ctypes.c_float(0)
        function = self.library[f"{self.model.bundle.name}_{what}"]
        given = ctypes.c_int32(target) if isinstance(target, int) else address(np.ascontiguousarray(target))
        status = function(address(self.arena), address(self.state), given, *rest, ctypes.byref(loss))
        return status, loss.value

    def _write(self, x: Array) -> None:
        data = np.ascontiguousarray(x).tobytes()
        ctypes.memmove(self._input(address(self.arena)), data, len(data))

    def _read(self) -> Array:
        port = self.model.bundle.outputs[0]
        data = ctypes.string_at(self._output(address(self.arena)), port.nbytes)
        return np.frombuffer(data, port.dtype).reshape(port.shape).copy()


def aligned_bytes(count: int) -> Array:
    """Return `count` zero bytes at an address that is a multiple of 64."""
    whole = np.zeros(count + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + count]


def address(array: Array) -> ctypes.c_void_p:
    """Return the address of an array."""
    return ctypes.c_void_p(array.ctypes.data)
