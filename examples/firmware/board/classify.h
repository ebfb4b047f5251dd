/* SPDX-License-Identifier: 0BSD */
/* The model `digits` on one picture. */
#ifndef CLASSIFY_H
#define CLASSIFY_H

#include "digits.h"
#include "images.h"

/* The digit that the picture shows; IMAGES if the model fails. */
static inline uint32_t classify(void *arena, const uint8_t *picture)
{
    float *input = digits_input(arena);
    for (uint32_t i = 0; i < PIXELS; ++i) {
        input[i] = (float)picture[i] / 16.0f;
    }
    if (digits_run(arena) != MCUGEN_OK) {
        return IMAGES;
    }
    const float *scores = digits_output(arena);
    uint32_t best = 0;
    for (uint32_t i = 1; i < DIGITS_OUTPUT_COUNT; ++i) {
        best = scores[i] > scores[best] ? i : best;
    }
    return best;
}

#endif /* CLASSIFY_H */
