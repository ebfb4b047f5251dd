# SPDX-License-Identifier: Apache-2.0
"""Planned program → the folder of C. It decides nothing: the same program gives the same bytes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from mcugen.codegen.bundle import Bundle, InputCode, Port
from mcugen.codegen.checks import Entry, array_entry, struct_entry
from mcugen.codegen.functions import PLAIN_C, Functions, KernelSource
from mcugen.codegen.identifiers import c_string, comment, comment_lines, identifier, own_names
from mcugen.codegen.labels import has_order, label_literals, labelled
from mcugen.codegen.libraries import LIBRARIES
from mcugen.codegen.lines import fitted, fitted_call, fitted_macro
from mcugen.codegen.literals import c_float, c_param, c_rows
from mcugen.codegen.manual import Facts, layer_table, manual
from mcugen.codegen.memory import MemoryContext, WeightsFile, words
from mcugen.codegen.shared import ALONE, Shared, array_key
from mcugen.codegen.sizes import SizedParams, arguments, sized_tensor, symbol_names
from mcugen.codegen.titles import Layer, Titles, buffer_title, layers_of, titles_of
from mcugen.codegen.validation import VALIDATION_FUNCTIONS, validation_of, validation_texts
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType
from mcugen.lir.program import (
    ALIGNMENT,
    READ_ROWS,
    READ_WEIGHTS,
    STAGE_WEIGHTS,
    WORD,
    Access,
    Buffer,
    Control,
    Endpoint,
    Instr,
    Program,
    Space,
)
from mcugen.memory.place import Placement
from mcugen.resources import resource_dir
from mcugen.version import __version__

ABI_VERSION = 2
"""Of the contract between generated code and runtime_c/include/mcugen.h."""


def is_unbounded(data: Array | None) -> bool:
    """Whether some element is infinite or no number, whose literals need math.h; halves are written as their bits."""
    return data is not None and DType.of(data).is_float and not np.isfinite(data).all()


def _has_unbounded_param(instr: Instr) -> bool:
    """Whether literals of parameters need math.h."""
    return any(isinstance(v, float) and not math.isfinite(v) for v in instr.params.values())


@dataclass(frozen=True)
class Provenance:
    """What the banner of every file says."""

    model: str
    """File name of the model, without its folder."""
    sha256: str
    board: str
    options: str
    accuracy: str = ""
    """Of a model that mcugen quantized, as far as it was measured then."""


@dataclass(frozen=True)
class Sample:
    """Inputs and expected outputs of the self-test, by endpoint name."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    tolerance: float
    """Allowed difference of float outputs, relative to the largest expected magnitude."""
    steps: int
    """Allowed difference of integer outputs: 0 unless floats are computed on the way."""


class StackNote(NamedTuple):
    """The most bytes of stack that a call takes, by which compiler and flags; whether functions of the caller's, called
    by the run function, take more.
    """

    nbytes: int
    compiler: str
    flags: str
    calls_back: bool


MakeInputCode = Callable[[str, str], InputCode]
"""Takes what is called where the input lies, and what makes codes of reals ("" where it takes these)."""


@dataclass(frozen=True)
class Form:
    """What a user may choose of the folder's form."""

    weights: WeightsFile | None = None
    """They are a file that the code gets a pointer to, or reads."""
    helpers: bool = False
    """The header has functions that write inputs and read outputs."""
    labels: tuple[str, ...] = ()
    """What the classes of an output are called."""
    steps: bool = False
    """A run is a number of steps that the caller asks for; the run function asks for all of them."""
    step_cycles: tuple[int, ...] = ()
    """Of each layer the cycles of its longest step, if they are known."""
    validation: bool = False
    """Beside the model's files there is the firmware's part of `mcugen validate`."""
    hooks_steps: bool = False
    """The hook of layers is called for steps instead: a form for measuring."""
    stack: StackNote | None = None
    """If it is known."""
    checks: bool = False
    """There are functions that compare constants with checksums."""
    guards: bool = False
    """The header has functions that run with an arena whose size is told, or between canaries."""
    input_code: MakeInputCode | None = None
    """What makes the code that makes the first input."""


class Draft(NamedTuple):
    """What a folder of one model is rendered from: the first parameters of `render`."""

    program: Program
    provenance: Provenance
    sample: Sample
    report: Mapping[str, object]
    placement: Placement
    form: Form = Form()
    source: KernelSource = PLAIN_C

    @property
    def memory(self) -> MemoryContext:
        """Where it lies."""
        return MemoryContext(self.program, self.placement, self.form.weights)


