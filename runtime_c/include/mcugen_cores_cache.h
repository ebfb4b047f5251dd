/* SPDX-License-Identifier: 0BSD */
/* Data caches of an Armv7-M core before memory that another core writes as well.
 *
 * The arena's memory is made write-through by a region of the MPU (Armv7-M ARM, B3.5), so that what a core wrote is in
 * memory, and no line of its cache ever overwrites what the other wrote beside it. What the other core wrote is
 * invalidated by address (B2.2.7) before it is read: NAME.c says which bytes. NAME_cores, at a multiple of the cache's
 * lines, and NAME_state lie there, too. Write-through is not to be relied upon on a Cortex-M7 before r1p2 (Arm's
 * erratum 1259864): there, make the region non-cacheable by mcugen_cores_uncached. That is so on STM32H7 (r1p1), not
 * on i.MX RT1170 (r1p2). Source: PX4-Autopilot's pull requests 11769 and 21778, quartiq's stabilizer 83; CPUID tells
 * the revision. DCIMVAC is as in copies of CMSIS core_cm7.h, the codes of the MPU's types of memory as in ST's PM0214,
 * table 39. The MPU's registers are at the addresses of Arm DDI 0439D, table 5-1. Nothing of it was run on a board.
 * */
#ifndef MCUGEN_CORES_CACHE_H
#define MCUGEN_CORES_CACHE_H

#include <stdint.h>

#ifndef MCUGEN_REGISTER
#define MCUGEN_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#endif
#ifndef MCUGEN_CACHE_LINE
#define MCUGEN_CACHE_LINE 32u
#endif
#ifndef MCUGEN_CACHE_INVALIDATE_LINE
#define MCUGEN_CACHE_INVALIDATE_LINE(line) (MCUGEN_REGISTER(0xE000EF5Cu) = (line)) /* DCIMVAC */
#endif

/* Defines a region of the MPU with this memory type: its number, and its start, a multiple of its size of 2^size_log2
 * bytes. */
static inline void mcugen_cores_region(uint32_t region, uint32_t base, uint32_t size_log2, uint32_t type)
{
    __asm volatile("dmb" ::: "memory");
    MCUGEN_REGISTER(0xE000ED98u) = region; /* RNR */
    MCUGEN_REGISTER(0xE000ED9Cu) = base;   /* RBAR */
    MCUGEN_REGISTER(0xE000EDA0u) = (1u << 28) | (3u << 24) | type | ((size_log2 - 1u) << 1) | 1u; /* RASR: never code */
    MCUGEN_REGISTER(0xE000ED94u) |= 5u;    /* CTRL: enabled, with the default map elsewhere */
    __asm volatile("dsb\n\tisb" ::: "memory");
}

/* To be called before the arena is used: no line of the arena may be in the cache. */
static inline void mcugen_cores_write_through(uint32_t region, uint32_t base, uint32_t size_log2)
{
    mcugen_cores_region(region, base, size_log2, (uint32_t)1u << 17); /* TEX 0, C, no B, not shared */
}

static inline void mcugen_cores_uncached(uint32_t region, uint32_t base, uint32_t size_log2)
{
    mcugen_cores_region(region, base, size_log2, (uint32_t)1u << 19); /* TEX 1, no C, no B */
}

static inline void mcugen_cores_invalidate(const void *from, uint32_t nbytes)
{
    /* cppcheck-suppress misra-c2012-11.6 ; the cache is told of lines by their addresses */
    const uintptr_t begin = (uintptr_t)from, end = begin + nbytes;
    uintptr_t line = begin - begin % MCUGEN_CACHE_LINE;
    __asm volatile("dsb" ::: "memory");
    for (; line < end; line += MCUGEN_CACHE_LINE) {
        MCUGEN_CACHE_INVALIDATE_LINE((uint32_t)line);
    }
    __asm volatile("dsb" ::: "memory");
}

static inline uint32_t mcugen_cores_load(const uint32_t *word)
{
    mcugen_cores_invalidate(word, 4u);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

#define MCUGEN_CORE_LOAD(p) mcugen_cores_load(p)
#define MCUGEN_CORE_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define MCUGEN_CORE_INVALIDATE(from, nbytes) mcugen_cores_invalidate((from), (nbytes))

#endif /* MCUGEN_CORES_CACHE_H */
