# SPDX-License-Identifier: Apache-2.0
"""Effect of each instruction on the stack, and its successors, read from objdump's text."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcugen.simulation.disassembly import registers
from mcugen.simulation.elf import words
from mcugen.simulation.toolchain import ARM, XTENSA, Toolchain, find_program
from mcugen.simulation.xtensa import RESYNC_BYTES

_ADDRESS = re.compile(r"\s*[0-9a-f]+:\t")
_TARGET = re.compile(r"\b([0-9a-f]+) <([^>+]+)(\+0x[0-9a-f]+)?>")
_CONDITIONS = "eq|ne|cs|cc|hs|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le"


@dataclass(frozen=True)
class StackStep:
    """The effects of one instruction on the stack pointer and on control flow."""

    name: str
    """Mnemonic and operands, for messages."""
    end: int
    """Address of the next instruction in memory."""
    pushed: int | None = 0
    """Bytes that the instruction pushes on the stack (negative if it pops); None if a register gives the number."""
    target: int | None = None
    """Address that the instruction jumps to or calls, if it is known."""
    calls: bool = False
    """Whether the instruction is a call: of `target` or, if that is None, through a pointer."""
    falls: bool = True
    """Whether execution may continue with the next instruction in memory."""
    guessed: bool = False
    """Whether it is unknown if execution ever continues with the next instruction in memory."""
    computed: bool = False
    """Whether the instruction jumps to a computed address, which may be any address in its function."""


def read_steps(image: Path, toolchain: Toolchain) -> dict[int, StackStep]:
    """Return the effect of each instruction of an ELF program on stack and control flow, by address."""
    machine = ("-m", "armv8.1-m.main", "-M", "reg-names-std") if toolchain is ARM else ()
    command = [find_program(toolchain.objdump), "-d", "--no-show-raw-insn", *machine, str(image)]
    reader = _Arm(words(image)) if toolchain is ARM else _Xtensa(words(image)) if toolchain is XTENSA else _Riscv()
    steps = _read(command, reader)
    read: set[int] = set()
    while begins := _missed(steps) - read if toolchain is XTENSA else set():
        for begin in sorted(begins):
            part = [f"--start-address={begin:#x}", f"--stop-address={begin + RESYNC_BYTES:#x}"]
            steps = _read([*command, *part], reader) | steps
        read |= begins
    return steps


def _missed(steps: Mapping[int, StackStep]) -> set[int]:
    """Return the targets of jumps that are no known instruction: objdump misses some behind padding."""
    targets = {step.target for step in steps.values() if step.target is not None}
    return {target for target in targets - steps.keys() if min(steps) <= target <= max(steps)}


def _read(command: Sequence[str], reader: _Arm | _Xtensa | _Riscv) -> dict[int, StackStep]:
    """Return the effect of each instruction that objdump prints, by address."""
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [_Line.of(line) for line in text.splitlines() if _ADDRESS.match(line)]
    ends = [*(line.address for line in lines), -1][1:]
    pairs = [(line, end) for line, end in zip(lines, ends, strict=True) if not line.mnemonic.startswith(".")]
    return {line.address: reader.step(line, end) for line, end in pairs}


@dataclass(frozen=True)
class _Line:
    """A line of objdump; `target` is the address that it names, `called` the function that begins there."""

    address: int
    mnemonic: str
    operands: str
    target: int | None
    called: str

    @classmethod
    def of(cls, line: str) -> _Line:
        address, mnemonic, *remaining = line.split("\t")
        operands, _, comment = "\t".join(remaining).replace("\t@", " # ").partition(" # ")
        match = _TARGET.search(operands) or _TARGET.search(comment)
        target, called = (int(match[1], 16), "" if match[3] else match[2]) if match else (None, "")
        return cls(int(address.strip(" :"), 16), mnemonic, operands.strip(), target, called)

    @property
    def text(self) -> str:
        return f"{self.mnemonic} {self.operands}"


class _Constants:
    """Values of registers that were set to a number just before."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def set(self, register: str, value: int | None) -> None:
        if value is None:
            self._known.pop(register, None)
        else:
            self._known[register] = (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000

    def get(self, register: str) -> int | None:
        return self._known.get(register)


class _Arm:
    """A reader of Thumb instructions from objdump."""

    def __init__(self, literals: Mapping[int, int]) -> None:
        self._literals = literals
        self._constants = _Constants()

    def step(self, line: _Line, end: int) -> StackStep:
        name, operands = line.mnemonic.removesuffix(".w").removesuffix(".n"), line.operands
        pushed = self._pushed(name, operands)
        self._remember(name, line)
        make = partial(StackStep, line.text, end, pushed)
        if name in ("bl", "blx") or (re.fullmatch(f"blx?({_CONDITIONS})", name) and name not in ("blt", "ble", "bls")):
            if line.called.startswith("__gnu_thumb1_case"):  # A jump by the table behind the call.
                return make(falls=False, computed=True)
            if line.target is not None and not line.called:  # A long jump in a function, or a part of assembly.
                return make(target=line.target, guessed=True)
            return make(target=line.target, calls=True)
        if name in ("udf", "bkpt"):
            return make(falls=name == "bkpt")
        if name == "b":
            return make(target=line.target, falls=False)
        if re.fullmatch(rf"b({_CONDITIONS})|cbn?z|le|letp|wls|wlstp\.\d+", name):
            return make(target=line.target)
        is_list = re.fullmatch(rf"(pop|ldm\w*?)({_CONDITIONS})?", name)
        if re.fullmatch(rf"bx({_CONDITIONS})", name) or (is_list and "pc" in operands):
            return make(falls=is_list is None or len(name) > 5)
        if name == "bx":
            return make(falls=False, computed=operands != "lr")
        if name in ("tbb", "tbh") or (re.match(r"(mov|add|ldr)", name) and operands.startswith("pc,")):
            return make(falls=False, computed="[sp]," not in operands and operands != "pc, lr")  # or popped: a return
        return make()

    def _pushed(self, name: str, operands: str) -> int | None:
        if re.match(r"v?push|v?stmdb", name) and (name.endswith("push") or operands.startswith("sp!")):
            return 4 * len(registers(operands.partition("{")[2]))
        if re.match(r"v?pop|v?ldm", name) and ("pop" in name or operands.startswith("sp!")):
            return -4 * len(registers(operands.partition("{")[2]))
        moved = re.search(r"\[sp, #(-?\d+)\]!|\[sp\], #(-?\d+)", operands)
        if moved:
            return -int(moved[1] or moved[2])
        target, _, source = operands.partition(",")
        if target != "sp" or not re.match(r"add|sub|mov|ldr|bic|and|orr|ls", name):
            return 0
        sign = {"add": -1, "sub": 1}.get(name[:3], 0)
        value = source.replace("sp,", "").strip()
        number = int(value[1:], 0) if value.startswith("#") else self._constants.get(value)
        return sign * number if number is not None and sign else None

    def _remember(self, name: str, line: _Line) -> None:
        register, *sources = (part.strip() for part in line.operands.split(","))
        number = int(sources[-1][1:], 0) if sources and re.fullmatch(r"#-?\w+", sources[-1]) else None
        known = self._constants.get(sources[0]) if sources else None
        value = None
        if name == "ldr" and "[pc" in line.operands and line.target is not None:
            value = self._literals.get(line.target)
        elif name in ("mov", "movs", "movw"):
            value = number
        elif name in ("lsl", "lsls") and known is not None and number is not None:
            value = known << number
        elif name in ("neg", "negs", "rsb", "rsbs") and known is not None:
            value = -known if number in (None, 0) else None
        self._constants.set(register, value)


class _Riscv:
    """A reader of RV32 instructions from objdump."""

    def __init__(self) -> None:
        self._constants = _Constants()

    def step(self, line: _Line, end: int) -> StackStep:
        name, operands = line.mnemonic.removeprefix("c."), line.operands
        make = partial(StackStep, line.text, end, self._pushed(name, operands))
        self._remember(name, operands)
        if name in ("jal", "jalr"):
            links_otherwise = operands.startswith(("t0,", "t1,", "zero,"))
            return make(target=line.target, calls=not links_otherwise, falls=True, computed=links_otherwise)
        if name == "ret":
            return make(falls=False)
        if name in ("j", "jr"):
            return make(target=line.target, falls=False, computed=line.target is None)
        if re.fullmatch(r"b(eq|ne|lt|ge|gt|le)u?z?", name):
            return make(target=line.target)
        return make()

    def _pushed(self, name: str, operands: str) -> int | None:
        target, source, value = (*operands.split(","), "", "")[:3]
        if target != "sp" or name not in ("add", "addi", "addi16sp", "sub", "mv", "lw"):
            return 0
        number = int(value, 0) if re.fullmatch(r"-?\d+|-?0x[0-9a-f]+", value) else self._constants.get(value)
        if source != "sp" or number is None:
            return None
        return number if name == "sub" else -number

    def _remember(self, name: str, operands: str) -> None:
        target, source, value = (*operands.split(","), "", "")[:3]
        is_number = re.fullmatch(r"-?\d+|-?0x[0-9a-f]+", value or source)
        number = int(value or source, 0) if is_number else None
        known = self._constants.get(source) if value else 0
        if name in ("li", "lui") and number is not None:
            self._constants.set(target, number << 12 if name == "lui" else number)
        elif name in ("add", "addi") and number is not None and known is not None:
            self._constants.set(target, known + number)
        else:
            self._constants.set(target, None)


class _Xtensa:
    """A reader of Xtensa instructions with the CALL0 ABI from objdump."""

    def __init__(self, literals: Mapping[int, int]) -> None:
        self._literals = literals
        self._constants = _Constants()

    def step(self, line: _Line, end: int) -> StackStep:
        name, operands = line.mnemonic.removesuffix(".n"), line.operands
        make = partial(StackStep, line.text, end, self._pushed(name, operands))
        self._remember(name, line)
        if name in ("call0", "callx0"):
            return make(target=line.target, calls=True)
        if name == "ret":
            return make(falls=False)
        if name in ("j", "jx"):
            return make(target=line.target, falls=False, computed=line.target is None)
        return make(target=line.target) if name.startswith("b") and name != "break" else make()

    def _pushed(self, name: str, operands: str) -> int | None:
        target, source, value = (*(part.strip() for part in operands.split(",")), "", "")[:3]
        if target != "a1" or name not in ("add", "addi", "addmi", "sub", "mov", "l32i"):
            return 0
        number = int(value, 0) if re.fullmatch(r"-?\d+|-?0x[0-9a-f]+", value) else self._constants.get(value)
        if source != "a1" or number is None:
            return None
        return number if name == "sub" else -number

    def _remember(self, name: str, line: _Line) -> None:
        target, source = (*(part.strip() for part in line.operands.split(",")), "")[:2]
        value = None
        if name == "movi":
            value = int(source, 0)
        elif name == "l32r":
            address = re.match(r"[0-9a-f]+", source)
            value = self._literals.get(int(address[0], 16)) if address else None
        self._constants.set(target, value)