@dataclass
class _Renderer:
    program: Program
    env: jinja2.Environment
    features: frozenset[str]
    """Of the board's CPU."""
    taken: Names
    """All names of the model's C files, external ones with the model's name before them."""
    memory: MemoryContext
    shared: Shared = ALONE
    titles: Titles = field(default_factory=dict)
    names: dict[Buffer, str] = field(default_factory=dict)
    functions: Functions = field(init=False)
    symbols: dict[str, str] = field(default_factory=dict)
    """C names of sizes known at run time only."""
    events: list[dict[str, object]] = field(default_factory=list)
    """The tables of streams."""
    checked: list[Entry] = field(default_factory=list)
    """What of the tables in the model's C file has a checksum."""

    def __post_init__(self) -> None:
        self.functions = Functions(self.env, self.features, self.function_name, self.shared.functions)
        self.symbols = symbol_names(self.program.symbols, self.taken)
        self.titles = titles_of(self.program)
        for buffer in self.program.buffers:
            prefix = f"{self.program.name}_" if buffer.space is Space.CONST else ""
            self.names[buffer] = self.unique(*buffer_title(buffer, self.titles), prefix)

    def array(self, constant: Buffer) -> str:
        """The C name of a constant's array."""
        return self.memory.shared.get(constant) or f"{self.program.name}_{self.names[constant]}"

    def unique(self, text: str, role: str = "", prefix: str = "", suffix: str = "") -> str:
        """A free identifier that is free with `prefix` and `suffix` too."""
        word = identifier(text, self.taken, role, prefix)
        while prefix + word + suffix != word and prefix + word + suffix in self.taken:
            word = identifier(text, self.taken, role, prefix)
        self.taken.add(prefix + word + suffix)
        return word

    def of_layer(self, instr: Instr, role: str) -> str:
        """A free identifier for something of a layer."""
        return self.unique(self.titles[instr.name], role)

    def function_name(self, instr: Instr) -> str:
        """A free name for a kernel's function."""
        suffix = f"_{instr.variant}" if instr.variant else ""
        return self.unique(instr.kernel + suffix, suffix="_params")


@cache
def environment(more: tuple[Path, ...] = ()) -> jinja2.Environment:
    """The project's templates, then those in `more` folders.

    One for all models: parsing the templates takes longer than all the rest of a compilation.
    """
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader((resource_dir("templates"), *more)),
        extensions=["jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # most templates are rendered a few times: to fold their constants takes longer
    )
    env.filters["block"] = lambda text, width: _indented(text, width).lstrip()
    env.filters["lines"] = _indented
    env.filters["literal"] = c_param
    env.filters["asm"] = _assembly
    env.filters["fitted"] = fitted
    env.filters["table"] = lambda rows: "\n    ".join(rows).removesuffix(",") + "}"
    env.filters["suffixed"] = lambda text, suffix: text + suffix
    env.filters["prefixed"] = lambda text, prefix: prefix + text
    env.filters["comment"] = comment
    env.filters["fitted_macro"] = fitted_macro
    env.filters["comment_lines"] = comment_lines
    return env


def render(
    program: Program,
    provenance: Provenance,
    sample: Sample,
    report: Mapping[str, object],
    placement: Placement,
    form: Form = Form(),
    source: KernelSource = PLAIN_C,
    shared: Shared = ALONE,
) -> Bundle:
    """All files of the generated folder of a model; within a firmware, what is `shared` is not among them."""
    env = environment(source.templates)
    name = program.name
    inputs, outputs = _input_ports(program), _output_ports(program)
    memory = MemoryContext(program, placement, form.weights, shared)
    taken = _taken(name, memory, (*inputs, *outputs), form) | shared.names
    renderer = _Renderer(program, env, source.features, own_names(taken), memory, shared)
    stored = [memory.blob.place] if memory.blob else []
    sized = SizedParams(program.symbols, _size_expressions(renderer), renderer.unique, *stored)
    lines = _lines(renderer, sized, form.steps)
    layers = layers_of(program, renderer.titles, renderer.functions.names)
    given = arguments(program.symbols, renderer.symbols)
    parameters = _run_parameters(program, memory, renderer.names, given)
    constants = [_constant(b, renderer, memory.place(b)) for b in memory.arrays]
    libraries = tuple(LIBRARIES[key] for key in sorted({i.library for i in program.instrs if i.library}))
    context: dict[str, Any] = {
        "name": name,
        "NAME": name.upper(),
        "version": __version__,
        "abi_version": ABI_VERSION,
        "provenance": {k: comment(v, 4000) for k, v in vars(provenance).items()},
        "arena_size": sum(area.size for area in memory.areas),
        "arena_align": ALIGNMENT,
        "io_align": max([WORD, *(e.dtype.nbytes for e in (*program.inputs, *program.outputs))]),
        "weights_size": program.weights_size,
        **_interface(renderer, memory, inputs, outputs),
        "sizes": given,
        "run_parameters": "".join(f", {ctype}{word}" for ctype, word in parameters).removeprefix(", "),
        **_steps_context(form, lines),
        "stack": form.stack,
        "guards": form.guards,
        "run_arguments": ", ".join(word for _, word in parameters),
        "checked": _checked(renderer, memory) if form.checks else [],
        "constants": constants,
        "weights_use_math": any(is_unbounded(b.data) for b in memory.arrays),
        "libraries": libraries,
        **_code(renderer, memory, sized, lines, layers),
        **_helpers(form, program, outputs),
        **memory.context(renderer.names),
        "sample": _sample_context(program, inputs, outputs, sample),
    }
    context["parameters"] = _read_by_steps(parameters, context)
    context["manual"] = manual(_facts(program, memory, context))
    blobs = _weights_file(env, memory, context)
    texts = rendered(env, context, {f"{name}{ending}": template for ending, template in _MODEL_FILES.items()})
    checked = None
    if form.validation and not shared.name:
        checked = validation_of(program, memory, texts, blobs.get(f"{name}_weights.bin"))
        texts |= validation_texts(env, program, memory, checked, renderer.names, context)
    made = form.input_code(inputs[0].accessor, _encoder(name, context["all_inputs"][0])) if form.input_code else None
    making = _input_files(env, made, context)
    texts |= making
    context["c_files"] += [file for file in making if file.endswith(".c")]
    if not shared.name:
        texts |= folder_texts(env, context, report, {*texts, *blobs})
    return Bundle(
        name,
        texts,
        context["arena_size"],
        inputs,
        outputs,
        tuple(layer.name for layer in layers),
        has_state=bool(program.states),
        symbols=tuple(program.symbols),
        steps=_step_layers(lines) if form.steps else (),
        arena_sizes=tuple(area.size for area in memory.areas) if placement.names_arena else (),
        sections=memory.sections,
        image_region=identifier(placement.weights.name),
        libraries=libraries,
        blobs=blobs,
        validation=checked,
        reads_weights=memory.is_read,
        input_code=made,
    )


