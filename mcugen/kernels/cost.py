# SPDX-License-Identifier: Apache-2.0
"""What kernels cost on a CPU: instructions, and cycles of a core, by linear models of a layer's work; bytes of code.

The coefficients are measured under QEMU by tools/measure_costs.py, which writes boards/costs/<cpu>.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mcugen.core.resources import resource_dir
from mcugen.hir.graph import Node
from mcugen.hir.traits import Windowed
from mcugen.kernels.common.loop_options import FloatLoops, sums_apart
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import DECODE_WEIGHTS, Program
from mcugen.memory.loop_tuning import SLOW_FMA

TERMS = ("calls", "macs", "outputs", "inputs", "pixels", "gathered", "weights", "extra")
"""What instructions grow with: `gathered` are elements of im2col, `extra` is what a kernel says of itself."""

REPLACEMENT = "cortex-m3"
"""Whose costs stand for those of CPUs without a table: a plain 32-bit CPU."""

ALIKE = {"rv32imac": "rv32imc", "cortex-m85": "cortex-m55"}
"""CPUs whose costs are another's: no kernel has atomic instructions, and QEMU has no Cortex-M85 to measure on."""


def work(node: Node, kernel: Kernel) -> tuple[int, ...]:
    """The TERMS of a node: elements, but for its one call and its multiply-accumulates; of windows as often as read."""
    windows = node.op.reads(node.sig) if isinstance(node.op, Windowed) else 0
    inputs = windows or sum(v.type.count for v in node.inputs if v is not None and not v.is_constant)
    constants = [v.type.count for v in node.inputs if v is not None and v.is_constant]
    outputs, macs = node.outputs[0].type, node.op.macs(node.sig)
    channels = max(outputs.shape[-1] if outputs.shape else 1, 1)
    counts = (macs, outputs.count, inputs, outputs.count // channels, macs // channels, sum(constants))
    return (1, *counts, kernel.extra_of(node))


@dataclass(frozen=True)
class KernelCost:
    """Instructions by TERMS, in each of its ways ("" if it has but one); the bytes of one C function, and of helpers
    that all functions of the kernel share.
    """

    per: Mapping[str, tuple[float, ...]]
    code: int
    cycles: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """The same of cycles, by core, on memory that keeps pace with it."""
    shared: int = 0


FMA_STALLS = 2
"""Cycles beyond its own that VFMA takes on cores that reward sums apart from products (mcugen.memory.loop_tuning)."""

ONCE = 0.5
"""Of the bytes of a function that several layers call, what one takes that is called once, where none was measured."""

UNKNOWN = KernelCost({"": (100.0, 8.0, 8.0, 2.0, 20.0, 0.0, 0.0, 0.0)}, 600)
"""Of kernels that were not measured, a user's own perhaps: what simple C takes."""


DECODING = KernelCost({"": tuple({"calls": 6000.0, "weights": 15.0}.get(term, 0.0) for term in TERMS)}, 520)
"""Of weights, on CPUs where that was not measured."""

PER_MAC, PER_ELEMENT = 3.0, 8.0
"""Instructions of layers without costs, by what they multiply, and what they read or write: simple C, few functions."""

SOFT_FLOAT = 40.0
"""How many times that floats take without an FPU."""


def rough_time(node: Node, features: frozenset[str]) -> float:
    """Instructions of a node of whose kernels nothing is known; none where it moves data, as that may vanish."""
    if node.op.moves_data:
        return 0.0
    given = [v for v in node.inputs if v is not None and not v.is_constant]
    is_soft = "fpu" not in features and any(v.type.dtype.is_float for v in (*given, *node.outputs))
    elements = max(sum(v.type.count for v in values) for values in (given, node.outputs))
    return (SOFT_FLOAT if is_soft else 1.0) * (PER_MAC * node.op.macs(node.sig) + PER_ELEMENT * elements)


def no_waits(program: Program) -> float:
    """As if constants lay in memory that keeps pace with the CPU."""
    del program
    return 0.0


@dataclass(frozen=True)
class CostTable:
    """The costs of one CPU by kernel name."""

    kernels: Mapping[str, KernelCost]
    cpu: str = ""
    waits: Callable[[Program], float] = no_waits
    """Cycles that a layer, lowered by itself, waits for its constants: they count as its instructions do."""

    core: str = ""
    """Whose cycles count where plans are compared by time; none: those of no core."""

    sums_apart: float = 0.0
    """The share of products of floats that kernels with such loops add by instructions of their own, unseen by fits."""

    once: Mapping[str, int] = field(default_factory=dict)
    """By kernel, bytes of functions that are called once: these are inlined, with all of their parameters known."""

    several: Mapping[str, int] = field(default_factory=dict)
    """The same of functions that several layers call, of kernels whose instructions were not measured."""

    soft_floats: int = 0
    """Bytes of the compiler's functions of floats, which programs with floats call without an FPU."""

    times: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Cycles of layers that were measured, by their names and those of kernels: these count, and no fits."""

    def stalls(self, node: Node, kernel: Kernel) -> float:
        """Cycles of a node by that kernel beyond its instructions, as far as the kernel says."""
        return kernel.stalls.get(self.core, 0.0) * kernel.extra_of(node)

    def cycles(self, node: Node, kernel: Kernel) -> float | None:
        """Of a node by that kernel on the core, waits for memory left out; None where they were not fitted."""
        per = self._cost(kernel.name).cycles.get(self.core, {}).get(kernel.way_of(node))
        if per is None:
            return None
        return _total(per, node, kernel) - (FMA_STALLS - 1) * self._apart(node, kernel)

    def instructions(self, node: Node, kernel: Kernel) -> float:
        """Estimated instructions of a node by that kernel; of one that was not measured, what simple C takes."""
        fitted = _total(self._per(node, kernel) or UNKNOWN.per[""], node, kernel)
        return fitted + self._apart(node, kernel)

    def time(self, node: Node, kernel: Kernel) -> float:
        """Its instructions, and where some products are added by instructions of their own, what the others stall."""
        fused = _products(node, kernel) - self._apart(node, kernel) if self.sums_apart else 0.0
        return self.instructions(node, kernel) + FMA_STALLS * fused

    def _apart(self, node: Node, kernel: Kernel) -> float:
        """Products that it adds by instructions of their own."""
        return self.sums_apart * _products(node, kernel) if FloatLoops in kernel.options else 0.0

    def rough_stalls(self, node: Node) -> float:
        """What products of floats stall on the core, at a node of whose kernels nothing is known; instructions that add
        them, where these are their own, count in.
        """
        x = node.inputs[0] if node.inputs else None
        if self.core not in SLOW_FMA or x is None or not x.type.dtype.is_float:
            return 0.0
        return (FMA_STALLS - self.sums_apart * (FMA_STALLS - 1)) * node.op.macs(node.sig)

    def decoding(self, weights: int) -> float:
        """Return the estimated instructions that decode so many weights of a layer."""
        per = self._cost(DECODE_WEIGHTS).per[""]
        return per[TERMS.index("calls")] + per[TERMS.index("weights")] * weights

    def knows(self, node: Node, kernel: Kernel) -> bool:
        """Whether what the kernel does with the node was measured."""
        return self._per(node, kernel) is not None

    def _per(self, node: Node, kernel: Kernel) -> tuple[float, ...] | None:
        found = self._cost(kernel.name)
        return None if found is UNKNOWN else found.per.get(kernel.way_of(node))

    def code_of(self, functions: Mapping[tuple[object, ...], str], known: int | None = None) -> dict[Hashable, int]:
        """Bytes of C functions, whose kernels' names these are, and by kernel those of the helpers that they share.

        Those of each function are `known`, or what most take, by estimate where a kernel was not measured.
        """
        own: dict[Hashable, int] = {
            key: self._cost(kernel).code if known is None else known for key, kernel in functions.items()
        }
        return own | {kernel: shared for kernel in functions.values() if (shared := self._cost(kernel).shared)}

    def code_once(self, kernel: str) -> int:
        """Bytes of a function that is called once, its call and helpers included."""
        cost = self._cost(kernel)
        return self.once.get(kernel, round(ONCE * cost.code) + cost.shared)

    def code_of_several(self, kernel: str) -> int:
        """Bytes of a function that several layers call, by estimate where that was not measured."""
        return self.several.get(kernel, self._cost(kernel).code)

    def code_of_helpers(self, kernel: str) -> int:
        """Bytes of what all of a kernel's functions share."""
        return self._cost(kernel).shared

    def _cost(self, kernel: str) -> KernelCost:
        return self.kernels.get(kernel, DECODING if kernel == DECODE_WEIGHTS else UNKNOWN)


def _products(node: Node, kernel: Kernel) -> float:
    """Multiplications of floats."""
    x = node.inputs[0]
    is_float = x is not None and x.type.dtype.is_float
    return kernel.products * node.op.macs(node.sig) if is_float else 0.0


def _total(per: tuple[float, ...], node: Node, kernel: Kernel) -> float:
    return kernel.slowdown_of(node) * sum(p * t for p, t in zip(per, work(node, kernel), strict=True))


@cache
def cost_table(cpu: str, features: frozenset[str] = frozenset()) -> CostTable:
    """The measured costs of a CPU, of inner loops as `features` ask for them."""
    return replace(_measured(cpu), sums_apart=sums_apart(features) / 2)


@cache
def _measured(cpu: str) -> CostTable:
    folder = resource_dir("boards") / "costs"
    path = folder / f"{ALIKE.get(cpu, cpu)}.json"
    return _parsed(json.loads((path if path.is_file() else folder / f"{REPLACEMENT}.json").read_text("utf-8")), cpu)


def _parsed(table: Mapping[str, Any], cpu: str) -> CostTable:
    def by_terms(counts: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(counts.get(term, 0.0) for term in TERMS)

    kernels = {}
    for name, entry in table["kernels"].items():
        ways = entry["ways"] if "ways" in entry else {"": entry["instructions"]}
        cycles = {
            core: {way: by_terms(counts) for way, counts in each.items()}
            for core, each in entry.get("cycles", {}).items()
        }
        per = {way: by_terms(counts) for way, counts in ways.items()}
        kernels[name] = KernelCost(per, entry["code"], cycles, entry.get("shared", 0))
    others = {key: table.get(key, {}) for key in ("once", "several")}
    return CostTable(kernels, cpu, **others, soft_floats=table.get("soft_floats", 0))
