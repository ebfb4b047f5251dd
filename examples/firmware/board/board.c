/* SPDX-License-Identifier: 0BSD */
/* Start-up, a UART, a timer and the end of the simulation on an MPS2 with AN386. */
#include "board.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

#define UART_DATA REGISTER(0x40004000u)
#define UART_STATE REGISTER(0x40004004u)
#define UART_CONTROL REGISTER(0x40004008u)
#define UART_DIVIDER REGISTER(0x40004010u)
#define TIMER_CONTROL REGISTER(0x40000000u)
#define TIMER_VALUE REGISTER(0x40000004u)
#define TIMER_RELOAD REGISTER(0x40000008u)
#define TIMER_CLEAR REGISTER(0x4000000Cu)
#define TIMER_IRQ 8u
#define NVIC_ENABLE REGISTER(0xE000E100u)
#define NVIC_PRIORITY(irq) (*(volatile uint8_t *)(0xE000E400u + (irq)))
#define CPACR REGISTER(0xE000ED88u)

int main(void);
void reset_handler(void);
void fault_handler(void);
void timer_handler(void);

/* Of FreeRTOS, where that is linked. */
__attribute__((weak)) void SVC_Handler(void);
__attribute__((weak)) void PendSV_Handler(void);
__attribute__((weak)) void SysTick_Handler(void);

/* From link.ld. */
extern uint32_t data_begin[], data_end[], data_image[], bss_begin[], bss_end[], stack_top[];

static void (*timer_callback)(void);

void board_start_timer(uint32_t ticks, void (*on_timer)(void))
{
    timer_callback = on_timer;
    NVIC_PRIORITY(TIMER_IRQ) = 0xE0u; /* the lowest: FreeRTOS's functions may be called in it */
    NVIC_ENABLE = 1u << TIMER_IRQ;
    TIMER_RELOAD = ticks;
    TIMER_VALUE = ticks;
    TIMER_CONTROL = 9u; /* runs, and interrupts */
}

void board_stop_timer(void)
{
    TIMER_CONTROL = 0;
}

void timer_handler(void)
{
    TIMER_CLEAR = 1u;
    timer_callback();
}

void board_sleep(void)
{
    __asm__ volatile("wfi");
}

void board_exit(int status)
{
    /* Semihosting's SYS_EXIT_EXTENDED, which takes the reason (application exit) and the status. */
    const uint32_t block[2] = {0x20026u, (uint32_t)status};
    register uint32_t operation __asm__("r0") = 0x20u;
    register const uint32_t *arguments __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : : "r"(operation), "r"(arguments) : "memory");
    for (;;) {
    }
}

/* Where printf ends up. */
int _write(int file, char *text, int count)
{
    (void)file;
    for (int i = 0; i < count; ++i) {
        while ((UART_STATE & 1u) != 0) {
        }
        UART_DATA = (uint8_t)text[i];
    }
    return count;
}

void fault_handler(void)
{
    static char text[] = "fault\n";
    _write(1, text, sizeof text - 1);
    board_exit(2);
}

void reset_handler(void)
{
    const uint32_t *from = data_image;
    for (uint32_t *to = data_begin; to < data_end; ++to) {
        *to = *from++;
    }
    for (uint32_t *to = bss_begin; to < bss_end; ++to) {
        *to = 0;
    }
    CPACR |= 0xFu << 20; /* the FPU is off after reset */
    __asm__ volatile("dsb\n isb");
    UART_DIVIDER = 16u;
    UART_CONTROL = 1u;
    board_exit(main());
}

typedef void (*handler)(void);

extern const handler vectors[16 + TIMER_IRQ + 1];
__attribute__((section(".vectors"), used)) const handler vectors[16 + TIMER_IRQ + 1] = {
    (handler)(uintptr_t)stack_top,
    reset_handler,
    fault_handler, /* NMI */
    fault_handler, /* hard fault */
    fault_handler, /* memory */
    fault_handler, /* bus */
    fault_handler, /* usage */
    0,
    0,
    0,
    0,
    SVC_Handler,
    0,
    0,
    PendSV_Handler,
    SysTick_Handler,
    [16 + TIMER_IRQ] = timer_handler,
};
