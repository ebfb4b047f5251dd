# SPDX-License-Identifier: Apache-2.0
"""Generation of a firmware: one folder of C for several models, with shared code, constants and arena."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from mcugen.codegen.bundle import Bundle, Section
from mcugen.codegen.constants import array_context, constant_title, is_unbounded
from mcugen.codegen.draft import Draft, Provenance
from mcugen.codegen.environment import environment
from mcugen.codegen.functions import FunctionKey, Functions, KernelFunction
from mcugen.codegen.identifiers import comment, identifier, own_names
from mcugen.codegen.memory import MemoryContext, regions
from mcugen.codegen.render import folder_texts, render, rendered, with_uniform_literals
from mcugen.codegen.run import event_numbers
from mcugen.codegen.runtime_functions import with_runtime_functions
from mcugen.codegen.shared import ArrayKey, SharedCode, array_key
from mcugen.core.board import Memory
from mcugen.core.errors import UsageError, shortened
from mcugen.core.version import __version__
from mcugen.hir.types import DType
from mcugen.lir.layer_titles import titles_of
from mcugen.lir.program import READ_ROWS, TRANSFER_KERNELS, Buffer, Control, Instr, Program, Space
from mcugen.memory.shared_arena import Pair, SharedArena, join, verify_shared_arena


@dataclass(frozen=True)
class MemoryArena:
    """The arena that several models of a firmware share in one memory of the board.

    A model's arena may consist of areas in several memories; `members` are the areas that lie in this one.
    """

    memory: Memory
    """The memory of the board that holds the common arena."""
    is_named: bool
    """Whether the C code places the common arena in a named memory section."""
    shared_arena: SharedArena
    """Offsets of the models' areas in the common arena, and its size."""
    members: tuple[tuple[int, int], ...]
    """Index of the model, and index of the area of that model's arena, for each area that lies in the common arena."""
    apart: int
    """Sum of the bytes that the areas would take without sharing, for comparison."""


@dataclass(frozen=True)
class Firmware:
    """The generated folder of a firmware with several models.

    Attributes:
        bundle: The folder as a whole.
        models: For each model, its facts and all files of the folder.
    """

    bundle: Bundle
    models: tuple[Bundle, ...]


def memory_arenas(drafts: Sequence[Draft], exclusive: Collection[Pair]) -> tuple[MemoryArena, ...]:
    """Return the common arena for each memory of the board that holds an arena of some model.

    Args:
        drafts: The models.
        exclusive: Pairs of indices of models that never run at the same time, whose arenas may overlap.
    """
    areas = []
    for memory in dict.fromkeys(memory for draft in drafts for memory in draft.placement.arenas):
        members = [
            (m, a) for m, draft in enumerate(drafts) for a, o in enumerate(draft.placement.arenas) if o == memory
        ]
        sizes = [drafts[model].memory.areas[area].size for model, area in members]
        pairs = {p for p in combinations(range(len(members)), 2) if (members[p[0]][0], members[p[1]][0]) in exclusive}
        shared_arena = join(sizes, pairs)
        verify_shared_arena(shared_arena, sizes, pairs)
        is_named = any(drafts[model].placement.names_arena for model, _ in members)
        areas.append(MemoryArena(memory, is_named, shared_arena, tuple(members), sum(sizes)))
    return tuple(areas)


def render_firmware(plan: SharingPlan, report: Mapping[str, object]) -> Firmware:
    """Render the generated folder of a firmware with several models.

    Args:
        plan: The models, and what they share.
        report: The report to write to the folder as JSON.

    Raises:
        UsageError: Two parts of the firmware define the same name in C.
    """
    env, name, drafts = environment(), plan.name, plan.drafts
    models = [render(draft, plan.shared) for draft in drafts]
    sections = _sections(plan)
    context = {
        **_banner(plan),
        **_arena_context(plan),
        **plan.context(),
        "libraries": tuple(dict.fromkeys(library for model in models for library in model.libraries)),
        "memory_sections": sections,
        "regions": regions(sections, _image(drafts)),
        "image_region": identifier(_image(drafts).name),
    }
    own = rendered(env, context, {f"{name}{ending}": template for ending, template in _FILES.items()})
    _require_apart([(model.name, model.files) for model in models] + [(name, own)])
    files = {**own, **{file: text for model in models for file, text in model.files.items()}}
    context["c_files"] = [file for file in files if file.endswith(".c")]
    blobs = {file: data for model in models for file, data in model.blobs.items()}
    features = frozenset().union(*(draft.source.features for draft in drafts))
    whole = Bundle(
        name,
        with_runtime_functions(files | folder_texts(env, context, report, {*files, *blobs}), features),
        context["arena_size"],
        (),
        (),
        (),
        sections=sections,
        image_region=context["image_region"],
        libraries=context["libraries"],
        blobs=blobs,
    )
    return Firmware(whole, tuple(_runnable(model, draft, whole) for model, draft in zip(models, drafts, strict=True)))


