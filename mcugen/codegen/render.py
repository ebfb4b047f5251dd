# SPDX-License-Identifier: Apache-2.0
"""Rendering of a planned program to the folder of C, without any decisions: equal programs give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import ml_dtypes
import numpy as np

from mcugen.codegen.bundle import Bundle, InputCode, Port, StoredArray, invocations_of
from mcugen.codegen.checks import CheckedData, array_entry
from mcugen.codegen.constants import constant, is_unbounded
from mcugen.codegen.cores import CORE_NAMES, divide_between_cores, identifiers_in, with_memories
from mcugen.codegen.draft import Draft, FolderOptions, Sample
from mcugen.codegen.environment import environment
from mcugen.codegen.golden import SELFTEST_LEARNING_RATE
from mcugen.codegen.identifiers import c_string, comment, identifier, own_names
from mcugen.codegen.labels import has_order, label_literals, labelled
from mcugen.codegen.learned import lesson_context, lesson_ports
from mcugen.codegen.libraries import LIBRARIES
from mcugen.codegen.literals import c_float, c_int, c_rows
from mcugen.codegen.manual import ManualFacts, layer_table, manual
from mcugen.codegen.memory import MemoryContext, words
from mcugen.codegen.monitor import MONITOR_FUNCTIONS, LayerResult, Monitor, monitor_context, monitor_texts
from mcugen.codegen.run import (
    Renderer,
    RunStatement,
    has_unbounded_param,
    lines_of,
    locals_of,
    size_expressions,
    step_layers,
)
from mcugen.codegen.runtime_functions import with_runtime_functions
from mcugen.codegen.shared import NO_SHARED_CODE, SharedCode
from mcugen.codegen.sizes import SizedParams, arguments, sized_tensor
from mcugen.codegen.titles import ListedLayer, layers_of
from mcugen.codegen.validation import VALIDATION_FUNCTIONS, observable_results, validation_of, validation_texts
from mcugen.core.resources import runtime_headers
from mcugen.core.version import PLACEHOLDER_URL, RELEASE_DATE, __version__
from mcugen.expressions.functions import WIDEN
from mcugen.hir.types import Array, DType
from mcugen.lir.program import READ_ROWS, WORD, Buffer, Control, Endpoint, Program, Space
from mcugen.lir.uniform import bake_uniform_parameters

_LENT = 16
"""Samples of lent tensors are padded to a multiple of so many elements, which aligns each like any type needs."""

STATE_MARK = 0x6E756765
"""Magic number that NAME_reset writes to a state struct, if a struct of zeros would not be a valid state."""

ABI_VERSION = 3
"""Version of the contract between generated code and runtime_c/include/mcugen.h."""


def render(draft: Draft, shared: SharedCode = NO_SHARED_CODE) -> Bundle:
    """Render the generated folder of a model: C files, headers, build files and report.

    Args:
        draft: The program and all further inputs of rendering.
        shared: Functions and arrays that a firmware of several models defines elsewhere.
    """
    return _bundle(draft if shared.name else with_uniform_literals([draft])[0], shared)


def with_uniform_literals(drafts: Sequence[Draft]) -> list[Draft]:
    """Return the models with literals in place of parameters that are equal in all layers which share a C function.

    Parameters that an update of the weights may change are kept.
    """
    if any(map(_is_updatable, drafts)):
        return list(drafts)
    programs = bake_uniform_parameters([draft.program for draft in drafts])
    return [draft._replace(program=program) for draft, program in zip(drafts, programs, strict=True)]


def _bundle(draft: Draft, shared: SharedCode) -> Bundle:
    program, form, env = draft.program, draft.form, environment(draft.source.templates)
    name, inputs, outputs = program.name, _input_ports(program), _output_ports(program)
    memory = MemoryContext(program, draft.placement, form.weights, shared)
    is_shared, is_learning = _uses_two_cores(program), program.lesson is not None
    used_names = _taken(name, memory, (*inputs, *outputs), form, is_shared=is_shared, is_learning=is_learning)
    renderer = Renderer(program, env, draft.source.features, own_names(used_names | shared.names), memory, shared)
    sized = _sized_params(renderer, memory)
    lines = lines_of(renderer, sized, form.steps, form.cached)
    layers = layers_of(program, renderer.functions.names)
    context = {
        **_context(draft, renderer, inputs, outputs),
        **_code(renderer, memory, sized, lines, layers),
        **_checks_context(name, _checked(renderer, memory, sized) if form.checks else [], _check_all(memory)),
        **_steps_context(form, lines),
        "other_is_cached": form.cached[1],
    }
    context |= divide_between_cores(context)
    context["parameters"] = _read_by_steps(context)
    context["manual"] = manual(_facts(draft, memory, context))
    context |= _monitor_context(form, program, memory, lines, context)
    code = form.input_code(inputs[0].accessor, _encoder(name, context["all_inputs"][0])) if form.input_code else None
    checked_input = code.checked if code and form.checks else ()
    context["has_checks"] = bool(context["checked"] or checked_input)
    blobs = _weights_file(env, memory, context)
    texts = rendered(env, context, {f"{name}{ending}": template for ending, template in _MODEL_FILES.items()})
    checked = None
    if form.validation and not shared.name:
        checked = validation_of(program, memory, texts, blobs.get(f"{name}_weights.bin"))
        texts |= validation_texts(env, program, memory, checked, renderer.names, context)
    more = _input_files(env, code, context | _checks_context(name, checked_input, "check_input", "_input"))
    more |= _monitor_files(env, context)
    texts |= more
    context["c_files"] += [file for file in more if file.endswith(".c")]
    texts |= _headers(_additional_headers(context, is_learning=is_learning, is_updatable=memory.updatable))
    if not shared.name:
        own_texts = folder_texts(env, context, draft.report, {*texts, *blobs})
        texts = with_runtime_functions(texts | own_texts, draft.source.features)
    return Bundle(
        name,
        texts,
        context["arena_size"],
        inputs,
        outputs,
        tuple(layer.name for layer in layers),
        _constants(renderer, memory),
        has_state=bool(program.states),
        lesson=lesson_ports(program),
        symbols=tuple(program.symbols),
        steps=step_layers(lines) if form.steps else (),
        arena_sizes=tuple(area.size for area in memory.areas) if draft.placement.names_arena else (),
        sections=memory.sections,
        image_region=identifier(draft.placement.weights.name),
        libraries=context["libraries"],
        blobs=blobs,
        validation=checked,
        reads_weights=memory.is_read,
        input_code=code,
        invocations=invocations_of(program),
    )


def _additional_headers(context: Mapping[str, Any], *, is_learning: bool, is_updatable: bool) -> tuple[str, ...]:
    """Return the prefixes of the runtime headers that a model's files include besides mcugen.h."""
    cores = (CORES_HEADERS,) if context["other"] else ()
    slots = (STORE_HEADER, SLOTS_HEADER) if is_updatable else ()
    return (*cores, *slots, *[STORE_HEADER] * is_learning)