def _encoder(name: str, tensor: Mapping[str, Any]) -> str:
    return f"{name}_encode_{tensor['role']}" if tensor["limits"] else ""


def _input_files(env: jinja2.Environment, code: InputCode | None, context: Mapping[str, Any]) -> dict[str, str]:
    """The files that make the input of raw data."""
    if code is None:
        return {}
    files = {".c": code.template, ".h": "pipeline/input.h.j2"}
    return {
        f"{context['name']}_input{suffix}": env.get_template(template).render({**context, **code.context})
        for suffix, template in files.items()
    }


def _code(
    renderer: _Renderer,
    memory: MemoryContext,
    sized: SizedParams,
    lines: Sequence[Mapping[str, object]],
    layers: Sequence[Layer],
) -> dict[str, Any]:
    """Kernels, what is called in order, and the tables that this reads."""
    return {
        "tables": sized.tables,
        "events": renderer.events,
        "layers": [{**vars(layer), "literal": c_string(layer.title)} for layer in layers],
        "layer_table": layer_table(layers),
        "firmware": renderer.shared.name,
        "is_shared": False,
        "c_files": [f"{renderer.program.name}{part}.c" for part in ("", "_weights", "_selftest")],
        "shared_kernels": bool(renderer.functions.used),
        "kernels": [function.context() for function in renderer.functions.own],
        "calls": [line for line in lines if "function" in line],
        "lines": lines,
        "uses_math": any("math.h" in function.headers for function in renderer.functions.own),
        "needs_libm": renderer.functions.uses_math,
        "params_use_math": any(map(_has_unbounded_param, renderer.program.instrs)),
        "locals": _locals(renderer, memory),
    }


_VERBS = ("encode", "decode", "write_pixels", "write_samples", "write_reals", "read_reals", "class_of", "label_of")
"""What the header's inline functions do with inputs and outputs."""


def _helpers(form: Form, program: Program, outputs: Sequence[Port]) -> dict[str, Any]:
    """What the header has for the caller's comfort: `labelled` is the accessor of the output with labels."""
    accessors = {e.name: port.accessor for e, port in zip(program.outputs, outputs, strict=True)}
    return {
        "helpers": form.helpers,
        "labels": label_literals(form.labels),
        "labelled": accessors[labelled(program.outputs, form.labels).name] if form.labels else "",
    }


def _taken(name: str, memory: MemoryContext, ports: Sequence[Port], form: Form) -> set[str]:
    """Identifiers that nothing of the model may have."""
    own = (
        "run",
        "selftest",
        "default_arena",
        "reset",
        "state",
        "read_rows",
        "model",
        *["labels"] * bool(form.labels),
        *VALIDATION_FUNCTIONS,
    )
    local = ("state", "status", "read", "context", "layer_names")
    external = {f"{name}_{word}" for word in (*own, *memory.functions)}
    roles = [port.accessor.removeprefix(f"{name}_") for port in ports]
    external |= {f"{name}_{verb}_{role}" for verb in _VERBS for role in roles if form.helpers}
    if form.checks:
        external |= {f"{name}_{word}" for word in ("check", "check_some", "check_weights")} | {"checked"}
    if form.guards:
        guards = ("run_sized", "run_guarded", "canary", "guarded_arena", "check_guards")
        external |= {f"{name}_{word}" for word in guards} | {"arena_size"}
    if form.steps:
        external |= {f"{name}_{word}" for word in ("begin", "step", "steps")} | {"steps", "at"}
    return {port.accessor for port in ports} | external | {name, *local, *memory.locals}


