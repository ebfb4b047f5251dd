/* SPDX-License-Identifier: 0BSD */
/* From the linker script: the lowest address of the stack. */
extern unsigned char stack_bottom[];
