/* SPDX-License-Identifier: 0BSD */
/* Statistics of a model in the field: counts of classes, ranges, means and histograms of tensors, in integers only.
 *
 * A snapshot is the struct of the model, NAME_monitor, as it lies in memory, with a checksum at its end. All numbers
 * have the byte order of the CPU. `mcugen monitor` reads snapshots.
 */
#ifndef MCUGEN_MONITOR_H
#define MCUGEN_MONITOR_H

#include "mcugen.h"

#define MCUGEN_MONITOR_MAGIC 0x4e4f4d4du
#define MCUGEN_MONITOR_FORMAT 1u
#define MCUGEN_MONITOR_BINS 8  /* of a histogram */
#define MCUGEN_MONITOR_EDGES 7 /* between them */
#define MCUGEN_MONITOR_PARTS 4 /* channels or quarters of a tensor that have means of their own */

/* A counter of cycles that NAME_run_monitored reads before and after a run, such as DWT->CYCCNT; it may wrap around. */
#ifndef MCUGEN_CYCLES
#define MCUGEN_CYCLES() 0u
#endif

typedef struct {
    uint32_t magic, format, nbytes;
    uint32_t model[2];          /* hash of the model and of what is observed of it */
    uint32_t weights, version;  /* checksum and version of a file of weights; 0 for weights in the firmware */
    uint32_t device, time;      /* numbers of the caller's */
    uint32_t sequence;          /* odd while something writes to the struct */
    uint32_t runs, errors;      /* successful runs, and runs with an error */
    uint32_t longest;           /* cycles of the longest run */
    uint32_t self_tests;        /* failed self-tests */
    uint32_t checksums;         /* failed comparisons with checksums */
    uint32_t spare;
} mcugen_monitor_head;

/* Observations of one tensor. Values are codes: integers of at most 17 bits, by the report's scale. */
typedef struct {
    uint64_t squares;                   /* sum of the squared distances from the reference's mean */
    int64_t sums[MCUGEN_MONITOR_PARTS]; /* sums of the distances, by part */
    uint64_t steps;                     /* sum of the absolute differences of neighbors */
    uint32_t count;                     /* observed elements; nothing more is observed when it is full */
    uint32_t clipped;                   /* elements at or beyond the ends of the range that the model can tell apart */
    int32_t low, high;                  /* smallest and largest value */
    uint32_t bins[MCUGEN_MONITOR_BINS];
} mcugen_monitor_tensor;

/* Returns a counter increased by `more`, which stops at its largest value. */
static inline uint32_t mcugen_monitor_sum(uint32_t count, uint32_t more)
{
    return count > UINT32_MAX - more ? UINT32_MAX : count + more;
}

/* Returns the bin of a value: the number of edges below it. */
static inline uint32_t mcugen_monitor_bin(const int32_t *edges, int32_t v)
{
    uint32_t bin = v > edges[3] ? 4u : 0u;
    bin += v > edges[bin + 1u] ? 2u : 0u;
    return v > edges[bin] ? bin + 1u : bin;
}

/* Returns a float in units of 2^unit, rounded toward zero and limited to 15 bits and a sign, from its bits. */
static inline int32_t mcugen_monitor_fixed(uint32_t bits, int32_t unit)
{
    const int32_t shift = 150 + unit - (int32_t)((bits >> 23) & 0xffu);
    const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    const int32_t size = shift < 9 ? 32767 : shift > 23 ? 0 : (int32_t)(mantissa >> (uint32_t)shift);
    return (bits >> 31) != 0u ? -size : size;
}

/* Returns an integer that has the order of a float, from the float's bits. */
static inline int32_t mcugen_monitor_order(uint32_t bits)
{
    const int32_t size = (int32_t)(bits & 0x7fffffffu);
    return (bits >> 31) != 0u ? -size : size;
}

/* Marks the begin or the end of an update. */
static inline void mcugen_monitor_mark(volatile mcugen_monitor_head *head)
{
    head->sequence = head->sequence + 1u;
}

/* Adds the observations of one run to those of a tensor. */
static inline void mcugen_monitor_add(volatile mcugen_monitor_tensor *to, const mcugen_monitor_tensor *from)
{
    uint32_t i;
    to->squares = to->squares + from->squares;
    to->steps = to->steps + from->steps;
    to->count = to->count + from->count;
    to->clipped = to->clipped + from->clipped;
    to->low = from->low < to->low ? from->low : to->low;
    to->high = from->high > to->high ? from->high : to->high;
    for (i = 0; i < (uint32_t)MCUGEN_MONITOR_PARTS; ++i) {
        to->sums[i] = to->sums[i] + from->sums[i];
    }
    for (i = 0; i < (uint32_t)MCUGEN_MONITOR_BINS; ++i) {
        to->bins[i] = to->bins[i] + from->bins[i];
    }
}

/* Copies a struct of observations, and returns whether nothing wrote to it meanwhile. */
static inline int mcugen_monitor_copy(const volatile mcugen_monitor_head *head, void *to, uint32_t nbytes)
{
    const volatile unsigned char *const from = (const volatile unsigned char *)head;
    unsigned char *const bytes = (unsigned char *)to;
    const uint32_t sequence = head->sequence;
    uint32_t i;
    for (i = 0; i < nbytes; ++i) {
        bytes[i] = from[i];
    }
    return (sequence & 1u) == 0u && head->sequence == sequence ? 1 : 0;
}

#endif /* MCUGEN_MONITOR_H */