def _interface(
    renderer: _Renderer, memory: MemoryContext, inputs: Sequence[Port], outputs: Sequence[Port]
) -> dict[str, Any]:
    """What callers pass and get: tensors, sizes that the model computes, and states."""
    program = renderer.program
    computed = {s.output: renderer.symbols[s.name] for s in program.symbols if s.output}
    entries = [_tensor(e, p, renderer, memory) for e, p in zip(program.inputs, inputs, strict=True)]
    tensors = [(e.name, _tensor(e, p, renderer, memory)) for e, p in zip(program.outputs, outputs, strict=True)]
    return {
        "inputs": [tensor for tensor in entries if not tensor["rows"]],
        "streamed": next((tensor for tensor in entries if tensor["rows"]), None),
        "all_inputs": entries,
        "lent": [t for t in (*entries, *(tensor for _, tensor in tensors)) if t["lent"]],
        "outputs": [tensor for name, tensor in tensors if name not in computed],
        "size_outputs": [{**tensor, "symbol": computed[name]} for name, tensor in tensors if name in computed],
        "states": [_state(e, renderer) for e in program.states],
    }


def _run_parameters(
    program: Program, memory: MemoryContext, names: Mapping[Buffer, str], sizes: Sequence[Mapping[str, object]]
) -> list[tuple[str, str]]:
    """Of the run function: what stands before their names, and these."""
    lent = [e for e in (*program.inputs, *program.outputs) if e.buffer.space.is_callers]
    const = {e.buffer: "const " * (e.buffer.space is Space.GIVEN) for e in lent}
    return [
        ("void *const *" if memory.several else "void *", "arenas" if memory.several else "arena"),
        *((f"{const[e.buffer]}{e.dtype.c} *", names[e.buffer]) for e in lent),
        *[(memory.weights_type, "weights")] * (memory.blob is not None),
        *[(f"{program.name}_read_rows ", "read"), ("void *", "context")] * (program.streamed is not None),
        *[(f"{program.name}_state *", "state")] * bool(program.states),
        *(("int32_t ", str(size["name"])) for size in sizes),
    ]


def _checked(renderer: _Renderer, memory: MemoryContext) -> list[Entry]:
    """What has a checksum: constants, then tables and parameters. VerificationError where there is nothing."""
    arrays = [array_entry(renderer.array(b), b.data) for b in memory.arrays if b.data is not None and b.data.size]
    return [*arrays, *renderer.checked]


def _steps_context(form: Form, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many cases the steps are, and how often they are called."""
    return {
        "steps": max(sum(line["opens"] for line in lines), 1) if form.steps else 0,
        "step_calls": max(len(_step_layers(lines)), 1),
        "has_events": any(line["calls"] > 1 for line in lines),
        "hooks_steps": form.hooks_steps,
        "step_cycles": max(form.step_cycles, default=0),
        "layer_step_cycles": ", ".join(f"{layer}: {cycles:,}" for layer, cycles in enumerate(form.step_cycles)),
    }


_WORD = re.compile(r"[A-Za-z_]\w*")


def _read_by_steps(parameters: Sequence[tuple[str, str]], context: Mapping[str, Any]) -> list[dict[str, object]]:
    """The parameters of the run function, and whether what it does after its checks reads them."""
    texts = [text for line in context["lines"] for text in (line["text"], *(m[2] for m in line.get("members", ())))]
    words = {word for text in texts for word in _WORD.findall(text)}
    words |= {context["arena"]} if context["locals"] else set()
    words |= {"weights"} if context["constant_locals"] else set()
    return [{"ctype": ctype, "name": name, "is_read": name in words} for ctype, name in parameters]


def _step_layers(lines: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The number of the layer that each step is a part of."""
    found: list[int] = []
    begun = 0
    for line in lines:
        begun += line["calls"] if line["opens"] else 0
        if line["done"] is not None:
            found += [line["done"]] * begun
            begun = 0
    return tuple(found)


def _facts(program: Program, memory: MemoryContext, context: Mapping[str, Any]) -> Facts:
    """What the header's manual is written from."""
    provenance, weights = context["provenance"], ", weights" * bool(context["weights_head"])
    return Facts(
        program.name,
        provenance["model"],
        provenance["board"],
        provenance["accuracy"],
        memory.areas,
        memory.sections,
        program.state_size,
        context["weights_size"],
        memory.copies,
        memory.blob is not None,
        context["needs_libm"],
        [library.versions for library in context["libraries"]],
        f"{program.name}_selftest({context['arena']}{weights})",
        f"{context['firmware'] or program.name}_memory.ld",
    )


def _weights_file(env: jinja2.Environment, memory: MemoryContext, context: dict[str, object]) -> dict[str, bytes]:
    """The file of weights, if there is to be one. It fits any code that is the same but for the banner."""
    if memory.blob is None:
        return {}
    files = (env.get_template(template).render(context) for template in ("kernels.h.j2", "model.c.j2"))
    code = "".join(text[text.index("\n#") :] for text in files)
    file = memory.blob.file(code + _outside_of_file(context) * memory.updatable)
    context["weights_head"] = words(file)
    context["weights_rows"] = list(c_rows(np.frombuffer(file, np.uint8)))
    return {f"{memory.name}_weights.bin": file}


def _outside_of_file(context: Mapping[str, Any]) -> str:
    """What training may change and an updatable file has not: codes at the borders, and outputs that are constant."""
    codes = [(t["accessor"], t["scale"], t["zero_point"]) for t in (*context["all_inputs"], *context["outputs"])]
    return json.dumps([codes, [constant["rows"] for constant in context["constants"]]])


_MODEL_FILES = {
    ".h": "model.h.j2",
    ".c": "model.c.j2",
    "_kernels.h": "kernels.h.j2",
    "_weights.h": "weights.h.j2",
    "_weights.c": "weights.c.j2",
    "_selftest.c": "selftest.c.j2",
}
"""Templates of a model's own files, by what follows its name."""


def rendered(env: jinja2.Environment, context: Mapping[str, object], files: Mapping[str, str]) -> dict[str, str]:
    """The texts of files, given by their templates."""
    texts = {file: env.get_template(template).render(context) for file, template in files.items()}
    return {file: text.rstrip("\n") + "\n" for file, text in texts.items()}  # templates may end with what is left out


def folder_texts(
    env: jinja2.Environment, context: Mapping[str, Any], report: Mapping[str, object], others: Collection[str]
) -> dict[str, str]:
    """What a folder has once: the runtime, CMake, the linker's script, the report, and the pack with all `others`."""
    name = context["name"]
    texts = {"mcugen.h": (resource_dir("runtime_c") / "include" / "mcugen.h").read_text("utf-8")}
    if context["memory_sections"]:
        texts |= rendered(env, context, {f"{name}_memory.ld": "memory.ld.j2"})
    texts[f"{name}_report.json"] = json.dumps(report, indent=2, sort_keys=True) + "\n"
    texts[f"mcugen.{name}.pdsc"] = _pack(env, {*texts, *others}, context)
    return texts | rendered(env, context, {"CMakeLists.txt": "CMakeLists.txt.j2"})


_PACK_CATEGORIES = {".h": "header", ".c": "source", ".ld": "linkerScript"}
"""What a CMSIS-Pack calls files by their endings; all else is "other"."""


def _pack(env: jinja2.Environment, files: Collection[str], context: Mapping[str, object]) -> str:
    """The description of a CMSIS-Pack of these files."""
    kinds = [(file, _PACK_CATEGORIES.get(Path(file).suffix, "other")) for file in sorted(files)]
    return env.get_template("pack.pdsc.j2").render(**context, pack_files=kinds)


def _indented(text: str, width: int) -> str:
    """C lines moved right by `width`; preprocessor lines stay at the margin."""
    lines = text.rstrip().strip("\n").split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * width + line for line in lines)