_FILES = {
    ".h": "firmware.h.j2",
    ".c": "firmware.c.j2",
    "_kernels.h": "shared_kernels.h.j2",
    "_kernels.c": "shared_kernels.c.j2",
    "_weights.h": "weights.h.j2",
    "_weights.c": "weights.c.j2",
}
"""Templates of a firmware's own files, by what follows its name."""


def _runnable(model: Bundle, draft: Draft, whole: Bundle) -> Bundle:
    """Return the bundle of one model: it has all files of the folder, and the model's own arenas come first."""
    own = [Section("arena", memory, whole.name) for memory in draft.placement.arenas if draft.placement.names_arena]
    sections = tuple(dict.fromkeys([*own, *whole.sections]))
    return replace(model, files=whole.files, sections=sections, libraries=whole.libraries)


# -------------------------------------------------------------------------------------------------- what is shared


class SharingPlan:
    """The C functions, arrays of constants and arenas that several models in one firmware share.

    A function is shared if at least two models call it, an array if more than one array with its contents is needed.

    Args:
        name: C name of the firmware.
        drafts: The models.
        exclusive: Pairs of indices of models that never run at the same time.
    """

    def __init__(self, name: str, drafts: Sequence[Draft], exclusive: Collection[Pair]) -> None:
        self.name, self.drafts, self.exclusive = name, (drafts := with_uniform_literals(drafts)), exclusive
        self.areas = memory_arenas(drafts, exclusive)
        self._names = own_names()
        self.functions = (0, 0)
        """Numbers of kernel functions: of the separate models together, and of the firmware."""
        functions = self._common_functions()
        self._arrays: dict[ArrayKey, dict[str, Any]] = {}
        self._unbounded = False
        met: dict[ArrayKey, tuple[str, Buffer]] = {}
        for key, title, buffer in (item for draft in drafts for item in _arrays(draft)):
            if key in met and key not in self._arrays:
                first_title, first = met[key]
                self._arrays[key] = array_context(self._name(first_title), first, first_title, _place(key[1]))
                self._unbounded |= is_unbounded(buffer.data)
            met.setdefault(key, (title, buffer))
        self.shared = SharedCode(name, functions, {key: str(array["name"]) for key, array in self._arrays.items()})

    @property
    def arena(self) -> int:
        """Return the total bytes of the common arenas in all memories of the board."""
        return sum(area.shared_arena.nbytes for area in self.areas)

    def memory(self, draft: Draft) -> MemoryContext:
        """Return the memory layout of one model's code: arenas, linker sections and weights.

        The arrays of constants that the model shares with other models are left out.

        Args:
            draft: The model, as an input of rendering.
        """
        return MemoryContext(draft.program, draft.placement, draft.form.weights, self.shared)

    def context(self) -> dict[str, Any]:
        """Return the variables for the templates of the C file with the shared functions and arrays."""
        functions = self.shared.functions.values()
        memories = dict.fromkeys(memory for _, memory, _ in self._arrays)
        sections = {m: f".rodata.mcugen.{identifier(m)}.{self.name}" if m else "" for m in memories}
        return {
            "kernels": [function.context() for function in functions],
            "uses_math": any("math.h" in function.headers for function in functions),
            "constants": list(self._arrays.values()),
            "constant_places": [(_place(memory), section) for memory, section in sections.items()],
            "weights_use_math": self._unbounded,
            "weights_head": [],
        }

    def _name(self, text: str) -> str:
        """Return a free name whose form with `_params` is free, too."""
        name = self._names.take(f"{self.name}_{identifier(text, prefix=self.name)}")
        while f"{name}_params" in self._names:
            name = self._names.take(name)
        self._names.add(f"{name}_params")
        return name

    def _common_functions(self) -> dict[FunctionKey, KernelFunction]:
        """Return the kernel functions that at least two models call."""
        callers: Counter[FunctionKey] = Counter()
        makers: dict[FunctionKey, tuple[Functions, Instr]] = {}
        for draft in self.drafts:
            env = environment(draft.source.templates)
            functions = Functions(env, draft.source.features, self._kernel_name, is_static=False)
            called = {functions.key(instr): instr for instr in _calls(draft.program)}
            callers.update(called.keys())
            makers = {key: (functions, instr) for key, instr in called.items()} | makers
        self.functions = callers.total(), len(callers)
        return {key: functions.of(instr) for key, (functions, instr) in makers.items() if callers[key] > 1}

    def _kernel_name(self, instr: Instr) -> str:
        return self._name(instr.kernel + f"_{instr.variant}" * bool(instr.variant))


def _place(memory: str) -> str:
    """Return the macro that places arrays in a memory."""
    return f"WEIGHTS_IN_{identifier(memory).upper()}" if memory else "WEIGHTS"


def _calls(program: Program) -> Iterator[Instr]:
    """Yield the instructions that call kernel functions."""
    plain = (i for i in program.instrs if i.control is Control.NONE and not i.moves_nothing)
    return (i for i in plain if i.kernel not in (READ_ROWS, *TRANSFER_KERNELS))


