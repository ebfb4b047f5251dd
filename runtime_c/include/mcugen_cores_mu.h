/* SPDX-License-Identifier: 0BSD */
/* Signals between the Cortex-M7 and the Cortex-M4 of an i.MX RT1170 by its messaging unit (MU).
 *
 * Addresses, bits and interrupt numbers are those of NXP's device headers (MIMXRT1176_cm7_COMMON.h and _cm4_COMMON.h,
 * PERI_MU.h, PERI_LMEM.h, fsl_mu.h). Not checked: IMXRT1170RM, and any of it on a board. A bit of the control register
 * raises a general purpose interrupt on the other side, whose status bit stays until it is written. The interrupt stays
 * disabled in the NVIC: pending it wakes WFE (Armv7-M ARM, B3.2.7, SEVONPEND). Call mcugen_cores_mu_init on both cores,
 * with the MU's clock on, before NAME_worker and NAME_run_cores.
 */
#ifndef MCUGEN_CORES_MU_H
#define MCUGEN_CORES_MU_H

#include <stdint.h>

#ifndef MCUGEN_REGISTER
#define MCUGEN_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#endif

/* Side A belongs to the Cortex-M7; the CPUID tells which core this is (Armv7-M ARM, B3.2.3). */
#define MCUGEN_MU_IS_M7 ((MCUGEN_REGISTER(0xE000ED00u) & 0xFFF0u) == 0xC270u)
#define MCUGEN_MU_BASE (MCUGEN_MU_IS_M7 ? 0x40C48000u : 0x40C4C000u)
#define MCUGEN_MU_SR MCUGEN_REGISTER(MCUGEN_MU_BASE + 0x20u)
#define MCUGEN_MU_CR MCUGEN_REGISTER(MCUGEN_MU_BASE + 0x24u)
#define MCUGEN_MU_GIE0 (1u << 31) /* CR: interrupt 0 is enabled */
#define MCUGEN_MU_GIR0 (1u << 19) /* CR: raises interrupt 0 on the other side */
#define MCUGEN_MU_KEPT 0xFFF00007u /* CR: interrupt enables and flags, which other code may use */
#define MCUGEN_MU_GIP0 (1u << 31) /* SR: interrupt 0 is pending; writing 1 clears it */
#define MCUGEN_MU_IRQ 118u

static inline void mcugen_cores_mu_init(void)
{
    MCUGEN_REGISTER(0xE000ED10u) |= 1u << 4; /* SCR.SEVONPEND */
    MCUGEN_MU_CR = (MCUGEN_MU_CR & MCUGEN_MU_KEPT) | MCUGEN_MU_GIE0;
}

static inline void mcugen_cores_mu_signal(void)
{
    __asm volatile("dsb" ::: "memory");
    if ((MCUGEN_MU_CR & MCUGEN_MU_GIR0) == 0u) { /* A signal that is still pending serves as well. */
        MCUGEN_MU_CR = (MCUGEN_MU_CR & MCUGEN_MU_KEPT) | MCUGEN_MU_GIR0;
    }
}

static inline void mcugen_cores_mu_wait(void)
{
    if ((MCUGEN_MU_SR & MCUGEN_MU_GIP0) == 0u) {
        __asm volatile("wfe" ::: "memory");
    }
    MCUGEN_MU_SR = MCUGEN_MU_GIP0;
    MCUGEN_REGISTER(0xE000E280u + 4u * (MCUGEN_MU_IRQ / 32u)) = 1u << (MCUGEN_MU_IRQ % 32u); /* NVIC_ICPR */
    __asm volatile("dsb" ::: "memory");
}

/* For mcugen_cores_cache.h: the local memory controller (LMEM) executes commands of the Cortex-M4's cache. PSCLCR and
 * PSCSAR invalidate the line of a physical address. */
static inline void mcugen_cores_mu_invalidate_line(uint32_t line)
{
    if (MCUGEN_MU_IS_M7) {
        MCUGEN_REGISTER(0xE000EF5Cu) = line; /* DCIMVAC */
    } else {
        MCUGEN_REGISTER(0xE0082804u) = (1u << 26) | (1u << 24); /* command: invalidate by address */
        MCUGEN_REGISTER(0xE0082808u) = line | 1u;               /* start */
        while ((MCUGEN_REGISTER(0xE0082808u) & 1u) != 0u) {
        }
    }
}

#define MCUGEN_CACHE_INVALIDATE_LINE(line) mcugen_cores_mu_invalidate_line(line)
#define MCUGEN_CORE_SIGNAL() mcugen_cores_mu_signal()
#define MCUGEN_CORE_WAIT() mcugen_cores_mu_wait()

#endif /* MCUGEN_CORES_MU_H */