def _assembly(text: str) -> str:
    """Lines of assembly as C string literals; what follows `@` becomes a C comment, one of lines that have no more."""
    lines: list[tuple[str, str]] = []
    for code, *notes in (map(str.strip, line.split("@")) for line in text.split("\n") if line.strip()):
        if lines and not code and not lines[-1][0]:
            notes.insert(0, lines.pop()[1])
            lines.append(("", " ".join(notes)))
        else:
            lines.append((_quoted(code), ", ".join(notes)))
    width = max((len(code) for code, note in lines if code and note), default=0)
    padded = ((f"{code:{width}} " if code and note else code, f"/* {note} */" if note else "") for code, note in lines)
    return "\n".join(8 * " " + code + note for code, note in padded)


def _quoted(code: str) -> str:
    """An instruction as a C string literal; a macro of mcugen.h behind it stays what it is."""
    instruction, macro, arguments = code.partition(" MCUGEN_")
    return f'"{instruction}\\n"{macro}{arguments}' if code else ""


def _ports(endpoints: list[Endpoint], kind: str, name: str) -> tuple[Port, ...]:
    taken = own_names()
    ports = []
    for endpoint in endpoints:
        word = identifier(endpoint.name, taken, prefix=name)
        accessor = f"{name}_{kind}" if len(endpoints) == 1 else f"{name}_{kind}_{word}"
        nbytes, is_lent = endpoint.buffer.nbytes, endpoint.buffer.space.is_callers
        kind_of = endpoint.dtype.numpy.name
        ports.append(Port(endpoint.name, accessor, kind_of, endpoint.shape, nbytes, endpoint.sizes, is_lent=is_lent))
    return tuple(ports)


def _input_ports(program: Program) -> tuple[Port, ...]:
    """The one that the caller hands over row by row says so."""
    ports = _ports(program.inputs, "input", program.name)
    streamed, readers = program.streamed, [i for i in program.instrs if i.kernel == READ_ROWS]
    if streamed is None:
        return ports
    (rows,), (axis,) = ({int(i.params[key]) for i in readers} for key in ("rows", "axis"))
    return tuple(
        replace(port, rows=rows, row_axis=axis) if endpoint is streamed else port
        for endpoint, port in zip(program.inputs, ports, strict=True)
    )


def _output_ports(program: Program) -> tuple[Port, ...]:
    """Those that tell sizes are called so."""
    telling = {s.output for s in program.symbols}
    plain = [e for e in program.outputs if e.name not in telling]
    sizes = [e for e in program.outputs if e.name in telling]
    ports = (*_ports(plain, "output", program.name), *_ports(sizes, "size", program.name))
    by_name = {port.name: port for port in ports}
    return tuple(by_name[e.name] for e in program.outputs)


