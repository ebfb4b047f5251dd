/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline over frames on two threads: each frame has the bits of one core, and faults end as the header says. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(SIGNALS)
#include "signals.h"
#endif
#include "net.c"

#define FRAMES 12

static net_cores cores;
static MCUGEN_ALIGN(16) unsigned char one[NET_ARENA_SIZE], two[NET_ARENA_SIZE];
static unsigned char expected[FRAMES][NET_OUTPUT_BYTES];

static void *work(void *context)
{
    return (void *)(intptr_t)net_worker(context);
}

static void fill(void *arena, unsigned seed)
{
    unsigned char *to = (unsigned char *)net_input(arena);
    for (unsigned i = 0; i < NET_INPUT_BYTES; ++i) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (unsigned char)(seed >> 24);
    }
}

static int push(unsigned frame)
{
    fill(two, frame);
    return net_push(&cores, two);
}

static int gives(int status, unsigned frame)
{
    return status == MCUGEN_OK && memcmp(net_output(two), expected[frame], NET_OUTPUT_BYTES) == 0;
}

/* All frames, one after the other: how many gave the bits of one core. */
static int frames(void)
{
    int good = push(0) == MCUGEN_AGAIN;
    for (unsigned n = 1; n < FRAMES; ++n) {
        good += gives(push(n), n - 1);
    }
    return good + gives(net_pull(&cores, two), FRAMES - 1);
}

int main(void)
{
    pthread_t thread;
    void *result;
#if defined(SIGNALS)
    sem_init(&signals, 0, 0);
#endif
    for (unsigned n = 0; n < FRAMES; ++n) {
        fill(one, n);
        if (net_run(one) != MCUGEN_OK) {
            return 1;
        }
        memcpy(expected[n], net_output(one), NET_OUTPUT_BYTES);
    }
    printf("differ %d\n", memcmp(expected[0], expected[1], NET_OUTPUT_BYTES) != 0);
    printf("nothing %d\n", net_pull(&cores, two));
    printf("alone %d\n", frames());
    printf("posted %u\n", cores.link.posted);
    /* A worker that has died: the first frame needs none. */
    cores.link.started = 1;
    cores.link.patience = 10000;
    printf("begun %d\n", push(0));
    printf("dead %d\n", push(1));
    printf("still dead %d\n", push(1));
    printf("lost %d\n", net_pull(&cores, two));
    /* It comes late, and does what was posted. */
    cores.link.started = 0;
    cores.link.patience = 0;
    pthread_create(&thread, NULL, work, &cores);
    while (MCUGEN_CORE_LOAD(&cores.link.started) == 0u) {
    }
    while (mcugen_cores_join(&cores.link) != MCUGEN_OK) {
    }
    printf("late %d\n", frames());
    printf("twice %d\n", net_worker(&cores));
    printf("again %d\n", frames());
    /* Stopped between frames: this core goes on. */
    printf("before %d\n", push(0) == MCUGEN_AGAIN && gives(push(1), 0));
    mcugen_cores_stop(&cores.link);
#if defined(SIGNALS)
    sem_post(&signals); /* that of stopping may be lost for good */
#endif
    pthread_join(thread, &result);
    printf("stopped %d\n", (int)(intptr_t)result);
    printf("behind %d\n", gives(push(2), 1) && gives(net_pull(&cores, two), 2));
    printf("null %d\n", net_push(NULL, two));
    return 0;
}
