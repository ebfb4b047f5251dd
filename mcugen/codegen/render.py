# SPDX-License-Identifier: Apache-2.0
"""Planned program → the folder of C. It decides nothing: the same program gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from mcugen.codegen.bundle import Bundle, InputCode, Port
from mcugen.codegen.features import for_features
from mcugen.codegen.folding import folded
from mcugen.codegen.identifiers import WIDTH, c_string, comment, comment_lines, identifier, own_names
from mcugen.codegen.libraries import LIBRARIES
from mcugen.codegen.lines import fitted, fitted_call, fitted_macro
from mcugen.codegen.literals import c_float, c_param, c_param_type, c_rows
from mcugen.codegen.manual import Facts, layer_table, manual
from mcugen.codegen.memory import Blob, MemoryContext, WeightsFile, words
from mcugen.codegen.sizes import SizedParams, arguments, sized_tensor, symbol_names
from mcugen.codegen.titles import Layer, Titles, buffer_title, layers_of, titles_of
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType
from mcugen.lir.program import (
    ALIGNMENT,
    READ_ROWS,
    READ_WEIGHTS,
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


def _is_unbounded(data: Array | None) -> bool:
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


@dataclass(frozen=True)
class KernelSource:
    """Where the text of kernels comes from, and whom it is for."""

    features: frozenset[str] = frozenset()
    """Of the CPU (mcugen.board): besides plain C, kernels have forms for these alone."""
    templates: tuple[Path, ...] = ()
    """Folders with kernels of the user's own."""


@dataclass
class _Kernel:
    """One C function: a kernel with its baked constants."""

    instr: Instr
    function: str
    text: str = ""
    """Of the function and all that it needs, for the CPU of the board."""
    headers: set[str] = field(default_factory=set)
    """Those that declare what it calls; the template says which."""


class _Params:
    """What a template writes `p.stride_h` for: a literal if baked, else a member of the parameter struct."""

    def __init__(self, instr: Instr) -> None:
        self._instr = instr

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._instr.params[name]
        return c_param(value) if name in self._instr.baked else f"p->{name}"

    def __contains__(self, name: str) -> bool:
        return name in self._instr.params


@dataclass
class _Renderer:
    program: Program
    env: jinja2.Environment
    features: frozenset[str]
    """Of the board's CPU."""
    taken: Names
    """All names of the model's C files, external ones with the model's name before them."""
    titles: Titles = field(default_factory=dict)
    names: dict[Buffer, str] = field(default_factory=dict)
    kernels: dict[tuple[object, ...], _Kernel] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    """C names of sizes known at run time only."""
    blob: Blob | None = None
    """Where constants lie that are read from a file of weights."""
    events: list[dict[str, object]] = field(default_factory=list)
    """The tables of streams."""
    updatable: bool = False
    """Whether the text must not depend on what training changes."""

    def __post_init__(self) -> None:
        self.symbols = symbol_names(self.program.symbols, self.taken)
        self.titles = titles_of(self.program)
        for buffer in self.program.buffers:
            prefix = f"{self.program.name}_" if buffer.space is Space.CONST else ""
            self.names[buffer] = self.unique(*buffer_title(buffer, self.titles), prefix)

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

    def kernel(self, instr: Instr) -> _Kernel:
        """The function of an instruction, rendered once per set of baked constants and code."""
        key = instr.function_key
        if key not in self.kernels:
            suffix = f"_{instr.variant}" if instr.variant else ""
            kernel = _Kernel(instr, self.unique(instr.kernel + suffix, suffix="_params"))
            text = self.env.get_template(f"kernels/{instr.kernel}.c.j2").render(
                fn=kernel.function,
                p=_Params(instr),
                signature=_signature(kernel),
                flags=instr.code,
                needs=kernel.headers.update,
                types={o.role: o.buffer.dtype.c for o in instr.operands},
                **instr.code,
            )
            kernel.text = for_features(text, self.features)
            self.kernels[key] = kernel
        return self.kernels[key]


def _runtime_params(instr: Instr) -> list[tuple[str, str, str]]:
    """(name, C type, meaning) of the parameters in the struct."""
    told = instr.declaration
    return [
        (k, c_param_type(v), told.meaning(k) if told else "") for k, v in instr.params.items() if k not in instr.baked
    ]


