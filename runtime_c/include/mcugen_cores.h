/* SPDX-License-Identifier: 0BSD */
/* One model on two cores that share memory: the protocol between a run and a worker.
 *
 * NAME_run_cores posts shards of layers, which NAME_worker computes on the other core. Macros for the chip, to be
 * defined before including this file, in the compiler flags of NAME.c:
 *   MCUGEN_CORE_SIGNAL()    wakes the other core; the signal may be lost, or come twice
 *   MCUGEN_CORE_WAIT()      the worker sleeps until a signal, or any shorter time; by default it polls
 *   MCUGEN_CORE_POLL()      is called while a run waits for a shard; by default nothing
 *   MCUGEN_CORE_PATIENCE    polls after which a run gives up, if mcugen_cores.patience is 0
 *   MCUGEN_CORE_LOAD(p), MCUGEN_CORE_STORE(p, v)  access words with acquire and release order
 *   MCUGEN_CORE_INVALIDATE(p, n)  drops bytes that the other core wrote from this core's data cache
 * or one of MCUGEN_CORES_SEV (cores whose SEV wakes the WFE of the other, as on RP2040 and RP2350), MCUGEN_CORES_MU
 * (i.MX RT1170), MCUGEN_CORES_HSEM (STM32H745, H747), MCUGEN_CORES_POSIX (threads) and MCUGEN_CORES_FREERTOS (tasks),
 * and MCUGEN_CORES_CACHE if the core has a data cache in front of the arena. Each has a header of that name with
 * details.
 */
#ifndef MCUGEN_CORES_H
#define MCUGEN_CORES_H

#include "mcugen.h"

#if defined(MCUGEN_CORES_SEV)
#define MCUGEN_CORE_SIGNAL() __asm volatile("dsb\n\tsev" ::: "memory")
#define MCUGEN_CORE_WAIT() __asm volatile("wfe" ::: "memory")
#elif defined(MCUGEN_CORES_POSIX)
#include <sched.h>
#define MCUGEN_CORE_WAIT() (void)sched_yield()
#define MCUGEN_CORE_POLL() (void)sched_yield()
#endif
#if defined(MCUGEN_CORES_MU)
#include "mcugen_cores_mu.h"
#elif defined(MCUGEN_CORES_HSEM)
#include "mcugen_cores_hsem.h"
#elif defined(MCUGEN_CORES_FREERTOS)
#include "mcugen_cores_freertos.h"
#endif
#if defined(MCUGEN_CORES_CACHE)
#include "mcugen_cores_cache.h"
#endif
#ifndef MCUGEN_CORE_INVALIDATE
#define MCUGEN_CORE_INVALIDATE(from, nbytes) ((void)(from), (void)(nbytes))
#endif
#ifndef MCUGEN_CORE_SIGNAL
#define MCUGEN_CORE_SIGNAL() ((void)0)
#endif
#ifndef MCUGEN_CORE_WAIT
#define MCUGEN_CORE_WAIT() ((void)0)
#endif
#ifndef MCUGEN_CORE_POLL
#define MCUGEN_CORE_POLL() ((void)0)
#endif
#ifndef MCUGEN_CORE_PATIENCE
#define MCUGEN_CORE_PATIENCE 100000000u
#endif
#ifndef MCUGEN_CORE_LOAD
#if defined(__clang__) && defined(__ARM_ARCH_6M__)
/* Clang would call a library function for words, which Armv6-M loads and stores atomically. */
static inline uint32_t mcugen_core_load(const uint32_t *p)
{
    const uint32_t value = *(const volatile uint32_t *)p;
    __asm volatile("dmb" ::: "memory");
    return value;
}
static inline void mcugen_core_store(uint32_t *p, uint32_t value)
{
    __asm volatile("dmb" ::: "memory");
    *(volatile uint32_t *)p = value;
}
#define MCUGEN_CORE_LOAD(p) mcugen_core_load(p)
#define MCUGEN_CORE_STORE(p, v) mcugen_core_store((p), (v))
#elif defined(__GNUC__)
#define MCUGEN_CORE_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define MCUGEN_CORE_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#else
#error "define MCUGEN_CORE_LOAD and MCUGEN_CORE_STORE for this compiler"
#endif
#endif

