# SPDX-License-Identifier: Apache-2.0
"""Runs of a model on both cores of Arm's SSE-200 under QEMU, with the instructions of each core without waiting.

The two Cortex-M33 also run code that was compiled for a Cortex-M0+.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.simulation.build import build_for_both_cores
from mcugen.simulation.elf import functions
from mcugen.simulation.execute import Sample, execute, qemu_program
from mcugen.simulation.machines import SSE200
from mcugen.simulation.profile import LAYER_MARK, MARK, build_plugin

_SIGNAL = "harness_signal"
_WAITING = (MARK, LAYER_MARK, _SIGNAL, "harness_wait", "harness_settle")
"""Functions that are not counted: the chip's own signals, and waiting for them."""

_FIRST, _OTHER = 0, 1


@dataclass(frozen=True)
class Fork:
    """Instructions of one layer that is divided between both cores, from its start signal until both cores are done."""

    first: int
    """Instructions of the first core from its start signal to the other core until the end of its own shard."""
    other: int
    """Instructions of the other core from waking to signaling the end of its shard."""
    end: int
    """Instructions of the first core after its shard, until it knows that both cores are done."""

    @property
    def instructions(self) -> int:
        """Return the instructions of the longer shard plus `end`: the time of the layer without waiting."""
        return max(self.first, self.other) + self.end


@dataclass(frozen=True)
class BothCores:
    """Results of one sample on one core and on both cores, with instruction counts (0 if they were not counted).

    A divided layer is one whose parts both cores compute at the same time.
    """

    alone: dict[str, np.ndarray]
    """Outputs of the run on one core, by port name."""
    together: dict[str, np.ndarray]
    """Outputs of the run on both cores, by port name."""
    instructions: int
    """Instructions of the run on one core."""
    each: tuple[int, int]
    """Instructions of the first core and of the other core in the run on both cores."""
    forks: tuple[Fork, ...]
    """The layers that both cores compute, in the order of execution."""

    @property
    def slower(self) -> int:
        """Return the time of the run on both cores, in instructions of the first core.

        It is the number of instructions of the first core, plus the time for which that core waits for the other one.
        """
        return self.each[0] + sum(fork.instructions - fork.first - fork.end for fork in self.forks)

    @property
    def barrier(self) -> float:
        """Return the instructions that synchronizing the cores takes for each divided layer.

        This is the sum over both cores, minus the run on one core, divided by the number of divided layers.
        """
        return (sum(self.each) - self.instructions) / len(self.forks)


def run_on_both_cores(
    bundle: Bundle, board: Board, sample: Sample, folder: Path, *, counts: bool = True, timeout: float = 120.0
) -> BothCores:
    """Run a sample on one core, then on both cores.

    Args:
        bundle: The model, compiled for two cores.
        board: The board that it was compiled for.
        sample: Inputs by port name.
        folder: Build folder.
        counts: Whether to count instructions. If not, the cores wait by WFE and signal by SEV, as on boards.
        timeout: Seconds within which each run must end.

    Raises:
        UsageError: The bundle is not for two cores of an Arm board, or needs other memory from its caller than one
            arena, such as a state, a file of weights or buffers for inputs.
    """
    more = (bundle.has_state, bundle.weights_blob, bundle.arguments, bundle.streamed, len(bundle.arena_sizes) > 1)
    lent = any(port.is_lent for port in (*bundle.inputs, *bundle.outputs))
    if "mcugen_cores.h" not in bundle.files or board.toolchain != SSE200.toolchain.name or any(more) or lent:
        rule = "a model on both cores must be compiled for two cores of an Arm board, with all of its data in its arena"
        raise UsageError(rule, f"board '{board.name}'", "leave other options out")
    image = build_for_both_cores(bundle, board, SSE200, folder, counts=counts)
    counts_file = folder / "run" / "counts.txt"
    plugin = _plugin(image, folder) if counts else ""
    program = qemu_program(image, SSE200, plugin=plugin, count_instructions=counts)
    run = execute(program, bundle, [sample, sample], folder / "run", timeout=timeout)
    alone, together = run.outputs
    return _read(alone, together, _marks(counts_file, image)) if counts else BothCores(alone, together, 0, (0, 0), ())


def _plugin(image: Path, folder: Path) -> str:
    known = functions(image)
    marks = [f"mark {known[name].begin:x}" for name in (MARK, LAYER_MARK, _SIGNAL)]
    ignored = [f"ignore {known[name].begin:x} {known[name].end:x}" for name in _WAITING]
    run = folder / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "setup.txt").write_text("".join(f"{line}\n" for line in (*marks, *ignored)))
    return f"{build_plugin(folder, 'cores_plugin').resolve()},setup=setup.txt,out=counts.txt"


@dataclass(frozen=True)
class _Told:
    """A mark: a core begins a function, with the instructions of each core so far."""

    function: str
    core: int
    counts: tuple[int, int]


def _marks(path: Path, image: Path) -> list[_Told]:
    names = {area.begin: name for name, area in functions(image).items() if name in (MARK, LAYER_MARK, _SIGNAL)}
    lines = (line.split() for line in path.read_text().splitlines())
    return [_Told(names[int(at, 16)], int(core), (int(first), int(other))) for at, core, first, other in lines]


def _read(alone: dict[str, np.ndarray], together: dict[str, np.ndarray], marks: Sequence[_Told]) -> BothCores:
    """Return the results: the first two marks enclose the run on one core, the last two the run on both."""
    ends = [i for i, both_counts in enumerate(marks) if both_counts.function == MARK]
    begin, end = marks[ends[-2]].counts, marks[ends[-1]].counts
    inside = marks[ends[-2] + 1 : ends[-1]]
    one = marks[ends[1]].counts[_FIRST] - marks[ends[0]].counts[_FIRST]
    both_counts = (end[_FIRST] - begin[_FIRST], end[_OTHER] - begin[_OTHER])
    return BothCores(alone, together, one, both_counts, tuple(_forks(inside, begin)))


def _forks(marks: Sequence[_Told], begin: tuple[int, int]) -> list[Fork]:
    """Return the forks.

    The first core signals when it posts; its layer marks follow at the end of its portion, and when both cores are
    done.
    """
    other_ends = [mark.counts[_OTHER] for mark in marks if mark.core == _OTHER and mark.function == _SIGNAL]
    other_counts = [b - a for a, b in zip([begin[_OTHER], *other_ends], other_ends, strict=False)]
    ours = [(mark.function, mark.counts[_FIRST]) for mark in marks if mark.core == _FIRST]
    posts = [i for i, (function, _) in enumerate(ours) if function == _SIGNAL]
    forks = []
    for post, other in zip(posts, other_counts, strict=True):
        before = ours[post - 1][1] if post else begin[_FIRST]
        (_, half), (_, end) = [mark for mark in ours[post + 1 :] if mark[0] == LAYER_MARK][:2]
        forks.append(Fork(half - before, other, end - half))
    return forks
