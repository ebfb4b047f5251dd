/* SPDX-License-Identifier: 0BSD */
/* Memory for two models: an arena each, or, with SHARED_ARENA, one for both, as large as the larger one needs. Whoever
 * includes this defines that first; and where models run in several tasks, the two functions that lock a shared one. */
#ifndef ARENA_H
#define ARENA_H

#include "digits.h"
#include "keyword.h"

#if SHARED_ARENA
static union {
    uint8_t digits[DIGITS_ARENA_SIZE];
    uint8_t keyword[KEYWORD_ARENA_SIZE];
} arena MCUGEN_ALIGN(DIGITS_ARENA_ALIGN);
#else
static struct {
    uint8_t digits[DIGITS_ARENA_SIZE] MCUGEN_ALIGN(DIGITS_ARENA_ALIGN);
    uint8_t keyword[KEYWORD_ARENA_SIZE] MCUGEN_ALIGN(KEYWORD_ARENA_ALIGN);
} arena;

static inline void lock_arena(void)
{
}

static inline void unlock_arena(void)
{
}
#endif

#endif