def _size_expressions(renderer: _Renderer) -> dict[str, str]:
    """How the run function reads a size: an argument, or what an instruction has computed."""
    buffers = {e.name: e.buffer for e in renderer.program.outputs}
    return {
        s.name: f"{_argument(renderer, buffers[s.output])}[0]" if s.output else renderer.symbols[s.name]
        for s in renderer.program.symbols
    }


def _tensor(endpoint: Endpoint, port: Port, renderer: _Renderer, memory: MemoryContext) -> dict[str, object]:
    buffer, quant, name = endpoint.buffer, endpoint.quant, renderer.program.name
    return {
        "accessor": port.accessor,
        "role": (role := port.accessor.removeprefix(f"{name}_")),
        "macro": f"{name}_{role}".upper(),
        "onnx_name": comment(endpoint.name),
        "ctype": endpoint.dtype.c,
        "dtype": endpoint.dtype.value,
        "shape": [str(s) for s in endpoint.shape] or ["1"],
        "rank": max(len(endpoint.shape), 1),
        "count": buffer.count,
        "nbytes": buffer.nbytes,
        "rows": port.rows,
        "row_count": port.row_count,
        "row_bytes": port.row_bytes,
        "row_axis": port.row_axis,
        "row_shape": port.row_shape,
        "scale": c_float(quant.scale[0]) if quant and len(quant.scale) == 1 else "",
        "zero_point": quant.zero_point if quant else 0,
        "limits": endpoint.dtype.limits if quant and len(quant.scale) == 1 and endpoint.dtype.nbytes < 4 else (),
        "offset": buffer.offset,
        "area": memory.areas[buffer.area],
        "lent": renderer.names[buffer] if buffer.space.is_callers else "",
        "has_order": has_order(endpoint),
        "constant": renderer.array(buffer) if buffer.space is Space.CONST else "",
        **sized_tensor(endpoint, renderer.symbols),
    }


def _state(endpoint: Endpoint, renderer: _Renderer) -> dict[str, object]:
    """A member of the state struct, and what it holds before the first call: real zeros."""
    return {
        "name": renderer.names[endpoint.buffer],
        "onnx_name": comment(endpoint.name),
        "ctype": endpoint.dtype.c,
        "dtype": endpoint.dtype.value,
        "shape": [str(s) for s in endpoint.shape],
        "count": endpoint.buffer.count,
        "start": endpoint.quant.zero_point if endpoint.quant else 0,
    }


def _constant(buffer: Buffer, renderer: _Renderer, place: str) -> dict[str, Any]:
    assert buffer.data is not None
    return array_context(
        renderer.array(buffer), buffer.dtype.c, buffer.data, constant_title(buffer, renderer.titles), place
    )


def constant_title(buffer: Buffer, titles: Titles) -> str:
    """What is said of a constant: whose it is, and the part that it plays there."""
    title, role = buffer_title(buffer, titles)
    return f"{title}: {role}" if role else title


def array_context(name: str, ctype: str, data: Array, title: str, place: str) -> dict[str, Any]:
    """What templates are told of an array; `place` is the macro of what places it."""
    return {
        "name": name,
        "ctype": ctype,
        "count": max(data.size, 1),  # C has no arrays of size 0
        "nbytes": data.nbytes,
        "origin": comment(title, 90),
        "place": place,
        "rows": list(c_rows(data)) or ["0,"],
    }


def _lines(renderer: _Renderer, sized: SizedParams, steps: bool) -> list[dict[str, Any]]:
    """What the run function does in order: calls and the braces of blocks.

    `indent` is the white space before it, `done` the number of the layer that it ends, `comment` what is above it.
    Where the caller asks for `steps`, each line that is in no block is one, and each block as a whole; `opens` and
    `closes` tell where. Of a stream that is in no block, each event is a step: it has the cases, and no loop.
    """
    program, begun = renderer.program, list[Instr]()
    lines: list[dict[str, Any]] = []
    for number, layer in enumerate(program.layers()):
        head = program.head(layer)
        for instr in (program.instrs[i] for i in layer):
            if instr.moves_nothing:
                continue
            closed = begun.pop() if instr.control in (Control.ELSE, Control.END) else None
            within = begun[0].control if begun else Control.NONE
            depth = 4 * (len(begun) + (steps and within is not Control.STREAM))
            is_stepped, opens = steps and not begun, not begun and not closed
            if is_stepped and (closed or instr).control is Control.STREAM:
                line = _end_of_event(closed, depth) if closed else _begin_of_event(renderer, instr, depth)
            elif closed:
                line = _end(closed, instr, depth)
            elif instr.control is Control.NONE:
                line = _call(renderer, instr, sized, 8 + depth)
            else:
                line = _begin(renderer, instr, sized, depth)
            heading = line.pop("comment", [])
            if heading and instr is head:
                heading[0] = f"{number}: {heading[0]}"
            text = f"\n{' ' * (4 + depth)} * ".join(comment_lines(part, 4 + depth) for part in heading)
            if instr.control not in (Control.NONE, Control.END):
                begun.append(instr)
            place = {"indent": " " * depth, "comment": text, "done": None, "opens": opens, "closes": not begun}
            lines.append({"is_sized": False, "calls": 1} | line | place)
        lines[-1]["done"] = number
    return lines


