/* SPDX-License-Identifier: 0BSD */
/* What start-up, semihosting and measurement share on an Arm M-profile target. */
#ifndef TARGET_H
#define TARGET_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

/* Ends QEMU with this exit code. */
__attribute__((noreturn)) void semihosting_exit(uint32_t code);

void systick_handler(void);

/* From the linker script. */
extern uint32_t stack_bottom[], stack_top[];
extern uint32_t data_begin[], data_end[], data_image[], bss_begin[], bss_end[];

/* What start-up copies besides .data, also from the linker script. */
struct copy {
    const uint32_t *image;
    volatile uint32_t *begin, *end;
};
extern const struct copy copies_begin[], copies_end[];

#endif
