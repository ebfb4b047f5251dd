/* SPDX-License-Identifier: 0BSD */
/* Functions of the test firmware that depend on an Arm M-profile CPU. */
#ifndef CPU_H
#define CPU_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

void systick_handler(void);
void enable_cpu_features(void);

static inline uint32_t semihosting(uint32_t operation, const void *arguments) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = arguments;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static inline uint32_t *stack_pointer(void) {
    uint32_t *sp;
    __asm__ volatile("mov %0, sp" : "=r"(sp));
    return sp;
}

#endif
