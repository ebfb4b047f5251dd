# SPDX-License-Identifier: Apache-2.0
"""Timings of Cortex-M CPUs.

Sources: Technical Reference Manuals of the Cortex-M4 (ARM DDI 0439, sections 3.3 and 7.2.3), the Cortex-M3 (ARM DDI
0337, 3.3) and the Cortex-M0+ (ARM DDI 0484, 3.3). For later CPUs Arm publishes no table. Their timings come from LLVM's
models, which Arm's engineers wrote (lib/Target/ARM/ARMScheduleM4.td, also used for the Cortex-M33, ARMScheduleM7.td,
ARMScheduleM55.td, ARMScheduleM85.td), unless a comment says that they are assumed.
"""

from __future__ import annotations

import re

from mcugen.simulation.disassembly import Instruction, registers
from mcugen.simulation.pipelines import InOrder, Prices, Rule, Scoreboard, is_one_of, price, words

_MULTIPLE = r"v?push|v?pop|v?(ld|st)m\w*"
_MEMORY = rf"{_MULTIPLE}|v?(ld|st)r\w*"
_MAC = r"vf?n?m(a|s|la|ls)"
_BRANCH = r"b|bx|blx?|cbn?z|tb[bh]"
_LOOP = r"le|letp"
_DIVISION = 7  # 2 to 12, by the operands


# Cortex-M3 and M4


def _has_register_offset(instruction: Instruction) -> bool:
    return len(instruction.address_registers) > 1


_M4_PRICES: Prices = (
    (r"ldrd|strd", 3),
    (_MULTIPLE, lambda i: 1 + words(i)),
    (r"vldr|vstr", lambda i: 1 + words(i)),
    (r"ldr\w*", 2),
    (r"str\w*", lambda i: 2 if _has_register_offset(i) else 1),
    (r"[su]div", _DIVISION),
    (r"tb[bh]", 2),
    (r"vdiv|vsqrt", 14),
    (_MAC, 3),
    (r"vmov", lambda i: 2 if len(i.registers) > 2 else 1),
)
_M3_PRICES: Prices = (
    (r"ml[as]", 2),
    (r"[su]mull", 5),  # 3 to 5: multipliers of requantization have all their bits
    (r"[su]mlal", 7),  # 4 to 7
    *_M4_PRICES,
)


def _m4_stall(before: Instruction, after: Instruction) -> int:
    if is_one_of(_MEMORY, after):
        return _address_stall(before, after)
    return _float_stall(before, after)


def _address_stall(before: Instruction, after: Instruction) -> int:
    """Return the stall cycles of a load or store.

    A single access overlaps with a single load before it, unless that load provides its address.
    """
    depends = bool(before.results & after.address_registers)
    if not is_one_of(_MEMORY, before):
        return int(depends) + _float_stall(before, after)
    overlaps = is_one_of(r"ldr(?!d)\w*", before) and not depends
    return -1 if overlaps and is_one_of(r"(ldr|str)(?!d)\w*", after) and price(_M4_PRICES, after) == 2 else 0


def _float_stall(before: Instruction, after: Instruction) -> int:
    """Return the stall cycle of a floating-point result that is read at once, except as an addend."""
    is_arithmetic = before.mnemonic.startswith("v") and not is_one_of(rf"{_MEMORY}|vmov|vmrs|vmsr", before)
    reads_first = after.is_store or is_one_of(r"vcmpe?", after)
    read = registers(" ".join(after.operands if reads_first else after.operands[1:]))
    return int(is_arithmetic and not before.results.isdisjoint(read))


M3 = InOrder(_M3_PRICES, _m4_stall)
"""Pipeline of the Cortex-M3, by its manual."""
M4 = InOrder(_M4_PRICES, _m4_stall)
"""Pipeline of the Cortex-M4, by its manual."""


# Cortex-M0+

_M0PLUS_PRICES: Prices = (
    (r"pop", lambda i: 1 + words(i) + ("pc" in i.registers)),
    (_MULTIPLE, lambda i: 1 + words(i)),
    (r"(ldr|str)\w*", 2),
    (r"bl", 2),
)
M0PLUS = InOrder(_M0PLUS_PRICES, lambda *_: 0)
"""Pipeline of the Cortex-M0+, by its manual."""


