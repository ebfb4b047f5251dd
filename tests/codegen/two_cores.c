/* SPDX-License-Identifier: Apache-2.0 */
/* A model on two threads: that its bits are those of one, and what becomes of workers that fail. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "signals.h"
#include "net.c"

static net_cores cores;
static MCUGEN_ALIGN(16) unsigned char one[NET_ARENA_SIZE], two[NET_ARENA_SIZE];

static void *work(void *context)
{
    return (void *)(intptr_t)net_worker(context);
}

static void fill(unsigned seed)
{
    unsigned char *a = (unsigned char *)net_input(one), *b = (unsigned char *)net_input(two);
    for (unsigned i = 0; i < NET_INPUT_BYTES; ++i) {
        seed = seed * 1664525u + 1013904223u;
        a[i] = b[i] = (unsigned char)(seed >> 24);
    }
}

/* 1 if both gave the same. */
static int same(unsigned seed)
{
    fill(seed);
    const int first = net_run(one), second = net_run_cores(&cores, two);
    return first == MCUGEN_OK && second == MCUGEN_OK && memcmp(net_output(one), net_output(two), NET_OUTPUT_BYTES) == 0;
}

static int run_two(unsigned seed)
{
    fill(seed);
    return net_run_cores(&cores, two);
}

int main(void)
{
    pthread_t thread, second;
    void *result;
    int good = 0;
    sem_init(&signals, 0, 0);
    printf("alone %d\n", same(1));
    printf("portions %u\n", cores.link.posted);
    /* A worker that has died: nothing answers. */
    cores.link.started = 1;
    cores.link.patience = 10000;
    printf("dead %d\n", run_two(2));
    printf("still dead %d\n", run_two(2));
    /* It comes late, and does what was posted. */
    cores.link.started = 0;
    cores.link.patience = 0;
    pthread_create(&thread, NULL, work, &cores);
    while (MCUGEN_CORE_LOAD(&cores.link.started) == 0u) {
    }
    while (mcugen_cores_join(&cores.link) != MCUGEN_OK) {
    }
    printf("late %d\n", same(3));
    pthread_create(&second, NULL, work, &cores);
    pthread_join(second, &result);
    printf("twice %d\n", (int)(intptr_t)result);
    for (unsigned i = 0; i < 20; ++i) {
        good += same(4 + i);
    }
    printf("same %d\n", good);
    mcugen_cores_stop(&cores.link);
    sem_post(&signals);
    pthread_join(thread, &result);
    printf("stopped %d\n", (int)(intptr_t)result);
    printf("alone again %d\n", same(5));
    printf("selftest %d\n", net_selftest(one));
    return 0;
}
