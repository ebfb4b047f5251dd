# SPDX-License-Identifier: Apache-2.0
"""Builds of a bundle with the harness: test firmware for a QEMU machine, or a program for this computer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path

import jinja2

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.runtime_functions import with_runtime_functions
from mcugen.codegen.validation import validation_files
from mcugen.core.board import Board
from mcugen.core.options import LibraryFiles
from mcugen.core.resources import resource_dir
from mcugen.simulation.linking import Linked
from mcugen.simulation.machines import Machine, find_machine
from mcugen.simulation.toolchain import Compiler, Unit, find_program, host_compiler


class Checks(Enum):
    """Sanitizers of a program for this computer, which detect undefined behavior and wrong addresses."""

    NONE = "none"
    """Build without sanitizers."""
    TRAP = "trap"
    """End by a trap, without a message, on undefined behavior; report wrong addresses."""
    TELL = "tell"
    """Report the place and the kind of each error; gcc takes twice as long to compile."""


HARNESS_DIR = resource_dir("templates") / "harness"
"""Folder of the harness, whose files are compiled in place.

Files generated for a model go to `harness` in the build folder.
"""

_COMMON = ("-std=c99", "-O2", "-pipe", "-ffunction-sections", "-fdata-sections", "-I", "model", "-I", str(HARNESS_DIR))
_STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
_NO_MEMSET = ("-fno-tree-loop-distribute-patterns",)  # no loop becomes memset: the model pays for its own
_HOOKED = ("-include", str(HARNESS_DIR / "on_layer.h"))
_COPIED = ("-include", str(HARNESS_DIR / "copies.h"))
_HOST = ("-DHARNESS_HOST", "-DMCUGEN_SECTION(name)=")  # sanitizers leave sections of one's own alone
_UNDEFINED = "-fsanitize=undefined,float-cast-overflow"
_TRAP = "-fsanitize-undefined-trap-on-error"
_CHECKS = {
    # -O1 takes gcc four times as long.
    Checks.TRAP: ("-O0", "-fsanitize=address", _UNDEFINED, "-fno-sanitize-recover=all", _TRAP),
    Checks.TELL: ("-O0", "-g1", "-fsanitize=address", _UNDEFINED, "-fno-sanitize-recover=all"),
}
_JOINED = (Checks.TRAP,)
"""Compiled as one file, which takes gcc two thirds of the time. To tell a fault files are compiled one by one."""
# Without their libraries, which a static program cannot have: no checks of addresses, and no messages.
_STATIC = ("-O0", "-g", _UNDEFINED, _TRAP)

_ADDRESSES = (
    *("-O1", "-fsanitize=address,bounds,object-size,pointer-overflow,alignment,null,integer-divide-by-zero,vla-bound"),
    "-fno-sanitize-recover=all",
)

_LINK = ("-nostartfiles", "-Wl,--gc-sections", "-T", "link.ld")

_FOR_ONE_CORE = ("main.c", "empty.c", "wire.c")
_GENERATED = (*_FOR_ONE_CORE, "cores.c")
_TARGET_SOURCES = ("startup", "semihosting", "measure", "copies")
_MIN_HOOK_LAYERS = 16
"""Layers. Two at least: the hook's own cost is the distance of two calls."""


@dataclass(frozen=True)
class TargetImages:
    """Paths of the firmware images that were built for one model; None for an image that was not requested."""

    model: Path
    """The test firmware with the model."""
    empty: Path | None
    """The test firmware without a model, whose size is subtracted from that of `model`."""
    layers: Path | None
    """The test firmware with the model, whose layer hook reads the CPU's instruction counter."""
    stacks: Path | None = None
    """The test firmware with the model, whose layer hook measures the stack of each layer."""


