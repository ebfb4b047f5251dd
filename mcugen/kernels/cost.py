# SPDX-License-Identifier: Apache-2.0
"""Cost model of kernels on a CPU: instructions, cycles of a core, and bytes of code, linear in the work of a layer.

The coefficients are measured under QEMU by tools/measure_costs.py, which writes boards/costs/<cpu>.json. A table may
name kernels whose coefficients are estimated: those of another CPU times a factor ("estimated", in lx7.json).
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
from mcugen.kernels.common.loop_options import FloatLoops, separate_sums_per_pair
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import DECODE_WEIGHTS, Program
from mcugen.memory.loop_tuning import SLOW_FMA

TERMS = ("calls", "macs", "outputs", "inputs", "pixels", "gathered", "weights", "extra")
"""Terms of the linear cost model, which `work` counts per inference. Among them, `pixels` are the outputs of one
channel, `gathered` the elements of im2col patches, `weights` the elements of all constants, and `extra` a count that
a kernel declares itself."""

FALLBACK_CPU = "cortex-m3"
"""CPU whose costs are used for CPUs without a table: a plain 32-bit CPU."""

COST_TABLE_ALIASES = {"rv32imac": "rv32imc", "cortex-m85": "cortex-m55", "lx6": "lx7"}
"""CPUs that use the cost table of another CPU, as its name by theirs: they differ in atomic instructions, which no
kernel has, or cannot be measured, since QEMU has no Cortex-M85 and code of an LX106 stands for both LX6 and LX7."""


def work(node: Node, kernel: Kernel) -> tuple[int, ...]:
    """Count the work of a node by a kernel per inference, one count for each of TERMS of the linear cost model.

    Returns:
        The counts: 1 call, multiply-accumulates, outputs, inputs (in windowed operators, as often as they are read),
        outputs per channel, elements of im2col patches, elements of all constants, and the kernel's own count
        (Kernel.extra).
    """
    windows = node.op.reads(node.sig) if isinstance(node.op, Windowed) else 0
    inputs = windows or sum(v.type.count for v in node.inputs if v is not None and not v.is_constant)
    constants = [v.type.count for v in node.inputs if v is not None and v.is_constant]
    outputs, macs = node.outputs[0].type, node.op.macs(node.sig)
    channels = max(outputs.shape[-1] if outputs.shape else 1, 1)
    counts = (macs, outputs.count, inputs, outputs.count // channels, macs // channels, sum(constants))
    return (1, *counts, kernel.extra_of(node))


@dataclass(frozen=True)
class KernelCost:
    """The fitted cost of a kernel on one CPU; costs are coefficients of the linear cost model's terms (TERMS).

    Attributes:
        per: Instructions per unit of each of TERMS, by variant of the kernel (Kernel.way); the variant is "" if there
            is only one.
        code: Code size of one C function of the kernel, in bytes.
        cycles: Cycles per unit of each of TERMS, by core and variant, on memory without stalls.
        shared: Bytes of the static helper functions that all C functions of the kernel share.
    """

    per: Mapping[str, tuple[float, ...]]
    code: int
    cycles: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    shared: int = 0


FMA_STALLS = 2
"""Stall cycles of a fused multiply-add (VFMA) on cores where separate additions are faster
(mcugen.memory.loop_tuning)."""

SINGLE_CALL_SIZE_FACTOR = 0.5
"""Estimated code size of a function that is called once, relative to one that several layers call, where it was not
measured: the compiler inlines the former."""

UNMEASURED_KERNEL_COST = KernelCost({"": (100.0, 8.0, 8.0, 2.0, 20.0, 0.0, 0.0, 0.0)}, 600)
"""Cost of kernels that were not measured, such as a user's own: an estimate for simple C."""


DEFAULT_DECODING_COST = KernelCost(
    {"": tuple({"calls": 6000.0, "weights": 15.0}.get(term, 0.0) for term in TERMS)}, 520
)
"""Cost of decompressing weights on CPUs where it was not measured: instructions per unit of TERMS, and bytes of
code."""

INSTRUCTIONS_PER_MAC, INSTRUCTIONS_PER_ELEMENT = 3.0, 8.0
"""Instructions per multiply-accumulate, and per element of the inputs or outputs (the larger count), of layers without
measured costs: estimates for simple C."""

SOFT_FLOAT_SLOWDOWN = 40.0
"""Factor on the instructions of float arithmetic on CPUs without an FPU."""


def estimate_unmeasured_instructions(node: Node, features: frozenset[str]) -> float:
    """Estimate the instructions of a node none of whose kernels was measured.

    The estimate of data movement is 0, because a copy may vanish when buffers are planned.
    """
    if node.op.moves_data:
        return 0.0
    varying_inputs = [v for v in node.inputs if v is not None and not v.is_constant]
    is_soft = "fpu" not in features and any(v.type.dtype.is_float for v in (*varying_inputs, *node.outputs))
    elements = max(sum(v.type.count for v in values) for values in (varying_inputs, node.outputs))
    return (SOFT_FLOAT_SLOWDOWN if is_soft else 1.0) * (
        INSTRUCTIONS_PER_MAC * node.op.macs(node.sig) + INSTRUCTIONS_PER_ELEMENT * elements
    )


