/* SPDX-License-Identifier: 0BSD */
/* Counts instructions with SysTick, a 24-bit counter that counts down and raises an interrupt at 0. */
#include "target.h"

#define SYST_CSR REGISTER(0xE000E010u)
#define SYST_RVR REGISTER(0xE000E014u)
#define SYST_CVR REGISTER(0xE000E018u)
#define ICSR REGISTER(0xE000ED04u)
#define SYST_ON_CPU_CLOCK_WITH_INTERRUPT 7u

static volatile uint32_t interrupts;

/* The handler always takes five instructions: mcugen subtracts them for every interrupt. */
__attribute__((naked)) void systick_handler(void) {
    __asm__ volatile(
        ".syntax unified\n"
        "ldr r0, =%c0\n"
        "ldr r1, [r0]\n"
        "adds r1, #1\n"
        "str r1, [r0]\n"
        "bx lr\n"
        ".ltorg"
        :
        : "i"(&interrupts));
}

void start_counter(void) {
    interrupts = 0;
    SYST_RVR = 0xFFFFFFu;
    SYST_CVR = 0;
    SYST_CSR = SYST_ON_CPU_CLOCK_WITH_INTERRUPT;
    while (SYST_CVR == 0) { /* SysTick loads its start value on the first tick */
    }
}

void stop_counter(void) {
    SYST_CSR = 0;
}

/* The last word tells whether an interrupt is pending. */
void read_counter(struct reading *reading) {
    __asm__ volatile("cpsid i" ::: "memory");
    reading->words[0] = SYST_CVR;
    reading->words[1] = interrupts;
    reading->words[2] = ICSR;
    __asm__ volatile("cpsie i" ::: "memory");
}

__attribute__((naked)) int run_nothing(void *arena) {
    (void)arena;
    __asm__ volatile("bx lr");
}

__attribute__((naked)) int run_known_loop(void *arena) {
    (void)arena;
    __asm__ volatile(
        ".syntax unified\n"
        "ldr r0, =100000\n"
        "1: subs r0, #1\n"
        "bne 1b\n"
        "bx lr\n"
        ".ltorg");
}
