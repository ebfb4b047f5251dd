/* SPDX-License-Identifier: 0BSD */
/* The worker as a task of FreeRTOS, on another core where the kernel is built for several (configNUMBER_OF_CORES).
 *
 * Task notifications are as in copies of FreeRTOS's task.h; it was not run with a kernel. It sleeps until it is
 * notified, or for MCUGEN_CORES_TICKS. For one model a file, as NAME.c is.
 */
#ifndef MCUGEN_CORES_FREERTOS_H
#define MCUGEN_CORES_FREERTOS_H

#include "FreeRTOS.h"
#include "task.h"

#ifndef MCUGEN_CORES_TICKS
#define MCUGEN_CORES_TICKS ((TickType_t)10)
#endif

/* NULL until the worker has waited for the first time. A fenced word of any CPU that FreeRTOS runs on: clang would
 * call a library function for an atomic word on Armv6-M. */
static TaskHandle_t volatile mcugen_cores_worker;

static inline void mcugen_cores_freertos_signal(void)
{
    const TaskHandle_t worker = mcugen_cores_worker;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (worker != NULL && worker != xTaskGetCurrentTaskHandle()) { /* A run polls, so it needs no signal. */
        (void)xTaskNotifyGive(worker);
    }
}

static inline void mcugen_cores_freertos_wait(void)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
    mcugen_cores_worker = xTaskGetCurrentTaskHandle();
    (void)ulTaskNotifyTake(pdTRUE, MCUGEN_CORES_TICKS);
}

#define MCUGEN_CORE_SIGNAL() mcugen_cores_freertos_signal()
#define MCUGEN_CORE_WAIT() mcugen_cores_freertos_wait()
#define MCUGEN_CORE_POLL() taskYIELD()

#endif /* MCUGEN_CORES_FREERTOS_H */
