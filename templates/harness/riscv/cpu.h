/* SPDX-License-Identifier: 0BSD */
/* What the test firmware needs of a RISC-V CPU. */
#ifndef CPU_H
#define CPU_H

#include <stdint.h>

/* The three instructions by which a debugger knows a call must be long ones, and lie in one page. */
static inline uint32_t semihosting(uint32_t operation, const void *arguments) {
    register uint32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = arguments;
    __asm__ volatile(
        ".option push\n"
        ".option norvc\n"
        ".balign 16\n"
        "slli x0, x0, 0x1f\n"
        "ebreak\n"
        "srai x0, x0, 7\n"
        ".option pop"
        : "+r"(a0)
        : "r"(a1)
        : "memory");
    return a0;
}

static inline uint32_t *stack_pointer(void) {
    uint32_t *sp;
    __asm__ volatile("mv %0, sp" : "=r"(sp));
    return sp;
}

#endif
