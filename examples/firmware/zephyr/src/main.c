/* SPDX-License-Identifier: 0BSD */
/* Two models in two threads. One waits for pictures, which a timer puts into two buffers by turns as a DMA would; the
 * other has a higher priority and runs by the clock, in the middle of the first one's layers.
 *
 * Each has an arena of its own; or, with CONFIG_SHARED_ARENA, both share one under a mutex. */
#include <string.h>
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#ifdef CONFIG_SHARED_ARENA
#define SHARED_ARENA 1
#else
#define SHARED_ARENA 0
#endif

#include "arena.h"
#include "classify.h"

#define PICTURES (2u * IMAGES)

#if SHARED_ARENA
static K_MUTEX_DEFINE(arena_lock);

static void lock_arena(void)
{
    k_mutex_lock(&arena_lock, K_FOREVER);
}

static void unlock_arena(void)
{
    k_mutex_unlock(&arena_lock);
}
#endif

/* Two buffers: the timer fills one while the program reads the other. */
static uint8_t buffers[2][PIXELS];
static uint32_t shown[2];
static uint32_t filling, delivered; /* only the timer's */
static volatile uint32_t lost;
static uint8_t *volatile ready; /* the timer sets it, the program clears it */
static K_SEM_DEFINE(pictures, 0, 1);

static void on_transfer(struct k_timer *timer)
{
    (void)timer;
    memcpy(buffers[filling], images[delivered % IMAGES], PIXELS);
    shown[filling] = delivered++ % IMAGES;
    if (ready != NULL) {
        ++lost; /* the same buffer is filled again */
        return;
    }
    ready = buffers[filling];
    filling ^= 1u;
    k_sem_give(&pictures);
}

static K_TIMER_DEFINE(camera, on_transfer, NULL);

static volatile uint32_t keyword_runs, keyword_passed;

static void spot_keywords(void *a, void *b, void *c)
{
    (void)a;
    (void)b;
    (void)c;
    for (;;) {
        lock_arena();
        const int status = keyword_selftest(arena.keyword);
        unlock_arena();
        keyword_passed += status == MCUGEN_OK;
        ++keyword_runs;
        k_msleep(5);
    }
}

K_THREAD_DEFINE(keywords, 4096, spot_keywords, NULL, NULL, NULL, -1, 0, 0);

int main(void)
{
    uint32_t seen = 0, right = 0;
    k_timer_start(&camera, K_MSEC(20), K_MSEC(20));
    while (seen < PICTURES) {
        k_sem_take(&pictures, K_FOREVER);
        lock_arena();
        right += classify(arena.digits, ready) == shown[ready == buffers[1]];
        unlock_arena();
        ready = NULL;
        ++seen;
    }
    k_timer_stop(&camera);
    printk("digits: %u of %u right, %u lost\n", (unsigned)right, (unsigned)seen, (unsigned)lost);
    printk("keyword: %u of %u self-tests passed\n", (unsigned)keyword_passed, (unsigned)keyword_runs);
    return 0;
}
