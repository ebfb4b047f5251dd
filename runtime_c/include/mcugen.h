/* SPDX-License-Identifier: 0BSD */
/* mcugen runtime: status codes, hooks, and features of the CPU. Generated files have the functions that they call.
 *
 * A generated model is a set of functions that work in an arena: a block of bytes that the caller owns. There is no
 * other state, and nothing to initialise. Optional macros, to be defined before including this file:
 *   MCUGEN_ON_LAYER(model, i) is called after layer i of a model, described by a `const mcugen_model *`
 *   MCUGEN_STOP_AFTER_LAYER(model, i) has the same arguments; a nonzero value ends the run with MCUGEN_ERROR_STOPPED
 *   MCUGEN_WEIGHTS_SECTION  attribute of every constant array, e.g. __attribute__((section(".ext_flash")))
 *   MCUGEN_ARENA_SECTION    attribute of the default arena, e.g. __attribute__((section(".dtcm")))
 *   MCUGEN_STAGE(to, from, nbytes), MCUGEN_STAGE_BEGIN and MCUGEN_STAGE_END copy weights; see NAME_kernels.h
 *   MCUGEN_SECTION(name)    attribute of data that --place puts into a memory, by the name of its linker section
 */
#ifndef MCUGEN_H
#define MCUGEN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Version of the interface between this header and generated code; NAME.h checks it. */
#define MCUGEN_ABI_VERSION 3

/* Results of NAME_run and NAME_selftest. */
#define MCUGEN_OK 0
#define MCUGEN_ERROR_NULL 1      /* the pointer to an arena (or the weights) is null */
#define MCUGEN_ERROR_ALIGNMENT 2 /* an arena (or the weights) is not aligned to NAME_ARENA_ALIGN */
#define MCUGEN_ERROR_MISMATCH 3  /* the self-test yields a different result */
#define MCUGEN_ERROR_SIZE 4      /* a size lies outside the range that the model was compiled for */
#define MCUGEN_ERROR_INPUT 5     /* the function that supplies rows of the input failed */
#define MCUGEN_ERROR_WEIGHTS 6   /* the file of weights is damaged, or belongs to other code */
#define MCUGEN_ERROR_LIBRARY 7   /* another library is linked than expected: it refused a call or needs more memory */
#define MCUGEN_ERROR_STOPPED 8   /* MCUGEN_STOP_AFTER_LAYER requested it */
#define MCUGEN_ERROR_STEP 9      /* no run has begun, or it has ended */
#define MCUGEN_ERROR_ARENA 10    /* the arena is too small, or something wrote beyond its end */
#define MCUGEN_ERROR_CORE 11     /* the other core does not answer in time, or already has a worker */
#define MCUGEN_ERROR_TARGET 12   /* the training target is no class of the model, or is missing */
#define MCUGEN_ERROR_RATE 13     /* the learning rate is negative or not finite */
#define MCUGEN_ERROR_DIVERGED 14 /* the loss is not finite: the weights are unchanged */
#define MCUGEN_ERROR_STORAGE 15  /* learned state cannot be stored or read: memory is full or worn, or a call failed */
#define MCUGEN_ERROR_STRUCTURE 16 /* the file of weights belongs to a model of another structure */
#define MCUGEN_ERROR_CHECKSUM 17  /* the file of weights or a constant is damaged */
#define MCUGEN_ERROR_VERSION 18   /* the file of weights is older than the caller allows */
#define MCUGEN_ERROR_SIGNATURE 19 /* the caller's function rejects the signature of the file */
#define MCUGEN_ERROR_READ 20      /* the caller's function could not read the file of weights */
#define MCUGEN_ERROR_STORED 21    /* no complete learned state of this model is stored */
#define MCUGEN_ERROR_CHANGED 22   /* the arena changed between two steps */
#define MCUGEN_ERROR_RANGE 23     /* an output lies outside of its plausible range, or is NaN */
#define MCUGEN_ERROR_ACCELERATOR 24 /* the driver of the accelerator has no device, or reports an error */

/* Results of NAME_step, besides errors. */
#define MCUGEN_DONE 0     /* the outputs are valid */
#define MCUGEN_AGAIN (-1) /* more steps remain */

/* A function of the caller that reads `nbytes` bytes of a file, from `offset` on, to `to`, and returns 0 on success;
 * `context` is passed through. */
typedef struct {
    int (*read)(void *context, uint32_t offset, void *to, uint32_t nbytes);
    void *context;
} mcugen_reader;

/* A function of the caller that checks whether the `signature_nbytes` bytes after the first `nbytes` bytes of a file
 * are their signature, and returns 0 if so. */
typedef int (*mcugen_verify_read)(void *context, const mcugen_reader *file, uint32_t nbytes,
    uint32_t signature_nbytes);

/* A function of the caller that checks whether a signature belongs to some data, and returns 0 if so. */
typedef int (*mcugen_verify)(void *context, const void *data, uint32_t nbytes, const void *signature,
    uint32_t signature_nbytes);

/* Description of a model for MCUGEN_ON_LAYER. It exists, as NAME_model, only if that macro is defined. */
typedef struct {
    const char *name;               /* prefix of its C symbols */
    int32_t layers;                 /* number of layers */
    const char *const *layer_names; /* names by layer index */
} mcugen_model;

#ifdef MCUGEN_STOP_AFTER_LAYER
#ifdef MCUGEN_ON_LAYER
#error "define MCUGEN_ON_LAYER or MCUGEN_STOP_AFTER_LAYER: there is one hook"
#endif
#define MCUGEN_ON_LAYER(model, index) \
    do { \
        if (MCUGEN_STOP_AFTER_LAYER(model, index) != 0) { \
            return MCUGEN_ERROR_STOPPED; \
        } \
    } while (0)