def _signature(kernel: _Kernel) -> str:
    instr = kernel.instr
    parts = [f"const {kernel.function}_params *p"] if _runtime_params(instr) else []
    for operand in instr.operands:
        const = "const " if operand.access is Access.IN else ""
        parts.append(f"{const}{operand.buffer.dtype.c} *{operand.role}")
    return f"static {'int' if instr.library else 'void'} {kernel.function}({', '.join(parts)})"


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
    weights_file: WeightsFile | None = None,
    source: KernelSource = KernelSource(),
    input_code: MakeInputCode | None = None,
) -> Bundle:
    """All files of the generated folder. With a `weights_file` the code gets a pointer to the weights.

    `input_code` makes the code that makes the first input.
    """
    env = environment(source.templates)
    name = program.name
    inputs, outputs = _input_ports(program), _output_ports(program)
    memory = MemoryContext(program, placement, weights_file)
    taken = _taken(name, memory, (*inputs, *outputs))
    renderer = _Renderer(program, env, source.features, own_names(taken), blob=memory.blob, updatable=memory.updatable)
    stored = [memory.blob.place] if memory.blob else []
    sized = SizedParams(program.symbols, _size_expressions(renderer), renderer.unique, *stored)
    lines = _lines(renderer, sized)
    functions = {key: kernel.function for key, kernel in renderer.kernels.items()}
    layers = layers_of(program, renderer.titles, functions)
    given = arguments(program.symbols, renderer.symbols)
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
        "run_parameters": _run_parameters(program, memory, renderer.names, given),
        "constants": constants,
        "weights_use_math": any(_is_unbounded(b.data) for b in memory.arrays),
        "libraries": libraries,
        **_code(renderer, memory, sized, lines, layers),
        **memory.context(renderer.names),
        "sample": _sample_context(program, inputs, outputs, sample),
    }
    context["manual"] = manual(_facts(program, memory, context))
    blobs = _weights_file(env, memory, context)
    made = input_code(inputs[0].accessor, _encoder(name, context["all_inputs"][0])) if input_code else None
    context["input_code"] = made is not None
    files = _input_files(env, made, context)
    texts = _texts(env, name, context, json.dumps(report, indent=2, sort_keys=True) + "\n", blobs, files)
    return Bundle(
        name,
        texts,
        context["arena_size"],
        inputs,
        outputs,
        tuple(layer.name for layer in layers),
        has_state=bool(program.states),
        symbols=tuple(program.symbols),
        arena_sizes=tuple(area.size for area in memory.areas) if placement.names_arena else (),
        sections=memory.sections,
        image_region=identifier(placement.weights.name),
        libraries=libraries,
        blobs=blobs,
        reads_weights=memory.is_read,
        input_code=made,
    )


MakeInputCode = Callable[[str, str], InputCode]
"""Takes what is called where the input lies, and what makes codes of reals ("" where it takes these)."""


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
        "kernels": [_kernel_context(k) for k in renderer.kernels.values()],
        "calls": [line for line in lines if "function" in line],
        "lines": lines,
        "uses_math": any("math.h" in k.headers for k in renderer.kernels.values()),
        "params_use_math": any(map(_has_unbounded_param, renderer.program.instrs)),
        "locals": _locals(renderer, memory),
    }


def _taken(name: str, memory: MemoryContext, ports: Sequence[Port]) -> set[str]:
    """Identifiers that nothing of the model may have."""
    own = ("run", "selftest", "default_arena", "reset", "state", "read_rows", "model")
    local = ("state", "status", "read", "context", "layer_names")
    external = {f"{name}_{word}" for word in (*own, *memory.functions)}
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


def _lent(endpoint: Endpoint, names: Mapping[Buffer, str]) -> str:
    """The parameter for a buffer of the caller's."""
    const = "const " if endpoint.buffer.space is Space.GIVEN else ""
    return f"{const}{endpoint.dtype.c} *{names[endpoint.buffer]}"


def _run_parameters(
    program: Program, memory: MemoryContext, names: Mapping[Buffer, str], sizes: Sequence[Mapping[str, object]]
) -> str:
    """Of the run function."""
    return (
        memory.arena_type
        + "".join(f", {_lent(e, names)}" for e in (*program.inputs, *program.outputs) if e.buffer.space.is_callers)
        + f", {memory.weights_parameter}" * (memory.blob is not None)
        + (f", {program.name}_read_rows read, void *context" if program.streamed else "")
        + (f", {program.name}_state *state" if program.states else "")
        + "".join(f", int32_t {size['name']}" for size in sizes)
    )


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
        context["uses_math"],
        [library.versions for library in context["libraries"]],
        f"{program.name}_selftest({context['arena']}{weights})",
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


def _texts(
    env: jinja2.Environment,
    name: str,
    context: Mapping[str, object],
    report: str,
    blobs: Collection[str],
    more: Mapping[str, str],
) -> dict[str, str]:
    """The files of text, by name: C (`more` included), CMake, the report, and the pack of all, `blobs` included."""
    files = {
        f"{name}.h": "model.h.j2",
        f"{name}.c": "model.c.j2",
        f"{name}_kernels.h": "kernels.h.j2",
        f"{name}_weights.h": "weights.h.j2",
        f"{name}_weights.c": "weights.c.j2",
        f"{name}_selftest.c": "selftest.c.j2",
        "CMakeLists.txt": "CMakeLists.txt.j2",
    }
    if context["memory_sections"]:
        files[f"{name}_memory.ld"] = "memory.ld.j2"
    texts = {file: env.get_template(template).render(context) for file, template in files.items()}
    texts |= more
    texts["mcugen.h"] = (resource_dir("runtime_c") / "include" / "mcugen.h").read_text("utf-8")
    texts[f"{name}_report.json"] = report
    texts[f"mcugen.{name}.pdsc"] = _pack(env, {*texts, *blobs} - {"CMakeLists.txt"}, context)
    return texts


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
        "constant": renderer.names[buffer] if buffer.space is Space.CONST else "",
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
    title, role = buffer_title(buffer, renderer.titles)
    return {
        "name": renderer.names[buffer],
        "ctype": buffer.dtype.c,
        "count": max(buffer.count, 1),  # C has no arrays of size 0
        "nbytes": buffer.nbytes,
        "origin": comment(f"{title}: {role}" if role else title, 90),
        "place": place,
        "rows": list(c_rows(buffer.data)) or ["0,"],
    }


