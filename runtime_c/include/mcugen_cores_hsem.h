/* SPDX-License-Identifier: 0BSD */
/* Signals between the Cortex-M7 and the Cortex-M4 of an STM32H745, H747, H755 or H757 by hardware semaphores (HSEM).
 *
 * Addresses, bits and interrupt numbers are those of public headers (ST's stm32h745xx.h for the interrupts, copies of
 * its HSEM part for the rest); RM0399 itself was not looked at, nor was any of it run on a board. A semaphore that is
 * taken and freed raises an interrupt on the core that listens to it. The interrupt stays disabled in the NVIC: pending
 * it wakes WFE (Armv7-M ARM, B3.2.7, SEVONPEND). Call mcugen_cores_hsem_init on both cores, with the HSEM's clock on
 * (RCC_AHB4ENR), before NAME_worker and NAME_run_cores.
 */
#ifndef MCUGEN_CORES_HSEM_H
#define MCUGEN_CORES_HSEM_H

#include <stdint.h>

#ifndef MCUGEN_REGISTER
#define MCUGEN_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#endif
#ifndef MCUGEN_HSEM_FIRST
#define MCUGEN_HSEM_FIRST 30u /* This semaphore signals the Cortex-M7, the next one the Cortex-M4. */
#endif

/* The CPUID tells which core this is (Armv7-M ARM, B3.2.3). */
#define MCUGEN_HSEM_IS_M7 ((MCUGEN_REGISTER(0xE000ED00u) & 0xFFF0u) == 0xC270u)
#define MCUGEN_HSEM(offset) MCUGEN_REGISTER(0x58026400u + (offset))
#define MCUGEN_HSEM_OURS (MCUGEN_HSEM_FIRST + (MCUGEN_HSEM_IS_M7 ? 0u : 1u))
#define MCUGEN_HSEM_THEIRS (MCUGEN_HSEM_FIRST + (MCUGEN_HSEM_IS_M7 ? 1u : 0u))
#define MCUGEN_HSEM_ID (MCUGEN_HSEM_IS_M7 ? 3u << 8 : 1u << 8) /* COREID of R and RLR */
#define MCUGEN_HSEM_LINE (MCUGEN_HSEM_IS_M7 ? 0x100u : 0x110u) /* IER, ICR, ISR, MISR of a core */
#define MCUGEN_HSEM_IRQ (MCUGEN_HSEM_IS_M7 ? 125u : 126u)

static inline void mcugen_cores_hsem_init(void)
{
    MCUGEN_REGISTER(0xE000ED10u) |= 1u << 4; /* SCR.SEVONPEND */
    MCUGEN_HSEM(MCUGEN_HSEM_LINE) |= 1u << MCUGEN_HSEM_OURS;
}

static inline void mcugen_cores_hsem_signal(void)
{
    __asm volatile("dsb" ::: "memory");
    (void)MCUGEN_HSEM(0x80u + 4u * MCUGEN_HSEM_THEIRS); /* Reading RLR takes the semaphore, */
    MCUGEN_HSEM(4u * MCUGEN_HSEM_THEIRS) = MCUGEN_HSEM_ID; /* and writing R frees it. */
}

static inline void mcugen_cores_hsem_wait(void)
{
    if ((MCUGEN_HSEM(MCUGEN_HSEM_LINE + 8u) & (1u << MCUGEN_HSEM_OURS)) == 0u) {
        __asm volatile("wfe" ::: "memory");
    }
    MCUGEN_HSEM(MCUGEN_HSEM_LINE + 4u) = 1u << MCUGEN_HSEM_OURS; /* ICR */
    MCUGEN_REGISTER(0xE000E280u + 4u * (MCUGEN_HSEM_IRQ / 32u)) = 1u << (MCUGEN_HSEM_IRQ % 32u); /* NVIC_ICPR */
    __asm volatile("dsb" ::: "memory");
}

#define MCUGEN_CORE_SIGNAL() mcugen_cores_hsem_signal()
#define MCUGEN_CORE_WAIT() mcugen_cores_hsem_wait()

#endif /* MCUGEN_CORES_HSEM_H */