def _arrays(draft: Draft) -> Iterator[tuple[ArrayKey, str, Buffer]]:
    """Yield the arrays of a model: key, title and constant."""
    titles = titles_of(draft.program)
    for buffer, key in draft.memory.array_keys().items():
        yield key, constant_title(buffer, titles), buffer
    for instr in draft.program.instrs:
        if instr.control is Control.STREAM:
            numbers = event_numbers(instr)
            dtype, title = DType.of(numbers), f"{titles[instr.name]}: events"
            yield array_key(dtype.c, numbers), title, Buffer(title, dtype, numbers.size, Space.CONST, numbers)


# ------------------------------------------------------------------------------------------------------- templates


def _banner(plan: SharingPlan) -> dict[str, Any]:
    """Return the banner's context; the SHA-256 is that of the models' hashes, one a line."""
    provenances = [draft.provenance for draft in plan.drafts]
    digest = hashlib.sha256("\n".join(one.sha256 for one in provenances).encode()).hexdigest()
    options = "; ".join(dict.fromkeys(one.options for one in provenances))
    provenance = Provenance(", ".join(one.model for one in provenances), digest, provenances[0].board, options)
    return {
        "name": plan.name,
        "NAME": plan.name.upper(),
        "version": __version__,
        "provenance": {key: comment(text, 4000) for key, text in vars(provenance).items()},
        "arena_size": plan.arena,
        "arena_align": max(draft.program.arena_alignment for draft in plan.drafts),
        "weights_size": sum(len(data) for _, _, data in plan.shared.arrays),
        "is_shared": True,
        "firmware": "",
    }


def _arena_context(plan: SharingPlan) -> dict[str, Any]:
    """Return the context of the arena arrays, and where each model's areas begin in them."""
    name, drafts, areas = plan.name, plan.drafts, plan.areas
    area_contexts, places = [], dict[tuple[int, int], dict[str, Any]]()
    for area in areas:
        word = f"_{identifier(area.memory.name)}" * (len(areas) > 1)
        array, section = f"arena{word}", Section("arena", area.memory, name).name if area.is_named else ""
        area_contexts.append(
            {
                "array": array,
                "macro": f"{name.upper()}_ARENA{word.upper()}_SIZE",
                "size": area.shared_arena.nbytes,
                "memory": area.memory.name,
                "section": section,
                "apart": area.apart,
            }
        )
        for (model, index), offset in zip(area.members, area.shared_arena.offsets, strict=True):
            number = str(index) if drafts[model].memory.several else ""
            macro = f"{name.upper()}_{drafts[model].program.name.upper()}_ARENA{number}_AT"
            places[model, index] = {"array": array, "macro": macro, "offset": offset}
    models = [
        {
            "name": draft.program.name,
            "several": draft.memory.several,
            "places": [places[number, index] for index in range(len(draft.placement.arenas))],
        }
        for number, draft in enumerate(drafts)
    ]
    pairs = [[drafts[i].program.name for i in pair] for pair in sorted(plan.exclusive)]
    return {"areas": area_contexts, "models": models, "exclusive": pairs}


def _sections(plan: SharingPlan) -> tuple[Section, ...]:
    """Return the sections in memories of their own: shared arenas, sections of single models, shared arrays."""
    arenas = [Section("arena", area.memory, plan.name) for area in plan.areas if area.is_named]
    own = [section for draft in plan.drafts for section in draft.memory.sections if section.kind != "arena"]
    weights = {draft.placement.weights.name: draft.placement.weights for draft in plan.drafts}
    memories = dict.fromkeys(memory for _, memory, _ in plan.shared.arrays if memory)
    return (*arenas, *own, *(Section("weights", weights[memory], plan.name) for memory in memories))


def _image(drafts: Sequence[Draft]) -> Memory:
    """Return the memory with the initial values of copied sections; all models must use the same one."""
    images = dict.fromkeys(draft.placement.weights for draft in drafts if draft.placement.copies)
    if len(images) > 1:
        memory_names = " and ".join(f"'{memory.name}'" for memory in images)
        raise UsageError(
            "weights that start-up copies must come from one memory", memory_names, "give one --place weights"
        )
    return next(iter(images), drafts[0].placement.weights)


# ----------------------------------------------------------------------------------------------------------- names


def _require_apart(parts: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Raise UsageError if two parts of the firmware define one name, as models called net and net_output may."""
    owners: dict[str, str] = {}
    for name, files in parts:
        for word in _defined(name, files):
            if word in owners:
                rule = "models of one firmware must not define the same names in C"
                conflict = f"'{owners[word]}' and '{name}' define {shortened(word, 80)}"
                raise UsageError(rule, conflict, f"give one another name: --set {name}:name=OTHER")
            owners[word] = name


_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def _defined(name: str, files: Mapping[str, str]) -> set[str]:
    """Return the external names and macros of a model: the words in its headers that begin with its name."""
    text = "".join(_COMMENT.sub("", files[f"{name}{ending}"]) for ending in (".h", "_kernels.h", "_weights.h"))
    words = re.findall(rf"\b(?:{name}_|{name.upper()}_)\w+", text)
    return {word for word in words if not word.endswith("_NO_DEFAULT_ARENA")}