def _begin(renderer: _Renderer, instr: Instr, sized: SizedParams, depth: int) -> dict[str, Any]:
    """The C text that begins a block."""
    names = {o.role: f"*{_argument(renderer, o.buffer)}" for o in instr.operands}
    if instr.control is Control.CASE:
        return {"text": f"case {instr.case}: {{"}
    if instr.control is Control.STREAM:
        table, event = _events(renderer, instr), renderer.unique("event")
        loop = f"for (int32_t {event} = 0; {event} < {table['count']}; ++{event}) {{"
        text = _stacked([fitted(loop, 4 + depth), f"    switch ({table['name']}[{event}]) {{"], depth)
    elif instr.control is Control.IF:
        text = f"if ({names['cond']} != 0) {{"
    else:
        index, more = names["index"], f" && {names['cond']} != 0" if "cond" in names else ""
        ((_, _, steps),) = sized.members(instr)
        text = fitted(f"for ({index} = 0; {index} < {steps}{more}; ++{index}) {{", 4 + depth)
    return {"text": text, "comment": _heading(renderer, instr)}


def _begin_of_event(renderer: _Renderer, instr: Instr, depth: int) -> dict[str, Any]:
    """The C text that begins what one event of a stream does, as a step."""
    table = _events(renderer, instr)
    text = fitted(f"switch ({table['name']}[steps->event]) {{", 4 + depth)
    return {"text": text, "comment": _heading(renderer, instr), "calls": len(instr.events)}


def _end_of_event(begun: Instr, depth: int) -> dict[str, Any]:
    """The C text that ends it: the next event is the next step."""
    again = [f"if (++steps->event < {len(begun.events)}) {{", "    steps->at = at;", "    return MCUGEN_AGAIN;", "}"]
    return {"text": _stacked(["default:", "    break;", "}", *again, "steps->event = 0;"], depth)}


def _end(begun: Instr, instr: Instr, depth: int) -> dict[str, Any]:
    """The C text that ends a block, or its first half."""
    last = {
        Control.STREAM: ["    default:", "        break;", "    }", "}"],
        Control.CASE: ["    break;", "}"],
    }
    lines = ["} else {"] if instr.control is Control.ELSE else last.get(begun.control, ["}"])
    return {"text": _stacked(lines, depth)}


def _stacked(lines: list[str], depth: int) -> str:
    """Lines of the run function, of which the first stands at `depth` already."""
    return f"\n{' ' * (4 + depth)}".join(lines)


def _events(renderer: _Renderer, instr: Instr) -> dict[str, object]:
    """The table of a stream: its events' cases in order."""
    numbers = event_numbers(instr)
    ctype = DType.of(numbers).c
    known = renderer.shared.arrays.get(array_key(ctype, numbers))
    if known is not None:
        return {"name": known, "count": len(numbers)}
    table: dict[str, object] = {
        "name": renderer.of_layer(instr, "events"),
        "ctype": ctype,
        "count": len(numbers),
        "rows": list(c_rows(numbers)),
    }
    renderer.events.append(table)
    return table


def event_numbers(instr: Instr) -> Array:
    """The cases of a stream's events, in as few bytes as they need."""
    numbers = np.array(instr.events)
    return numbers.astype(np.uint8 if numbers.max() < 2**8 else np.uint16)


def _call(renderer: _Renderer, instr: Instr, sized: SizedParams, indent: int) -> dict[str, Any]:
    if instr.kernel == READ_ROWS:
        return _callback(renderer, instr, indent)
    if instr.kernel == READ_WEIGHTS:
        return _reading(renderer, instr, indent)
    if instr.kernel == STAGE_WEIGHTS:
        return _staging(renderer, instr, indent)
    function = renderer.functions.of(instr).name
    params = sized.members(instr)
    params_name = renderer.of_layer(instr, "params") if params else ""
    names = [_argument(renderer, operand.buffer) for operand in instr.operands]
    is_sized = not sized.is_known(instr)
    if params and not is_sized:
        members = (value for key, value in instr.params.items() if key not in instr.baked)
        renderer.checked += [entry for entry in (struct_entry(params_name, members),) if entry]
    head = f"{'status = ' * bool(instr.library)}{function}"
    text = fitted_call(head, [f"&{params_name}"] * bool(params) + names, indent - 4 + 4 * is_sized)
    if instr.library:
        text = _stacked([text, "if (status != MCUGEN_OK) {", "    return status;", "}"], indent - 8)
    return {
        "function": function,
        "params": params_name,
        "members": params,
        "is_sized": is_sized,
        "text": text,
        "comment": _heading(renderer, instr),
    }


def _heading(renderer: _Renderer, instr: Instr) -> list[str]:
    """What stands above a call: what it computes, the ONNX nodes that it comes from if that says more, its tensors."""
    title, origin = renderer.titles[instr.name], ", ".join(instr.origin)
    nodes = [f"ONNX: {origin}"] if origin not in ("", title) else []
    told = [instr.note] * (not renderer.memory.updatable)  # it has scales
    return [f"{instr.op} {title}", *nodes, *told]


