/* SPDX-License-Identifier: 0BSD */
/* Peak stack and instructions of a call. Raw readings are printed; mcugen does the arithmetic. */
#include "harness.h"
#include "target.h"

#define PAINT 0xDEADBEEFu

struct span {
    struct reading begin, end;
};

void mcugen_harness_on_layer(int index);
void harness_mark(void);

static struct reading layers[HARNESS_LAYERS];

#if defined(HARNESS_LAYER_STACKS)
static uint32_t layer_stacks[HARNESS_LAYERS];

/* Frame below which the stack is painted; NULL if it is not painted. */
static uint32_t *painted_top;

/* The part that a layer touched is painted again for the next layer, up to this frame. */
__attribute__((noipa)) void mcugen_harness_on_layer(int index) {
    volatile uint32_t *word = stack_bottom;
    while (word < painted_top && *word == PAINT) {
        word++;
    }
    layer_stacks[index] = (uint32_t)painted_top - (uint32_t)word;
    for (const uint32_t *const end = stack_pointer(); word < end; word++) {
        *word = PAINT;
    }
}
#else
/* Not inlined into the calibration, so that it costs the same there as in the model. */
__attribute__((noipa)) void mcugen_harness_on_layer(int index) {
    if ((uint32_t)index < HARNESS_LAYERS) {
        read_counter(&layers[index]);
    }
}
#endif

__attribute__((noinline)) static int run_timed(run_function run, void *arena, struct span *span) {
    start_counter();
    read_counter(&span->begin);
    int status = run(arena);
    read_counter(&span->end);
    stop_counter();
    return status;
}

/* The second call measures the time of the hook itself. */
__attribute__((noinline)) static int run_two_hooks(void *arena) {
    (void)arena;
    mcugen_harness_on_layer(0);
    mcugen_harness_on_layer(HARNESS_LAYERS - 1);
    return 0;
}

static void print_readings(const char *key, const struct reading *readings, uint32_t count) {
    harness_print(key, readings->words, 3 * count);
}

static int print_timed(const char *key, run_function run, void *arena) {
    struct span span;
    int status = run_timed(run, arena, &span);
    print_readings(key, &span.begin, 2);
    return status;
}

int harness_time(const char *key, uint32_t measure, run_function run, void *arena) {
    return measure == MEASURE_TIME ? print_timed(key, run, arena) : run(arena);
}

/* For the profiling plugin, the time between two calls is a span of its own. */
__attribute__((noipa)) void harness_mark(void) {
}

__attribute__((noinline)) static int run_marked(run_function run, void *arena) {
    harness_mark();
    int status = run(arena);
    harness_mark();
    return status;
}

static int measure_time(run_function run, void *arena) {
    struct span span;
    print_timed("nothing", run_nothing, arena);
    print_timed("known_loop", run_known_loop, arena);
    print_timed("two_hooks", run_two_hooks, arena);
    print_readings("hooks", layers, HARNESS_LAYERS);
    for (uint32_t i = 0; i < HARNESS_LAYERS; i++) {
        layers[i] = (struct reading){{0, 0, 0}};
    }
    int status = run_timed(run, arena, &span);
    print_readings("run", &span.begin, 2);
    print_readings("layers", layers, HARNESS_LAYERS);
    return status;
}

/* Peak: from this frame down to the lowest painted word that changed. */
__attribute__((noinline)) static int measure_stack(run_function run, void *arena) {
    uint32_t *const top = stack_pointer();
#if defined(HARNESS_LAYER_STACKS)
    painted_top = top;
#endif
    for (volatile uint32_t *word = stack_bottom; word < top; word++) {
        *word = PAINT;
    }
    int status = run(arena);
    const volatile uint32_t *lowest = stack_bottom;
    while (lowest < top && *lowest == PAINT) {
        lowest++;
    }
    harness_print("stack", (const uint32_t[]){(uint32_t)top - (uint32_t)lowest}, 1);
#if defined(HARNESS_LAYER_STACKS)
    painted_top = 0;
    harness_print("layer_stacks", layer_stacks, HARNESS_LAYERS);
#endif
    return status;
}

int harness_measure(uint32_t measure, run_function run, void *arena) {
    if (measure == MEASURE_STACK) {
        return measure_stack(run, arena);
    }
    if (measure == MEASURE_TIME) {
        return measure_time(run, arena);
    }
    if (measure == MEASURE_PROFILE) {
        return run_marked(run, arena);
    }
    return run(arena);
}
