/* SPDX-License-Identifier: Apache-2.0 */
/* Two models at once, each on a thread and in an arena of its own: the bits of one after the other. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "first.h"
#include "second.h"

enum { RUNS = 4 };

static MCUGEN_ALIGN(16) unsigned char one[FIRST_ARENA_SIZE], two[SECOND_ARENA_SIZE];
static unsigned char expected[2][RUNS][64], found[2][RUNS][64];

static void fill(void *to, uint32_t nbytes, uint32_t seed)
{
    for (uint32_t i = 0; i < nbytes; ++i) {
        seed = seed * 1664525u + 1013904223u;
        ((unsigned char *)to)[i] = (unsigned char)(seed >> 24);
    }
}

static void *run_first(void *results)
{
    for (uint32_t i = 0; i < RUNS; ++i) {
        fill(first_input(one), FIRST_INPUT_BYTES, i);
        if (first_run(one) == MCUGEN_OK) {
            memcpy(((unsigned char(*)[64])results)[i], first_output(one), FIRST_OUTPUT_BYTES);
        }
    }
    return NULL;
}

static void *run_second(void *results)
{
    for (uint32_t i = 0; i < RUNS; ++i) {
        fill(second_input(two), SECOND_INPUT_BYTES, i);
        if (second_run(two) == MCUGEN_OK) {
            memcpy(((unsigned char(*)[64])results)[i], second_output(two), SECOND_OUTPUT_BYTES);
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    run_first(expected[0]);
    run_second(expected[1]);
    pthread_create(&thread, NULL, run_second, found[1]);
    run_first(found[0]);
    pthread_join(thread, NULL);
    printf("same %d\n", memcmp(found, expected, sizeof found) == 0);
    printf("empty %d\n", memcmp(expected[0][0], expected[0][1], 64) == 0 || memcmp(expected[1][0], expected[1][1], 64) == 0);
    return 0;
}
