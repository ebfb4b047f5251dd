/* SPDX-License-Identifier: 0BSD */
/* Included in the model's files by a compiler option: see cores.c. */
void harness_signal(void);
void harness_wait(void);

#define MCUGEN_CORE_SIGNAL() harness_signal()
#define MCUGEN_CORE_WAIT() harness_wait()
#define MCUGEN_CORE_POLL() harness_wait()
