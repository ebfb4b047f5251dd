# SPDX-License-Identifier: Apache-2.0
"""Combines compiled models into one, so that one build and one run serve all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from mcugen.codegen.bundle import Bundle, Port
from mcugen.core.errors import McugenError

ALIGN = 16

GAP = 256
"""Bytes between the parts of the arena; under the address sanitizer, an access to them while the models run fails."""


def combine(bundles: Sequence[Bundle], name: str = "batch") -> Bundle:
    """Return a bundle that runs the given bundles in turn, each in its own part of the arena.

    The parts have exactly the models' arena sizes, with guarded gaps between them. Port `x` of model `m` is called
    `m/x`. States are reset before the first sample and kept from one sample to the next.

    Args:
        bundles: Models with different names and without sizes that the caller gives.
        name: Name of the result.
    """
    files: dict[str, str] = {}
    offsets, size = [], GAP
    for bundle in bundles:
        files |= bundle.files
        offsets.append(size)
        size += -(-bundle.arena_size // ALIGN) * ALIGN + GAP
    inputs = _ports(bundles, "inputs", name)
    outputs = _ports(bundles, "outputs", name)
    header, source = _texts(bundles, offsets, size, name)
    weights = [_weights(files.pop(f"{bundle.name}_weights.c")) for bundle in bundles]
    files |= {f"{name}.h": header, f"{name}.c": source, f"{name}_weights.c": "".join(weights)}  # one for all: quicker
    return replace(
        bundles[0],
        name=name,
        files=files,
        arena_size=size,
        inputs=inputs,
        outputs=outputs,
        has_state=False,
        sections=tuple(section for bundle in bundles for section in bundle.sections),
        layers=tuple(b.name for b in bundles),
        symbols=tuple(
            replace(s, name=f"{b.name}/{s.name}", output=f"{b.name}/{s.output}") for b in bundles for s in b.symbols
        ),
    )


Item, Result = TypeVar("Item"), TypeVar("Result")


def run_or_blame(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], list[Result]],
    name_of: Callable[[Item], str],
    failed: Callable[[Item, str, McugenError], Result],
) -> list[Result]:
    """Return the results of `run` for all items; if it fails, bisect to find the model at fault.

    `name_of` returns a model's name in C; `failed` returns the result of a model that failed to "build" or "run".
    """
    if not items:
        return []
    try:
        return run(items)
    except McugenError as error:
        if len(items) == 1:
            return [failed(items[0], "run", error)]
        blamed = re.search(r"model/(m\d+)(?:_weights)?\.c must compile", str(error))
        guilty = [item for item in items if blamed and name_of(item) == blamed[1]]
        if guilty:
            rest = [item for item in items if item not in guilty]
            return [*(failed(item, "build", error) for item in guilty), *run_or_blame(rest, run, name_of, failed)]
        half = len(items) // 2
        return [r for part in (items[:half], items[half:]) for r in run_or_blame(part, run, name_of, failed)]


def _weights(text: str) -> str:
    """Return the text of a model's constants and undefine its macros, so that another model's text can follow."""
    macros = (line.split()[1] for line in text.splitlines() if line.startswith("#define WEIGHTS"))
    return text + "".join(f"#undef {macro}\n" for macro in macros)


def _ports(bundles: Sequence[Bundle], side: str, name: str) -> tuple[Port, ...]:
    return tuple(
        replace(
            port,
            name=f"{bundle.name}/{port.name}",
            accessor=f"{name}_{port.accessor}",
            is_lent=False,
            sizes={axis: formula.renamed(f"{bundle.name}/") for axis, formula in port.sizes.items()},
        )
        for bundle in bundles
        for port in getattr(bundle, side)
    )


_GUARDS = """\
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define GUARD(begin, nbytes) __asan_poison_memory_region(begin, nbytes)
#define UNGUARD(begin, nbytes) __asan_unpoison_memory_region(begin, nbytes)
#else
#define GUARD(begin, nbytes) ((void)0)
#define UNGUARD(begin, nbytes) ((void)0)
#endif"""
"""C macros that guard the gaps while the models run; the harness writes the whole arena before each sample."""


def _texts(bundles: Sequence[Bundle], offsets: Sequence[int], size: int, name: str) -> tuple[str, str]:
    """Return header and source that call the models."""
    macro = name.upper()
    header = [f'#include "{b.name}.h"' for b in bundles]
    header += [f"#define {macro}_ARENA_SIZE {size}u", f"#define {macro}_ARENA_ALIGN {ALIGN}u"]
    header.append(f"int {name}_run(void *arena);")
    source = [f'#include "{name}.h"', _GUARDS]
    for bundle, offset in zip(bundles, offsets, strict=True):
        for port, const in [(p, "") for p in bundle.inputs] + [(p, "const ") for p in bundle.outputs]:
            prototype = f"{const}void *{name}_{port.accessor}({const}void *arena)"
            header.append(f"{prototype};")
            place = f"{port.accessor}(({const}unsigned char *)arena + {offset})"
            if port.is_lent:
                place = f"{port.accessor}_buffer"
                length = f"{port.nbytes} / sizeof({port.ctype}) + 1"
                source.append(f"static {port.ctype} {place}[{length}];")
            source.append(f"{prototype}\n{{\n    (void)arena;\n    return {place};\n}}")
    kept = [b.name for b in bundles if b.has_state]
    source += [f"static {model}_state {model}_kept;" for model in kept]
    source.append(f"int {name}_run(void *arena)\n{{\n    int status = 0;")
    if kept:
        resets = "".join(f"        {model}_reset(&{model}_kept);\n" for model in kept)
        source.insert(-1, "static int is_ready;")
        source.append(f"    if (!is_ready) {{\n{resets}        is_ready = 1;\n    }}")
    gaps = zip([0, *(o + b.arena_size for b, o in zip(bundles, offsets, strict=True))], [*offsets, size], strict=True)
    source += [f"    GUARD((unsigned char *)arena + {begin}, {end - begin}u);" for begin, end in gaps]
    for number, (bundle, offset) in enumerate(zip(bundles, offsets, strict=True)):
        more = [f"{port.accessor}_buffer" for port in (*bundle.inputs, *bundle.outputs) if port.is_lent]
        more += [f"&{bundle.name}_kept"] * bundle.has_state
        call = f"{bundle.name}_run({', '.join([f'(unsigned char *)arena + {offset}', *more])})"
        source.append(f"    status = status == 0 ? {call} : status;\n    MCUGEN_ON_LAYER(0, {number});")
    source.append(f"    UNGUARD(arena, {size}u);\n    return status;\n}}")
    return "\n".join(header) + "\n", "\n".join(source) + "\n"
