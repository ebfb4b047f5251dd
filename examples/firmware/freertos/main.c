/* SPDX-License-Identifier: 0BSD */
/* Two models in two tasks. One waits for pictures that come by DMA; the other has a higher priority and runs by the
 * clock, in the middle of the first one's layers.
 *
 * Each has an arena of its own; or, with SHARED_ARENA, both share one under a mutex: as much memory as the larger one
 * needs, and whoever comes second waits. */
#include <stdio.h>

#include "FreeRTOS.h"
#include "arena.h"
#include "board.h"
#include "camera.h"
#include "classify.h"
#include "semphr.h"
#include "task.h"

#define PICTURES (2u * IMAGES)
#define STACK_WORDS 1024

#if SHARED_ARENA
static StaticSemaphore_t mutex;
static SemaphoreHandle_t arena_lock;

static void lock_arena(void)
{
    xSemaphoreTake(arena_lock, portMAX_DELAY);
}

static void unlock_arena(void)
{
    xSemaphoreGive(arena_lock);
}
#endif

static StackType_t camera_stack[STACK_WORDS], keyword_stack[STACK_WORDS], idle_stack[configMINIMAL_STACK_SIZE];
static StaticTask_t camera_task, keyword_task, idle_task;
static TaskHandle_t classifier;

static volatile uint32_t keyword_runs, keyword_passed;

static void on_picture(void)
{
    BaseType_t woken = pdFALSE;
    vTaskNotifyGiveFromISR(classifier, &woken);
    portYIELD_FROM_ISR(woken);
}

static void classify_pictures(void *unused)
{
    uint32_t seen = 0, right = 0, digit = 0;
    (void)unused;
    camera_start(on_picture);
    while (seen < PICTURES) {
        ulTaskNotifyTake(pdTRUE, portMAX_DELAY);
        const uint8_t *picture = camera_picture(&digit);
        if (picture == NULL) {
            continue;
        }
        lock_arena();
        right += classify(arena.digits, picture) == digit;
        unlock_arena();
        camera_release();
        ++seen;
    }
    camera_stop();
    printf("digits: %u of %u right, %u lost\n", (unsigned)right, (unsigned)seen, (unsigned)camera_lost());
    printf("keyword: %u of %u self-tests passed\n", (unsigned)keyword_passed, (unsigned)keyword_runs);
    const int is_right = right == seen && camera_lost() == 0;
    board_exit(is_right && keyword_runs >= PICTURES && keyword_passed == keyword_runs ? 0 : 1);
}

static void spot_keywords(void *unused)
{
    (void)unused;
    for (;;) {
        lock_arena();
        const int status = keyword_selftest(arena.keyword);
        unlock_arena();
        keyword_passed += status == MCUGEN_OK;
        ++keyword_runs;
        vTaskDelay(5);
    }
}

void vApplicationGetIdleTaskMemory(StaticTask_t **task, StackType_t **stack, configSTACK_DEPTH_TYPE *words)
{
    *task = &idle_task;
    *stack = idle_stack;
    *words = configMINIMAL_STACK_SIZE;
}

void vApplicationStackOverflowHook(TaskHandle_t task, char *name)
{
    (void)task;
    printf("stack overflow: %s\n", name);
    board_exit(3);
}

int main(void)
{
#if SHARED_ARENA
    arena_lock = xSemaphoreCreateMutexStatic(&mutex);
#endif
    classifier = xTaskCreateStatic(classify_pictures, "digits", STACK_WORDS, NULL, 1, camera_stack, &camera_task);
    xTaskCreateStatic(spot_keywords, "keyword", STACK_WORDS, NULL, 2, keyword_stack, &keyword_task);
    vTaskStartScheduler();
    return 1; /* never comes here */
}
