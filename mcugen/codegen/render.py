# SPDX-License-Identifier: Apache-2.0
"""Planned program → the folder of C. It decides nothing: the same program gives the same bytes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from mcugen.codegen.bundle import Bundle, Port
from mcugen.codegen.identifiers import comment, identifier, own_names, tensor_name
from mcugen.codegen.libraries import LIBRARIES
from mcugen.codegen.literals import c_float, c_param, c_param_type, c_rows
from mcugen.codegen.memory import Blob, MemoryContext, words
from mcugen.codegen.sizes import SizedParams, arguments, sized_tensor, symbol_names
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType
from mcugen.lir.program import ALIGNMENT, READ_ROWS, Access, Buffer, Control, Endpoint, Instr, Program, Space
from mcugen.memory.place import Placement
from mcugen.resources import resource_dir
from mcugen.version import __version__

ABI_VERSION = 1
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


@dataclass(frozen=True)
class Sample:
    """Inputs and expected outputs of the self-test, by endpoint name."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    tolerance: float
    """Allowed difference of float outputs, relative to the largest expected magnitude."""
    steps: int
    """Allowed difference of integer outputs: 0 unless floats are computed on the way."""


@dataclass
class _Kernel:
    """One C function: a kernel with its baked constants."""

    instr: Instr
    function: str
    text: str = ""
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
    taken: Names
    """All names of the model's C files, external ones with the model's name before them."""
    names: dict[Buffer, str] = field(default_factory=dict)
    kernels: dict[tuple[object, ...], _Kernel] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    """C names of sizes known at run time only."""
    blob: Blob | None = None
    """Where constants lie that are read from a file of weights."""
    events: list[dict[str, object]] = field(default_factory=list)
    """The tables of streams."""

    def __post_init__(self) -> None:
        self.symbols = symbol_names(self.program.symbols, self.taken)
        for buffer in self.program.buffers:
            self.names[buffer] = self.unique(
                tensor_name(buffer.name), f"{self.program.name}_" if buffer.space is Space.CONST else ""
            )

    def unique(self, text: str, prefix: str = "", suffix: str = "") -> str:
        """A free identifier that is free with `prefix` and `suffix` too."""
        word = identifier(text, self.taken)
        while prefix + word + suffix != word and prefix + word + suffix in self.taken:
            word = identifier(text, self.taken)
        self.taken.add(prefix + word + suffix)
        return word

    def kernel(self, instr: Instr) -> _Kernel:
        """The function of an instruction, rendered once per set of baked constants and code."""
        key = instr.function_key
        if key not in self.kernels:
            suffix = f"_{instr.variant}" if instr.variant else ""
            kernel = _Kernel(instr, self.unique(instr.kernel + suffix, suffix="_params"))
            kernel.text = self.env.get_template(f"kernels/{instr.kernel}.c.j2").render(
                fn=kernel.function,
                p=_Params(instr),
                signature=_signature(kernel),
                flags=instr.code,
                needs=kernel.headers.update,
                types={o.role: o.buffer.dtype.c for o in instr.operands},
                **instr.code,
            )
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
    return env


