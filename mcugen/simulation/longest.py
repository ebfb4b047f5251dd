# SPDX-License-Identifier: Apache-2.0
"""Upper bound of the instructions of a call: the longest path through the linked code.

The bound comes from implicit path enumeration (Li and Malik, "Performance analysis of embedded software using implicit
path enumeration", 1995). The execution counts of the blocks are the unknowns of a linear program: as many executions
enter a block as leave it, and a loop iterates as often as the runs have shown, or as often as the kernel declares for
a loop that depends on data. The bound assumes that all other loops, and jumps to computed addresses, depend on sizes
only, as kernels declare. If runs contradict that, there is no bound.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.options import LibraryFiles
from mcugen.core.packages import optional_package
from mcugen.simulation.build import build_target
from mcugen.simulation.elf import AddressRange, functions
from mcugen.simulation.execute import Sample
from mcugen.simulation.machines import find_machine
from mcugen.simulation.profile import HARNESS_FUNCTIONS, Edge, Profiler, Span
from mcugen.simulation.simulation import SECONDS_PER_SAMPLE
from mcugen.simulation.stack_steps import StackStep, read_steps

COPY_FUNCTION_PREFIXES = ("mem", "__aeabi_mem")
"""Prefixes of the names of C library functions (such as memcpy) whose number of iterations depends on sizes only."""
DIVISIONS = dict.fromkeys(("__udivsi3", "__divsi3", "__aeabi_uidiv", "__aeabi_idiv", "__aeabi_uidivmod"), 32)
"""Largest number of iterations of the loop in libgcc's division functions (lib1funcs.S).

Each iteration shifts a 32-bit number by at least one bit.
"""

Jump = tuple[int, int]
"""The addresses of an executed instruction and of the instruction that was executed next."""


@dataclass(frozen=True)
class LongestPath:
    """Upper bound of the instructions of a call for any input, including the return.

    Attributes:
        instructions: The bound; None if there is none.
        reason: Why there is no bound; "" if there is one.
    """

    instructions: int | None
    reason: str = ""


@dataclass(frozen=True)
class Paths:
    """The instructions of a call: counted for samples, and bounded for any input.

    Attributes:
        counts: Instructions for each sample.
        longest: Upper bound for any input.
    """

    counts: tuple[int, ...]
    longest: LongestPath


def paths(
    bundle: Bundle,
    board: Board,
    samples: Sequence[Sample],
    rounds: int | None,
    library: LibraryFiles | None = None,
    progress: Callable[[int], None] = lambda index: None,
) -> Paths:
    """Return the instructions of runs on samples, and an upper bound for any input, for a board that QEMU emulates.

    Args:
        bundle: The model.
        board: The board.
        samples: Inputs of the runs.
        rounds: Largest total number of iterations, in one run, of loops that depend on data; None if unknown.
        library: Files of the library that the model calls.
        progress: Called with the number of samples done.

    Raises:
        ToolMissingError: There is no compiler for the counting plugin. Other errors are those of `simulate`.
    """
    machine, root = find_machine(board), f"{bundle.name}_run"
    with tempfile.TemporaryDirectory(prefix="mcugen-") as folder:
        image = build_target(bundle, board, machine, Path(folder), hooks=False, files=library).model
        steps, known = read_steps(image, machine.toolchain), functions(image)
        ignored = [area for name, area in known.items() if name in HARNESS_FUNCTIONS]
        runs = []
        for index, sample in enumerate(samples):
            progress(index)
            (span, *_) = Profiler(machine, bundle, sample, board, SECONDS_PER_SAMPLE).spans(image)
            runs.append(_jumps(span, steps, ignored))
    counts = tuple(run.total() for run in runs)
    if rounds is None:
        return Paths(counts, LongestPath(None))
    try:
        blocks = _Flow(steps, known[root].begin, runs).blocks()
        _require_all_that_ran(blocks, runs)
        loops = list(_loops(blocks, known[root].begin, runs, _Names(known, bundle), rounds))
    except _UnknownError as error:
        return Paths(counts, LongestPath(None, str(error)))
    return Paths(counts, _solved(blocks, known[root].begin, loops))


class _UnknownError(Exception):
    """Raised if the code's behavior is unknown."""