@dataclass(frozen=True)
class _Build:
    """A compiler, and the user's library, to which failures of its headers and its archive are attributed."""

    compiler: Compiler
    library: Linked
    archive_flags: Sequence[str]
    """Compiler flags that the library's archive must be built with."""
    link_flags: tuple[str, ...] = ()

    def program(self, name: str, units: Sequence[Unit]) -> Path:
        """Compile the units, link them, and return the path of the program."""
        self.compile(units)
        return self.link(name, units)

    def compile(self, units: Sequence[Unit]) -> None:
        with self.library.blamed_for_headers():
            self.compiler.compile(units)

    def link(self, name: str, units: Sequence[Unit], flags: Sequence[str] = ()) -> Path:
        objects = [*(unit.object for unit in units), *self.library.archives]
        with self.library.blamed_for_archive(self.archive_flags):
            return self.compiler.link(name, objects, (*self.link_flags, *flags))


def build_host(bundle: Bundle, folder: Path, checks: Checks, files: LibraryFiles | None = None) -> Path:
    """Build the program that runs the model on this computer, and return its path.

    Args:
        bundle: The model.
        folder: Build folder.
        checks: The sanitizers. A program that $CC links statically has the undefined-behavior sanitizer alone, and
            traps.
        files: Library that the model calls; None if it calls none.
    """
    build = _host_build(bundle, folder, checks, files)
    return build.program("model.out", _joined_units(bundle, folder) if checks in _JOINED else _host_units(bundle))


def build_counted(bundle: Bundle, folder: Path, counters: Sequence[str], files: LibraryFiles | None = None) -> Path:
    """Build the host program by gcc without optimization, to measure the coverage of the model's code.

    Args:
        bundle: The model.
        folder: Build folder.
        counters: gcc's flags that add coverage counters to the model's code.
        files: Library that the model calls.
    """
    library = Linked.of(bundle, files, "host")
    _write_sources(bundle, folder)
    compiler = Compiler((find_program("gcc"),), (*_COMMON, *_HOST, *library.flags, "-O0"), folder)
    model = [replace(unit, flags=(*unit.flags, *counters)) for unit in _model_units(bundle)]
    build = _Build(compiler, library, compiler.program, tuple(counters))
    return build.program("model.out", [*_harness_units(("host", "main"), ()), *model])


def build_flips(bundle: Bundle, folder: Path, samples: int, *, sanitize: bool, checks: bool) -> Path:
    """Build the fault-injection program, which runs the self-test with flipped bits in constants and in the state.

    Constants are writable in this program. Signed overflow wraps around: a flipped bit changes values, but causes no
    undefined behavior.

    Args:
        bundle: The model, with a self-test.
        folder: Build folder.
        samples: Number of samples of the self-test.
        sanitize: Whether an address sanitizer stops accesses out of bounds.
        checks: Whether the model checks its weights before each sample.
    """
    harness = _write_model(bundle, folder)
    (folder / "model" / f"{bundle.name}_selftest.c").write_text(bundle.files[f"{bundle.name}_selftest.c"])
    several = len(bundle.arena_sizes) > 1
    model_values = {"name": bundle.name, "constants": bundle.constants, "has_state": bundle.has_state}
    text = _render("flips.c.j2", **model_values, samples=samples, several=several, checks=checks)
    (harness / "flips.c").write_text(text)
    flags = ("-std=gnu99", "-pipe", "-w", "-fwrapv", *(_ADDRESSES if sanitize else ("-O2",)), *_HOST, "-I", "model")
    compiler = Compiler(host_compiler(), flags, folder)
    changed = f"model/{bundle.name}_weights.c"
    units = [replace(u, flags=("-Dconst=",) if u.source == changed else ()) for u in _model_units(bundle)]
    units.append(Unit("harness/flips.c", "harness/flips.o"))
    compiler.compile(units)
    return compiler.link("flips.out", [unit.object for unit in units], ())


