/* SPDX-License-Identifier: 0BSD */
/* A model under a storm of interrupts: a timer fires again as soon as its handler has returned, and the handler uses all
 * that it may: flags, the FPU, vectors, stack. storm_run returns -1 if there were fewer than WANTED interrupts;
 * storm_interrupted has a bit for each two bytes of code, set where one came. */
#include "storm.h"

#if !defined(WANTED)
#define WANTED 200u
#endif
#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

static volatile uint32_t interrupts;
static uint8_t interrupted[STORM_CODE_SIZE / 16u];

const uint8_t *storm_interrupted(const void *arena)
{
    (void)arena;
    return interrupted;
}

static void count(uint32_t address)
{
    const uint32_t place = (address - STORM_CODE) / 2u;
    ++interrupts;
    if (place / 8u < sizeof interrupted) {
        interrupted[place / 8u] |= (uint8_t)(1u << place % 8u);
    }
}

/* Up to 15, so that interrupts come to other places with another SEED. */
static uint32_t jitter(void)
{
    static uint32_t state = SEED * 2654435761u;
    state = state * 1664525u + 1013904223u;
    return state >> 28;
}

/* Fills some stack with what is nobody's data. */
static __attribute__((noinline)) void use_stack(void)
{
    volatile uint32_t block[64];
    const uint32_t words = 64u - jitter();
    uint32_t i;
    for (i = 0; i < words; ++i) {
        block[i] = 0xa5a5a5a5u ^ i;
    }
    (void)block[0];
}

#if defined(__riscv)
#define MTIME 0x0200bff8u
#define MTIMECMP 0x02004000u

static void fire_in(uint32_t ticks)
{
    const uint32_t low = REGISTER(MTIME), at = low + ticks;
    REGISTER(MTIMECMP + 4u) = 0xffffffffu;
    REGISTER(MTIMECMP) = at;
    REGISTER(MTIMECMP + 4u) = REGISTER(MTIME + 4u) + (at < low ? 1u : 0u);
}

static __attribute__((interrupt, aligned(4))) void handler(void)
{
    uint32_t address;
    __asm__ volatile(".option push\n .option arch, +zicsr\n csrr %0, mepc\n .option pop" : "=r"(address));
    count(address);
    use_stack();
#if defined(__riscv_flen)
    __asm__ volatile("fdiv.s ft0, ft1, ft2\n fmv.w.x fa0, zero\n fmv.w.x fa7, zero" ::: "ft0", "fa0", "fa7");
#endif
    fire_in(TICKS);
}

static uint32_t before;

static void start(void)
{
    __asm__ volatile(".option push\n .option arch, +zicsr\n csrr %0, mtvec\n csrw mtvec, %1\n .option pop"
                     : "=&r"(before)
                     : "r"(handler));
    use_stack(); /* for some time, within that of a tick */
    fire_in(TICKS);
    __asm__ volatile(".option push\n .option arch, +zicsr\n csrs mie, %0\n csrsi mstatus, 8\n .option pop" ::"r"(128));
}

static void stop(void)
{
    __asm__ volatile(".option push\n .option arch, +zicsr\n csrci mstatus, 8\n csrw mtvec, %0\n .option pop" ::"r"(before));
}
#else
#define INSTRUCTION 13u /* in ticks */
#define SYST_CSR REGISTER(0xE000E010u)
#define SYST_RVR REGISTER(0xE000E014u)
#define SYST_CVR REGISTER(0xE000E018u)
#define ICSR REGISTER(0xE000ED04u)
#define VTOR REGISTER(0xE000ED08u)

static __attribute__((used)) void handler(const uint32_t *frame)
{
    count(frame[6]); /* where the model goes on */
    use_stack();
    __asm__ volatile(".syntax unified\n movs r0, #0\n mvns r1, r0\n mov r2, r1\n mov r3, r1\n mov r12, r1\n cmp r0, r1" ::
                         : "r0", "r1", "r2", "r3", "r12", "cc");
#if defined(__ARM_FEATURE_DSP)
    /* N, Z, C, V and Q are set, GE is turned over. */
    __asm__ volatile("mov r0, #0xf8000000\n orr r0, r0, #0x50000\n msr APSR_nzcvqg, r0" ::: "r0", "cc");
#endif
#if defined(__ARM_FP)
    __asm__ volatile("vmov s0, %0\n vmov s7, %0\n vmov s15, %0\n vcmp.f32 s0, s7\n vmrs r0, fpscr\n"
                     "orr r0, r0, #0x9f\n vmsr fpscr, r0" ::"r"(0x7fc00000)
                     : "r0", "s0", "s7", "s15");
#endif
#if defined(__ARM_FEATURE_MVE)
    __asm__ volatile("vmov.i32 q0, #0x5a\n vmov.i32 q3, #0xa5\n movs r0, #0x5a\n vmsr p0, r0" ::: "r0", "q0", "q3");
#endif
    SYST_RVR = TICKS + INSTRUCTION * jitter();
    SYST_CVR = 0;
    ICSR = 1u << 25; /* what came due meanwhile is not pending: the model goes on a little */
}

static __attribute__((naked)) void entry(void)
{
    __asm__ volatile("mov r0, sp\n ldr r1, =handler\n bx r1\n .ltorg");
}

static __attribute__((aligned(512))) const void *vectors[128];
static uint32_t before;

static void start(void)
{
    uint32_t i;
    before = VTOR;
    for (i = 0; i < 16u; ++i) {
        vectors[i] = (const void *)(uintptr_t)REGISTER(before + 4u * i);
    }
    vectors[15] = (const void *)(uintptr_t)entry;
    VTOR = (uint32_t)(uintptr_t)vectors;
    SYST_RVR = TICKS + INSTRUCTION * jitter();
    SYST_CVR = 0;
    SYST_CSR = 7;
}

static void stop(void)
{
    SYST_CSR = 0;
    VTOR = before;
}
#endif

int storm_run(void *arena)
{
    int status;
    interrupts = 0;
    start();
    status = batch_run(arena);
    stop();
    return status != 0 ? status : (interrupts < WANTED ? -1 : 0);
}
