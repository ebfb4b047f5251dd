/* SPDX-License-Identifier: Apache-2.0 */
/* What the reference implementation's files share: checks of arguments, the library's arithmetic, its variants. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <string.h>

#include "arm_nnfunctions.h"

/* Libraries that are not the one expected: one that wants more memory and never looks whether it has it, and one whose
 * functions refuse every call. */
#if defined(REFERENCE_GREEDY)
#define GREED 1024
#else
#define GREED 0
#endif
#if defined(REFERENCE_REFUSES)
#define REFUSES true
#else
#define REFUSES false
#endif

/* Which variant of the library this stands for, plain, with DSP or with Helium: its buffers differ. */
#if defined(REFERENCE_MVE) || defined(__ARM_FEATURE_MVE)
#define REFERENCE_VARIANT 2
#elif defined(REFERENCE_DSP) || defined(__ARM_FEATURE_DSP)
#define REFERENCE_VARIANT 1
#else
#define REFERENCE_VARIANT 0
#endif
#define VARIANT(plain, dsp, mve) ((REFERENCE_VARIANT == 2 ? (mve) : REFERENCE_VARIANT == 1 ? (dsp) : (plain)) + GREED)

/* In functions that return arm_cmsis_nn_status: what the library asks of its caller. */
#define REQUIRE(condition) \
    do { \
        if (REFUSES || !(condition)) { \
            return ARM_CMSIS_NN_ARG_ERROR; \
        } \
    } while (0)

/* Whether a context has the memory that the library asks for, at a multiple of 4 if it asks for any. Spoils all of it,
 * so that memory that is not the layer's own shows in a result. */
static inline bool takes_scratch(const cmsis_nn_context *ctx, int32_t needed)
{
    if (needed <= 0) {
        return true;
    }
    if (ctx->buf == NULL || (ctx->size < needed && GREED == 0) || (uintptr_t)ctx->buf % 4u != 0) {
        return false;
    }
    memset(ctx->buf, 0x5a, (size_t)needed);
    return true;
}

/* Whether two tensors, given with their bytes, have no memory in common; or else the very same, if `may_match`. */
static inline bool are_apart(const void *a, int32_t a_size, const void *b, int32_t b_size, bool may_match)
{
    const uintptr_t a_at = (uintptr_t)a, b_at = (uintptr_t)b;
    return a_at + (uintptr_t)a_size <= b_at || b_at + (uintptr_t)b_size <= a_at
        || (may_match && a_at == b_at && a_size == b_size);
}

static inline int32_t count_of(const cmsis_nn_dims *dims)
{
    return dims->n * dims->h * dims->w * dims->c;
}

static inline bool is_codes(int32_t low, int32_t high, const cmsis_nn_activation *range)
{
    return low <= range->min && range->min <= range->max && range->max <= high;
}

/* What is divided by 2^exponent, rounded to the nearest, ties away from 0. */
static inline int32_t divide_by_power_of_two(int32_t v, int32_t exponent)
{
    const int64_t half = exponent > 0 ? (int64_t)1 << (exponent - 1) : 0;
    const int64_t magnitude = ((v < 0 ? -(int64_t)v : v) + half) >> exponent;
    return (int32_t)(v < 0 ? -magnitude : magnitude);
}

/* v * multiplier / 2^(31 - shift), rounded twice, or once (REFERENCE_SINGLE_ROUNDING). */
static inline int32_t requantize(int32_t v, int32_t multiplier, int32_t shift)
{
#if defined(REFERENCE_SINGLE_ROUNDING)
    return (int32_t)(((int64_t)v * multiplier + ((int64_t)1 << (30 - shift))) >> (31 - shift));
#else
    const int64_t shifted = (int64_t)v * ((int64_t)1 << (shift > 0 ? shift : 0));
    const int32_t high = (int32_t)((shifted * multiplier + ((int64_t)1 << 30)) >> 31);
    return divide_by_power_of_two(high, shift < 0 ? -shift : 0);
#endif
}

static inline int32_t clamp(int32_t v, const cmsis_nn_activation *range)
{
    return v < range->min ? range->min : v > range->max ? range->max : v;
}

#endif
