/* SPDX-License-Identifier: 0BSD */
/* Vectors, reset and faults of an Arm M-profile CPU. */
#include "harness.h"
#include "target.h"

#define CCR REGISTER(0xE000ED14u)
#define CCR_UNALIGN_TRP (1u << 3)
#define CPACR REGISTER(0xE000ED88u)

void reset_handler(void);
void fault_handler(void);
void report_frame(const uint32_t *frame);

/* The hardware pushed r0-r3, r12, lr, pc, xpsr. */
__attribute__((used)) void report_frame(const uint32_t *frame) {
    uint32_t exception;
    __asm__ volatile("mrs %0, ipsr" : "=r"(exception));
    report_fault(exception, frame[6]);
}

__attribute__((naked)) void fault_handler(void) {
    __asm__ volatile("mov r0, sp\n bl report_frame");
}

void enable_cpu_features(void) {
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    CPACR |= 0xFu << 20;
    __asm__ volatile("dsb\n isb");
#endif
#if !defined(__ARM_FEATURE_UNALIGNED)
    /* Cortex-M0+ code on a larger CPU: unaligned accesses, which fault on Cortex-M0+, must fault here as well. */
    CCR |= CCR_UNALIGN_TRP;
#endif
}

__attribute__((noreturn)) void reset_handler(void) {
    enable_cpu_features();
    start();
}

struct vectors {
    uint32_t *stack;
    void (*handlers[15])(void);
};
extern const struct vectors vectors;
__attribute__((section(".vectors"), used)) const struct vectors vectors = {
    stack_top,
    {reset_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler,
     fault_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler,
     systick_handler},
};