def build_target(
    bundle: Bundle,
    board: Board,
    machine: Machine,
    folder: Path,
    *,
    hooks: bool,
    empty: bool = False,
    stacks: bool = False,
    files: LibraryFiles | None = None,
) -> TargetImages:
    """Build firmware images for a QEMU machine with the board's compiler flags.

    Args:
        bundle: The model.
        board: The board.
        machine: The QEMU machine that stands in for the board.
        folder: Build folder.
        hooks: Whether to build an image that reads the CPU's instruction counter after each layer.
        empty: Whether to build an image without the model, whose size is subtracted.
        stacks: Whether to build an image that measures the stack of each layer.
        files: Library that the model calls.
    """
    _write_sources(bundle, folder)
    build = _target_build(bundle, board, machine, folder, files)
    harness = _measuring_units(machine, bundle, len(bundle.layers))
    nothing = _harness_units(("empty",), ()) if empty else []
    model = [replace(unit, flags=(*unit.flags, *_COPIED)) for unit in _model_units(bundle)]
    hooked = _hooked_units(bundle, model) if hooks or stacks else model
    painting = [_painting(unit) for unit in harness] if stacks else harness
    build.compile(list(dict.fromkeys([*model, *harness, *nothing, *hooked, *painting])))
    return TargetImages(
        model=build.link("model.elf", [*harness, *model]),
        empty=build.link("empty.elf", [*harness, *nothing]) if empty else None,
        layers=build.link("layers.elf", [*harness, *hooked]) if hooks else None,
        stacks=build.link("stacks.elf", [*painting, *hooked]) if stacks else None,
    )


def build_by(command: Sequence[str], bundle: Bundle, board: Board, folder: Path, joins: Sequence[str] = ()) -> Path:
    """Build the firmware for a board's machine, or a host program, with the model compiled by another compiler.

    Args:
        command: The compiler with all its options.
        bundle: The model.
        board: The board; `host` builds a program for this computer.
        folder: Build folder.
        joins: A linker command that merges the compiler's objects into one; empty: link them as they are. gcc compiles
            the harness.
    """
    units = [replace(unit, flags=()) for unit in _model_units(bundle)]
    program, *options = command
    _write_sources(bundle, folder)
    Compiler((find_program(program), *options), ("-std=c99", "-Imodel"), folder).compile(units)
    model = [unit.object for unit in units]
    if joins:
        linker, *options = joins
        Compiler((find_program(linker), *options), (), folder).join(model, "model.o")
        model = ["model.o"]
    if not board.qemu:
        gcc, units = Compiler((find_program("gcc"),), (*_COMMON, *_HOST), folder), _harness_units(("host", "main"), ())
        return _linked(gcc, units, model, ())
    machine = find_machine(board)
    build = _target_build(bundle, board, machine, folder)
    return _linked(build.compiler, _measuring_units(machine, bundle, 0), model, _LINK)


def _linked(compiler: Compiler, harness: list[Unit], model: list[str], flags: tuple[str, ...]) -> Path:
    """Compile a harness and link it with the model's objects."""
    compiler.compile(harness)
    return compiler.link("model.out", [*(unit.object for unit in harness), *model], flags)


def build_for_both_cores(bundle: Bundle, board: Board, machine: Machine, folder: Path, *, counts: bool) -> Path:
    """Build the firmware that runs the model on one core and then on both cores.

    Args:
        bundle: The model, compiled for two cores.
        board: The board.
        machine: A QEMU machine with two cores.
        folder: Build folder.
        counts: Whether the harness replaces the signals between the cores by functions of its own, which the simulator
            leaves out when it counts instructions.

    Returns:
        The path of the ELF file.
    """
    harness = _write_model(bundle, folder)
    values = {"name": bundle.name, "macro": bundle.name.upper(), "inputs": bundle.inputs, "outputs": bundle.outputs}
    (harness / "cores.c").write_text(_render("cores.c.j2", counts=counts, **values))
    own = (*_HOOKED, "-include", str(HARNESS_DIR / "on_cores.h")) if counts else ("-DMCUGEN_CORES_SEV",)
    model = [replace(unit, flags=(*unit.flags, *own)) for unit in _model_units(bundle)]
    stems = ("startup", "semihosting", f"{machine.harness}/reset", "cores")
    units = [*_harness_units(stems, (*_NO_MEMSET, *own[2 * counts :])), *model]
    return _target_build(bundle, board, machine, folder).program("cores.elf", units)