def _require_all_that_ran(blocks: Mapping[int, _Block], runs: Sequence[Counter[Jump]]) -> None:
    """Check that every executed instruction is in a known block; others would not be counted."""
    known = {address for block in blocks.values() for address in block.addresses}
    for at in sorted({source for run in runs for source, _ in run} - known):
        raise _UnknownError(f"it is not known how code comes to {at:#x}")


def _jumps(run: Span, steps: Mapping[int, StackStep], ignored: Sequence[AddressRange]) -> Counter[Jump]:
    """Return how often each instruction continued to which next one."""
    counts: Counter[Jump] = Counter()
    for edge in run.edges:
        if not any(edge.begin in area for area in ignored):
            for jump in pairwise([*_block(edge, steps), edge.to]):
                counts[jump] += edge.count
    return counts


def _block(edge: Edge, steps: Mapping[int, StackStep]) -> Iterator[int]:
    at = edge.begin
    while at < edge.last:
        yield at
        at = steps[at].end
    yield at


@dataclass
class _Block:
    """Instructions that run one after the other."""

    begin: int
    addresses: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    ends: bool = False
    """Whether the function may return here."""


@dataclass
class _Flow:
    """Control flow of a function from its first address on."""

    steps: Mapping[int, StackStep]
    begin: int
    taken: Sequence[Counter[Jump]]

    def blocks(self) -> dict[int, _Block]:
        """Return all blocks that the program can reach, by address."""
        seen: dict[int, list[int]] = {}
        leaders, todo = {self.begin}, [self.begin]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen[at] = self.after(at)
            calls = self.called(at)
            if seen[at] != [self.steps[at].end]:
                leaders.update(seen[at])
            leaders.update(calls)
            todo += [*seen[at], *calls]
        return {begin: self._block(begin, leaders, seen) for begin in leaders}

    def _block(self, begin: int, leaders: set[int], seen: Mapping[int, list[int]]) -> _Block:
        block, at = _Block(begin), begin
        while True:
            block.addresses.append(at)
            block.calls += self.called(at)
            after = seen[at]
            if after != [self.steps[at].end] or after[0] in leaders:
                break
            (at,) = after
        block.after = after
        block.ends = not after or self._returns(at)
        return block

    def step(self, at: int) -> StackStep:
        """Return the instruction at an address."""
        if at not in self.steps:
            raise _UnknownError(f"{at:#x} is no code")
        return self.steps[at]

    def after(self, at: int) -> list[int]:
        """Return the addresses at which the function continues."""
        step = self.step(at)
        if step.computed:
            return sorted({to for run in self.taken for source, to in run if source == at})
        jumps = [step.target] if step.target is not None and not step.calls and not step.guessed else []
        falls = step.falls and not (step.calls and step.end not in self.steps)  # The function does not return.
        return list(dict.fromkeys([*jumps, *[step.end] * falls]))

    def called(self, at: int) -> list[int]:
        """Return the addresses that the instruction at `at` may call: functions, or parts of a function."""
        step = self.step(at)
        if not step.calls and not step.guessed:
            return []
        if step.target is not None:
            return [step.target]
        return sorted({to for run in self.taken for source, to in run if source == at})

    def _returns(self, at: int) -> bool:
        """Return whether the instruction at `at` is a conditional return."""
        return self.steps[at].name.split()[0].startswith(("bx", "pop", "ldm")) and self.steps[at].falls