def render(
    program: Program,
    provenance: Provenance,
    sample: Sample,
    report: Mapping[str, object],
    placement: Placement,
    weights_blob: bool = False,
    templates: tuple[Path, ...] = (),
) -> Bundle:
    """All files of the generated folder. With `weights_blob` the weights are a file that the code gets a pointer to.

    `templates` are folders with kernels of the user's own.
    """
    env = environment(templates)
    name = program.name
    inputs, outputs = _input_ports(program), _output_ports(program)
    accessors = {port.accessor for port in (*inputs, *outputs)}
    own = ("run", "selftest", "default_arena", "reset", "state", "read_rows")
    local = ("state", "status", "read", "context")
    memory = MemoryContext(program, placement, weights_blob)
    taken = accessors | {f"{name}_{word}" for word in (*own, *memory.functions)} | {name, *local, *memory.locals}
    renderer = _Renderer(program, env, own_names(taken), blob=memory.blob)
    sized = SizedParams(program.symbols, _size_expressions(renderer), renderer.unique)
    lines = _lines(renderer, sized)
    calls = [line for line in lines if "function" in line]
    entries = [_tensor(e, p, renderer, memory) for e, p in zip(program.inputs, inputs, strict=True)]
    tensors = [_tensor(e, p, renderer, memory) for e, p in zip(program.outputs, outputs, strict=True)]
    given = arguments(program.symbols, renderer.symbols)
    computed = {s.output: renderer.symbols[s.name] for s in program.symbols if s.output}
    constants = [_constant(b, renderer.names[b], memory.section(b)) for b in memory.arrays]
    libraries = tuple(LIBRARIES[key] for key in sorted({i.library for i in program.instrs if i.library}))
    context: dict[str, object] = {
        "name": name,
        "NAME": name.upper(),
        "version": __version__,
        "abi_version": ABI_VERSION,
        "provenance": {k: comment(v) for k, v in vars(provenance).items()},
        "arena_size": sum(area.size for area in memory.areas),
        "arena_align": ALIGNMENT,
        "weights_size": program.weights_size,
        "inputs": [t for t in entries if not t["rows"]],
        "streamed": next((t for t in entries if t["rows"]), None),
        "all_inputs": entries,
        "outputs": [t for e, t in zip(program.outputs, tensors, strict=True) if e.name not in computed],
        "size_outputs": [
            {**t, "symbol": computed[e.name]}
            for e, t in zip(program.outputs, tensors, strict=True)
            if e.name in computed
        ],
        "sizes": given,
        "tables": sized.tables,
        "events": renderer.events,
        "run_parameters": memory.arena_type
        + ", const void *weights" * weights_blob
        + (f", {name}_read_rows read, void *context" if program.streamed else "")
        + (f", {name}_state *state" if program.states else "")
        + "".join(f", int32_t {size['name']}" for size in given),
        "states": [_state(e, renderer) for e in program.states],
        "constants": constants,
        "weights_use_math": any(_is_unbounded(b.data) for b in memory.arrays),
        "kernels": [_kernel_context(k) for k in renderer.kernels.values()],
        "calls": calls,
        "libraries": libraries,
        "lines": lines,
        "uses_math": any("math.h" in k.headers for k in renderer.kernels.values())
        or any(map(_has_unbounded_param, program.instrs)),
        "locals": _locals(renderer, memory),
        **memory.context(renderer.names),
        "sample": _sample_context(program, inputs, outputs, sample),
    }
    blobs = _weights_file(env, memory, context)
    texts = _texts(env, name, context)
    texts[f"{name}_report.json"] = json.dumps(report, indent=2, sort_keys=True) + "\n"
    texts[f"mcugen.{name}.pdsc"] = _pack(env, (texts.keys() | blobs) - {"CMakeLists.txt"}, context)
    layers = tuple(program.head(layer).name for layer in program.layers())
    return Bundle(
        name,
        texts,
        sum(area.size for area in memory.areas),
        inputs,
        outputs,
        layers,
        has_state=bool(program.states),
        symbols=tuple(program.symbols),
        arena_sizes=tuple(area.size for area in memory.areas) if placement.names_arena else (),
        sections=memory.sections,
        image_region=identifier(placement.weights.name),
        libraries=libraries,
        blobs=blobs,
    )


def _weights_file(env: jinja2.Environment, memory: MemoryContext, context: dict[str, object]) -> dict[str, bytes]:
    """The file of weights, if there is to be one. It fits any code that is the same but for the banner."""
    if memory.blob is None:
        return {}
    code = env.get_template("model.c.j2").render(context)
    file = memory.blob.file(code[code.index("#include") :])
    context["weights_head"] = words(file)
    context["weights_rows"] = list(c_rows(np.frombuffer(file, np.uint8)))
    return {f"{memory.name}_weights.bin": file}