def _monitor_files(env: jinja2.Environment, context: dict[str, Any]) -> dict[str, str]:
    """Return the files of a monitor; none without `--monitor`."""
    return {} if context["monitor"] is None else monitor_texts(env, context) | _headers((MONITOR_HEADER,))


def _ports_by_name(program: Program, context: Mapping[str, Any]) -> dict[tuple[bool, str], Mapping[str, Any]]:
    """Return the template contexts of inputs (True) and outputs (False) by name; there are no computed sizes."""
    sides = ((True, program.inputs, "all_inputs"), (False, program.outputs, "outputs"))
    return {(is_in, e.name): t for is_in, ends, key in sides for e, t in zip(ends, context[key], strict=True)}


def _sized_params(renderer: Renderer, memory: MemoryContext) -> SizedParams:
    stored = [memory.blob.place] if memory.blob else []
    return SizedParams(renderer.program.symbols, size_expressions(renderer), renderer.unique, *stored)


def _monitor_context(
    form: FolderOptions,
    program: Program,
    memory: MemoryContext,
    lines: Sequence[RunStatement],
    context: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the template context of the monitor, under "monitor": None without `--monitor`."""
    if form.monitor is None:
        return {"monitor": None}
    results = _layer_results(form.monitor, program, memory, step_layers(lines))
    return {"monitor": monitor_context(form.monitor, _ports_by_name(program, context), results, context)}


def _layer_results(
    monitor: Monitor, program: Program, memory: MemoryContext, steps: Sequence[int]
) -> dict[int, LayerResult]:
    """Return the observed results of layers, by the number of the layer."""
    last_calls = {layer: call for call, layer in enumerate(steps)}
    buffers = observable_results(program)
    return {
        layer: LayerResult(
            f"(const unsigned char *){memory.areas[buffers[layer].area].pointer} + {buffers[layer].offset}u",
            last_calls[layer],
        )
        for layer in (tensor.layer for tensor in monitor.tensors)
        if layer is not None
    }


def _uses_two_cores(program: Program) -> bool:
    return any(instr.control is Control.FORK for instr in program.instrs) or program.handover is not None


def _is_updatable(draft: Draft) -> bool:
    """Return whether parameters may change after compilation, by training or by another file of weights."""
    return draft.program.lesson is not None or (draft.form.weights is not None and draft.form.weights.updatable)


def _headers(begin: tuple[str, ...]) -> dict[str, str]:
    """Return the runtime headers whose names begin with one of the prefixes."""
    header_paths = runtime_headers().items()
    return {file: path.read_text("utf-8") for file, path in header_paths if file.startswith(begin)}


def _constants(renderer: Renderer, memory: MemoryContext) -> tuple[StoredArray, ...]:
    program = renderer.program
    readers: dict[Buffer, int] = {}
    for layer, span in enumerate(program.layers()):
        for operand in (operand for i in span for operand in program.instrs[i].operands):
            readers.setdefault(operand.buffer, layer)
    arrays = [b for b in memory.arrays if b in readers and b.nbytes]
    return tuple(StoredArray(renderer.array(b), b.nbytes, readers[b]) for b in arrays)


def _context(draft: Draft, renderer: Renderer, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> dict[str, Any]:
    """Return the template context of a model without its code."""
    program, form, memory = draft.program, draft.form, renderer.memory
    size_arguments = arguments(program.symbols, renderer.symbols)
    parameters = _run_parameters(program, memory, renderer.names, size_arguments)
    return {
        "name": program.name,
        "NAME": program.name.upper(),
        "version": __version__,
        "abi_version": ABI_VERSION,
        "provenance": {k: comment(v, 4000) for k, v in vars(draft.provenance).items()},
        "arena_size": sum(area.size for area in memory.areas),
        "arena_align": program.arena_alignment,
        "io_align": _io_alignment(program),
        "weights_size": program.weights_size,
        **_interface(renderer, memory, inputs, outputs),
        "lesson": lesson_context(renderer, draft.provenance.sha256),
        "sizes": size_arguments,
        "parameters": parameters,
        "run_parameters": "".join(f", {ctype}{word}" for ctype, word in parameters).removeprefix(", "),
        "run_arguments": ", ".join(word for _, word in parameters),
        "stack": form.stack,
        "guards": form.guards,
        "self_test": form.self_test,
        "checks_steps": form.checks_steps,
        **_plausible_context(program, outputs, renderer, form),
        "constants": [constant(b, renderer, memory.place(b)) for b in memory.arrays],
        "weights_use_math": any(is_unbounded(b.data) for b in memory.arrays),
        "libraries": tuple(LIBRARIES[key] for key in sorted({i.library for i in program.instrs if i.library})),
        **_helpers(form, program, outputs),
        **memory.context(renderer.names),
        "sample": _sample_context(program, inputs, outputs, draft.samples),
    }


def _io_alignment(program: Program) -> int:
    """Return the alignment in bytes of inputs and outputs in the caller's memory; an accelerator needs the arena's."""
    endpoints = (*program.inputs, *program.outputs)
    lent = {e.buffer for e in endpoints if e.buffer.space.is_callers}
    is_invoked = any(o.buffer in lent for i in program.instrs if i.is_offloaded for o in i.operands)
    return max([WORD, *(e.dtype.nbytes for e in endpoints), *[program.arena_alignment] * is_invoked])


def _plausible_context(
    program: Program, ports: Sequence[Port], renderer: Renderer, form: FolderOptions
) -> dict[str, object]:
    """Return the template context of plausible outputs."""
    rows = []
    for endpoint, port in zip(program.outputs, ports, strict=True):
        if form.plausible is None or endpoint.name not in form.plausible.ranges:
            continue
        low, high = form.plausible.ranges[endpoint.name]
        close = _closeness(endpoint.dtype, 0.0)
        whole, lent = endpoint.dtype.is_integer, renderer.names[endpoint.buffer] if port.is_lent else ""
        rows.append(
            {
                "ctype": endpoint.dtype.c,
                "real": "int32_t" if whole else close.real,
                "read": close.read,
                "low": c_int(int(low)) if whole else c_float(low),
                "high": c_int(int(high)) if whole else c_float(high),
                "macro": port.accessor.upper(),
                "lent": lent,
                "parameter": f"const {endpoint.dtype.c} *{lent}",
                "accessor": port.accessor,
            }
        )
    return {"plausible": rows, "plausible_origin": form.plausible.origin if form.plausible else ""}


def _encoder(name: str, tensor: Mapping[str, Any]) -> str:
    return f"{name}_encode_{tensor['role']}" if tensor["limits"] else ""


def _input_files(env: jinja2.Environment, code: InputCode | None, context: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that convert raw data to the model's input."""
    if code is None:
        return {}
    files = {".c": code.template, ".h": "pipeline/input.h.j2"}
    return {
        f"{context['name']}_input{suffix}": env.get_template(template).render({**context, **code.context})
        for suffix, template in files.items()
    }


def _code(
    renderer: Renderer,
    memory: MemoryContext,
    sized: SizedParams,
    lines: Sequence[RunStatement],
    layers: Sequence[ListedLayer],
) -> dict[str, Any]:
    """Return the template context of the code: kernels, calls in order, and tables."""
    return {
        "tables": sized.tables,
        "events": renderer.events,
        "layers": [{**vars(layer), "literal": c_string(layer.name)} for layer in layers],
        "layer_table": layer_table(layers),
        "firmware": renderer.shared.name,
        "is_shared": False,
        "c_files": [f"{renderer.program.name}{part}.c" for part in ("", "_weights", "_selftest")],
        "shared_kernels": bool(renderer.functions.used),
        "kernels": [function.context() for function in renderer.functions.own],
        "calls": [line for line in lines if line.function],
        "lines": lines,
        "uses_math": any("math.h" in function.headers for function in renderer.functions.own),
        "needs_libm": renderer.functions.uses_math,
        "params_use_math": any(map(has_unbounded_param, renderer.program.instrs)),
        "locals": locals_of(renderer, memory),
    }


CORES_HEADERS, STORE_HEADER, MONITOR_HEADER = "mcugen_cores", "mcugen_store.h", "mcugen_monitor.h"
"""Prefixes of the additional runtime files of a model on two cores, of a trainable one, and of one with statistics."""
SLOTS_HEADER = "mcugen_slots.h"
"""Additional runtime file of a model with an updatable file of weights, besides STORE_HEADER, which it includes."""

_VERBS = ("encode", "decode", "write_pixels", "write_samples", "write_reals", "read_reals", "class_of", "label_of")
"""Verbs of the header's inline functions for inputs and outputs."""


def _helpers(form: FolderOptions, program: Program, outputs: Sequence[Port]) -> dict[str, Any]:
    """Return the context of the header's helper functions; `labelled` is the accessor of the output with labels."""
    accessors = {e.name: port.accessor for e, port in zip(program.outputs, outputs, strict=True)}
    return {
        "helpers": form.helpers,
        "labels": label_literals(form.labels),
        "labelled": accessors[labelled(program.outputs, form.labels).name] if form.labels else "",
    }


def _taken(
    name: str, memory: MemoryContext, ports: Sequence[Port], form: FolderOptions, *, is_shared: bool, is_learning: bool
) -> set[str]:
    """Return the identifiers that no part of the model may use."""
    own: tuple[str, ...] = (
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
    local: tuple[str, ...] = ("state", "status", "read", "context", "layer_names", "begun")
    if is_learning:
        own = (*own, "train", "loss", "store", "load", "stored_bytes")
        local = (*local, "compute", "is_target", "stored_model")
    shared = (("worker", "run_cores", "push", "pull", "cores"), CORE_NAMES) if is_shared else ((), ())
    own, local = (*own, *shared[0]), (*local, *shared[1])
    external = {f"{name}_{word}" for word in (*own, *memory.functions)}
    roles = [port.accessor.removeprefix(f"{name}_") for port in ports]
    external |= {f"{name}_{verb}_{role}" for verb in _VERBS for role in roles if form.helpers}
    if form.checks:
        words = ("check", "check_some", _check_all(memory), "check_some_input", "check_input")
        external |= {f"{name}_{word}" for word in words} | {"checked", "checked_again"}
    external |= {f"{name}_end_update"} if memory.updatable else set()
    external |= {f"{name}_check_outputs"} if form.plausible else set()
    if form.monitor is not None:
        external |= {f"{name}_{word}" for word in MONITOR_FUNCTIONS} | {"monitor", "to", "seen", "run", "cycles"}
    if form.guards:
        guards = ("run_sized", "run_guarded", "canary", "guarded_arena", "check_guards")
        external |= {f"{name}_{word}" for word in guards} | {"arena_size"}
    if form.steps:
        external |= {f"{name}_{word}" for word in ("begin", "step", "steps")}
        external |= {"steps", "next", "next_step", "crc_of_arena"}
    return {port.accessor for port in ports} | external | {name, *local, *memory.locals}


def _interface(
    renderer: Renderer, memory: MemoryContext, inputs: Sequence[Port], outputs: Sequence[Port]
) -> dict[str, Any]:
    """Return the context of tensors, computed sizes and states, which callers pass and receive."""
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
        "marks_state": program.marks_state,
        "state_mark": f"0x{STATE_MARK:08x}u",
    }


def _run_parameters(
    program: Program, memory: MemoryContext, names: Mapping[Buffer, str], sizes: Sequence[Mapping[str, object]]
) -> list[tuple[str, str]]:
    """Return the run function's parameters: the C type before each name, and the name."""
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


def _checked(renderer: Renderer, memory: MemoryContext, sized: SizedParams) -> list[CheckedData]:
    """Return the checksum entries: constants, then tables and parameters.

    Raises:
        VerificationError: There is nothing to check.
    """
    arrays = [array_entry(renderer.array(b), b.data) for b in memory.arrays if b.data is not None and b.data.size]
    tables = [table.entry for table in (*sized.tables, *renderer.events) if table.entry is not None]
    return [*arrays, *renderer.checked, *tables]


def _checks_context(name: str, checked: Sequence[CheckedData], check_all: str, ending: str = "") -> dict[str, Any]:
    """Return the template context of checked entries, with the names of the functions that compare checksums."""
    return {
        "checked": checked,
        "check_some": f"{name}_check_some{ending}",
        "check_all": f"{name}_{check_all}",
        "check_count": f"{name}{ending}_checked".upper(),
    }


def _check_all(memory: MemoryContext) -> str:
    """Return the name of the check function; a file of weights has its own NAME_check_weights."""
    return "check_weights" if memory.blob is None else "check_parameters"


def _steps_context(form: FolderOptions, lines: Sequence[RunStatement]) -> dict[str, Any]:
    """Return the context of step functions: the number of cases, and of calls."""
    return {
        "steps": max(sum(line.opens for line in lines), 1) if form.steps else 0,
        "step_calls": max(len(step_layers(lines)), 1),
        "has_events": any(line.calls > 1 for line in lines),
        "hooks_steps": form.hooks_steps,
        "step_cycles": max(form.step_cycles, default=0),
        "layer_step_cycles": ", ".join(f"{layer}: {cycles:,}" for layer, cycles in enumerate(form.step_cycles)),
    }


def _read_by_steps(context: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return the run function's parameters, and whether its body reads them after the checks."""
    pointers, constants = context["locals"], context["constant_locals"]
    words = with_memories(identifiers_in(context["lines"]), context["arena"], pointers, constants)
    return [{"ctype": ctype, "name": name, "is_read": name in words} for ctype, name in context["parameters"]]


def _facts(draft: Draft, memory: MemoryContext, context: Mapping[str, Any]) -> ManualFacts:
    """Return the facts of the header's manual."""
    program = draft.program
    provenance, weights = context["provenance"], ", weights" * bool(context["weights_head"])
    return ManualFacts(
        program.name,
        provenance["model"],
        provenance["board"],
        provenance["accuracy"],
        memory.areas,
        memory.sections,
        program.state_size,
        context["weights_size"],
        memory.copies,
        _call_copies(draft.report),
        memory.blob is not None,
        context["needs_libm"],
        [library.versions for library in context["libraries"]],
        f"{program.name}_selftest({context['arena']}{weights})",
        context["self_test"],
        f"{context['firmware'] or program.name}_memory.ld",
    )


def _call_copies(report: Mapping[str, Any]) -> str:
    """Return a text on the weights that each call copies to the arena, from the report; "" if there are none."""
    copies = report.get("weight_copies", ())
    if not copies:
        return ""
    nbytes, cycles = (sum(copy[key] for copy in copies) for key in ("bytes", "cycles_estimate"))
    listing = ", ".join(f"{comment(copy['layer'], 40)} {copy['bytes']:,}" for copy in copies)
    return f"each call copies {nbytes:,} bytes of weights to the arena, in about {cycles:,} cycles: {listing}"


def _weights_file(env: jinja2.Environment, memory: MemoryContext, context: dict[str, object]) -> dict[str, bytes]:
    """Return the file of weights, if there is one. It fits all code that is equal except for the banner."""
    if memory.blob is None:
        return {}
    files = (env.get_template(template).render(context) for template in ("kernels.h.j2", "model.c.j2"))
    code = "".join(text[text.index("\n#") :] for text in files)
    file = memory.blob.file(code + _outside_of_file(context) * memory.updatable)
    context["weights_head"] = words(file)
    context["weights_rows"] = list(c_rows(np.frombuffer(file, np.uint8)))
    return {f"{memory.name}_weights.bin": file}


def _outside_of_file(context: Mapping[str, Any]) -> str:
    """Return what training may change but an updatable file lacks.

    That is the quantization of inputs and outputs, and constant outputs.
    """
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
    """Return the text of each file, by file name.

    Args:
        env: Environment of the templates.
        context: Variables of the templates.
        files: Names of the templates, by the name of the file to render.
    """
    texts = {file: env.get_template(template).render(context) for file, template in files.items()}
    return {file: text.rstrip("\n") + "\n" for file, text in texts.items()}  # templates may end with what is left out


def folder_texts(
    env: jinja2.Environment, context: Mapping[str, Any], report: Mapping[str, object], other_files: Collection[str]
) -> dict[str, str]:
    """Return the texts of the files that a folder has once, whatever the number of models in it, by file name.

    These are the runtime header, CMake file, linker script, report, and the description of the CMSIS-Pack, which lists
    all files.

    Args:
        env: Environment of the templates.
        context: Context of the templates.
        report: The report to write as JSON.
        other_files: Names of the folder's other files.
    """
    name = context["name"]
    texts = {"mcugen.h": runtime_headers()["mcugen.h"].read_text("utf-8")}
    if context["memory_sections"]:
        texts |= rendered(env, context, {f"{name}_memory.ld": "memory.ld.j2"})
    texts[f"{name}_report.json"] = json.dumps(report, indent=2, sort_keys=True) + "\n"
    texts[f"mcugen.{name}.pdsc"] = _pack(env, {*texts, *other_files}, context)
    return texts | rendered(env, context, {"CMakeLists.txt": "CMakeLists.txt.j2"})


_PACK_CATEGORIES = {".h": "header", ".c": "source", ".ld": "linkerScript"}
"""Categories of files in a CMSIS-Pack, by suffix; other files are "other"."""


def _pack(env: jinja2.Environment, files: Collection[str], context: Mapping[str, object]) -> str:
    """Return the description of a CMSIS-Pack of these files."""
    kinds = [(file, _PACK_CATEGORIES.get(Path(file).suffix, "other")) for file in sorted(files)]
    metadata = {"url": PLACEHOLDER_URL, "release_date": RELEASE_DATE}
    return env.get_template("pack.pdsc.j2").render(**context, **metadata, pack_files=kinds)


def _ports(endpoints: list[Endpoint], kind: str, name: str) -> tuple[Port, ...]:
    accessor_names = own_names()
    ports = []
    for endpoint in endpoints:
        word = identifier(endpoint.name, accessor_names, prefix=name)
        accessor = f"{name}_{kind}" if len(endpoints) == 1 else f"{name}_{kind}_{word}"
        nbytes, is_lent = endpoint.buffer.nbytes, endpoint.buffer.space.is_callers
        kind_of = endpoint.dtype.numpy.name
        ports.append(Port(endpoint.name, accessor, kind_of, endpoint.shape, nbytes, endpoint.sizes, is_lent=is_lent))
    return tuple(ports)


def _input_ports(program: Program) -> tuple[Port, ...]:
    """Return the inputs; one that the caller provides row by row is marked."""
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
    """Return the outputs; those that tell sizes are named as sizes."""
    telling = {s.output for s in program.symbols}
    plain = [e for e in program.outputs if e.name not in telling]
    sizes = [e for e in program.outputs if e.name in telling]
    ports = (*_ports(plain, "output", program.name), *_ports(sizes, "size", program.name))
    by_name = {port.name: port for port in ports}
    return tuple(by_name[e.name] for e in program.outputs)


def _tensor(endpoint: Endpoint, port: Port, renderer: Renderer, memory: MemoryContext) -> dict[str, object]:
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


def _state(endpoint: Endpoint, renderer: Renderer) -> dict[str, object]:
    """Return the context of a state struct's member, with its initial value: zeros or the array `first`."""
    lesson = renderer.program.lesson
    first = lesson.first.get(endpoint.name) if lesson is not None else None
    return {
        "name": renderer.names[endpoint.buffer],
        "onnx_name": comment(endpoint.name),
        "ctype": endpoint.dtype.c,
        "dtype": endpoint.dtype.value,
        "shape": [str(s) for s in endpoint.shape],
        "count": endpoint.buffer.count,
        "start": endpoint.quant.zero_point if endpoint.quant else 0,
        "first": renderer.array(first) if first is not None else "",
    }


class _Closeness(NamedTuple):
    """Comparison of a type's elements in the self-test: as `real` numbers, read by `read` if that is set."""

    name: str
    ctype: str
    real: str
    read: str
    tolerance: str


def _closeness(dtype: DType, tolerance: float) -> _Closeness:
    """Return the comparison of a type. A narrow float may also be a neighbor of the golden value."""
    if not dtype.is_narrow_float:
        return _Closeness(dtype.c, dtype.c, dtype.c, "", c_float(tolerance))
    step = float(ml_dtypes.finfo(dtype.numpy).eps)
    return _Closeness(dtype.tag, dtype.c, "float", WIDEN[dtype].symbol, c_float(tolerance + step))


def _golden(port: Port, arrays: Sequence[Array]) -> dict[str, object]:
    """Return the literals of an endpoint's samples, and C expressions of a sample's address and size.

    If the run function receives a pointer to a sample, each sample is aligned like the first.
    """
    name, count = f"golden_{port.accessor}", arrays[0].size
    stride = max(-(-count // _LENT) * _LENT if port.is_lent else count, 1)
    if len(arrays) == 1:
        return {
            "stride": max(count, 1),
            "rows": list(c_rows(arrays[0])) or ["0,"],
            "golden": name,
            "copied": f"sizeof {name}",
        }
    padded = [np.pad(array, (0, stride - count)) for array in arrays]
    return {
        "stride": stride,
        "rows": list(c_rows(np.concatenate(padded))),
        "golden": f"{name} + (sample * {stride}u)",
        "copied": f"{arrays[0].nbytes}u",
    }


def _sample_context(
    program: Program, inputs: tuple[Port, ...], outputs: tuple[Port, ...], samples: Sequence[Sample]
) -> dict[str, object]:
    """Return the template context of the self-test's samples; an array has one endpoint's elements of all samples."""
    sample = samples[0]

    def rows(
        endpoints: Sequence[Endpoint], ports: Sequence[Port], sample_arrays: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, object]]:
        return [
            {
                "accessor": port.accessor,
                "ctype": e.dtype.c,
                "is_streamed": bool(port.rows),
                "is_lent": port.is_lent,
                "count": sample_arrays[0][e.name].size,
                "is_float": e.dtype.is_float or e.dtype.is_narrow_float,
                "close": _closeness(e.dtype, sample.tolerance),
                **_golden(
                    port, [port.in_memory(arrays[e.name]).reshape(-1).astype(e.dtype.numpy) for arrays in sample_arrays]
                ),
            }
            for e, port in zip(endpoints, ports, strict=True)
        ]

    sample_inputs, expected = [s.inputs for s in samples], [s.outputs for s in samples]
    sides = {"inputs": rows(program.inputs, inputs, sample_inputs), "outputs": rows(program.outputs, outputs, expected)}
    lesson = lesson_ports(program)
    taught = rows([program.lesson.target], (lesson.target,), sample_inputs) if program.lesson and lesson else []
    taught += rows([program.lesson.loss], (lesson.loss,), expected) if program.lesson and lesson else []
    lent = [(row, row["golden"]) for row in sides["inputs"] if row["is_lent"]]
    lent += [(row, f"{row['accessor']}_buffer") for row in sides["outputs"] if row["is_lent"]]
    return {
        **sides,
        "lesson": taught,
        "rate": c_float(SELFTEST_LEARNING_RATE),
        "lent": [word if row["count"] else "NULL" for row, word in lent],
        "uses_math": any(is_unbounded(array) for side in (*sample_inputs, *expected) for array in side.values()),
        "steps": sample.steps,
        "samples": len(samples),
    }