@dataclass(frozen=True)
class _Names:
    """Names of functions by address, and whether they belong to the model."""

    known: Mapping[str, AddressRange]
    bundle: Bundle

    def name(self, address: int) -> str:
        """Return the name of the function at an address; unnamed parts of assembly belong to the symbol before them."""
        before = {area.begin: name for name, area in self.known.items() if area.begin <= address}
        return before[max(before)].partition(".")[0]

    def is_own(self, name: str) -> bool:
        """Return whether the model's text defines a function: a line begins with a type, and has its name and "("."""
        defined = re.compile(rf"(?m)^[A-Za-z][^;#\n]*\b{re.escape(name)}\(")
        return any(isinstance(text, str) and defined.search(text) for text in self.bundle.files.values())


@dataclass(frozen=True)
class _Loop:
    """A loop, closed by jumps of blocks to `target`: at most `most` times in total, and `each` times per entry."""

    target: int
    sources: tuple[int, ...]
    most: int
    each: int = 0


def _loops(
    blocks: Mapping[int, _Block], root: int, runs: Sequence[Counter[Jump]], names: _Names, rounds: int
) -> Iterator[_Loop]:
    """Yield all loops of the code, with bounds of their iterations.

    Raises:
        _UnknownError: The number of iterations of a loop is unknown.
    """
    closing: defaultdict[int, list[int]] = defaultdict(list)
    for begin, target in _retreating(blocks, root):
        closing[target].append(begin)
    for target, sources in closing.items():
        counts = {sum(run[blocks[s].addresses[-1], target] for s in sources) for run in runs}
        name = names.name(target)
        if name in DIVISIONS:
            yield _Loop(target, tuple(sources), 0, DIVISIONS[name])
        elif not name.startswith(COPY_FUNCTION_PREFIXES) and not names.is_own(name):
            raise _UnknownError(f"{name} of a library has a loop")
        elif len(counts) > 1 and max(counts) > rounds:
            raise _UnknownError(f"a loop of {name} goes by data")
        else:
            yield _Loop(target, tuple(sources), max(*counts, rounds))


def _retreating(blocks: Mapping[int, _Block], root: int) -> Iterator[Jump]:
    """Yield the jumps to blocks on the path of a depth-first search; each loop has such a jump."""
    visited = set[int]()
    for entry in [root, *sorted({called for block in blocks.values() for called in block.calls})]:
        stack = [(entry, iter(blocks[entry].after))] if entry not in visited else []
        visited.add(entry)
        on_path = {entry}
        while stack:
            at, after = stack[-1]
            to = next(after, None)
            if to is None:
                stack.pop()
                on_path.discard(at)
            elif to in on_path:
                yield at, to
            elif to not in visited:
                visited.add(to)
                on_path.add(to)
                stack.append((to, iter(blocks[to].after)))


def _solved(blocks: Mapping[int, _Block], begin: int, loops: Sequence[_Loop]) -> LongestPath:
    """Return the path with the largest sum of instructions, by linear programming."""
    with optional_package("planning", "a bound of instructions"):
        from ortools.linear_solver import pywraplp  # Its import takes half a second.

    solver = pywraplp.Solver.CreateSolver("GLOP")
    jumps = {
        (block.begin, to): solver.NumVar(0, solver.infinity(), "") for block in blocks.values() for to in block.after
    }
    flow = {at: solver.NumVar(0, solver.infinity(), "") for at in blocks}
    comes: defaultdict[int, list[object]] = defaultdict(list)
    for (_, to), count in jumps.items():
        comes[to].append(count)
    for block in blocks.values():
        for called in block.calls:
            comes[called].append(flow[block.begin])
    for at, block in blocks.items():
        solver.Add(flow[at] == solver.Sum(comes[at]) + int(at == begin))
        goes = solver.Sum([jumps[at, to] for to in block.after])
        solver.Add(goes <= flow[at]) if block.ends else solver.Add(goes == flow[at])
    for loop in loops:
        back = solver.Sum([jumps[source, loop.target] for source in loop.sources])
        solver.Add(back <= loop.most + loop.each * (flow[loop.target] - back))
    solver.Maximize(solver.Sum([len(block.addresses) * flow[at] for at, block in blocks.items()]))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return LongestPath(None, "functions call each other in circles")
    return LongestPath(round(solver.Objective().Value()))
