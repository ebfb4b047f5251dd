/* SPDX-License-Identifier: 0BSD */
/* mcugen runtime: status codes, arithmetic that every target computes alike, and a few hooks.
 *
 * A generated model is a set of functions over an arena: a block of bytes that the caller owns. There is no
 * state besides it and nothing to initialise. Define before including, if wanted:
 *   MCUGEN_ON_LAYER(model, i) called after layer i of a model, of which a `const mcugen_model *` tells
 *   MCUGEN_STOP_AFTER_LAYER(model, i) the same; anything but 0 ends the run with MCUGEN_ERROR_STOPPED
 *   MCUGEN_WEIGHTS_SECTION  attribute of every constant array, e.g. __attribute__((section(".ext_flash")))
 *   MCUGEN_ARENA_SECTION    attribute of the default arena, e.g. __attribute__((section(".dtcm")))
 *   MCUGEN_SECTION(name)    attribute of what --place puts into a memory of its own, by the linker's section
 */
#ifndef MCUGEN_H
#define MCUGEN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The contract between this header and generated code; NAME.h checks it. */
#define MCUGEN_ABI_VERSION 2

/* What NAME_run and NAME_selftest return. */
#define MCUGEN_OK 0
#define MCUGEN_ERROR_NULL 1      /* the pointer to an arena (or the weights) is null */
#define MCUGEN_ERROR_ALIGNMENT 2 /* an arena (or the weights) is not aligned to NAME_ARENA_ALIGN */
#define MCUGEN_ERROR_MISMATCH 3  /* the self-test found another result */
#define MCUGEN_ERROR_SIZE 4      /* a size lies outside the range that the model was compiled for */
#define MCUGEN_ERROR_INPUT 5     /* the function that hands over rows of the input failed */
#define MCUGEN_ERROR_WEIGHTS 6   /* the file of weights is damaged, or for other code */
#define MCUGEN_ERROR_LIBRARY 7   /* another library is linked than expected: it refused a call, or wants more memory */
#define MCUGEN_ERROR_STOPPED 8   /* MCUGEN_STOP_AFTER_LAYER asked for that */
#define MCUGEN_ERROR_STEP 9      /* no run has begun, or it has ended */
#define MCUGEN_ERROR_ARENA 10    /* the arena is too small, or something wrote beside it */
#define MCUGEN_ERROR_CORE 11     /* the other core does not answer in time, or has a worker already */
#define MCUGEN_ERROR_TARGET 12   /* the target of learning is no class of the model, or missing */
#define MCUGEN_ERROR_RATE 13     /* the learning rate is negative, or no finite number */
#define MCUGEN_ERROR_DIVERGED 14 /* the loss is no finite number: nothing was learned */
#define MCUGEN_ERROR_STORAGE 15  /* what was learned cannot be stored or read: no room, worn, or a function failed */
#define MCUGEN_ERROR_STRUCTURE 16 /* the file of weights is for a model of another structure */
#define MCUGEN_ERROR_CHECKSUM 17  /* the file of weights, or a constant, is damaged */
#define MCUGEN_ERROR_VERSION 18   /* the file of weights is older than the caller allows */
#define MCUGEN_ERROR_SIGNATURE 19 /* the caller's function does not accept the file's signature */
#define MCUGEN_ERROR_READ 20      /* the caller's function could not read the file of weights */
#define MCUGEN_ERROR_STORED 21    /* nothing that this model learned is stored whole */
#define MCUGEN_ERROR_CHANGED 22   /* something else wrote to the arena between steps, or it lost a bit */
#define MCUGEN_ERROR_RANGE 23     /* an output lies outside of its plausible range, or is no number */

/* What NAME_step returns, besides errors. */
#define MCUGEN_DONE 0     /* the outputs are there */
#define MCUGEN_AGAIN (-1) /* there are more steps */

#endif
