# SPDX-License-Identifier: Apache-2.0
"""Hand-written bundles, small enough that their results are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mcugen.codegen.bundle import Bundle, Port
from mcugen.core.board import Board
from mcugen.simulation.toolchain import RISCV

_C_TYPES = {"int8": "int8_t", "float32": "float"}
_RUNTIME_H = "#ifndef MCUGEN_H\n#define MCUGEN_H\n#include <stdint.h>\n#endif\n"


def port(name: str, dtype: str, *shape: int) -> Port:
    """Return the declaration of an input or output."""
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
    """Return a bundle named `tiny` whose run function has the given C body.

    Args:
        body: The C statements of the run function.
        inputs: The inputs, which lie one behind the other in the arena.
        outputs: The outputs, which lie behind the inputs.
        before: C code before the run function.
        weights: Contents of the file of weights; None for no such file.
        layers: Names of the layers that the body marks.
        arena_size: Size of the arena in bytes.
    """
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
    """Return a bundle that adds 1 to each input element."""
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


def assembled(code: str, layers: Sequence[str] = (), *, riscv: bool = False) -> Bundle:
    """Return a bundle whose run function consists of assembly instructions, one a line.

    r0 or a0 holds the arena, lr or ra the return address.

    Args:
        code: The instructions.
        layers: Names of the layers that the code marks.
        riscv: Whether the instructions are RISC-V's instead of Arm's.
    """
    lines = "\n".join(f'"{line.strip()}\\n"' for line in code.strip().splitlines())
    before, after = ("", "") if riscv else (".syntax unified\\n.thumb\\n.thumb_func\\n", ".ltorg\\n")
    return tiny(
        "(void)arena; return 0;",
        before=f"""
        int tiny_run(void *arena);
        __asm__(".pushsection .text.tiny_run,\\"ax\\",%progbits\\n"
                ".balign 4\\n.global tiny_run\\n.type tiny_run,%function\\n"
                "{before}tiny_run:\\n"
                {lines}
                "{after}.size tiny_run, . - tiny_run\\n"
                ".popsection\\n");
        #define tiny_run tiny_unused
        int tiny_unused(void *arena);
        """,
        layers=layers,
    )


def counted(instructions: int, board: Board) -> Bundle:
    """Return a bundle whose run function executes exactly this many instructions, its return included.

    Args:
        instructions: The number, a multiple of 4.
        board: The board, whose instruction set is used.
    """
    loops = (instructions - 4) // 4
    if board.toolchain == RISCV.name:
        code = f"""
        lui a1, %hi({loops})
        addi a1, a1, %lo({loops})
        1: nop
        nop
        addi a1, a1, -1
        bnez a1, 1b
        li a0, 0
        ret
        """
        return assembled(code, riscv=True)
    return assembled(
        f"""
        ldr r1, =tiny_loops
        ldr r1, [r1]
        1: nop
        nop
        subs r1, #1
        bne 1b
        movs r0, #0
        bx lr
        .balign 4
        tiny_loops: .word {loops}
        """
    )


def weights_file(sizes: Mapping[str, int], first: int = 1) -> str:
    """Return the C code of constant int8 arrays.

    Args:
        sizes: Number of elements of each array, by name.
        first: First element of each array; the others are 0.
    """
    arrays = (
        f"extern const int8_t {name}[];\nconst int8_t {name}[{size}] = {{{first}}};\n" for name, size in sizes.items()
    )
    return '#include "mcugen.h"\n' + "".join(arrays)


def random_samples(bundle: Bundle, count: int) -> list[dict[str, np.ndarray]]:
    """Return random inputs of a bundle."""
    random = np.random.default_rng(1)
    return [{p.name: random.integers(-100, 100, p.shape).astype(p.dtype) for p in bundle.inputs} for _ in range(count)]
