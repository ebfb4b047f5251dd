# SPDX-License-Identifier: Apache-2.0
"""Lowering of a single layer with one kernel, to evaluate the kernel's RAM, flash and code; results are cached."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from mcugen.hir.graph import Node, constant_data
from mcugen.hir.types import Array
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Buffer, Program, Space

MAX_CACHED_TRIALS = 500
"""Largest number of cached trials; a trial is the program of a single layer, lowered with one kernel (see Trial).

Most models have fewer pairs of a layer and a kernel for it.
"""


@dataclass(frozen=True, eq=False)
class Trial:
    """The program of a single layer that is lowered with one kernel, to estimate the kernel's RAM, flash and code.

    Attributes:
        program: The program.
        inputs: Buffers of the node's inputs in their order; None for an absent input, and for an input that the program
            does not read.
    """

    program: Program
    inputs: tuple[Buffer | None, ...]

    @staticmethod
    def of(node: Node, builder: Builder) -> Trial:
        """Return the trial of a builder's program, to which only the instructions of `node` were emitted."""
        return Trial(builder.program, tuple(None if value is None else builder.placed(value) for value in node.inputs))

    @cached_property
    def constants(self) -> Mapping[object, int]:
        """Return the size in bytes of each constant in the program; the key is the constant's contents as bytes."""
        constants = ((b.data, b.nbytes) for b in self.program.buffers if b.space is Space.CONST)
        return {data.tobytes(): nbytes for data, nbytes in constants if data is not None}


_TRIALS: dict[Hashable, tuple[Trial, Kernel, list[Array]]] = {}
"""Cached trials, with the objects that must stay alive so that nothing else gets their identity."""


def trial(node: Node, kernel: Kernel, features: frozenset[str]) -> Trial:
    """Lower a node on its own with a kernel for a CPU with `features`, and return its program as a Trial.

    The result depends on the node's operator and operands, not on its graph. The last MAX_CACHED_TRIALS results are
    cached.
    """
    data = constant_data(node.inputs)
    inputs = tuple(v and (node.inputs.index(v), v.type, v.data is not None) for v in node.inputs)
    key = (id(kernel), features, node.op, inputs, tuple(v.type for v in node.outputs), tuple(map(id, data)))
    if (known := _TRIALS.get(key)) is not None:
        return known[0]
    builder = Builder(Program("trial"), features)
    builder.emit_kernel(kernel, node)
    result = Trial.of(node, builder)
    while len(_TRIALS) >= MAX_CACHED_TRIALS:
        del _TRIALS[next(iter(_TRIALS))]
    _TRIALS[key] = result, kernel, data
    return result