def _kernel_context(kernel: _Kernel) -> dict[str, object]:
    return {
        "function": kernel.function,
        "members": [line for member in _runtime_params(kernel.instr) for line in _member(*member)],
        "text": folded(kernel.text.strip("\n")),
    }


def _member(name: str, ctype: str, meaning: str) -> list[str]:
    """The lines of a parameter in its struct."""
    line, told = f"{ctype} {name};", f"/* {comment(meaning, WIDTH - 12)} */"
    if not meaning:
        return [line]
    return [f"{line} {told}"] if len(line) + len(told) < WIDTH - 4 else [told, line]


def _lines(renderer: _Renderer, sized: SizedParams) -> list[dict[str, Any]]:
    """What the run function does in order: calls and the braces of blocks.

    `indent` is the white space before it, `done` the number of the layer that it ends, `comment` what is above it.
    """
    program, begun = renderer.program, list[Instr]()
    lines: list[dict[str, Any]] = []
    for number, layer in enumerate(program.layers()):
        head = program.head(layer)
        for instr in (program.instrs[i] for i in layer):
            if instr.moves_nothing:
                continue
            closed = begun.pop() if instr.control in (Control.ELSE, Control.END) else None
            depth = 4 * len(begun)
            if closed:
                line = _end(closed, instr, depth)
            elif instr.control is Control.NONE:
                line = _call(renderer, instr, sized, 8 + depth)
            else:
                line = _begin(renderer, instr, sized, depth)
            heading = line.pop("comment", [])
            if heading and instr is head:
                heading[0] = f"{number}: {heading[0]}"
            text = f"\n{' ' * (4 + depth)} * ".join(comment_lines(part, 4 + depth) for part in heading)
            lines.append({"is_sized": False} | line | {"indent": " " * depth, "comment": text, "done": None})
            if instr.control not in (Control.NONE, Control.END):
                begun.append(instr)
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
    numbers = np.array(instr.events)
    numbers = numbers.astype(np.uint8 if numbers.max() < 2**8 else np.uint16)
    table: dict[str, object] = {
        "name": renderer.of_layer(instr, "events"),
        "ctype": DType.of(numbers).c,
        "count": len(numbers),
        "rows": list(c_rows(numbers)),
    }
    renderer.events.append(table)
    return table


def _call(renderer: _Renderer, instr: Instr, sized: SizedParams, indent: int) -> dict[str, Any]:
    if instr.kernel == READ_ROWS:
        return _callback(renderer, instr, indent)
    if instr.kernel == READ_WEIGHTS:
        return _reading(renderer, instr, indent)
    kernel = renderer.kernel(instr)
    params = sized.members(instr)
    params_name = renderer.of_layer(instr, "params") if params else ""
    names = [_argument(renderer, operand.buffer) for operand in instr.operands]
    is_sized = not sized.is_known(instr)
    head = f"{'status = ' * bool(instr.library)}{kernel.function}"
    text = fitted_call(head, [f"&{params_name}"] * bool(params) + names, indent - 4 + 4 * is_sized)
    if instr.library:
        text = _stacked([text, "if (status != MCUGEN_OK) {", "    return status;", "}"], indent - 8)
    return {
        "function": kernel.function,
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
    told = [instr.note] * (not renderer.updatable)  # it has scales
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
    assert renderer.blob is not None, "what is read is in a file"
    constant, to = instr.operand("x").buffer, _argument(renderer, instr.operand("y").buffer)
    call = f"weights->read(weights->context, {renderer.blob.offsets[constant]}u, {to}, {constant.nbytes}u)"
    check = [fitted(f"if ({call} != 0) {{", indent - 4), "    return MCUGEN_ERROR_READ;", "}"]
    return {"text": _stacked(check, indent - 8), "comment": []}


def _argument(renderer: _Renderer, buffer: Buffer) -> str:
    """What is passed for a buffer: a local pointer, an array, a member of the state, or NULL for an empty array.

    Empty working memory begins where the arena does: compilers see a NULL into calls that are never made, and warn.
    """
    if not buffer.count and not buffer.planned:
        return "NULL"
    if renderer.blob is not None and buffer in renderer.blob.offsets:
        return renderer.names[buffer]
    prefix = {Space.CONST: f"{renderer.program.name}_", Space.STATE: "state->"}.get(buffer.space, "")
    return prefix + renderer.names[buffer]


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
        "uses_math": any(_is_unbounded(array) for side in (sample.inputs, sample.outputs) for array in side.values()),
        "steps": sample.steps,
    }
