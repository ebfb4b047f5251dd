/* SPDX-License-Identifier: 0BSD */
/* Counts instructions by minstret, 64 bits that always run. */
#include "target.h"

void start_counter(void) {
}

void stop_counter(void) {
}

/* The upper half twice: it may change in between. */
void read_counter(struct reading *reading) {
    __asm__ volatile(
        ".option push\n"
        ".option arch, +zicsr\n"
        "csrr %0, minstreth\n"
        "csrr %1, minstret\n"
        "csrr %2, minstreth\n"
        ".option pop"
        : "=&r"(reading->words[0]), "=&r"(reading->words[1]), "=r"(reading->words[2])
        :
        : "memory");
}

__attribute__((naked)) int run_nothing(void *arena) {
    (void)arena;
    __asm__ volatile("ret");
}

/* From 50000 * 4096 down by 2048. */
__attribute__((naked)) int run_known_loop(void *arena) {
    (void)arena;
    __asm__ volatile(
        "lui a0, 50000\n"
        "1: addi a0, a0, -2048\n"
        "bnez a0, 1b\n"
        "ret");
}