def build_wire_host(bundle: Bundle, folder: Path, checks: Checks, files: LibraryFiles | None = None) -> Path:
    """Build the firmware of `mcugen validate` as a program for this computer, and return its path.

    The program talks over its standard input and output instead of a serial port.

    Args:
        bundle: The model.
        folder: Build folder.
        checks: The sanitizers.
        files: Library that the model calls; None if it calls none.
    """
    build = _host_build(bundle, folder, checks, files)
    return build.program("wire.out", [*_harness_units(("wire_host", "wire"), ()), *_validated_units(bundle, ())])


def build_wire_target(
    bundle: Bundle, board: Board, machine: Machine, folder: Path, files: LibraryFiles | None = None
) -> Path:
    """Build the firmware of `mcugen validate` for a QEMU machine with the board's flags, and return its path.

    The firmware talks over the machine's first serial port.

    Args:
        bundle: The model.
        board: The board.
        machine: The QEMU machine that stands in for the board.
        folder: Build folder.
        files: Library that the model calls; None if it calls none.
    """
    _write_sources(bundle, folder)
    prefix = f"-D{bundle.name.upper()}_VALIDATE"
    harness = ("startup", "semihosting", "wire", f"{machine.harness}/reset", f"{machine.harness}/uart")
    own = ("-include", str(HARNESS_DIR / "stack.h"), f"{prefix}_STACK=stack_bottom", f"{prefix}_SYSTICK=1")
    port = (*_NO_MEMSET, f"-DHARNESS_UART={machine.uart:#x}u")
    units = [*_harness_units(harness, port), *_validated_units(bundle, own)]
    return _target_build(bundle, board, machine, folder, files).program("wire.elf", units)


def _validated_units(bundle: Bundle, flags: tuple[str, ...]) -> list[Unit]:
    """Return the model's files and those for validation, which are compiled with further `flags`."""
    source, _ = validation_files(bundle.name)
    return [*_model_units(bundle), Unit(f"model/{source}", "model/validate.o", (*_STRICT, *flags))]


def build_parts(
    bundle: Bundle, board: Board, folder: Path, roots: Sequence[str], files: LibraryFiles | None = None
) -> tuple[Path, Path]:
    """Build a program that contains only some functions and what they call, and one without any of them.

    Args:
        bundle: The model.
        board: The board.
        folder: Build folder.
        roots: Names of the C functions.
        files: Library that the model calls; None if it calls none.

    Returns:
        The paths of both programs; the difference of their sizes is what the functions add to a firmware.
    """
    machine = find_machine(board)
    (_write_model(bundle, folder) / "main.c").write_text("int main(void) { return 0; }\n")
    build = _target_build(bundle, board, machine, folder, files)
    units = [*_measuring_units(machine, bundle, 0), *_model_units(bundle)]
    build.compile(units)
    kept = [f"-Wl,--undefined={root}" for root in roots]
    return build.link("parts.elf", units, kept), build.link("empty.elf", units)


def flags_of(board: Board) -> str:
    """Return the compiler flags that determine the machine code for a board (-O…, -m… and -std…), with spaces."""
    return " ".join(flag for flag in (*_COMMON, *board.cflags) if flag.startswith(("-O", "-m", "-std")))


def _host_build(bundle: Bundle, folder: Path, checks: Checks, files: LibraryFiles | None) -> _Build:
    """Write all sources, and return the build of a program for this computer."""
    library = Linked.of(bundle, files, "host")
    _write_sources(bundle, folder)
    command = host_compiler()
    sanitizers = (_STATIC if "-static" in command else _CHECKS[checks]) if checks is not Checks.NONE else ()
    compiler = Compiler(command, (*_COMMON, *_HOST, *library.flags, *sanitizers), folder)
    return _Build(compiler, library, command)


