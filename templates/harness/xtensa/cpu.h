/* SPDX-License-Identifier: 0BSD */
/* What the test firmware needs of an Xtensa CPU with the CALL0 ABI. */
#ifndef CPU_H
#define CPU_H

#include <stdint.h>

/* Numbers of the Xtensa simulator's calls, which the instruction SIMCALL makes. */
enum { SIM_EXIT = 1, SIM_READ = 3, SIM_WRITE = 4, SIM_OPEN = 5, SIM_STDOUT = 1, SIM_READ_ONLY = 0, SIM_WRITE_ONLY = 1 };

static inline uint32_t simulator_call(uint32_t number, uint32_t first, uint32_t second, uint32_t third) {
    register uint32_t a2 __asm__("a2") = number;
    register uint32_t a3 __asm__("a3") = first;
    register uint32_t a4 __asm__("a4") = second;
    register uint32_t a5 __asm__("a5") = third;
    __asm__ volatile("simcall" : "+r"(a2), "+r"(a3) : "r"(a4), "r"(a5) : "memory");
    return a2;
}

/* Translates the five calls of semihosting.c: Xtensa has other numbers and arguments than Arm and RISC-V, and returns
 * how many bytes were moved rather than how many are missing. */
static inline uint32_t semihosting(uint32_t operation, const void *arguments) {
    const uint32_t *values = arguments;
    const char *text = arguments;
    uint32_t length = 0;
    switch (operation) {
    case 0x01: /* SYS_OPEN: name, mode (1 reads), length of the name */
        return simulator_call(SIM_OPEN, values[0], values[1] == 1u ? SIM_READ_ONLY : SIM_WRITE_ONLY, 0);
    case 0x04: /* SYS_WRITE0 */
        while (text[length] != '\0') {
            length++;
        }
        return simulator_call(SIM_WRITE, SIM_STDOUT, (uint32_t)text, length);
    case 0x05: /* SYS_WRITE: handle, address, size */
        return values[2] - simulator_call(SIM_WRITE, values[0], values[1], values[2]);
    case 0x06: /* SYS_READ, likewise */
        return values[2] - simulator_call(SIM_READ, values[0], values[1], values[2]);
    default: /* SYS_EXIT_EXTENDED: reason, exit code */
        return simulator_call(SIM_EXIT, values[1], 0, 0);
    }
}

static inline uint32_t *stack_pointer(void) {
    uint32_t *sp;
    __asm__ volatile("mov %0, a1" : "=r"(sp));
    return sp;
}

#endif
