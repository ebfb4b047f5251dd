# SPDX-License-Identifier: Apache-2.0
"""Execution counts of instruction blocks, from a QEMU plugin (templates/harness)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import DMA_COPY_OVERHEAD_CYCLES, Board
from mcugen.core.resources import resource_dir
from mcugen.simulation.elf import functions
from mcugen.simulation.execute import Measure, Sample, execute, qemu_program
from mcugen.simulation.machines import Machine
from mcugen.simulation.toolchain import Compiler, Unit, host_compiler
from mcugen.simulation.waits import firmware_ranges, plugin_setup

MARK = "harness_mark"
"""Name of the harness function whose calls mark the beginning and the end of the profile of a model call."""
LAYER_MARK = "mcugen_harness_on_layer"
"""Name of the harness function that is called after each layer; its calls end the profile of a layer."""
HARNESS_FUNCTIONS = (MARK, LAYER_MARK, "run_marked", "read_counter")
"""Names of the harness functions that run during a profile, and are not counted."""

COPY_FUNCTION, AWAIT_FUNCTION = "mcugen_harness_copy_begin", "mcugen_harness_copy_end"
"""Functions of the harness that stand for a DMA controller: begin of a copy, and wait for its end."""

_PLUGIN = "profile_plugin"


@dataclass(frozen=True)
class Edge:
    """A counted transition between two basic blocks of a program (straight-line code that ends with a branch).

    Attributes:
        begin: Address of the first block.
        last: Address of the last instruction of the first block.
        to: Address of the block that followed.
        count: How often the second block followed the first one.
    """

    begin: int
    last: int
    to: int
    count: int


@dataclass(frozen=True)
class Span:
    """Execution counts of a stretch of a run, such as one layer, between two marks.

    Marks are calls of certain functions of the test firmware (MARK, LAYER_MARK).
    """

    edges: tuple[Edge, ...]
    """The counted transitions between basic blocks."""
    unaligned: int
    """Number of further bus transfers of unaligned accesses, beyond the one transfer of each access."""
    mark: int
    """Address of the mark that ended the span."""
    waits: tuple[tuple[int, ...], ...] = ()
    """For each memory that the plugin was told of: its number, then the six counts of a Wait (see `read_wait`)."""


@dataclass(frozen=True)
class Profiler:
    """A runner of firmware images under QEMU that counts with a plugin how often each basic block runs, for one sample.

    If the board has caches, the sample runs twice, and only the second run counts, as the first one fills the caches.

    Attributes:
        machine: The QEMU machine.
        bundle: The model in the images.
        sample: Inputs by port name.
        board: The board that the machine stands in for.
        timeout: Seconds within which a run must end.
    """

    machine: Machine
    bundle: Bundle
    sample: Sample
    board: Board
    timeout: float

    def spans(self, image: Path, setup: Iterable[str] = ()) -> list[Span]:
        """Return the profile of one call of the model.

        Args:
            image: The firmware.
            setup: Further lines for the plugin, such as those of `waits.plugin_setup`.

        Returns:
            One span; for an image with layer hooks, one span for each layer and one for the code after the last layer.

        Raises:
            ToolMissingError: There is no compiler for the plugin.
            VerificationError: QEMU cannot run the plugin.
        """
        folder, known = image.with_suffix(".profile"), functions(image)
        folder.mkdir(parents=True, exist_ok=True)
        marks = [known[name].begin for name in (MARK, LAYER_MARK) if name in known]
        memories = plugin_setup(self.board, firmware_ranges(self.board, image, self.bundle, self.machine))
        ignored = [f"ignore {known[name].begin:x} {known[name].end:x}" for name in HARNESS_FUNCTIONS if name in known]
        told_copies = [("copies", COPY_FUNCTION, f" {DMA_COPY_OVERHEAD_CYCLES}"), ("awaits", AWAIT_FUNCTION, "")]
        ignored += [
            f"{key} {known[name].begin:x} {known[name].end:x}{more}" for key, name, more in told_copies if name in known
        ]
        lines = [*(f"mark {mark:x}" for mark in marks), *ignored, *memories, *setup]
        (folder / "setup.txt").write_text("".join(f"{line}\n" for line in lines))
        plugin = f"{build_plugin(image.parent).resolve()},setup=setup.txt,out=profile.txt"
        program = qemu_program(image, self.machine, plugin=plugin)
        samples = [self.sample] * (2 if self.board.caches else 1)
        execute(program, self.bundle, samples, folder, measure=Measure.PROFILE, timeout=self.timeout)
        with (folder / "profile.txt").open() as written:
            spans = list(read_spans(written))
        first = next(i for i, span in enumerate(spans) if span.mark == known[MARK].begin)
        return spans[first + 1 :]


def build_plugin(folder: Path, name: str = _PLUGIN) -> Path:
    """Build a QEMU plugin in a folder by the host's compiler, unless it exists there, and return its path.

    Args:
        folder: The folder of the plugin. Its file name there contains a hash of the source.
        name: Name of the source file templates/harness/`name`.c.
    """
    source = resource_dir("templates") / "harness" / f"{name}.c"
    plugin = folder / f"{name}_{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if plugin.is_file():
        return plugin
    compiler = Compiler(host_compiler(), ("-O2", "-fPIC", "-fvisibility=hidden"), folder)
    compiler.compile([Unit(str(source), f"{name}.o")])
    return compiler.link(plugin.name, [f"{name}.o"], ("-shared",))


def read_spans(lines: Iterable[str]) -> Iterator[Span]:
    """Parse the output of the profiling plugin, and yield the execution counts between marks.

    The first span ends at the first mark.
    """
    edges: list[Edge] = []
    waits: list[tuple[int, ...]] = []
    unaligned = 0
    for line in lines:
        key, *values = line.split()
        if key == "edge":
            begin, last, to = (int(value, 16) for value in values[:3])
            edges.append(Edge(begin, last, to, int(values[3])))
        elif key == "memory":
            waits.append(tuple(map(int, values)))
        elif key == "mark":
            yield Span(tuple(edges), unaligned, int(values[0], 16), tuple(waits))
            edges, waits = [], []
        else:
            unaligned = int(values[0])