def _target_build(
    bundle: Bundle, board: Board, machine: Machine, folder: Path, files: LibraryFiles | None = None
) -> _Build:
    """Write the linker script, and return the build of firmware for a QEMU machine.

    The board's flags come last: they may ask for another optimization level.
    """
    library, toolchain = Linked.of(bundle, files, board.cpu), machine.toolchain
    (folder / "link.ld").write_text(_linker_script(bundle, machine))
    flags = (*toolchain.library, *_COMMON, "-I", str(HARNESS_DIR / machine.harness), *library.flags, *board.cflags)
    return _Build(Compiler((find_program(toolchain.gcc),), flags, folder), library, board.cflags, _LINK)


def _measuring_units(machine: Machine, bundle: Bundle, layers: int) -> list[Unit]:
    """Return the harness of measured firmware, with room for the readings of `layers` layers.

    The room is a power of two, so that the object of one model serves others. Functions for accelerators are compiled
    only for models that invoke one: other firmware, and so estimates of its caches, does not depend on them.
    """
    stems = (*_TARGET_SOURCES, *(f"{machine.harness}/{stem}" for stem in machine.sources), "main")
    room = {"measure": (f"-DHARNESS_LAYERS={max(_MIN_HOOK_LAYERS, 1 << (layers - 1).bit_length())}",)}
    flags = room | {"semihosting": ("-DHARNESS_ACCELERATOR",) if bundle.invocations else ()}
    return [unit for stem in stems for unit in _harness_units((stem,), (*_NO_MEMSET, *flags.get(stem, ())))]


def _write_sources(bundle: Bundle, folder: Path) -> None:
    harness = _write_model(bundle, folder)
    for name in _FOR_ONE_CORE:
        text = _render(
            f"{name}.j2",
            name=bundle.name,
            macro=bundle.name.upper(),
            inputs=bundle.inputs,
            outputs=bundle.outputs,
            streamed=bundle.streamed,
            has_state=bundle.has_state,
            lesson=bundle.lesson,
            sizes=len(bundle.arguments),
            arena_sizes=bundle.arena_sizes,
            arena_sections=[section.name for section in bundle.sections if section.kind == "arena"],
            has_weights=bundle.weights_blob is not None,
            reads_weights=bundle.reads_weights,
            input_code=bundle.input_code,
            invokes_accelerator=bool(bundle.invocations),
        )
        with_functions = with_runtime_functions({**bundle.files, name: text}, files=[name])
        (harness / name).write_text(with_functions[name])


def _write_model(bundle: Bundle, folder: Path) -> Path:
    """Write the model's files and stand-ins of drivers, and return the folder for the harness's files beside them."""
    model, harness = folder / "model", folder / "harness"
    model.mkdir(parents=True, exist_ok=True)
    validation = [file for file in validation_files(bundle.name) if bundle.validation is not None]
    for name in (*bundle.sources, *bundle.headers, *bundle.linker_scripts, *validation):
        (model / name).write_text(bundle.files[name])
    harness.mkdir(exist_ok=True)
    for stand_in in _stand_ins(bundle):
        text = _render(f"{stand_in}/driver.c.j2", invocations=bundle.invocations)
        (harness / f"{stand_in}.c").write_text(text)
    return harness


