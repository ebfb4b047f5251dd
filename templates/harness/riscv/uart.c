/* SPDX-License-Identifier: 0BSD */
/* A 16550, by polling. */
#include "wire.h"

#define DATA (*(volatile unsigned char *)HARNESS_UART)
#define LINE_STATUS (*(volatile unsigned char *)(HARNESS_UART + 5u))

enum { DATA_READY = 1, TX_EMPTY = 32 };

void wire_start(void) {
}

int wire_getc(void) {
    return (LINE_STATUS & DATA_READY) != 0 ? DATA : -1;
}

void wire_putc(unsigned char byte) {
    while ((LINE_STATUS & TX_EMPTY) == 0) {
    }
    DATA = byte;
}
