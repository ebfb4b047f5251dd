# SPDX-License-Identifier: Apache-2.0
"""Upper bound of the stack of a call, from the linked code: compiled code, assembly, and libraries.

The analysis follows all branches of each function and tracks the bytes pushed so far; a call adds the bound of the
called function. Nothing runs, so that branches which no sample takes count, too. Sources: the Procedure Call Standard
for the Arm Architecture (AAPCS, 6.2.1: the stack pointer) and the RISC-V psABI (a function restores its stack pointer).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mcugen.simulation.elf import functions
from mcugen.simulation.stack_steps import StackStep, read_steps
from mcugen.simulation.toolchain import Toolchain


@dataclass(frozen=True)
class StackBound:
    """An upper bound of a call's stack, below the caller's frame.

    Attributes:
        bytes: The bound; None if the code does not allow one.
        path: The chain of calls that reaches the bound: each function's name, and its stack in bytes at the next call.
        reason: Why there is no bound; "" if there is one.
        pointers: Names of the functions that call through a pointer, or call a driver of the user's project. The bound
            leaves out the stack of functions called that way.
    """

    bytes: int | None
    path: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    pointers: tuple[str, ...] = ()


DRIVER_PREFIXES = ("ethosu_", "harness_")
"""Beginnings of the names of functions that take the place of an accelerator's driver in test firmware."""


class _UnknownError(Exception):
    """Raised if the code's use of the stack is unknown."""


class _LoopError(_UnknownError):
    """Raised if each iteration of a loop pushes more bytes."""


def stack_bound(image: Path, root: str, toolchain: Toolchain) -> StackBound:
    """Return an upper bound of the stack that a function of a linked program uses with all functions that it calls.

    Args:
        image: The ELF file.
        root: Name of the function.
        toolchain: The toolchain, whose disassembler reads the file.

    Raises:
        ToolMissingError: There is no disassembler.
    """
    known = functions(image)
    if root not in known:
        return StackBound(None, reason=f"no function {root}")
    walk = _Walk(read_steps(image, toolchain), {area.begin: (name, area.end) for name, area in known.items()})
    try:
        nbytes = walk.bound(known[root].begin)
    except _UnknownError as error:
        return StackBound(None, reason=str(error), pointers=tuple(sorted(walk.pointers)))
    return StackBound(nbytes, tuple(walk.path(known[root].begin)), pointers=tuple(sorted(walk.pointers)))


@dataclass
class _Walk:
    code: Mapping[int, StackStep]
    functions: Mapping[int, tuple[str, int]]
    """Name and end of each function, by its first address."""
    pointers: set[str] = field(default_factory=set)
    _bounds: dict[int, int] = field(default_factory=dict)
    _worst: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """For each function, the depth at which its bound is reached, and the address of the function called there."""
    _open: list[int] = field(default_factory=list)

    def bound(self, entry: int) -> int:
        """Return the bytes of stack that a call of the function at an address takes at most."""
        if entry in self._bounds:
            return self._bounds[entry]
        if entry in self._open:
            raise _UnknownError(f"{self._name(entry)} calls itself")
        self._open.append(entry)
        peak = 0
        where: tuple[int, int | None] = (0, None)
        for at, depth in self._depths(entry).items():
            step = self.code[at]
            target = step.target if step.calls else None
            is_foreign = target is None or self._name(target).startswith(DRIVER_PREFIXES)
            inner = 0 if target is None or is_foreign else self.bound(target)
            if step.calls and is_foreign:
                self.pointers.add(self._name(entry))
            top = max(depth, depth + (step.pushed or 0))
            if max(top, depth + inner) > peak:
                peak = max(top, depth + inner)
                where = (depth, step.target) if depth + inner >= top and inner else (top, None)
        self._open.pop()
        self._bounds[entry], self._worst[entry] = peak, where
        return peak

    def path(self, entry: int) -> Iterator[tuple[str, int]]:
        """Yield the chain of calls that uses most stack."""
        at: int | None = entry
        while at is not None:
            depth, callee = self._worst[at]
            yield self._name(at), depth
            at = callee

    def _name(self, address: int) -> str:
        return self.functions.get(address, (f"{address:#x}", 0))[0]

    def _depths(self, entry: int) -> dict[int, int]:
        """Return the most bytes pushed before each instruction that the function may reach."""
        depths: dict[int, int] = {}
        try:
            self._follow(entry, 0, depths)
        except _LoopError:
            depths = self._of_loops(entry)
        jumps = [depths[at] for at in depths if self.code[at].computed]
        _, end = self.functions.get(entry, ("", entry))
        for at in sorted(a for a in self.code if entry <= a < end) if jumps else ():
            if at not in depths:
                self._follow(at, max(jumps), depths, guessing=True)
        return depths

    def _follow(self, at: int, depth: int, depths: dict[int, int], guessing: bool = False) -> None:
        """Add everything reachable from an address with `depth` bytes pushed.

        `guessing` says that reaching the address is a guess. Only a loop can push more than all visited instructions
        push once each.
        """
        todo, max_depth, met = [(at, depth, guessing)], depth, set[int]()
        while todo:
            at, depth, guessing = todo.pop()
            if depths.get(at, -1) >= depth:
                continue
            step = self.code.get(at)
            if step is None and guessing:  # Padding before a table.
                continue
            if step is None or depth > max_depth:
                raise _UnknownError(f"{at:#x} is no code") if step is None else _LoopError(f"a loop at {at:#x} pushes")
            if step.pushed is None:
                raise _UnknownError(f"'{step.name}' at {at:#x} takes what a register says")
            if at not in met:
                met.add(at)
                max_depth += max(step.pushed, 0)
            depths[at] = depth
            after = max(depth + step.pushed, 0)
            ends = step.calls and step.end not in self.code  # The called function does not return.
            if step.falls and not ends:
                todo.append((step.end, after, guessing or step.guessed))
            if step.target is not None and not step.calls:
                todo.append((step.target, after, guessing))

    def _of_loops(self, entry: int) -> dict[int, int]:
        """Return the most bytes pushed where loops push or pop as often as counters or constants say.

        Such a loop is deepest when it is entered, which follows from what was pushed before, or when it is left, which
        follows from what is popped until the function returns.
        """
        entered, before = {entry: 0}, dict[int, list[int]]()
        for at in (todo := [entry]):
            for after in self._after(at):
                before.setdefault(after, []).append(at)
                if after not in entered:
                    entered[after] = max(entered[at] + (self.code[at].pushed or 0), 0)
                    todo.append(after)
        left = {at: -(self.code[at].pushed or 0) for at in entered if not self._after(at)}
        for at in (todo := list(left)):
            for earlier in before.get(at, ()):
                if earlier not in left:
                    left[earlier] = left[at] - (self.code[earlier].pushed or 0)
                    todo.append(earlier)
        return {at: max(depth, left.get(at, 0)) for at, depth in entered.items()}

    def _after(self, at: int) -> list[int]:
        """Return the addresses in the function that may follow an instruction.

        Raises:
            _UnknownError: The instruction may be part of a loop that pushes.
        """
        step = self.code[at]
        if step.computed or step.pushed is None or step.guessed:
            raise _UnknownError(f"a loop near {at:#x} pushes")
        jumps = [step.target] if step.target is not None and not step.calls else []
        return [*jumps, *[step.end] * step.falls]