# Cortex-M7, and the M85 which is one with vectors

_WORD_LOAD = r"ldr"
_PRODUCT = r"mul|ml[as]|[su]m[lmu]\w+|smm\w+|umaal"
_EARLY_SIMD = r"[su]sat(16)?|rev(16|sh)?|rbit|[su]bfx|pkh\w+|[su]xta\w+"
_LATE_SIMD = r"[su]sat(16)?|u?q\w+|usad\w*"
_SIMD = rf"{_EARLY_SIMD}|{_LATE_SIMD}|[su]xt\w+|[su]h?(add|sub|asx|sax)(8|16)?|sel"
_VECTOR_LOAD, _VECTOR_STORE = r"vldr[bhwd]\w*|vld[24]\w", r"vstr[bhwd]\w*|vst[24]\w"

_VECTOR_MEMORY = rf"{_VECTOR_LOAD}|{_VECTOR_STORE}"


def _is_vector(instruction: Instruction) -> bool:
    """Return whether an instruction belongs to Helium: it names a register q, or controls predication."""
    return bool(instruction.vectors) or is_one_of(r"vctp|vp[st]\w*|vpnot", instruction)


def _is_double(instruction: Instruction) -> bool:
    return instruction.mnemonic.endswith(".f64") or (
        is_one_of("v(ld|st)r", instruction) and len(registers(instruction.operands[0])) == 2
    )


def _shifts_operand(instruction: Instruction) -> bool:
    return bool(re.search(r"\b(lsl|lsr|asr|ror) ", " ".join(instruction.operands[1:])))


