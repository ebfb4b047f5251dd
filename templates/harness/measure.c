/* SPDX-License-Identifier: 0BSD */
/* Peak stack and instructions of a call. Raw timer readings are printed; mcugen does the arithmetic. */
#include "harness.h"
#include "target.h"

#define SYST_CSR REGISTER(0xE000E010u)
#define SYST_RVR REGISTER(0xE000E014u)
#define SYST_CVR REGISTER(0xE000E018u)
#define ICSR REGISTER(0xE000ED04u)
#define SYST_ON_CPU_CLOCK_WITH_INTERRUPT 7u

#define PAINT 0xDEADBEEFu

/* The timer counts down 24 bits and interrupts at 0; `icsr` tells an interrupt that has not come yet. */
struct reading {
    uint32_t current, interrupts, icsr;
};
struct span {
    struct reading begin, end;
};

void mcugen_harness_on_layer(int index);
void harness_mark(void);

static volatile uint32_t interrupts;
static struct reading layers[HARNESS_LAYERS];

/* Five instructions, always: mcugen takes them off for every interrupt. */
__attribute__((naked)) void systick_handler(void) {
    __asm__ volatile(
        ".syntax unified\n"
        "ldr r0, =%c0\n"
        "ldr r1, [r0]\n"
        "adds r1, #1\n"
        "str r1, [r0]\n"
        "bx lr\n"
        ".ltorg"
        :
        : "i"(&interrupts));
}

static void start_timer(void) {
    interrupts = 0;
    SYST_RVR = 0xFFFFFFu;
    SYST_CVR = 0;
    SYST_CSR = SYST_ON_CPU_CLOCK_WITH_INTERRUPT;
    while (SYST_CVR == 0) { /* loads on its first tick */
    }
}

/* Without a branch: it must take the same time whenever it is called. */
__attribute__((noinline)) static void read_timer(struct reading *reading) {
    __asm__ volatile("cpsid i" ::: "memory");
    reading->current = SYST_CVR;
    reading->interrupts = interrupts;
    reading->icsr = ICSR;
    __asm__ volatile("cpsie i" ::: "memory");
}

/* Not inlined into the calibration either, so that this costs there what it costs in the model. */
__attribute__((noipa)) void mcugen_harness_on_layer(int index) {
    if ((uint32_t)index < HARNESS_LAYERS) {
        read_timer(&layers[index]);
    }
}

__attribute__((noinline)) static int run_timed(run_function run, void *arena, struct span *span) {
    start_timer();
    read_timer(&span->begin);
    int status = run(arena);
    read_timer(&span->end);
    SYST_CSR = 0;
    return status;
}

/* One instruction: the return. */
__attribute__((naked)) static int run_nothing(void *arena) {
    (void)arena;
    __asm__ volatile("bx lr");
}

/* 200002 instructions: one before the loop, the loop, the return. */
__attribute__((naked)) static int run_known_loop(void *arena) {
    (void)arena;
    __asm__ volatile(
        ".syntax unified\n"
        "ldr r0, =100000\n"
        "1: subs r0, #1\n"
        "bne 1b\n"
        "bx lr\n"
        ".ltorg");
}

/* The second call takes the hook's own time. */
__attribute__((noinline)) static int run_two_hooks(void *arena) {
    (void)arena;
    mcugen_harness_on_layer(0);
    mcugen_harness_on_layer(HARNESS_LAYERS - 1);
    return 0;
}

static void print_readings(const char *key, const struct reading *readings, uint32_t count) {
    harness_print(key, &readings->current, 3 * count);
}

static void print_timed(const char *key, run_function run, void *arena) {
    struct span span;
    run_timed(run, arena, &span);
    print_readings(key, &span.begin, 2);
}

/* What the profiling plugin sees between two calls is a span of its own. */
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
        layers[i] = (struct reading){0, 0, 0};
    }
    int status = run_timed(run, arena, &span);
    print_readings("run", &span.begin, 2);
    print_readings("layers", layers, HARNESS_LAYERS);
    return status;
}

static uint32_t *stack_pointer(void) {
    uint32_t *sp;
    __asm__ volatile("mov %0, sp" : "=r"(sp));
    return sp;
}

/* Peak: from this frame down to the lowest word of the paint that was touched. */
__attribute__((noinline)) static int measure_stack(run_function run, void *arena) {
    uint32_t *const top = stack_pointer();
    for (volatile uint32_t *word = stack_bottom; word < top; word++) {
        *word = PAINT;
    }
    int status = run(arena);
    const volatile uint32_t *lowest = stack_bottom;
    while (lowest < top && *lowest == PAINT) {
        lowest++;
    }
    harness_print("stack", (const uint32_t[]){(uint32_t)top - (uint32_t)lowest}, 1);
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
