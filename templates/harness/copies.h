/* SPDX-License-Identifier: 0BSD */
/* Included in the model's files by a compiler option: stands in for a DMA controller. The profiling plugin lets its
 * copies proceed while the CPU computes. */
#include <stddef.h>

void mcugen_harness_copy_begin(void *to, const void *from, size_t nbytes);
void mcugen_harness_copy_end(void *to, size_t nbytes);

#define MCUGEN_STAGE_BEGIN mcugen_harness_copy_begin
#define MCUGEN_STAGE_END mcugen_harness_copy_end
