# SPDX-License-Identifier: Apache-2.0
"""Which blocks of instructions a program ran how often, counted by a plugin of QEMU (templates/harness)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.resources import resource_dir
from mcugen.simulate.elf import constants, functions
from mcugen.simulate.execute import Measure, Sample, execute, qemu_program
from mcugen.simulate.machines import Machine
from mcugen.simulate.toolchain import Compiler, Unit, host_compiler

MARK = "harness_mark"
LAYER_MARK = "mcugen_harness_on_layer"
HARNESS = (MARK, LAYER_MARK, "run_marked", "read_counter")
"""Functions that run while a call is profiled, and are not the model's."""

_PLUGIN = "profile_plugin"


@dataclass(frozen=True)
class Edge:
    """The block of instructions from address `begin` to `last` ran `count` times just before the one at `to`."""

    begin: int
    last: int
    to: int
    count: int


@dataclass(frozen=True)
class Span:
    """What ran between two marks."""

    edges: tuple[Edge, ...]
    unaligned: int
    """Bus transfers that unaligned accesses took beyond one each."""
    reads: int
    """Accesses that read the watched ranges."""


@dataclass(frozen=True)
class Profiler:
    """Runs images of a bundle under the plugin, each for one sample."""

    machine: Machine
    bundle: Bundle
    sample: Sample
    flash_weights: bool
    """Whether reads of weights are reads of flash."""
    timeout: float

    def spans(self, image: Path) -> list[Span]:
        """Of one call of the run function: one, or of an image with hooks one a layer and what follows them.

        ToolMissingError: no compiler for the plugin. VerificationError: QEMU does not run plugins, or not this one.
        """
        folder, known = image.with_suffix(".profile"), functions(image)
        arguments = ["out=profile.txt"]
        arguments += [f"mark={known[name].begin:x}" for name in (MARK, LAYER_MARK) if name in known]
        arguments += [f"read={area.begin:x}-{area.end:x}" for area in constants(image, weights=self.flash_weights)]
        plugin = ",".join([str(build_plugin(image.parent).resolve()), *arguments])
        program = qemu_program(image, self.machine, plugin=plugin)
        execute(program, self.bundle, [self.sample], folder, measure=Measure.PROFILE, timeout=self.timeout)
        with (folder / "profile.txt").open() as lines:
            _, *spans = read_spans(lines)
        return spans


def build_plugin(folder: Path) -> Path:
    """The plugin, built in `folder` with the host's compiler unless it is there."""
    plugin = folder / f"{_PLUGIN}.so"
    if plugin.is_file():
        return plugin
    source = resource_dir("templates") / "harness" / f"{_PLUGIN}.c"
    compiler = Compiler(host_compiler(), ("-O2", "-fPIC", "-fvisibility=hidden"), folder)
    compiler.compile([Unit(str(source), f"{_PLUGIN}.o")])
    return compiler.link(plugin.name, [f"{_PLUGIN}.o"], ("-shared",))


def read_spans(lines: Iterable[str]) -> Iterator[Span]:
    """What the plugin wrote; the first span is what ran before the first mark."""
    edges: list[Edge] = []
    counts = {"unaligned": 0, "reads": 0}
    for line in lines:
        key, *values = line.split()
        if key == "edge":
            begin, last, to = (int(value, 16) for value in values[:3])
            edges.append(Edge(begin, last, to, int(values[3])))
        elif key == "mark":
            yield Span(tuple(edges), **counts)
            edges = []
        else:
            counts[key] = int(values[0])
