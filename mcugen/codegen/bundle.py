# SPDX-License-Identifier: Apache-2.0
"""The generated folder in memory, and the few facts that a program linking it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcugen.lir.formula import Polynomial, Sizes, Symbol


@dataclass(frozen=True)
class Port:
    """A model input or output as C sees it."""

    name: str
    """Name in the ONNX model: untrusted text."""
    accessor: str
    """C function `T *accessor(void *arena)` (outputs: `const T *accessor(const void *arena)`)."""
    dtype: str
    """numpy dtype name, e.g. `int8`."""
    shape: tuple[int, ...]
    nbytes: int
    sizes: Mapping[int, Polynomial] = field(default_factory=dict)
    """Axes whose length is known at run time only; `shape` and `nbytes` are the largest."""

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape for given sizes."""
        return tuple(self.sizes[a].at(sizes) if a in self.sizes else s for a, s in enumerate(self.shape))


@dataclass(frozen=True)
class Bundle:
    """What `mcugen compile` writes: C files by name, and how to call them.

    `NAME_run(void *arena)` returns 0 on success; `arena` is NAME_ARENA_SIZE bytes aligned to
    NAME_ARENA_ALIGN. A state, and sizes that are known at run time only, are further arguments. With
    `-DMCUGEN_ON_LAYER=f`, the code calls `f(index)` after each layer, index counting `layers` from 0.
    """

    name: str
    files: Mapping[str, str]
    arena_size: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    layers: tuple[str, ...]
    has_state: bool = False
    """Whether the run function takes a `NAME_state *` too, which `NAME_reset` makes ready."""
    symbols: tuple[Symbol, ...] = ()
    """Sizes known at run time only: those without `output` are int32_t arguments of the run function, the last ones."""

    @property
    def arguments(self) -> tuple[Symbol, ...]:
        """The sizes that the caller gives."""
        return tuple(s for s in self.symbols if not s.output)

    @property
    def sources(self) -> tuple[str, ...]:
        """The C files of the model itself (not the self-test), in a fixed order."""
        return tuple(f for f in sorted(self.files) if f.endswith(".c") and not f.endswith("_selftest.c"))

    @property
    def headers(self) -> tuple[str, ...]:
        """The header files, in a fixed order."""
        return tuple(f for f in sorted(self.files) if f.endswith(".h"))