def _callback(renderer: _Renderer, instr: Instr, indent: int) -> dict[str, Any]:
    """The caller writes rows of the streamed input."""
    first, rows = (_argument(renderer, instr.operand(role).buffer) for role in ("next", "y"))
    check = [f"if (read(context, *{first}, {rows}) != 0) {{", "    return MCUGEN_ERROR_INPUT;", "}"]
    return {
        "text": _stacked([*check, f"*{first} += {instr.params['rows']};"], indent - 8),
        "comment": _heading(renderer, instr),
    }


def _reading(renderer: _Renderer, instr: Instr, indent: int) -> dict[str, Any]:
    """The caller reads constants of a layer."""
    blob = renderer.memory.blob
    assert blob is not None, "what is read is in a file"
    constant, to = instr.operand("x").buffer, _argument(renderer, instr.operand("y").buffer)
    call = f"weights->read(weights->context, {blob.offsets[constant]}u, {to}, {constant.nbytes}u)"
    check = [fitted(f"if ({call} != 0) {{", indent - 4), "    return MCUGEN_ERROR_READ;", "}"]
    return {"text": _stacked(check, indent - 8), "comment": []}


def _staging(renderer: _Renderer, instr: Instr, indent: int) -> dict[str, Any]:
    """Constants of a layer are copied to the arena."""
    constant = instr.operand("x").buffer
    names = [_argument(renderer, instr.operand("y").buffer), _argument(renderer, constant), f"{constant.nbytes}u"]
    return {"text": fitted_call("MCUGEN_STAGE", names, indent - 4), "comment": [instr.note]}


def _argument(renderer: _Renderer, buffer: Buffer) -> str:
    """What is passed for a buffer: a local pointer, an array, a member of the state, or NULL for an empty array.

    Empty working memory begins where the arena does: compilers see a NULL into calls that are never made, and warn.
    """
    if not buffer.count and not buffer.planned:
        return "NULL"
    blob = renderer.memory.blob
    if buffer.space is Space.CONST and not (blob is not None and buffer in blob.offsets):
        return renderer.array(buffer)
    return "state->" * (buffer.space is Space.STATE) + renderer.names[buffer]


def _locals(renderer: _Renderer, memory: MemoryContext) -> list[dict[str, object]]:
    """Typed pointers into the arena, for the buffers that instructions use."""
    instrs = [i for i in renderer.program.instrs if not i.moves_nothing]
    written = {o.buffer: False for i in instrs for o in i.operands if o.buffer.planned}
    for instr in instrs:
        for operand in instr.operands:
            if operand.buffer in written and operand.access is not Access.IN:
                written[operand.buffer] = True
    return [
        {
            "name": renderer.names[b],
            "ctype": b.dtype.c if is_written else f"const {b.dtype.c}",
            "offset": b.offset or 0,
            "area": memory.areas[b.area],
            "nbytes": b.nbytes,
        }
        for b, is_written in written.items()
    ]


class _Closeness(NamedTuple):
    """How the self-test compares elements of a type: as `real` numbers, got by the function `read` if there is one."""

    name: str
    ctype: str
    real: str
    read: str
    tolerance: str


def _closeness(dtype: DType, tolerance: float) -> _Closeness:
    """A half may also fall on the neighbour of the golden value."""
    if not dtype.is_half:
        return _Closeness(dtype.c, dtype.c, dtype.c, "", c_float(tolerance))
    name, step = ("half", 2.0**-10) if dtype is DType.FLOAT16 else ("bfloat16", 2.0**-7)
    return _Closeness(name, dtype.c, "float", f"mcugen_{name}_to_float", c_float(tolerance + step))


def _sample_context(
    program: Program, inputs: tuple[Port, ...], outputs: tuple[Port, ...], sample: Sample
) -> dict[str, object]:
    def rows(endpoints: list[Endpoint], ports: tuple[Port, ...], arrays: dict[str, Array]) -> list[dict[str, object]]:
        return [
            {
                "accessor": port.accessor,
                "ctype": e.dtype.c,
                "is_streamed": bool(port.rows),
                "is_lent": port.is_lent,
                "count": arrays[e.name].size,
                "is_float": e.dtype.is_float or e.dtype.is_half,
                "close": _closeness(e.dtype, sample.tolerance),
                "rows": list(c_rows(port.in_memory(arrays[e.name]).reshape(-1).astype(e.dtype.numpy))) or ["0,"],
            }
            for e, port in zip(endpoints, ports, strict=True)
        ]

    sides = {
        "inputs": rows(program.inputs, inputs, sample.inputs),
        "outputs": rows(program.outputs, outputs, sample.outputs),
    }
    lent = [(row, f"golden_{row['accessor']}") for row in sides["inputs"] if row["is_lent"]]
    lent += [(row, f"{row['accessor']}_buffer") for row in sides["outputs"] if row["is_lent"]]
    return {
        **sides,
        "lent": [word if row["count"] else "NULL" for row, word in lent],
        "uses_math": any(is_unbounded(array) for side in (sample.inputs, sample.outputs) for array in side.values()),
        "steps": sample.steps,
    }
