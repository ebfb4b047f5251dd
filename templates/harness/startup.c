/* SPDX-License-Identifier: 0BSD */
/* Vectors, reset and faults of an Arm M-profile CPU. */
#include "harness.h"
#include "target.h"

#define CCR REGISTER(0xE000ED14u)
#define CCR_UNALIGN_TRP (1u << 3)
#define CPACR REGISTER(0xE000ED88u)

int main(void);
void reset_handler(void);
void fault_handler(void);
void report_fault(const uint32_t *frame);

/* The hardware pushed r0-r3, r12, lr, pc, xpsr. */
__attribute__((used)) void report_fault(const uint32_t *frame) {
    uint32_t exception;
    __asm__ volatile("mrs %0, ipsr" : "=r"(exception));
    harness_print("fault", (const uint32_t[]){exception, frame[6]}, 2);
    semihosting_exit(1);
}

__attribute__((naked)) void fault_handler(void) {
    __asm__ volatile("mov r0, sp\n bl report_fault");
}

static void copy_data_and_clear_bss(void) {
    const uint32_t *from = data_image;
    for (volatile uint32_t *to = data_begin; to < data_end; to++) {
        *to = *from++;
    }
    for (const struct copy *copy = copies_begin; copy < copies_end; copy++) {
        const uint32_t *image = copy->image;
        for (volatile uint32_t *to = copy->begin; to < copy->end; to++) {
            *to = *image++;
        }
    }
    for (volatile uint32_t *to = bss_begin; to < bss_end; to++) {
        *to = 0;
    }
}

static void enable_cpu_features(void) {
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    CPACR |= 0xFu << 20;
    __asm__ volatile("dsb\n isb");
#endif
#if !defined(__ARM_FEATURE_UNALIGNED)
    /* Cortex-M0+ code on a larger CPU: what would fault there must fault here. */
    CCR |= CCR_UNALIGN_TRP;
#endif
}

__attribute__((noreturn)) void reset_handler(void) {
    enable_cpu_features();
    copy_data_and_clear_bss();
    semihosting_exit((uint32_t)main());
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