def no_load_stalls(program: Program) -> float:
    """Return 0 stall cycles for any program: a value of CostTable.load_stalls for memory as fast as the CPU."""
    del program
    return 0.0


@dataclass(frozen=True)
class CostTable:
    """The cost model of one CPU: measured and fitted costs of its kernels.

    Attributes:
        kernels: Fitted cost of each kernel, by kernel name.
        cpu: Name of the CPU, as in board files.
        load_stalls: Function that returns the stall cycles of a layer's program while it waits for loads of its
            constants, such as weights in slow flash. They count like instructions.
        core: Core (such as cortex-m4) whose cycles are used to compare plans by time; "" to compare plans by
            instructions.
        declared_core: Core whose declared stalls (Kernel.stalls) count; "" stands for `core`.
        separate_sum_fraction: Fraction (0, 0.5 or 1) of float products that are added by a separate instruction instead
            of a fused multiply-add, in kernels that can do so (their options include FloatLoops). The fitted costs do
            not include these additional instructions.
        once: Measured code size in bytes, by kernel name, of a function that is called once: inlined, with all
            parameters known.
        several: Measured code size in bytes, by kernel name, of a function that several layers call; for kernels absent
            from `kernels`.
        soft_floats: Code size in bytes of the compiler's soft-float functions, which programs with floats call on CPUs
            without an FPU. Cortex-M4 to M55 have the value of Cortex-M3, whose functions run on them too
            (boards/nrf5340_net.toml).
        times: Cycles that were measured on the device, by (layer name, kernel name); they replace fitted costs.
    """

    kernels: Mapping[str, KernelCost]
    cpu: str = ""
    load_stalls: Callable[[Program], float] = no_load_stalls

    core: str = ""

    declared_core: str = ""

    separate_sum_fraction: float = 0.0

    once: Mapping[str, int] = field(default_factory=dict)

    several: Mapping[str, int] = field(default_factory=dict)

    soft_floats: int = 0

    times: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def stalls(self, node: Node, kernel: Kernel) -> float:
        """Return the stall cycles per inference that a kernel declares at a node for the core (Kernel.stalls), or 0.

        They are stalls that instruction counts do not include, such as those of loads of several words.
        """
        return kernel.stalls.get(self.declared_core or self.core, 0.0) * kernel.extra_of(node)

    def cycles(self, node: Node, kernel: Kernel) -> float | None:
        """Return the cycles per inference of a node by a kernel, as fitted to measurements on the core.

        The result has no stalls of memory; it is None if no cycles were fitted for the kernel and core.
        """
        per = self._cost(kernel.name).cycles.get(self.core, {}).get(kernel.way_of(node))
        if per is None:
            return None
        return _total(per, node, kernel) - (FMA_STALLS - 1) * self._apart(node, kernel)

    def instructions(self, node: Node, kernel: Kernel) -> float:
        """Estimate the instructions per inference of a node by a kernel.

        A kernel that was not measured is estimated as simple C (UNMEASURED_KERNEL_COST).
        """
        fitted = _total(self._per(node, kernel) or UNMEASURED_KERNEL_COST.per[""], node, kernel)
        return fitted + self._apart(node, kernel)

    def time(self, node: Node, kernel: Kernel) -> float:
        """Estimate the time of a node by a kernel, in instructions plus stall cycles of fused multiply-adds.

        Stall cycles count only if `separate_sum_fraction` (the fraction of float products that are added by a separate
        instruction) is above 0. A fused multiply-add is then slow on the core, and each one counts FMA_STALLS stall
        cycles.
        """
        fused = _products(node, kernel) - self._apart(node, kernel) if self.separate_sum_fraction else 0.0
        return self.instructions(node, kernel) + FMA_STALLS * fused

    def _apart(self, node: Node, kernel: Kernel) -> float:
        """Return the number of products that separate instructions add."""
        return self.separate_sum_fraction * _products(node, kernel) if FloatLoops in kernel.options else 0.0

    def rough_stalls(self, node: Node) -> float:
        """Estimate the stall cycles of the float products of a node none of whose kernels was measured.

        On cores with a slow fused multiply-add (SLOW_FMA), each fused multiply-add counts FMA_STALLS cycles. The
        fraction `separate_sum_fraction` of the products is not fused: each of these counts one cycle, for its separate
        addition. The result is 0 on other cores, and for integer nodes.
        """
        x = node.inputs[0] if node.inputs else None
        if self.core not in SLOW_FMA or x is None or not x.type.dtype.is_float:
            return 0.0
        return (FMA_STALLS - self.separate_sum_fraction * (FMA_STALLS - 1)) * node.op.macs(node.sig)

    def decoding(self, weights: int) -> float:
        """Estimate the instructions that decompress `weights` compressed weights (a number of elements) of a layer."""
        per = self._cost(DECODE_WEIGHTS).per[""]
        return per[TERMS.index("calls")] + per[TERMS.index("weights")] * weights

    def knows(self, node: Node, kernel: Kernel) -> bool:
        """Return whether the cost of the kernel variant that computes the node was measured on the CPU."""
        return self._per(node, kernel) is not None

    def _per(self, node: Node, kernel: Kernel) -> tuple[float, ...] | None:
        kernel_cost = self._cost(kernel.name)
        return None if kernel_cost is UNMEASURED_KERNEL_COST else kernel_cost.per.get(kernel.way_of(node))

    def code_of(self, functions: Mapping[tuple[object, ...], str], known: int | None = None) -> dict[Hashable, int]:
        """Return the code size in bytes of C functions, and of the static helpers that functions of one kernel share.

        Args:
            functions: The kernel name of each function, by function key (any hashable that identifies a generated
                function).
            known: The size of each function in bytes if it is known; None for the measured one, or an estimate where
                there is none.

        Returns:
            Bytes of each function by function key, and bytes of shared helpers by kernel name.
        """
        own: dict[Hashable, int] = {
            key: self._cost(kernel).code if known is None else known for key, kernel in functions.items()
        }
        return own | {kernel: shared for kernel in functions.values() if (shared := self._cost(kernel).shared)}

    def code_once(self, kernel: str) -> int:
        """Return the bytes of a kernel's C function if only one layer calls it, including its inlined call and helpers.

        Args:
            kernel: Name of the kernel.
        """
        cost = self._cost(kernel)
        return self.once.get(kernel, round(SINGLE_CALL_SIZE_FACTOR * cost.code) + cost.shared)

    def code_of_several(self, kernel: str) -> int:
        """Return the bytes of a kernel's C function if several layers call it; an estimate if it was not measured.

        Args:
            kernel: Name of the kernel.
        """
        return self.several.get(kernel, self._cost(kernel).code)

    def code_of_helpers(self, kernel: str) -> int:
        """Return the bytes of the static helper functions that all C functions of a kernel share.

        Args:
            kernel: Name of the kernel.
        """
        return self._cost(kernel).shared

    def _cost(self, kernel: str) -> KernelCost:
        return self.kernels.get(kernel, DEFAULT_DECODING_COST if kernel == DECODE_WEIGHTS else UNMEASURED_KERNEL_COST)


