/* SPDX-License-Identifier: 0BSD */
/* What the examples need of a board; board.c is for Arm's MPS2 (AN386, Cortex-M4) as QEMU simulates it. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* Lets `on_timer` be called in an interrupt every so many ticks of 25 MHz. */
void board_start_timer(uint32_t ticks, void (*on_timer)(void));
void board_stop_timer(void);

/* Waits for an interrupt. */
void board_sleep(void);

/* Ends the simulation: 0 is success. On a real board, it stands still. */
void board_exit(int status);

#endif /* BOARD_H */