def _linker_script(bundle: Bundle, machine: Machine) -> str:
    """Return the linker script.

    A memory of the board that holds a section gets a memory of the machine. Initial values lie with the weights.
    """
    named = {section.region: section.memory.size for section in bundle.sections}
    copies = [section for section in bundle.sections if section.kind == "copies"]
    images = {bundle.image_region} if copies else set()
    return _render(
        "link.ld.j2",
        regions=machine.with_memories(named),
        aliases=[(name, machine.weights_region) for name in sorted(images - named.keys())],
        fragments=bundle.linker_scripts,
        copies=[section.symbol for section in copies],
        model_object=f"{bundle.name}.o",
        weights_objects=[f"{stem}.o" for stem in _weights_stems(bundle)],
        weights_region=machine.weights_region,
        arena_region=machine.arena_region,
    )


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HARNESS_DIR),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _harness_units(stems: tuple[str, ...], flags: tuple[str, ...]) -> list[Unit]:
    sources = [f"{stem}.c" for stem in stems]
    return [
        Unit(f"harness/{source}" if source in _GENERATED else str(HARNESS_DIR / source), f"harness/{stem}.o", flags)
        for source, stem in zip(sources, stems, strict=True)
    ]


def _model_units(bundle: Bundle) -> list[Unit]:
    """Return the model's files, and the sources that take the place of drivers of accelerators."""
    headers = _stand_in_headers(bundle)
    units = [_model_unit(Path(source).stem) for source in bundle.sources]
    drivers = [
        Unit(f"harness/{name}.c", f"harness/{name}.o", (*_NO_MEMSET, *_STRICT, *headers)) for name in _stand_ins(bundle)
    ]
    return [*(replace(unit, flags=(*unit.flags, *headers)) for unit in units), *drivers]


def _stand_in_headers(bundle: Bundle) -> tuple[str, ...]:
    return tuple(f"-I{HARNESS_DIR / stand_in}" for stand_in in _stand_ins(bundle))


def _stand_ins(bundle: Bundle) -> list[str]:
    """Return the folders of the harness with drivers that take the place of those that the model calls."""
    return [library.stand_in for library in bundle.libraries if library.stand_in]


def _host_units(bundle: Bundle) -> list[Unit]:
    return [*_harness_units(("host", "main"), ()), *_model_units(bundle)]


def _joined_units(bundle: Bundle, folder: Path) -> list[Unit]:
    """Return the host program's units with several files joined in one, which compiles faster.

    The harness comes last, so that its macros do not meet the model's code. Files of other models in the folder stay
    separate, since their kernels may have the same names.
    """
    joined = [f"model/{bundle.name}.c", f"model/{bundle.name}_weights.c", "harness/main.c"]
    units = _host_units(bundle)
    present = {unit.source for unit in units}
    text = "".join(f'#include "{source}"\n' for source in joined if source in present)
    (folder / "harness" / "joined.c").write_text(text)
    alone = [unit for unit in units if unit.source not in joined]
    flags = (*_STRICT, "-I", ".", *_stand_in_headers(bundle))
    return [*alone, Unit("harness/joined.c", "harness/joined.o", flags)]


def _hooked_units(bundle: Bundle, model: Sequence[Unit]) -> list[Unit]:
    """Return the model's files with the layer hook; files of weights have no code and are shared."""
    weights = {_model_unit(stem).source for stem in _weights_stems(bundle)}
    return [
        unit
        if unit.source in weights
        else replace(unit, object=f"hooked/{Path(unit.object).name}", flags=(*unit.flags, *_HOOKED))
        for unit in model
    ]


def _painting(unit: Unit) -> Unit:
    """Return the harness file that measures stacks layer by layer in place of `measure.c`; other files unchanged."""
    if unit.source != str(HARNESS_DIR / "measure.c"):
        return unit
    return Unit(unit.source, "harness/measure_stacks.o", (*unit.flags, "-DHARNESS_LAYER_STACKS"))


def _model_unit(stem: str) -> Unit:
    return Unit(f"model/{stem}.c", f"model/{stem}.o", _STRICT)


def _weights_stems(bundle: Bundle) -> list[str]:
    """Return the names of the files of weights; a model in a firmware can have several."""
    return [Path(source).stem for source in bundle.sources if source.endswith("_weights.c")]
