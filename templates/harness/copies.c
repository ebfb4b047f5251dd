/* SPDX-License-Identifier: 0BSD */
/* Copies of weights for --copy-ahead: each is complete as soon as it begins. */
#include "copies.h"
#include <stdint.h>

__attribute__((noipa)) void mcugen_harness_copy_begin(void *to, const void *from, size_t nbytes) {
    const size_t words = (((uintptr_t)to | (uintptr_t)from) & 3u) == 0u ? nbytes / 4u : 0u;
    size_t i;
    for (i = 0; i < words; i++) {
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
    }
    for (i = 4u * words; i < nbytes; i++) {
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    }
}

__attribute__((noipa)) void mcugen_harness_copy_end(void *to, size_t nbytes) {
    (void)to;
    (void)nbytes;
}
