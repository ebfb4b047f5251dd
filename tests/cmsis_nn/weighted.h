/* SPDX-License-Identifier: Apache-2.0 */
/* What layers with weights share: sums over a window, and the requantization of a channel. */
#ifndef WEIGHTED_H
#define WEIGHTED_H

#include "reference.h"

/* A weight of 8 bits, or of 4: two a byte, the first in the lower half. */
static inline int32_t weight(const int8_t *w, bool is_small, int32_t at)
{
    const int32_t nibble = ((uint8_t)w[at / 2] >> (at % 2 * 4)) & 0xf;
    return is_small ? (nibble ^ 8) - 8 : w[at];
}

/* Of one axis: every window within the sizes that the library counts in 16 bits; padding behind the input follows. */
static inline bool is_axis(int32_t in, int32_t kernel, int32_t stride, int32_t dilation, int32_t pad, int32_t out)
{
    return in > 0 && kernel > 0 && stride > 0 && dilation > 0 && pad >= 0 && out > 0 && in < 32768 && out < 32768;
}

static inline bool are_offsets(int32_t input, int32_t output, const cmsis_nn_activation *range)
{
    return input >= -127 && input <= 128 && output >= -128 && output <= 127 && is_codes(-128, 127, range);
}

/* M of 31 bits, and a shift to the left that keeps any sum of a layer within 64 bits. */
static inline bool are_multipliers(const int32_t *multiplier, const int32_t *shift, int32_t count)
{
    for (int32_t c = 0; c < count; ++c) {
        if (multiplier[c] < 0 || shift[c] < -31 || shift[c] > 30) {
            return false;
        }
    }
    return true;
}

/* What lies before and behind x counts as the zero point, which the offset makes 0. */
static inline int32_t pixel(const int8_t *x, const cmsis_nn_dims *xd, int32_t row, int32_t column, int32_t channel,
    int32_t offset)
{
    const bool is_inside = row >= 0 && row < xd->h && column >= 0 && column < xd->w;
    return is_inside ? x[(row * xd->w + column) * xd->c + channel] + offset : 0;
}

#endif
