# SPDX-License-Identifier: Apache-2.0
"""Hand-written bundles, small enough to know what they must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mcugen.codegen.bundle import Bundle, Port

_C_TYPES = {"int8": "int8_t", "float32": "float"}
_RUNTIME_H = "#ifndef MCUGEN_H\n#define MCUGEN_H\n#include <stdint.h>\n#endif\n"


def port(name: str, dtype: str, *shape: int) -> Port:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Port(name, f"tiny_{name}", dtype, shape, nbytes)


def tiny(
    body: str,
    inputs: Sequence[Port] = (port("x", "int8", 16),),
    outputs: Sequence[Port] = (port("y", "int8", 16),),
    *,
    before: str = "",
    weights: str | None = None,
    layers: Sequence[str] = (),
    arena_size: int = 1024,
) -> Bundle:
    """A bundle named `tiny` whose run function has this body; ports lie one behind the other in the arena."""
    declarations, definitions, offset = [], [], 0
    for p, const in [(p, "") for p in inputs] + [(p, "const ") for p in outputs]:
        signature = f"{const}{_C_TYPES[p.dtype]} *{p.accessor}({const}void *arena)"
        declarations.append(f"{signature};\n")
        definitions.append(f"{signature} {{ return ({const}void *)(({const}unsigned char *)arena + {offset}); }}\n")
        offset += (p.nbytes + 15) // 16 * 16
    files = {
        "mcugen.h": _RUNTIME_H,
        "tiny.h": "".join(
            [
                '#ifndef TINY_H\n#define TINY_H\n#include "mcugen.h"\n',
                f"#define TINY_ARENA_SIZE {arena_size}\n#define TINY_ARENA_ALIGN 16\n",
                "int tiny_run(void *arena);\n",
                *declarations,
                "#endif\n",
            ]
        ),
        "tiny.c": "".join(
            ['#include "tiny.h"\n', before, "\n", *definitions, f"int tiny_run(void *arena) {{\n{body}\n}}\n"]
        ),
    }
    if weights is not None:
        files["tiny_weights.c"] = weights
    return Bundle("tiny", files, arena_size, tuple(inputs), tuple(outputs), tuple(layers))


def add_one(**options: object) -> Bundle:
    return tiny(
        """
        const int8_t *x = tiny_x(arena);
        int8_t *y = (int8_t *)arena + 16;
        for (int i = 0; i < 16; i++) {
            y[i] = (int8_t)(x[i] + 1);
        }
        return 0;
        """,
        **options,  # type: ignore[arg-type]
    )


def counted(instructions: int) -> Bundle:
    """A run function of exactly this many Thumb instructions, a multiple of 4, its return included."""
    loops = (instructions - 4) // 4
    return tiny(
        "(void)arena; return 0;",
        before=f"""
        int tiny_run(void *arena);
        __asm__(".syntax unified\\n"
                ".pushsection .text.tiny_run,\\"ax\\",%progbits\\n"
                ".thumb\\n.global tiny_run\\n.type tiny_run,%function\\n.thumb_func\\n"
                "tiny_run:\\n"
                "ldr r1, =tiny_loops\\n"     /* 1 */
                "ldr r1, [r1]\\n"            /* 1 */
                "1: nop\\n"
                "nop\\n"
                "subs r1, #1\\n"
                "bne 1b\\n"                  /* 4 each */
                "movs r0, #0\\n"             /* 1 */
                "bx lr\\n"                   /* 1 */
                ".ltorg\\n"
                ".size tiny_run, . - tiny_run\\n"
                ".popsection\\n");
        extern const uint32_t tiny_loops;
        const uint32_t tiny_loops = {loops}u;
        #define tiny_run tiny_unused
        int tiny_unused(void *arena);
        """,
    )


def weights_file(sizes: Mapping[str, int], first: int = 1) -> str:
    """C of constant int8 arrays of these sizes; the first element of each is `first`, the others 0."""
    arrays = (
        f"extern const int8_t {name}[];\nconst int8_t {name}[{size}] = {{{first}}};\n" for name, size in sizes.items()
    )
    return '#include "mcugen.h"\n' + "".join(arrays)


def random_samples(bundle: Bundle, count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{p.name: random.integers(-100, 100, p.shape).astype(p.dtype) for p in bundle.inputs} for _ in range(count)]