#endif
#ifdef MCUGEN_ON_LAYER
#define MCUGEN_HAS_ON_LAYER 1
#else
#define MCUGEN_ON_LAYER(model, index) ((void)0)
#endif
#ifndef MCUGEN_WEIGHTS_SECTION
#define MCUGEN_WEIGHTS_SECTION
#endif
#ifndef MCUGEN_ARENA_SECTION
#define MCUGEN_ARENA_SECTION
#endif

/* misra-c2012-1.2 ; what C99 has no words for (alignment, sections), where the compiler has them: else nothing */
/* Alignment; stands before the type. */
#if defined(__GNUC__) || defined(__ICCARM__) || defined(__ARMCC_VERSION) || defined(__TINYC__)
#define MCUGEN_ALIGN(bytes) __attribute__((aligned(bytes)))
#elif defined(_MSC_VER)
#define MCUGEN_ALIGN(bytes) __declspec(align(bytes))
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define MCUGEN_ALIGN(bytes) _Alignas(bytes)
#else
#define MCUGEN_ALIGN(bytes) /* Unknown compiler: the linker script must align the arena and the weights. */
#endif
#ifndef MCUGEN_SECTION
#if (defined(__GNUC__) && defined(__ELF__)) || defined(__ICCARM__) || defined(__ARMCC_VERSION)
#define MCUGEN_SECTION(name) __attribute__((section(name)))
#else
#define MCUGEN_SECTION(name) /* Unknown compiler: the linker script must place the data. */
#endif
#endif

/* Infinity for <math.h>; tcc does not accept -INFINITY as a constant. */
#if defined(__TINYC__)
#include <float.h>
#define MCUGEN_MINUS_INFINITY (-FLT_MAX * 2.0f)
#else
#define MCUGEN_MINUS_INFINITY (-INFINITY)
#endif

/* Features of the CPU and the compiler. Every kernel has a twin in plain C; -DMCUGEN_PLAIN_C selects the twins. */
#if defined(__GNUC__) && defined(__ARM_ARCH_PROFILE) && !defined(__ARM_BIG_ENDIAN) && !defined(MCUGEN_PLAIN_C)
#if __ARM_ARCH_PROFILE == 'M' && defined(__ARM_FEATURE_MVE)
/* misra-c2012-1.2 ; intrinsics of Helium, where the compiler has them: tests compare bits with those of plain C */
#include <arm_mve.h>
#define MCUGEN_MVE 1 /* Helium: vectors of 16 bytes */
#if (__ARM_FEATURE_MVE & 2) != 0
#define MCUGEN_MVE_FLOAT 1 /* Helium with floats: vectors of four floats */
#endif
#endif
#if __ARM_ARCH_PROFILE == 'M' && __ARM_ARCH_ISA_THUMB == 2
#define MCUGEN_THUMB2 1 /* Thumb-2: Cortex-M3 and up */
#if defined(__ARM_FEATURE_DSP)
#define MCUGEN_DSP 1 /* DSP extension: two 16-bit products per instruction */
#endif
#if defined(__ARM_FP) && (__ARM_FP & 4) != 0 && defined(__ARM_FEATURE_FMA)
#define MCUGEN_FPU 1 /* single precision in registers s0 to s31 */
#endif
#elif __ARM_ARCH_PROFILE == 'M'
#define MCUGEN_THUMB1 1 /* Thumb-1: Cortex-M0 and M0+ */
#endif
#elif defined(__GNUC__) && defined(__riscv_mul) && __riscv_xlen == 32 && !defined(__riscv_32e) && \
    !defined(MCUGEN_PLAIN_C)
#define MCUGEN_RV32 1 /* RV32IM and up */
#endif
#if defined(MCUGEN_THUMB2) || defined(MCUGEN_THUMB1) || defined(MCUGEN_RV32)
/* misra-c2012-dir-4.3 of MCUGEN_NAKED ; all of a function, so that no C stands beside it: tests compare bits with those
 * of plain C, look for the caller's registers, and interrupt it */
/* misra-c2012-dir-4.3 of __asm__ ; a name for a few instructions that C has none for, without a loop or a branch: tests
 * compare them with what stands for them in plain C */
/* A function that consists of assembly only, by the standard calling convention; ADR needs it to begin at a word
 * boundary. */
#if defined(__clang__)
#define MCUGEN_NAKED __attribute__((naked, noinline, aligned(4)))
#define MCUGEN_CODE_SIZE(label, nbytes) "" /* This assembler does not know code sizes when it reads a condition, */
#define MCUGEN_WIDE ""                     /* nor the .w suffix of loads that have a 32-bit encoding only. */
#else
#define MCUGEN_WIDE ".w"
#define MCUGEN_NAKED __attribute__((naked, noinline, noclone, noipa, aligned(4)))
/* cppcheck-suppress misra-c2012-20.7 ; parts of one string, which parentheses would break: what compiles is right */
/* Assembly that fails unless the code from a label to here has this many bytes, because jumps into it rely on that. */
#define MCUGEN_CODE_SIZE(label, nbytes) \
    ".if . - " label " != " #nbytes "\n.error \"code of another size than jumps count on\"\n.endif\n"
#endif
#define MCUGEN_NOINLINE __attribute__((noinline)) /* A function of its own gives its loop all registers. */
#else
#define MCUGEN_NOINLINE
#endif
#if defined(__GNUC__)
#define MCUGEN_UNUSED __attribute__((unused))
#else
#define MCUGEN_UNUSED
#endif

#endif /* MCUGEN_H */