/* Polls after which a run repeats its signal, in case it was lost. */
#define MCUGEN_CORE_RESIGNAL 4096u

/* Must begin as zeros. All members except `patience` belong to the functions below. */
typedef struct {
    uint32_t patience; /* polls after which a run gives up; 0: MCUGEN_CORE_PATIENCE */
    uint32_t started;  /* whether a worker exists */
    uint32_t stopping; /* whether the worker shall end */
    uint32_t posted;   /* number of posted shards */
    uint32_t done;     /* number of completed shards; written by the worker only */
    uint32_t fork;     /* fork of the last posted shard */
} mcugen_cores;

/* Waits until the worker has completed all posted shards: MCUGEN_OK, or MCUGEN_ERROR_CORE on a timeout. */
static inline int mcugen_cores_join(mcugen_cores *cores)
{
    uint32_t patience, polls = 0;
    if (cores == NULL) {
        return MCUGEN_ERROR_NULL;
    }
    patience = cores->patience != 0u ? cores->patience : MCUGEN_CORE_PATIENCE;
    while (MCUGEN_CORE_LOAD(&cores->done) != cores->posted) {
        if (++polls > patience) {
            return MCUGEN_ERROR_CORE;
        }
        if (polls % MCUGEN_CORE_RESIGNAL == 0u) {
            MCUGEN_CORE_SIGNAL();
        }
        MCUGEN_CORE_POLL();
    }
    return MCUGEN_OK;
}

/* Posts the worker's shard of a fork; does nothing without a worker (NULL). */
static inline void mcugen_cores_post(mcugen_cores *cores, uint32_t fork)
{
    if (cores != NULL) {
        cores->fork = fork;
        MCUGEN_CORE_STORE(&cores->posted, cores->posted + 1u);
        MCUGEN_CORE_SIGNAL();
    }
}

/* Returns whether a worker waits for shards: MCUGEN_OK, MCUGEN_AGAIN if none was started, or MCUGEN_ERROR_CORE if it
 * is still busy with an earlier run after the permitted number of polls. */
static inline int mcugen_cores_ready(mcugen_cores *cores)
{
    if (MCUGEN_CORE_LOAD(&cores->started) == 0u) {
        return MCUGEN_AGAIN;
    }
    return mcugen_cores_join(cores);
}

/* Registers a worker: MCUGEN_ERROR_CORE if one exists. Two workers that begin at the same instant are detected only if
 * the CPU can exchange a word atomically. */
static inline int mcugen_cores_start(mcugen_cores *cores)
{
#if defined(__GCC_ATOMIC_INT_LOCK_FREE) && __GCC_ATOMIC_INT_LOCK_FREE == 2
    return __atomic_exchange_n(&cores->started, 1u, __ATOMIC_ACQ_REL) != 0u ? MCUGEN_ERROR_CORE : MCUGEN_OK;
#else
    if (MCUGEN_CORE_LOAD(&cores->started) != 0u) {
        return MCUGEN_ERROR_CORE;
    }
    MCUGEN_CORE_STORE(&cores->started, 1u);
    return MCUGEN_OK;
#endif
}

/* Sleeps until a shard is posted: returns the number of its fork, or 0 when the worker shall end. */
static inline uint32_t mcugen_cores_next(mcugen_cores *cores)
{
    while (MCUGEN_CORE_LOAD(&cores->posted) == cores->done) {
        if (MCUGEN_CORE_LOAD(&cores->stopping) != 0u) {
            MCUGEN_CORE_STORE(&cores->stopping, 0u);
            MCUGEN_CORE_STORE(&cores->started, 0u);
            return 0;
        }
        MCUGEN_CORE_WAIT();
    }
    return cores->fork;
}

/* Reports a completed shard to the run. */
static inline void mcugen_cores_done(mcugen_cores *cores)
{
    MCUGEN_CORE_STORE(&cores->done, cores->done + 1u);
    MCUGEN_CORE_SIGNAL();
}

/* Ends the worker as soon as it is idle; runs compute on one core from then on. */
static inline void mcugen_cores_stop(mcugen_cores *cores)
{
    if (cores != NULL) {
        MCUGEN_CORE_STORE(&cores->stopping, 1u);
        MCUGEN_CORE_SIGNAL();
    }
}

#endif /* MCUGEN_CORES_H */
