/* SPDX-License-Identifier: 0BSD */
/* The UART of Arm's Cortex-M System Design Kit. Where nothing has come the CPU sleeps until something does, without
 * taking the interrupt: QEMU looks for input again when it sleeps, and may never do so while it polls. */
#include "target.h"
#include "wire.h"

#define DATA REGISTER(HARNESS_UART)
#define STATE REGISTER(HARNESS_UART + 4u)
#define CTRL REGISTER(HARNESS_UART + 8u)
#define INTSTATUS REGISTER(HARNESS_UART + 12u)
#define BAUDDIV REGISTER(HARNESS_UART + 16u)
#define NVIC_ISER(word) REGISTER(0xE000E100u + 4u * (word))
#define NVIC_ICER(word) REGISTER(0xE000E180u + 4u * (word))
#define NVIC_ICPR(word) REGISTER(0xE000E280u + 4u * (word))

enum { TX_FULL = 1, RX_FULL = 2, RX_INTERRUPT = 2, TX_AND_RX = 3, RX_INTERRUPTS = 8, NVIC_WORDS = 4 };

void SysTick_Handler(void); /* defined by the validation firmware */

void systick_handler(void) {
    SysTick_Handler();
}

void wire_start(void) {
    BAUDDIV = 16;
    CTRL = TX_AND_RX | RX_INTERRUPTS;
}

/* Any interrupt ends the sleep; the number of the UART's interrupt depends on the machine. */
static void sleep(void) {
    __asm__ volatile("cpsid i" ::: "memory");
    for (uint32_t word = 0; word < NVIC_WORDS; word++) {
        NVIC_ISER(word) = 0xFFFFFFFFu;
    }
    if ((STATE & RX_FULL) == 0) {
        __asm__ volatile("wfi" ::: "memory");
    }
    INTSTATUS = RX_INTERRUPT;
    for (uint32_t word = 0; word < NVIC_WORDS; word++) {
        NVIC_ICER(word) = 0xFFFFFFFFu;
        NVIC_ICPR(word) = 0xFFFFFFFFu;
    }
    __asm__ volatile("cpsie i" ::: "memory");
}

int wire_getc(void) {
    if ((STATE & RX_FULL) == 0) {
        sleep();
    }
    return (STATE & RX_FULL) != 0 ? (int)(DATA & 0xFFu) : -1;
}

void wire_putc(unsigned char byte) {
    while ((STATE & TX_FULL) != 0) {
    }
    DATA = byte;
}