def _texts(env: jinja2.Environment, name: str, context: Mapping[str, object]) -> dict[str, str]:
    """The files of C and CMake, by name."""
    files = {
        f"{name}.h": "model.h.j2",
        f"{name}.c": "model.c.j2",
        f"{name}_weights.h": "weights.h.j2",
        f"{name}_weights.c": "weights.c.j2",
        f"{name}_selftest.c": "selftest.c.j2",
        "CMakeLists.txt": "CMakeLists.txt.j2",
    }
    if context["memory_sections"]:
        files[f"{name}_memory.ld"] = "memory.ld.j2"
    texts = {file: env.get_template(template).render(context) for file, template in files.items()}
    texts["mcugen.h"] = (resource_dir("runtime_c") / "include" / "mcugen.h").read_text("utf-8")
    return texts


_PACK_CATEGORIES = {".h": "header", ".c": "source", ".ld": "linkerScript"}
"""What a CMSIS-Pack calls files by their endings; all else is "other"."""


def _pack(env: jinja2.Environment, files: Collection[str], context: Mapping[str, object]) -> str:
    """The description of a CMSIS-Pack of these files."""
    kinds = [(file, _PACK_CATEGORIES.get(Path(file).suffix, "other")) for file in sorted(files)]
    return env.get_template("pack.pdsc.j2").render(**context, pack_files=kinds)


def _indented(text: str, width: int) -> str:
    """C lines moved right by `width`; preprocessor lines stay at the margin."""
    lines = text.strip().split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * width + line for line in lines)


def _assembly(text: str) -> str:
    """Lines of assembly as C string literals; what follows `@` is a comment."""
    lines = (re.sub(r"\s*@.*", "", line).strip() for line in text.split("\n"))
    return "\n".join(f'    "{line}\\n"' for line in lines if line)


def _ports(endpoints: list[Endpoint], kind: str, name: str) -> tuple[Port, ...]:
    taken = own_names()
    ports = []
    for endpoint in endpoints:
        accessor = f"{name}_{kind}" if len(endpoints) == 1 else f"{name}_{kind}_{identifier(endpoint.name, taken)}"
        nbytes = endpoint.buffer.nbytes
        ports.append(Port(endpoint.name, accessor, endpoint.dtype.numpy.name, endpoint.shape, nbytes, endpoint.sizes))
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
        "macro": f"{name.upper()}_{port.accessor.removeprefix(name + '_').upper()}",
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
        "offset": buffer.offset,
        "area": memory.areas[buffer.area],
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


def _constant(buffer: Buffer, name: str, section: str) -> dict[str, Any]:
    assert buffer.data is not None
    return {
        "name": name,
        "ctype": buffer.dtype.c,
        "count": max(buffer.count, 1),  # C has no arrays of size 0
        "nbytes": buffer.nbytes,
        "origin": comment(buffer.name),
        "section": section,
        "rows": list(c_rows(buffer.data)) or ["0,"],
    }


def _kernel_context(kernel: _Kernel) -> dict[str, object]:
    return {
        "function": kernel.function,
        "members": _runtime_params(kernel.instr),
        "text": kernel.text.strip("\n"),
    }


def _lines(renderer: _Renderer, sized: SizedParams) -> list[dict[str, object]]:
    """What the run function does in order: calls and the braces of blocks.

    `indent` is the white space before it, `number` that of its layer if it speaks for one, `done` if it ends one.
    """
    program, begun = renderer.program, list[Instr]()
    lines: list[dict[str, object]] = []
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
            lines.append({"is_sized": False} | line | {"indent": " " * depth, "number": None, "done": None})
            if instr is head:
                lines[-1]["number"] = number
            if instr.control not in (Control.NONE, Control.END):
                begun.append(instr)
        lines[-1]["done"] = number
    return lines


def _begin(renderer: _Renderer, instr: Instr, sized: SizedParams, depth: int) -> dict[str, object]:
    """The C text that begins a block."""
    names = {o.role: f"*{_argument(renderer, o.buffer)}" for o in instr.operands}
    if instr.control is Control.CASE:
        return {"text": f"case {instr.case}: {{", "comment": ""}
    if instr.control is Control.STREAM:
        table, event = _events(renderer, instr), renderer.unique("event")
        loop = f"for (int32_t {event} = 0; {event} < {table['count']}; ++{event}) {{"
        text = _stacked([loop, f"    switch ({table['name']}[{event}]) {{"], depth)
    elif instr.control is Control.IF:
        text = f"if ({names['cond']} != 0) {{"
    else:
        index, more = names["index"], f" && {names['cond']} != 0" if "cond" in names else ""
        ((_, _, steps),) = sized.members(instr)
        text = f"for ({index} = 0; {index} < {steps}{more}; ++{index}) {{"
    return {"text": text, "comment": comment(f"{instr.op} {', '.join(instr.origin)}"), "note": comment(instr.note, 200)}


