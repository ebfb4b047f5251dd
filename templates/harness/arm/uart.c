/* SPDX-License-Identifier: 0BSD */
/* The UART of Arm's Cortex-M System Design Kit, by polling. */
#include "target.h"
#include "wire.h"

#define DATA REGISTER(HARNESS_UART)
#define STATE REGISTER(HARNESS_UART + 4u)
#define CTRL REGISTER(HARNESS_UART + 8u)
#define BAUDDIV REGISTER(HARNESS_UART + 16u)

enum { TX_FULL = 1, RX_FULL = 2, TX_AND_RX = 3 };

void SysTick_Handler(void); /* of the validation */

void systick_handler(void) {
    SysTick_Handler();
}

void wire_start(void) {
    BAUDDIV = 16;
    CTRL = TX_AND_RX;
}

int wire_getc(void) {
    return (STATE & RX_FULL) != 0 ? (int)(DATA & 0xFFu) : -1;
}

void wire_putc(unsigned char byte) {
    while ((STATE & TX_FULL) != 0) {
    }
    DATA = byte;
}