def _m7_memory(instruction: Instruction) -> Rule:
    if is_one_of(rf"{_MULTIPLE}|(ld|st)rd", instruction) or _is_double(instruction):
        # Two words a cycle: assumed.
        cycles = -(-words(instruction) // 2)
        return Rule({}, latency=max(cycles, 2), moves=cycles - 1, cycles=cycles, alone=True)
    port = {"port": 1} if instruction.mnemonic.startswith("v") else {}
    if instruction.is_store:
        return Rule({"store": 1, **port}, moves=0)
    return Rule({"load": 1, **port}, latency=1 if is_one_of(rf"{_WORD_LOAD}|vldr", instruction) else 2, moves=0)


def _m7_float(instruction: Instruction) -> Rule:
    if is_one_of(r"vdiv|vsqrt", instruction):
        cycles = 30 if _is_double(instruction) else 16
        return Rule({"float": cycles, "port": 1}, latency=cycles)
    if is_one_of(r"vmrs|vmsr", instruction):
        return Rule({}, alone=True)
    if is_one_of("vmov", instruction):
        return Rule({"port": 1}, latency=3, alone=len(instruction.registers) > 2)
    if _is_double(instruction):
        cycles = 3 if is_one_of(_MAC, instruction) else 1
        return Rule({"float": cycles, "port": 1}, latency=3 * cycles, first=True)
    return Rule({"float": 1, "port": 1}, latency=_m7_float_latency(instruction))


def _m7_float_latency(instruction: Instruction) -> int:
    if is_one_of(r"vfn?m[as]", instruction):
        return 5
    return 6 if is_one_of(_MAC, instruction) else 3


def _m7_rule(instruction: Instruction) -> Rule:
    """Return the timing of an instruction on the Cortex-M7."""
    if is_one_of(_BRANCH, instruction):
        return Rule({"branch": 1}, last=True)
    if is_one_of(_MEMORY, instruction):
        return _m7_memory(instruction)
    if instruction.mnemonic.startswith("v"):
        return _m7_float(instruction)
    if is_one_of(_PRODUCT, instruction):
        return Rule({"product": 1}, latency=2)
    if is_one_of("[su]div", instruction):
        return Rule({"alu": 1}, cycles=_DIVISION, alone=True)
    if is_one_of(_SIMD, instruction):
        return Rule({"simd": 1, "alu": 1}, latency=2 if is_one_of(_LATE_SIMD, instruction) else 1, first=True)
    if instruction.unit == "shift":
        return Rule({"alu": 1, "shift": 1}, first=is_one_of("bf[ci]", instruction))
    return Rule({"alu": 1}, first=is_one_of("clz", instruction))


def _m7_needed(instruction: Instruction, register: str) -> int:
    """Return how many cycles before issue the Cortex-M7 needs a register; negative if after issue.

    Addresses, shifted operands, and operands of saturation or unpacking are needed a cycle early; addends are needed
    late.
    """
    if is_one_of(_MEMORY, instruction):
        return 1 if register in instruction.address_registers else -1
    if is_one_of(_MAC, instruction) and register in instruction.results:
        return -2 if is_one_of(r"vfn?m[as]", instruction) else -3
    if is_one_of(_PRODUCT, instruction):
        addends = instruction.operands[:2] if len(instruction.results) == 2 else instruction.operands[3:]
        return -1 if register in addends else 0
    if is_one_of(_EARLY_SIMD, instruction):
        return int(register in instruction.operands[-2:] and register not in instruction.operands[:1])
    return int(_shifts_operand(instruction) and register == instruction.operands[-2])


M7 = Scoreboard(2, {"load": 2, "alu": 2, "port": 2}, _m7_rule, _m7_needed)
"""Dual-issue pipeline model of the Cortex-M7, from LLVM's ARMScheduleM7.td."""


def _m85_rule(instruction: Instruction) -> Rule:
    """Return the timing on the Cortex-M85: as on the M7, without a separate shifter, and vectors in two halves."""
    if is_one_of(_LOOP, instruction):
        return Rule({}, cycles=0)
    if not _is_vector(instruction):
        return (
            Rule({"alu": 1})
            if instruction.unit == "shift" and not _shifts_operand(instruction)
            else _m7_rule(instruction)
        )
    rule, is_memory = _m55_vector(instruction), is_one_of(_VECTOR_MEMORY, instruction)
    units = {"wide store" if instruction.is_store else "wide load": _TWO_BEATS} if is_memory else rule.units
    return Rule(units, latency=rule.latency + (not is_memory), first=not is_memory, last=True)


M85 = Scoreboard(2, {"load": 2, "store": 2, "alu": 2, "port": 2}, _m85_rule, _m7_needed)
"""Dual-issue pipeline model of the Cortex-M85, from LLVM's ARMScheduleM85.td.

A vector load or store takes two cycles. Loads and stores of words may overlap with it in the model, because they use
other units; on the CPU they wait for each other.
"""


# Cortex-M33 and M55

_T1_SECOND = r"nop|it[te]*|adds?|subs?|[su]xt[bh]|movs?"


def _pairs_16_bit(first: Instruction, second: Instruction) -> bool:
    """Return whether two instructions have 16 bits, and one of them is simple.

    This is an assumption for the Cortex-M33: Arm states that it issues pairs, but not which.
    """
    return first.size == second.size == 2 and (_is_simple(first) or _is_simple(second))


def _is_simple(instruction: Instruction) -> bool:
    if is_one_of(_BRANCH, instruction):
        return True
    has_constant = instruction.operands[-1:] and instruction.operands[-1].startswith("#")
    adds = is_one_of(r"adds?|subs?", instruction)
    return is_one_of(_T1_SECOND, instruction) and bool(has_constant or not adds)


def _m33_rule(instruction: Instruction) -> Rule:
    """Return the timing on the Cortex-M33: floats as on the M4; loads and products deliver one cycle late."""
    if is_one_of(_BRANCH, instruction):
        return Rule({}, last=True)
    if is_one_of(rf"{_MULTIPLE}|(ld|st)rd|v(ld|st)r", instruction):
        cycles = max(words(instruction), 1)
        return Rule({}, latency=cycles + 1, cycles=cycles, alone=True)
    if is_one_of(_MEMORY, instruction):
        return Rule({}, latency=1 if instruction.is_store else 2)
    if is_one_of("[su]div", instruction):
        return Rule({}, latency=_DIVISION, cycles=_DIVISION, alone=True)
    if instruction.mnemonic.startswith("v"):
        cycles = price(_M4_PRICES, instruction)
        return Rule({}, latency=cycles + 1, cycles=cycles, alone=True)
    return Rule({}, latency=2 if is_one_of(r"ml[as]|[su]mlal\w*|[su]mla[bt][bt]", instruction) else 1)


def _m33_needed(instruction: Instruction, register: str) -> int:
    """Return when an operand is needed: a floating-point product's sum is in time as the next addend, as on the M4."""
    return -1 if is_one_of(_MAC, instruction) and register in instruction.results else 0


M33 = Scoreboard(2, {}, _m33_rule, _m33_needed, _pairs_16_bit)
"""Pipeline model of the Cortex-M33, which issues some pairs of 16-bit instructions in one cycle (assumed)."""

_VECTOR_PRODUCT = r"v(q?r?d?m(l|ul)\w*|fm[as]\w*|cm\w+|cvt\w*|addl?v\w*|rint\w*)"
_VECTOR_FLOAT = r"v(add|sub|min|max|minnm|maxnm|neg|abs|abd)"
_NARROWS = r"v(q?movu?n|q?r?shru?n)\w*"
_TWO_BEATS = 2


def _m55_vector(instruction: Instruction) -> Rule:
    """Return the timing of a Helium instruction on the Cortex-M55: two beats, each of half a vector.

    The first beat of the next instruction overlaps with the second beat if they use different units.
    """
    if is_one_of(r"vctp|vp[st]\w*|vpnot", instruction):
        return Rule({"control": 1}, alone=True)
    if is_one_of(_VECTOR_STORE, instruction):
        return Rule({"memory": _TWO_BEATS}, alone=True)
    if is_one_of(_VECTOR_LOAD, instruction):
        gathers = any("q" in operand for operand in instruction.operands[1:])
        return Rule({"memory": 4 * _TWO_BEATS if gathers else _TWO_BEATS}, latency=1 + 4 * gathers, alone=True)
    if is_one_of(_NARROWS, instruction):
        return Rule({"integer": _TWO_BEATS}, latency=3, alone=True)
    is_float = bool(re.search(r"\.f(16|32)", instruction.mnemonic))
    if is_one_of(_VECTOR_PRODUCT, instruction) or (is_float and is_one_of(_VECTOR_FLOAT, instruction)):
        late = not (is_float and is_one_of(_VECTOR_FLOAT, instruction))
        return Rule({"product": _TWO_BEATS}, latency=2 if late else 1, alone=True)
    return Rule(
        {"integer": _TWO_BEATS}, latency=2 if is_one_of(r"vq?r?shl\w*|vrshr\w*", instruction) else 1, alone=True
    )


def _m55_rule(instruction: Instruction) -> Rule:
    """Return the timing on the Cortex-M55: scalars as on the M33, late products and shifts, two words a cycle."""
    if is_one_of(_LOOP, instruction):
        return Rule({}, cycles=0)  # from its second round on, a loop does not come by its end any more
    if _is_vector(instruction):
        return _m55_vector(instruction)
    if is_one_of(rf"{_MULTIPLE}|(ld|st)rd", instruction):
        cycles = -(-words(instruction) // 2)  # assumed, by the width of its bus
        return Rule({"memory": cycles}, latency=cycles + 1, cycles=cycles, alone=True)
    if instruction.mnemonic.startswith("v"):
        return _m55_float(instruction)
    if is_one_of(_PRODUCT, instruction) or _shifts_operand(instruction) or is_one_of(_EARLY_SIMD, instruction):
        return Rule({}, latency=2)
    return _m33_rule(instruction)


def _m55_float(instruction: Instruction) -> Rule:
    if is_one_of(_MEMORY, instruction):
        return Rule({"memory": 1}, latency=2, alone=True)
    if is_one_of(r"vdiv|vsqrt", instruction):
        cycles = 30 if _is_double(instruction) else 16
        return Rule({"product": cycles}, latency=cycles, alone=True)
    if _is_double(instruction):
        cycles = next(n for pattern, n in ((_MAC, 24), ("vn?mul", 21), (r"\w+", 15)) if is_one_of(pattern, instruction))
        return Rule({"product": cycles}, latency=cycles, alone=True)
    return Rule({"product": 1}, latency=4 if is_one_of(r"vn?ml[as]", instruction) else 2, alone=True)


M55 = Scoreboard(2, {}, _m55_rule, pairs=_pairs_16_bit)
"""Pipeline model of the Cortex-M55, from LLVM's ARMScheduleM55.td."""