def _products(node: Node, kernel: Kernel) -> float:
    """Return the number of float multiplications."""
    x = node.inputs[0]
    is_float = x is not None and x.type.dtype.is_float
    return kernel.products * node.op.macs(node.sig) if is_float else 0.0


def _total(per: tuple[float, ...], node: Node, kernel: Kernel) -> float:
    return kernel.slowdown_of(node) * sum(p * t for p, t in zip(per, work(node, kernel), strict=True))


@cache
def cost_table(cpu: str, features: frozenset[str] = frozenset()) -> CostTable:
    """Return the measured cost table of a CPU.

    Args:
        cpu: Name of the CPU, as in board files; a CPU without a table of its own gets that of a similar CPU.
        features: Names of CPU features, and of tuning flags (which select variants of kernels). They decide how many
            float products are added by separate instructions.
    """
    return replace(_measured(cpu), separate_sum_fraction=separate_sums_per_pair(features) / 2)


@cache
def _measured(cpu: str) -> CostTable:
    folder = resource_dir("boards") / "costs"
    path = folder / f"{COST_TABLE_ALIASES.get(cpu, cpu)}.json"
    return _parsed(json.loads((path if path.is_file() else folder / f"{FALLBACK_CPU}.json").read_text("utf-8")), cpu)


def _parsed(table: Mapping[str, Any], cpu: str) -> CostTable:
    def by_terms(counts: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(counts.get(term, 0.0) for term in TERMS)

    kernels = {}
    for name, entry in table["kernels"].items():
        counts_by_variant = entry["ways"] if "ways" in entry else {"": entry["instructions"]}
        cycles = {
            core: {variant: by_terms(counts) for variant, counts in core_costs.items()}
            for core, core_costs in entry.get("cycles", {}).items()
        }
        per = {variant: by_terms(counts) for variant, counts in counts_by_variant.items()}
        kernels[name] = KernelCost(per, entry["code"], cycles, entry.get("shared", 0))
    extra_costs = {key: table.get(key, {}) for key in ("once", "several")}
    return CostTable(kernels, cpu, **extra_costs, soft_floats=table.get("soft_floats", 0))
