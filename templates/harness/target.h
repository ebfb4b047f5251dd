/* SPDX-License-Identifier: 0BSD */
/* What start-up, semihosting and measurement share on a target. What is the CPU's own lies in a folder of its own:
 * cpu.h, reset.c and counter.c. */
#ifndef TARGET_H
#define TARGET_H

#include <stdint.h>

#include "cpu.h"

/* Ends QEMU with this exit code. */
__attribute__((noreturn)) void semihosting_exit(uint32_t code);

/* Reset and faults end here, as soon as C can run. */
__attribute__((noreturn)) void start(void);
__attribute__((noreturn)) void report_fault(uint32_t exception, uint32_t pc);

/* What tells the instructions retired so far; mcugen knows how (mcugen/simulation/timer.py). */
struct reading {
    uint32_t words[3];
};

void start_counter(void);
void stop_counter(void);

/* Without a branch: it must take the same time whenever it is called. */
void read_counter(struct reading *reading);

/* One instruction: the return. */
int run_nothing(void *arena);

/* 200002 instructions: one before the loop, the loop, the return. */
int run_known_loop(void *arena);

/* From the linker script. */
extern uint32_t stack_bottom[], stack_top[];

#endif
