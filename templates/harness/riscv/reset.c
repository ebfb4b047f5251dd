/* SPDX-License-Identifier: 0BSD */
/* Reset and traps of a RISC-V CPU in machine mode. */
#include "harness.h"
#include "target.h"

void reset_handler(void);
void trap_handler(void);

/* From the linker script: the last one is where the library's errno lies. */
extern char __global_pointer$[], thread_locals[];

/* QEMU starts at the first address of its RAM, whatever the ELF file says. */
__attribute__((naked, noreturn, section(".vectors"), used)) void reset_handler(void) {
    __asm__ volatile(
        ".option push\n"
        ".option norelax\n"
        ".option arch, +zicsr\n"
        "la gp, __global_pointer$\n"
        "la tp, thread_locals\n"
        "la sp, stack_top\n"
        "la t0, trap_handler\n"
        "csrw mtvec, t0\n"
#if defined(__riscv_flen)
        "li t0, 1 << 13\n" /* mstatus.FS: initial */
        "csrs mstatus, t0\n"
        "csrw fcsr, zero\n"
#endif
        "tail start\n"
        ".option pop");
}

/* Where the stack ends, for it may be what is wrong; nothing returns. */
__attribute__((naked, noreturn, aligned(4), used)) void trap_handler(void) {
    __asm__ volatile(
        ".option push\n"
        ".option arch, +zicsr\n"
        "la sp, stack_top\n"
        "csrr a0, mcause\n"
        "csrr a1, mepc\n"
        "tail report_fault\n"
        ".option pop");
}
