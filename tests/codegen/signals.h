/* SPDX-License-Identifier: Apache-2.0 */
/* Cores that sleep until a signal comes; of these some are lost (SIGNALS 1), or come twice (2). */
#include <semaphore.h>

static sem_t signals;
static unsigned sent;
#define LOST(n) (SIGNALS == 1 && (n) % 3 != 0)
#define MCUGEN_CORE_SIGNAL() \
    do { \
        if (!LOST(__atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED))) { \
            sem_post(&signals); \
            if (SIGNALS == 2) { \
                sem_post(&signals); \
            } \
        } \
    } while (0)
#define MCUGEN_CORE_WAIT() sem_wait(&signals)