def _end(begun: Instr, instr: Instr, depth: int) -> dict[str, object]:
    """The C text that ends a block, or its first half."""
    last = {
        Control.STREAM: ["    default:", "        break;", "    }", "}"],
        Control.CASE: ["    break;", "}"],
    }
    lines = ["} else {"] if instr.control is Control.ELSE else last.get(begun.control, ["}"])
    return {"text": _stacked(lines, depth), "comment": ""}


def _stacked(lines: list[str], depth: int) -> str:
    """Lines of the run function, of which the first stands at `depth` already."""
    return f"\n{' ' * (4 + depth)}".join(lines)


def _events(renderer: _Renderer, instr: Instr) -> dict[str, object]:
    """The table of a stream: its events' cases in order."""
    numbers = np.array(instr.events)
    numbers = numbers.astype(np.uint8 if numbers.max() < 2**8 else np.uint16)
    table: dict[str, object] = {
        "name": renderer.unique(f"{tensor_name(instr.name)}_events"),
        "ctype": DType.of(numbers).c,
        "count": len(numbers),
        "rows": list(c_rows(numbers)),
    }
    renderer.events.append(table)
    return table


def _call(renderer: _Renderer, instr: Instr, sized: SizedParams, indent: int) -> dict[str, object]:
    if instr.kernel == READ_ROWS:
        return _callback(renderer, instr, indent)
    kernel = renderer.kernel(instr)
    params = sized.members(instr)
    params_name = identifier(f"{tensor_name(instr.name)}_params", renderer.taken) if params else ""
    names = [_argument(renderer, operand.buffer) for operand in instr.operands]
    is_sized = bool(instr.formulas)
    text = f"{kernel.function}({_wrapped([f'&{params_name}'] * bool(params) + names, indent + 4 * is_sized)});"
    if instr.library:
        text = _stacked([f"status = {text}", "if (status != MCUGEN_OK) {", "    return status;", "}"], indent - 8)
    return {
        "function": kernel.function,
        "params": params_name,
        "members": params,
        "is_sized": is_sized,
        "text": text,
        "comment": comment(f"{instr.op} {', '.join(instr.origin)}"),
        "note": comment(instr.note, 200),
    }


def _callback(renderer: _Renderer, instr: Instr, indent: int) -> dict[str, object]:
    """The caller writes rows of the streamed input."""
    first, rows = (_argument(renderer, instr.operand(role).buffer) for role in ("next", "y"))
    check = [f"if (read(context, *{first}, {rows}) != 0) {{", "    return MCUGEN_ERROR_INPUT;", "}"]
    return {
        "text": _stacked([*check, f"*{first} += {instr.params['rows']};"], indent - 8),
        "comment": comment(f"{instr.op} {', '.join(instr.origin)}"),
        "note": comment(instr.note, 200),
    }


def _wrapped(arguments: list[str], indent: int, width: int = 108) -> str:
    """Arguments of a call on lines of at most `width` characters, all but the first moved right by `indent`."""
    lines = [""]
    for index, argument in enumerate(arguments):
        text = argument + (", " if index < len(arguments) - 1 else "")
        if lines[-1] and len(lines[-1]) + len(text) > width:
            lines.append("")
        lines[-1] += text
    return f"\n{' ' * indent}".join(
        line.rstrip() if index < len(lines) - 1 else line for index, line in enumerate(lines)
    )


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
    return {
        **sides,
        "uses_math": any(_is_unbounded(array) for side in (sample.inputs, sample.outputs) for array in side.values()),
        "steps": sample.steps,
    }
