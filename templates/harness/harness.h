/* SPDX-License-Identifier: 0BSD */
/* Functions of the test firmware that depend on the machine; host.c and target.c implement them. They use no library
 * function: the functions that the model links count as its size. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdint.h>

/* Measurements of the call for the first sample. */
enum { MEASURE_NOTHING = 0, MEASURE_STACK = 1, MEASURE_TIME = 2, MEASURE_PROFILE = 3 };

typedef int (*run_function)(void *arena);

/* Both move exactly `size` bytes from input.bin or to output.bin, or end the program. */
void harness_read(void *to, uint32_t size);
void harness_write(const void *from, uint32_t size);

/* Exchange data with the program that plays an accelerator, and that runs beside this one. Files are opened before the
 * first call of the model, so that all calls run the same instructions. */
void harness_open(void);
void harness_send(const void *from, uint32_t size);
void harness_receive(void *to, uint32_t size);

/* Waits until mcugen has answered what was sent; then its reply can be received, and the next request be sent. */
void harness_call(void);

/* Prints one line: the key, then the numbers in hexadecimal. */
void harness_print(const char *key, const uint32_t *numbers, uint32_t count);

/* Returns run(arena), and prints the measurements that `measure` selects. */
int harness_measure(uint32_t measure, run_function run, void *arena);

/* Returns run(arena); if `measure` selects time, prints readings before and after the call under that key. */
int harness_time(const char *key, uint32_t measure, run_function run, void *arena);

#endif
