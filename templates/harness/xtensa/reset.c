/* SPDX-License-Identifier: 0BSD */
/* Reset and exceptions of an Xtensa LX106 without an operating system. */
#include "harness.h"
#include "target.h"

/* QEMU starts at the first address of the CPU's system ROM, whatever the ELF file says. Exceptions go to the vector base
 * plus 0x30 (kernel), 0x50 (user) and 0x70 (double); the base is a multiple of 256. The stack may be what is wrong: an
 * exception continues where the stack ends, and nothing returns. */
__asm__(".section .vectors, \"ax\"\n"
        ".global reset_handler\n"
        "reset_handler:\n"
        "j begin\n"
        ".balign 256\n"
        "vector_base:\n"
        ".org vector_base + 0x30\n"
        "j fault\n"
        ".org vector_base + 0x50\n"
        "j fault\n"
        ".org vector_base + 0x70\n"
        "j fault\n"
        ".section .text.reset, \"ax\"\n"
        ".balign 4\n"
        "begin:\n"
        "movi a1, stack_top\n"
        "movi a2, vector_base\n"
        "wsr.vecbase a2\n"
        "movi a2, 15\n" /* PS: no interrupts, and no exception under way, as after a reset */
        "wsr.ps a2\n"
        "rsync\n"
        "movi a0, 0\n"
        "movi a2, start\n"
        "jx a2\n"
        "fault:\n"
        "movi a1, stack_top\n"
        "rsr.exccause a2\n"
        "rsr.epc1 a3\n"
        "movi a4, report_fault\n"
        "jx a4\n"
        ".text\n");
