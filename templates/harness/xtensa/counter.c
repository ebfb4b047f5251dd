/* SPDX-License-Identifier: 0BSD */
/* Counts instructions by CCOUNT, 32 bits that always run; QEMU lets it follow virtual time. */
#include "target.h"

void start_counter(void) {
}

void stop_counter(void) {
}

/* The words that CCOUNT does not need are never 0: no reading looks like one that is missing. */
void read_counter(struct reading *reading) {
    uint32_t count;
    __asm__ volatile("rsr.ccount %0" : "=r"(count) : : "memory");
    reading->words[0] = count;
    reading->words[1] = 1;
    reading->words[2] = 1;
}

__asm__(".section .text.run_nothing, \"ax\"\n"
        ".balign 4\n"
        ".global run_nothing\n"
        ".type run_nothing, @function\n"
        "run_nothing:\n"
        "ret.n\n"
        ".size run_nothing, . - run_nothing\n"
        ".section .text.run_known_loop, \"ax\"\n"
        ".balign 4\n"
        ".global run_known_loop\n"
        ".type run_known_loop, @function\n"
        "run_known_loop:\n"
        "movi a2, 100000\n"
        "1: addi a2, a2, -1\n"
        "bnez a2, 1b\n"
        "ret.n\n"
        ".size run_known_loop, . - run_known_loop\n"
        ".text\n");
