/* SPDX-License-Identifier: 0BSD */
/* From reset to main, and what becomes of faults. */
#include "harness.h"
#include "target.h"

int main(void);

/* From the linker script. */
extern uint32_t data_begin[], data_end[], data_image[], bss_begin[], bss_end[];

/* What is copied besides .data, also from the linker script. */
struct copy {
    const uint32_t *image;
    volatile uint32_t *begin, *end;
};
extern const struct copy copies_begin[], copies_end[];

static void copy_data_and_clear_bss(void) {
    const uint32_t *from = data_image;
    for (volatile uint32_t *to = data_begin; to < data_end; to++) {
        *to = *from++;
    }
    for (const struct copy *copy = copies_begin; copy < copies_end; copy++) {
        const uint32_t *image = copy->image;
        for (volatile uint32_t *to = copy->begin; to < copy->end; to++) {
            *to = *image++;
        }
    }
    for (volatile uint32_t *to = bss_begin; to < bss_end; to++) {
        *to = 0;
    }
}

void start(void) {
    copy_data_and_clear_bss();
    semihosting_exit((uint32_t)main());
}

void report_fault(uint32_t exception, uint32_t pc) {
    harness_print("fault", (const uint32_t[]){exception, pc}, 2);
    semihosting_exit(1);
}
