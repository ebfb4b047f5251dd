/* SPDX-License-Identifier: 0BSD */
/* Functions of the mcugen runtime: arithmetic that is the same on every target. This file is a library of text: each
 * generated file contains the functions that it calls, and those that these call (mcugen/codegen/runtime_functions.py).
 * Functions are separated by blank lines. */
#ifndef MCUGEN_FUNCTIONS_H
#define MCUGEN_FUNCTIONS_H

#include "mcugen.h"

/* Returns element i of int8 values that are packed by four to an int32_t, the first in its lowest byte. */
#if (defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) || defined(__ARM_BIG_ENDIAN)
#define MCUGEN_INT8(p, i) (*(const int8_t *)((uintptr_t)((p) + (i)) ^ 3u))
#else
#define MCUGEN_INT8(p, i) ((p)[i])
#endif

/* Returns floor(v / 2^shift) for 0 <= shift < 32. Right shifts of negative numbers are arithmetic on every known
 * compiler, but C leaves them to the implementation: the check below stops any other compiler. */
typedef char mcugen_shifts_keep_the_sign[(-1 >> 1) == -1 ? 1 : -1];
static inline int32_t mcugen_shift_right(int32_t v, int32_t shift)
{
    /* cppcheck-suppress misra-c2012-10.1 ; a shift of a signed number, which mcugen_shifts_keep_the_sign guards */
    return v >> shift;
}

/* Returns floor(v / 2^shift) of a 64-bit v, for 0 <= shift < 64. */
static inline int64_t mcugen_shift_right_long(int64_t v, int32_t shift)
{
    /* cppcheck-suppress misra-c2012-10.1 ; a shift of a signed number, which mcugen_shifts_keep_the_sign guards */
    return v >> shift;
}

/* Returns the number with these bits in two's complement. C leaves the conversion of large values to the
 * implementation. */
typedef char mcugen_bits_are_twos_complement[(int32_t)0xffffffffu == -1 ? 1 : -1];
static inline int32_t mcugen_signed(uint32_t bits)
{
    return (int32_t)bits;
}

static inline int64_t mcugen_signed_long(uint64_t bits)
{
    return (int64_t)bits;
}

/* Returns 2^exponent, for 0 <= exponent < 31. */
static inline int32_t mcugen_power_of_2(int32_t exponent)
{
    return mcugen_signed((uint32_t)1u << (uint32_t)exponent);
}

/* Returns the bits of a byte from one bit on that `mask` selects. */
static inline int32_t mcugen_few_bits(uint8_t byte, int32_t from, int32_t mask)
{
    return mcugen_signed(((uint32_t)byte >> (uint32_t)from) & (uint32_t)mask);
}

/* Returns a 4-bit weight from a bit of a byte on, without the 8 that is added to it. */
static inline int32_t mcugen_nibble(uint8_t byte, int32_t from)
{
    return mcugen_few_bits(byte, from, 15) - 8;
}

/* Returns a 2-bit weight from a bit of a byte on, without the 2 that is added to it. */
static inline int32_t mcugen_quarter(uint8_t byte, int32_t from)
{
    return mcugen_few_bits(byte, from, 3) - 2;
}

/* Returns a 4-bit weight that is stored in two's complement. */
static inline int32_t mcugen_signed_nibble(uint8_t byte, int32_t from)
{
    return (mcugen_few_bits(byte, from, 15) ^ 8) - 8;
}

/* Returns the bits of bytes from one bit on, in at least the upper 25 bits of the result; the uppermost bit of a byte
 * is its first. */
static inline uint32_t mcugen_bits_at(const uint8_t *bytes, uint32_t bit)
{
    const uint8_t *const at = bytes + bit / 8u;
    const uint32_t high = ((uint32_t)at[0] << 24u) | ((uint32_t)at[1] << 16u);
    const uint32_t word = high | ((uint32_t)at[2] << 8u) | (uint32_t)at[3];
    return word << (bit % 8u);
}

/* Counts the leading zeros of a nonzero number. */
static inline uint32_t mcugen_leading_zeros(uint32_t v)
{
#if defined(__GNUC__) && __SIZEOF_INT__ == 4
    return (uint32_t)__builtin_clz(v);
#else
    uint32_t zeros = 0;
    for (; v < 0x80000000u; v *= 2u) {
        ++zeros;
    }
    return zeros;
#endif
}

/* Returns element n of the sequence 0, -1, 1, -2, 2, ... */
static inline int32_t mcugen_zigzag(uint32_t n)
{
    const uint32_t pair = n / 2u;
    const int32_t half = (int32_t)pair;
    return n % 2u != 0u ? -half - 1 : half;
}

/* Returns the upper word of a 64-bit number. */
static inline int32_t mcugen_upper(int64_t v)
{
    return (int32_t)mcugen_shift_right_long(v, 32);
}

/* Return the halves of a word: the lower and the upper one as signed numbers, and the lower one as unsigned. */
static inline int32_t mcugen_low16(int32_t v)
{
    return (int16_t)v;
}

static inline int32_t mcugen_high16(int32_t v)
{
    return mcugen_shift_right(v, 16);
}

static inline int32_t mcugen_low_bits(int32_t v)
{
    return mcugen_signed((uint32_t)v & 0xffffu);
}

static inline int32_t mcugen_low_byte(int32_t v)
{
    return mcugen_signed((uint32_t)v & 0xffu);
}

/* Returns byte i of a word as a signed number; byte 0 is the lowest. */
static inline int32_t mcugen_byte(int32_t v, int32_t i)
{
    return (int8_t)(uint8_t)((uint32_t)v >> (8u * (uint32_t)i));
}

/* Returns -1 for negative v, else 0. */
static inline int32_t mcugen_sign(int32_t v)
{
    return mcugen_shift_right(v, 31);
}

/* Converts a whole number to float, rounding half to even. */
static inline float mcugen_to_float(int32_t v)
{
    return (float)v;
}

/* Convert between a float and its bits. */
static inline uint32_t mcugen_bits(float v)
{
    uint32_t bits;
    /* cppcheck-suppress misra-c2012-21.15 ; the bits of a float, of which tests compare every class on all targets */
    (void)memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline float mcugen_float(uint32_t bits)
{
    float v;
    /* cppcheck-suppress misra-c2012-21.15 ; the bits of a float, of which tests compare every class on all targets */
    (void)memcpy(&v, &bits, sizeof v);
    return v;
}

/* Returns whether an address is a multiple of `bytes`. */
static inline int mcugen_is_aligned(const void *address, uint32_t bytes)
{
    /* cppcheck-suppress misra-c2012-11.6 ; nothing but the alignment of the address is looked at */
    return ((uintptr_t)address % bytes) == 0u ? 1 : 0;
}

/* Load and store words at any address: directly if the CPU can, else byte by byte like memcpy. */
static inline uint32_t mcugen_load(const void *from)
{
    uint32_t word;
    (void)memcpy(&word, from, sizeof word);
    return word;
}

static inline void mcugen_store(void *to, uint32_t word)
{
    (void)memcpy(to, &word, sizeof word);
}

/* Clamps v to [low, high]. */
static inline int32_t mcugen_clamp(int32_t v, int32_t low, int32_t high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

/* Saturate v to int8_t and to int16_t: one instruction on CPUs with SSAT. */
static inline int32_t mcugen_saturate8(int32_t v)
{
#if defined(MCUGEN_THUMB2)
    int32_t q;
    __asm__("ssat %0, #8, %1" : "=r"(q) : "r"(v));
    return q;
#else
    return (((uint32_t)v + 128u) > 255u) ? mcugen_signed((uint32_t)mcugen_sign(v) ^ 127u) : v;
#endif
}

static inline int32_t mcugen_saturate16(int32_t v)
{
#if defined(MCUGEN_THUMB2)
    int32_t q;
    __asm__("ssat %0, #16, %1" : "=r"(q) : "r"(v));
    return q;
#else
    return (((uint32_t)v + 32768u) > 65535u) ? mcugen_signed((uint32_t)mcugen_sign(v) ^ 32767u) : v;
#endif
}

/* Packs two halves into a word. */
static inline uint32_t mcugen_pair(int32_t low, int32_t high)
{
    return ((uint32_t)low & 0xffffu) | ((uint32_t)high << 16u);
}

/* Operations on words of four bytes or two halves, by one or two instructions of the DSP extension. Halves and bytes
 * wrap around independently. These extract bytes 0 and 2 of a word, and bytes 1 and 3, as signed halves. */
static inline uint32_t mcugen_even_bytes(uint32_t bytes)
{
#if defined(MCUGEN_DSP)
    uint32_t halves;
    __asm__("sxtb16 %0, %1" : "=r"(halves) : "r"(bytes));
    return halves;
#else
    return mcugen_pair(mcugen_byte(mcugen_signed(bytes), 0), mcugen_byte(mcugen_signed(bytes), 2));
#endif
}

static inline uint32_t mcugen_odd_bytes(uint32_t bytes)
{
#if defined(MCUGEN_DSP)
    uint32_t halves;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(bytes));
    return halves;
#else
    return mcugen_even_bytes(bytes >> 8);
#endif
}

/* Adds two pairs of halves. */
static inline uint32_t mcugen_add_halves(uint32_t a, uint32_t b)
{
    const uint32_t tops = (a ^ b) & 0x80008000u;
    return ((a & 0x7fff7fffu) + (b & 0x7fff7fffu)) ^ tops;
}

/* Adds two pairs of halves, saturating to 16 bits each. */
static inline uint32_t mcugen_add_saturated(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t sums;
    __asm__("qadd16 %0, %1, %2" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
#else
    const int32_t first = mcugen_signed(a), second = mcugen_signed(b);
    const int32_t low = mcugen_saturate16(mcugen_low16(first) + mcugen_low16(second));
    return mcugen_pair(low, mcugen_saturate16(mcugen_high16(first) + mcugen_high16(second)));
#endif
}

/* Add bytes 0 and 2, or 1 and 3, to halves. */
static inline uint32_t mcugen_add_even_bytes(uint32_t halves, uint32_t bytes)
{
#if defined(MCUGEN_DSP)
    uint32_t sums;
    __asm__("sxtab16 %0, %1, %2" : "=r"(sums) : "r"(halves), "r"(bytes));
    return sums;
#else
    return mcugen_add_halves(halves, mcugen_even_bytes(bytes));
#endif
}

static inline uint32_t mcugen_add_odd_bytes(uint32_t halves, uint32_t bytes)
{
#if defined(MCUGEN_DSP)
    uint32_t sums;
    __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(sums) : "r"(halves), "r"(bytes));
    return sums;
#else
    return mcugen_add_halves(halves, mcugen_odd_bytes(bytes));
#endif
}

/* Combine the lower halves of two words, or their upper halves. */
static inline uint32_t mcugen_lower_halves(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t halves;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(halves) : "r"(a), "r"(b));
    return halves;
#else
    return (a & 0xffffu) | (b << 16u);
#endif
}

static inline uint32_t mcugen_upper_halves(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t halves;
    __asm__("pkhtb %0, %2, %1, asr #16" : "=r"(halves) : "r"(a), "r"(b));
    return halves;
#else
    return (a >> 16u) | (b & 0xffff0000u);
#endif
}

/* Returns acc plus the products of two pairs of signed halves. */
static inline int32_t mcugen_add_products(int32_t acc, uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    __asm__("smlad %0, %1, %2, %0" : "+r"(acc) : "r"(a), "r"(b));
    return acc;
#else
    const int32_t low = mcugen_low16(mcugen_signed(a)) * mcugen_low16(mcugen_signed(b));
    const int32_t high = mcugen_high16(mcugen_signed(a)) * mcugen_high16(mcugen_signed(b));
    return mcugen_signed((uint32_t)acc + (uint32_t)low + (uint32_t)high);
#endif
}

/* Returns acc plus the product of the upper half of a and the lower half of b, both signed. */
static inline int32_t mcugen_add_upper_product(int32_t acc, uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    __asm__("smlatb %0, %1, %2, %0" : "+r"(acc) : "r"(a), "r"(b));
    return acc;
#else
    const int32_t product = mcugen_high16(mcugen_signed(a)) * mcugen_low16(mcugen_signed(b));
    return mcugen_signed((uint32_t)acc + (uint32_t)product);
#endif
}

/* Subtracts bytes. */
static inline uint32_t mcugen_subtract_bytes(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t differences;
    __asm__("usub8 %0, %1, %2" : "=r"(differences) : "r"(a), "r"(b));
    return differences;
#else
    const uint32_t tops = (a ^ ~b) & 0x80808080u;
    return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ tops;
#endif
}

/* Return the maxima of unsigned bytes, signed bytes and signed halves. */
static inline uint32_t mcugen_larger_u8(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t unused;
    __asm__("usub8 %1, %0, %2\n\tsel %0, %0, %2" : "+r"(a), "=&r"(unused) : "r"(b));
    return a;
#else
    uint32_t larger = 0u;
    for (uint32_t mask = 0xffu; mask != 0u; mask <<= 8u) {
        larger |= (a & mask) > (b & mask) ? a & mask : b & mask;
    }
    return larger;
#endif
}

static inline uint32_t mcugen_larger_s8(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t unused;
    __asm__("ssub8 %1, %0, %2\n\tsel %0, %0, %2" : "+r"(a), "=&r"(unused) : "r"(b));
    return a;
#else
    return mcugen_larger_u8(a ^ 0x80808080u, b ^ 0x80808080u) ^ 0x80808080u;
#endif
}

static inline uint32_t mcugen_larger_s16(uint32_t a, uint32_t b)
{
#if defined(MCUGEN_DSP)
    uint32_t unused;
    __asm__("ssub16 %1, %0, %2\n\tsel %0, %0, %2" : "+r"(a), "=&r"(unused) : "r"(b));
    return a;
#else
    const int32_t a0 = mcugen_low16(mcugen_signed(a)), b0 = mcugen_low16(mcugen_signed(b));
    const int32_t a1 = mcugen_high16(mcugen_signed(a)), b1 = mcugen_high16(mcugen_signed(b));
    return mcugen_pair(a0 > b0 ? a0 : b0, a1 > b1 ? a1 : b1);
#endif
}

/* Returns v, and hides its origin from the compiler. */
static inline int32_t mcugen_unknown(int32_t v)
{
#if defined(MCUGEN_THUMB2)
    __asm__("" : "+r"(v));
#endif
    return v;
}

/* Returns an index into `depth` elements: negative indices count from the end, and indices out of range are clamped (0
 * if there are no elements). */
static inline int32_t mcugen_index(int64_t index, int32_t depth)
{
    index += index < 0 ? depth : 0;
    return index < 0 || depth < 1 ? 0 : (index < depth ? (int32_t)index : depth - 1);
}

/* Returns a * b in 64 bits. */
#if defined(MCUGEN_THUMB1)
/* From products of halves, as this CPU multiplies to 32 bits only; the library function would take 64-bit factors. */
static MCUGEN_NAKED MCUGEN_UNUSED int64_t mcugen_product(int32_t a MCUGEN_UNUSED, int32_t b MCUGEN_UNUSED)
{
    __asm__ volatile(".syntax unified\n"
                     "push {r4, lr}\n"
                     "uxth r2, r0\n"
                     "asrs r0, r0, #16\n"
                     "uxth r3, r1\n"
                     "asrs r1, r1, #16\n"
                     "mov r4, r2\n"
                     "muls r4, r3\n" /* low * low */
                     "muls r2, r1\n" /* low * high */
                     "muls r3, r0\n" /* high * low */
                     "muls r1, r0\n" /* high * high */
                     "lsrs r0, r4, #16\n"
                     "adds r2, r2, r0\n"
                     "asrs r0, r2, #16\n"
                     "adds r1, r1, r0\n"
                     "uxth r2, r2\n"
                     "adds r3, r3, r2\n"
                     "asrs r0, r3, #16\n"
                     "adds r1, r1, r0\n"
                     "lsls r0, r3, #16\n"
                     "uxth r4, r4\n"
                     "adds r0, r0, r4\n"
                     "pop {r4, pc}\n");
}
#else
static inline int64_t mcugen_product(int32_t a, int32_t b)
{
    return (int64_t)a * b;
}
#endif

/* Returns floor(a * b / 2^32) + c; the result must fit 32 bits. */
static inline int32_t mcugen_multiply_high(int32_t a, int32_t b, int32_t c)
{
#if defined(MCUGEN_DSP)
    int32_t v;
    __asm__("smmla %0, %1, %2, %3" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
#elif defined(MCUGEN_THUMB1) /* Products of halves: a 64-bit product would be a library call. */
    const int32_t a1 = mcugen_high16(a), b1 = mcugen_high16(b);
    const int32_t a0 = mcugen_low_bits(a), b0 = mcugen_low_bits(b);
    const int32_t middle = a1 * b0 + mcugen_signed(((uint32_t)a0 * (uint32_t)b0) >> 16);
    return a1 * b1 + mcugen_high16(middle) + mcugen_high16(a0 * b1 + mcugen_low_bits(middle)) + c;
#else
    return mcugen_upper((int64_t)a * b) + c;
#endif
}

/* Returns floor((acc * multiplier + offset) / 2^shift), saturated to int32. With offset = (zero_point << shift) +
 * 2^(shift - 1) this is the requantization of mcugen, which rounds once, half up. */
static inline int32_t mcugen_requantize(int32_t acc, int32_t multiplier, int64_t offset, int32_t shift)
{
    const int64_t v = mcugen_shift_right_long(mcugen_product(acc, multiplier) + offset, shift);
    return v < INT32_MIN ? INT32_MIN : (v > INT32_MAX ? INT32_MAX : (int32_t)v);
}

/* Requantizes as TensorFlow Lite does: rounds acc * multiplier / 2^31 half up, and the quotient of the result by
 * 2^shift half away from zero. A negative shift is a left shift of acc, which wraps around. */
static inline int32_t mcugen_requantize_twice(int32_t acc, int32_t multiplier, int32_t shift)
{
    const uint32_t left = shift < 0 ? (uint32_t)-shift : 0u, right = shift < 0 ? 0u : (uint32_t)shift;
    const int64_t product = mcugen_product(mcugen_signed((uint32_t)acc << left), multiplier) + INT64_C(1073741824);
    const int32_t high = (int32_t)mcugen_shift_right_long(product, 31);
    const uint32_t mask = (UINT32_C(1) << right) - 1u, half = (mask >> 1) + (high < 0 ? 1u : 0u);
    return mcugen_shift_right(high, (int32_t)right) + (((uint32_t)high & mask) > half ? 1 : 0);
}

/* Requantizes a 64-bit sum: the product must fit 64 bits. */
static inline int32_t mcugen_requantize_long(int64_t acc, int32_t multiplier, int64_t offset, int32_t shift)
{
    const int64_t v = mcugen_shift_right_long(acc * multiplier + offset, shift);
    return v < INT32_MIN ? INT32_MIN : (v > INT32_MAX ? INT32_MAX : (int32_t)v);
}

/* Requantizes a 64-bit sum with shift 32: the upper word of the product, which always fits. */
static inline int32_t mcugen_requantize_high(int32_t acc, int32_t multiplier, int64_t offset)
{
#if defined(MCUGEN_THUMB1)
    const uint32_t low = (uint32_t)acc * (uint32_t)multiplier + (uint32_t)offset;
    return mcugen_multiply_high(acc, multiplier, mcugen_upper(offset)) + (low < (uint32_t)offset ? 1 : 0);
#else
    return mcugen_upper((int64_t)acc * multiplier + offset);
#endif
}

/* Requantizes with shift 32 and offset = (zero_point << 32) + 2^31: one instruction on CPUs with SMMLAR. */
static inline int32_t mcugen_scale(int32_t acc, int32_t multiplier, int32_t zero_point)
{
#if defined(MCUGEN_DSP)
    int32_t q;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(q) : "r"(acc), "r"(multiplier), "r"(zero_point));
    return q;
#elif defined(MCUGEN_THUMB1) || defined(__riscv) /* The carry from below is the highest bit there. */
    const uint32_t below = (uint32_t)acc * (uint32_t)multiplier;
    return mcugen_multiply_high(acc, multiplier, zero_point) + mcugen_signed(below >> 31);
#else
    const int64_t zero = (int64_t)zero_point * INT64_C(4294967296);
    return mcugen_upper((int64_t)acc * multiplier + zero + INT64_C(2147483648));
#endif
}

/* Requantizes with shift 32, rounding half to even around the zero point. */
static inline int32_t mcugen_scale_to_even(int32_t acc, int32_t multiplier, int32_t zero_point)
{
    const int32_t q = mcugen_scale(acc, multiplier, zero_point);
    return (uint32_t)acc * (uint32_t)multiplier == 0x80000000u ? q - ((q - zero_point) & 1) : q;
}

/* Requantizes like mcugen_requantize, but rounds half to even around the zero point: for averages, whose ties are
 * frequent. */
static inline int32_t mcugen_requantize_to_even(int32_t acc, int32_t multiplier, int64_t offset, int32_t shift,
    int32_t zero_point)
{
    const int64_t wide = mcugen_product(acc, multiplier) + offset;
    const int64_t v = mcugen_shift_right_long(wide, shift);
    const uint64_t rest = (uint64_t)wide & ((UINT64_C(1) << shift) - 1u);
    const int64_t q = v - (rest == 0u ? ((v - zero_point) & 1) : 0);
    return q < INT32_MIN ? INT32_MIN : (q > INT32_MAX ? INT32_MAX : (int32_t)q);
}

/* Returns sum / count, rounded half away from zero, as TensorFlow Lite's average pool does. */
static inline int32_t mcugen_divide_away(int32_t sum, int32_t count)
{
    const uint32_t divisor = count > 0 ? (uint32_t)count : 1u, magnitude = sum < 0 ? 0u - (uint32_t)sum : (uint32_t)sum;
    const uint32_t quotient = (magnitude + divisor / 2u) / divisor;
    return mcugen_signed(sum < 0 ? 0u - quotient : quotient);
}

/* Returns floor((a * m + b * n + offset) / 2^shift); the result must fit 32 bits. */
static inline int32_t mcugen_weighted_sum(int32_t a, int32_t m, int32_t b, int32_t n, int64_t offset, int32_t shift)
{
#if defined(MCUGEN_THUMB2) /* Hides the ranges of the factors, with which compilers generate slower code. */
    uint32_t low = (uint32_t)offset;
    int32_t high = mcugen_upper(offset);
    __asm__("smlal %0, %1, %2, %3" : "+r"(low), "+r"(high) : "r"(a), "r"(m));
    __asm__("smlal %0, %1, %2, %3" : "+r"(low), "+r"(high) : "r"(b), "r"(n));
    const int64_t sum = (int64_t)high * INT64_C(4294967296) + (int64_t)low;
    return shift == 32 ? high : (int32_t)mcugen_shift_right_long(sum, shift);
#else
    return (int32_t)mcugen_shift_right_long(mcugen_product(a, m) + mcugen_product(b, n) + offset, shift);
#endif
}

/* Interpolates between low (where the lowest bits of `at` are 0) and high (2^bits later), in units of 2^(bits -
 * shift), and rounds once, half up. Values and half a unit must fit 32 - bits bits; others wrap around. */
static inline int32_t mcugen_interpolate(int32_t low, int32_t high, int32_t at, int32_t bits, int32_t shift)
{
    const uint32_t one = UINT32_C(1) << bits;
    const uint32_t slope = (uint32_t)high - (uint32_t)low, half = UINT32_C(1) << (shift - 1);
    const uint32_t sum = ((uint32_t)low * one) + (slope * ((uint32_t)at & (one - 1u))) + half;
    return mcugen_shift_right(mcugen_signed(sum), shift);
}

/* Returns acc + a * b; one instruction with one rounding if the CPU has it. */
static inline float mcugen_multiply_add(float acc, float a, float b)
{
#if (defined(__ARM_FEATURE_FMA) || defined(__riscv_flen)) && defined(__GNUC__)
    return __builtin_fmaf(a, b, acc);
#else
    return acc + a * b;
#endif
}

/* memcpy from and to any address. C libraries for Cortex-M3 and up access words at unaligned addresses, even in code
 * that is compiled with -mno-unaligned-access. That flag is needed if the arena lies in device memory, which allows
 * only aligned words. */
static inline void mcugen_memcpy(void *to, const void *from, size_t nbytes)
{
#if defined(MCUGEN_THUMB2) && !defined(__ARM_FEATURE_UNALIGNED)
    const volatile unsigned char *f = (const volatile unsigned char *)from; /* volatile: else compilers call memcpy */
    unsigned char *t = (unsigned char *)to;
    const size_t words = (((uintptr_t)t | (uintptr_t)f) & 3u) == 0u ? nbytes / 4u * 4u : 0u;
    (void)memcpy(to, from, words);
    for (t += words, f += words, nbytes -= words; nbytes > 0u; --nbytes) {
        *t++ = *f++;
    }
#else
    (void)memcpy(to, from, nbytes);
#endif
}

/* Copies by words if they are aligned: small C libraries copy byte by byte. */
static inline void mcugen_copy(void *to, const void *from, size_t nbytes)
{
#if defined(__ARM_FEATURE_UNALIGNED)
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    uint32_t a, b;
#if defined(__GNUC__)
    if ((((uintptr_t)t | (uintptr_t)f) & 3u) == 0u) { /* compiled to LDM and STM */
        for (; nbytes >= 32u; nbytes -= 32u, t += 32, f += 32) {
            (void)memcpy(__builtin_assume_aligned(t, 4), __builtin_assume_aligned(f, 4), 32);
        }
    }
#endif
    for (; nbytes >= 8u; nbytes -= 8u, t += 8, f += 8) {
        a = mcugen_load(f);
        b = mcugen_load(f + 4);
        mcugen_store(t, a);
        mcugen_store(t + 4, b);
    }
    for (; nbytes > 0u; --nbytes) {
        *t++ = *f++;
    }
#elif defined(__riscv) && defined(__GNUC__)
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    if ((((uintptr_t)t | (uintptr_t)f) & 3u) == 0u) {
        for (; nbytes >= 16u; nbytes -= 16u, t += 16, f += 16) {
            (void)memcpy(__builtin_assume_aligned(t, 4), __builtin_assume_aligned(f, 4), 16);
        }
    }
    (void)memcpy(t, f, nbytes);
#else
    mcugen_memcpy(to, from, nbytes);
#endif
}

/* Copies weights of a layer to the arena, which is faster to read than their memory. The firmware may replace the
 * copy, by DMA for example: MCUGEN_STAGE(to, from, nbytes) has word-aligned addresses and must be complete when it
 * returns. With --copy-ahead, MCUGEN_STAGE_BEGIN(to, from, nbytes) starts a copy that proceeds while a layer runs, and
 * MCUGEN_STAGE_END(to, nbytes) returns when that copy is complete. Each copy that begins is ended, in the order in
 * which they began; several may be in progress. Between the two nothing else uses the bytes at `to`, and no run
 * returns. Unless the firmware defines both, the copy is made where it begins. */
#if !defined(MCUGEN_STAGE)
#if defined(__GNUC__)
#define MCUGEN_ONCE static __attribute__((noinline, unused)) /* a copy at each call would need more flash */
#else
#define MCUGEN_ONCE static inline
#endif
MCUGEN_ONCE void mcugen_stage(void *to, const void *from, size_t nbytes)
{
#if defined(MCUGEN_THUMB1) && defined(__GNUC__)
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    for (; nbytes >= 16u; nbytes -= 16u, t += 16, f += 16) {
        (void)memcpy(__builtin_assume_aligned(t, 4), __builtin_assume_aligned(f, 4), 16);
    }
    (void)memcpy(t, f, nbytes);
#else
    mcugen_copy(to, from, nbytes);
#endif
}
#define MCUGEN_STAGE mcugen_stage
#endif

#if !defined(MCUGEN_STAGE_BEGIN)
#define MCUGEN_STAGE_BEGIN MCUGEN_STAGE
#define MCUGEN_STAGE_END(to, nbytes) ((void)0)
#endif

/* memset to any address, for the same reason. */
static inline void mcugen_fill(void *to, int32_t value, size_t nbytes)
{
#if defined(__ARM_FEATURE_UNALIGNED)
    const uint32_t word = 0x01010101u * ((uint32_t)value & 0xffu);
    unsigned char *t = (unsigned char *)to;
    for (; nbytes >= 16u; nbytes -= 16u, t += 16) {
        mcugen_store(t, word);
        mcugen_store(t + 4, word);
        mcugen_store(t + 8, word);
        mcugen_store(t + 12, word);
    }
    to = t;
#endif
    (void)memset(to, (int)value, nbytes);
}

/* CRC-32 of zlib and Ethernet, four bits at a time, of data that continues the data with this CRC; the first CRC is 0.
 */
static inline uint32_t mcugen_crc32_next(uint32_t crc, const void *data, size_t nbytes)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};
    const unsigned char *from = (const unsigned char *)data;
    crc = ~crc;
    for (; nbytes > 0u; --nbytes) {
        crc ^= *from++;
        crc = (crc >> 4) ^ table[crc & 15u];
        crc = (crc >> 4) ^ table[crc & 15u];
    }
    return ~crc;
}

/* Returns the CRC-32 of all data at once. */
static inline uint32_t mcugen_crc32(const void *data, size_t nbytes)
{
    return mcugen_crc32_next(0, data, nbytes);
}

/* Selections of floats. A NaN in v passes through the first two and through mcugen_reluf. */
static inline float mcugen_maxf(float v, float low)
{
    return v < low ? low : v;
}

static inline float mcugen_minf(float v, float high)
{
    return v > high ? high : v;
}

static inline float mcugen_reluf(float v)
{
    return v < 0.0f ? 0.0f : v;
}

static inline float mcugen_clampf(float v, float low, float high)
{
    return v < low ? low : (v > high ? high : v);
}

/* Selections of doubles. */
static inline double mcugen_maxd(double v, double low)
{
    return v < low ? low : v;
}

static inline double mcugen_mind(double v, double high)
{
    return v > high ? high : v;
}

static inline double mcugen_relud(double v)
{
    return v < 0.0 ? 0.0 : v;
}

static inline double mcugen_clampd(double v, double low, double high)
{
    return v < low ? low : (v > high ? high : v);
}

/* Returns e^x to 2 units in the last place, without tables and errno of the C library: 2^(k - 127) * e^r, |r| <= ln(2)
 * / 2. A minimax polynomial yields twice the second factor, because half the first factor has an exponent for every k.
 * The result is 0 below -86.9, and infinity above 88.7. */
static inline float mcugen_expf(float x)
{
    int32_t k;
    float n, r, q;
    if (!(x >= -86.9f && x <= 88.73f)) {
        return x < 0.0f ? 0.0f : x * 3.4028235e38f;
    }
    n = x * 1.44269504f + 127.5f;
    k = (int32_t)n;
    n = (float)k - 127.0f;
    r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    q = 0.9999999f + r * (0.33333042f + r * (0.08333678f + r * (0.01673745f + r * 0.0027629163f)));
    return (2.0f + (r + r) + r * r * q) * mcugen_float(((uint32_t)k - 1u) << 23);
}

/* Returns log(x) to 1.5 units in the last place, without tables and errno of the C library: x = 2^n * (1 + f) with 1 +
 * f from sqrt(1/2) to sqrt(2), and log(1 + f) = f + f^2 * q with a minimax polynomial q. The result is minus infinity
 * for 0, infinity for infinity, and NaN for negative numbers and NaN. */
static inline float mcugen_logf(float x)
{
    uint32_t bits = mcugen_bits(x);
    float n, f, q;
    if (bits - 0x00800000u >= 0x7f000000u) { /* not a positive normal number */
        if (!(x > 0.0f) || bits == 0x7f800000u) {
            return x > 0.0f ? x : mcugen_float((bits << 1) == 0u ? 0xff800000u : 0x7fc00000u); /* 0 of either sign */
        }
        bits = mcugen_bits(x * 8388608.0f) - 0x0b800000u; /* denormal: exponent - 23, which may wrap around */
    }
    bits += 0x104afb0du; /* 1 - sqrt(1/2) in terms of their bits, and 32 more in the exponent */
    n = (float)(int32_t)(bits >> 23) - 159.0f;
    f = mcugen_float((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    q = 0.19962072f + f * (-0.16570508f + f * (0.14917974f + f * (-0.14307518f + f * 0.087348364f)));
    q = -0.49999991f + f * (0.33333951f + f * (-0.25001755f + f * q));
    return n * 0.69314718f + (f + f * f * q);
}

/* Returns tanh(x) to 2 units in the last place: below 0.625 x + x^3 * p(x^2) with a minimax polynomial p, else by
 * e^(2x). */
static inline float mcugen_tanhf(float x)
{
    const float a = x < 0.0f ? -x : x, z = x * x;
    float y;
    if (a < 0.625f) {
        const float p = 0.13331442f + z * (-0.05373972f + z * (0.020639086f + z * -0.005704987f));
        return x + x * z * (-0.3333328f + z * p);
    }
    y = 1.0f - 2.0f / (mcugen_expf(a + a) + 1.0f);
    return x < 0.0f ? -y : y;
}

/* Returns x / scale, with 1 / scale = inverse + rest. Where a product and a sum are rounded once, the ratios are
 * quantized like exact ones (the compiler has checked it for this scale). */
static inline float mcugen_ratio(float x, float scale, float inverse, float rest)
{
#if defined(__GNUC__) && (defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA))
    (void)scale;
    return __builtin_fmaf(x, inverse, x * rest);
#else
    (void)inverse, (void)rest;
    return x / scale;
#endif
}

/* Returns v rounded half to even and clamped to [low, high], which lies within +-2^22; NaN gives low. Adding and
 * subtracting 1.5 * 2^23 leaves the integer part, rounded in the default mode of the FPU (or the library). */
static inline int32_t mcugen_round_clamp(float v, int32_t low, int32_t high)
{
    const float l = (float)low, h = (float)high;
    volatile float shifted;
    v = v >= l ? v : l;
    v = v > h ? h : v;
    shifted = v + 12582912.0f;
    v = shifted - 12582912.0f;
    return (int32_t)v;
}

/* Returns v rounded half to even, plus a zero point, saturated to int8; NaN gives -128. With an FPU as above, but
 * relative to the lowest value: the conversion to fixed point at bit 24 saturates, and turns NaN into 0. */
static inline int32_t mcugen_round8(float v, int32_t zero)
{
#if defined(MCUGEN_FPU)
    const int32_t least = zero + 128;
    const float magic = 12582912.0f, back = 12582912.0f - (float)least;
    float fixed;
    __asm__("vadd.f32 %0, %1, %2\n\tvsub.f32 %0, %0, %3\n\tvcvt.u32.f32 %0, %0, #24"
        : "=&t"(fixed)
        : "t"(v), "t"(magic), "t"(back));
    return mcugen_signed(mcugen_bits(fixed) >> 24) - 128;
#else
    return mcugen_round_clamp(v, -128 - zero, 127 - zero) + zero;
#endif
}

/* Returns v rounded half to even, plus a zero point, saturated to int16. */
static inline int32_t mcugen_round16(float v, int32_t zero)
{
#if defined(MCUGEN_FPU)
    const int32_t least = zero + 32768;
    const float magic = 12582912.0f, back = 12582912.0f - (float)least;
    float fixed;
    __asm__("vadd.f32 %0, %1, %2\n\tvsub.f32 %0, %0, %3\n\tvcvt.u32.f32 %0, %0, #16"
        : "=&t"(fixed)
        : "t"(v), "t"(magic), "t"(back));
    return mcugen_signed(mcugen_bits(fixed) >> 16) - 32768;
#else
    return mcugen_round_clamp(v, -32768 - zero, 32767 - zero) + zero;
#endif
}

/* Returns the whole number nearest to x / scale, for magnitudes of floats: x = m * 2^(e - 150), scale = s *
 * 2^(exponent - 150), power = e - exponent + 1. `low` is the ratio rounded down, from a product that may be short by
 * less than 1/2, so that the result is low or low + 1. The distance of x from their middle is known exactly, in units
 * of scale / (2 * s); bits above the 32nd cancel. ONNX rounds the ratio to a float before. Therefore a tie extends
 * over half a unit of that float's last place around the middle, s / 2^(24 - n) if the middle has n bits before the
 * point, and goes to the even number. */
static inline int32_t mcugen_nearest(uint32_t m, uint32_t low, uint32_t s, uint32_t power)
{
    const uint32_t twice = 2u * low + 1u;
    const int32_t beyond = mcugen_signed((m << power) - twice * s);
    const int32_t tie = mcugen_signed(s >> (25u - power - (twice >> power)));
    const int32_t is_odd = mcugen_signed(low & 1u);
    return (int32_t)low + (beyond > (tie ^ -is_odd) ? 1 : 0);
}

/* Returns x / scale rounded half to even, plus a zero point, saturated to int8, in integer arithmetic: scale = s *
 * 2^(exponent - 150) with 24 bits of s, and inverse = 2^54 / s. NaN gives -128. Below power 0 the ratio is less than
 * 1/2, from 10 on more than 256. */
static inline int32_t mcugen_quantize8(float x, int32_t s, int32_t inverse, int32_t exponent, int32_t zero)
{
    const uint32_t bits = mcugen_bits(x), power = ((bits << 1) >> 24) - ((uint32_t)exponent - 1u);
    const int32_t sign = mcugen_sign((int32_t)bits);
    uint32_t m;
    int32_t q;
    if (power >= 10u) {
        if ((int32_t)power < 0) {
            return zero;
        }
        return sign != 0 || (bits << 1) > 0xff000000u ? -128 : 127;
    }
    m = (bits & 0x7fffffu) | 0x800000u;
    q = mcugen_nearest(m, ((m >> 8) * ((uint32_t)inverse >> 16)) >> (31u - power), (uint32_t)s, power);
    q = ((q ^ sign) - sign) + zero;
    return mcugen_saturate8(q);
}

/* Returns x / scale like above, saturated to int16, by a longer product; from power 18 on the ratio is more than
 * 65536. */
static inline int32_t mcugen_quantize16(float x, int32_t s, int32_t inverse, int32_t exponent, int32_t zero)
{
    const uint32_t bits = mcugen_bits(x), power = ((bits << 1) >> 24) - ((uint32_t)exponent - 1u);
    const int32_t sign = mcugen_sign((int32_t)bits);
    uint32_t m, product;
    int32_t q;
    if (power >= 18u) {
        if ((int32_t)power < 0) {
            return zero;
        }
        return sign != 0 || (bits << 1) > 0xff000000u ? -32768 : 32767;
    }
    m = (bits & 0x7fffffu) | 0x800000u;
#if defined(MCUGEN_THUMB1) /* 32-bit products only */
    product = (m >> 8) * ((uint32_t)inverse >> 16) + (((m >> 8) * ((uint32_t)inverse & 0xffffu)) >> 16);
    product += ((m & 0xffu) * ((uint32_t)inverse >> 16)) >> 8;
#else
    product = (uint32_t)(((uint64_t)(m << 8) * (uint32_t)inverse) >> 32);
#endif
    q = mcugen_nearest(m, product >> (31u - power), (uint32_t)s, power);
    q = ((q ^ sign) - sign) + zero;
    return mcugen_saturate16(q);
}

/* Returns x / scale rounded half to even, plus a zero point, saturated to int8, for a scale that is computed at run
 * time; NaN gives -128. Without an FPU it uses integer arithmetic if the scale allows it: the upper half of the
 * inverse is enough, which may be short by 2^-15 of it. Compilers move all that depends on the scale alone out of
 * loops. */
static inline int32_t mcugen_quantize_by8(float x, float scale, int32_t zero)
{
#if !defined(MCUGEN_FPU)
    const uint32_t bits = mcugen_bits(scale);
    if (bits - 0x0e000000u < 0x62000000u) { /* from 2^-99 to 2^97 */
        const uint32_t s = (bits & 0x7fffffu) | 0x800000u;
        const uint32_t inverse = 0x40000000u / ((s >> 8) + 1u);
        return mcugen_quantize8(x, (int32_t)s, mcugen_signed(inverse << 16), mcugen_signed(bits >> 23), zero);
    }
#endif
    return mcugen_round8(x / scale, zero);
}

/* Returns x / scale like above, saturated to int16. */
static inline int32_t mcugen_quantize_by16(float x, float scale, int32_t zero)
{
    return mcugen_round16(x / scale, zero);
}

/* Returns v * scale as a float, for v of at most eight bits and scale = s * 2^(exponent - 150): the product is exact
 * in 32 bits. It is normalized, and the lowest eight bits are rounded, half to even. */
static inline float mcugen_real(int32_t v, int32_t s, int32_t exponent)
{
    uint32_t m = (uint32_t)(v < 0 ? -v : v) * (uint32_t)s, power = (uint32_t)exponent + 7u, bits;
    if (v == 0) {
        return 0.0f;
    }
    if (m < 0x10000000u) {
        m <<= 4;
        power -= 4u;
    }
    if (m < 0x10000000u) {
        m <<= 4;
        power -= 4u;
    }
    if (m < 0x40000000u) {
        m <<= 2;
        power -= 2u;
    }
    if (m < 0x80000000u) {
        m <<= 1;
        power -= 1u;
    }
    bits = (power << 23) + (m >> 8) + (((m & 0xffu) + ((m >> 8) & 1u) + 0x7fu) >> 8);
    bits |= v < 0 ? 0x80000000u : 0u;
    return mcugen_float(bits);
}

/* Returns v truncated to a whole number and clamped to [low, high]; NaN gives 0. */
static inline int32_t mcugen_truncate(float v, int32_t low, int32_t high)
{
    if (v > (float)low) {
        return v < (float)high ? (int32_t)v : high;
    }
    return v <= (float)low ? low : 0;
}

/* Truncates and clamps to wider limits. */
static inline int64_t mcugen_truncate64(float v, int64_t low, int64_t high)
{
    if (v > (float)low) {
        return v < (float)high ? (int64_t)v : high;
    }
    return v <= (float)low ? low : 0;
}

/* Truncates and clamps a double. */
static inline int64_t mcugen_truncate_double(double v, int64_t low, int64_t high)
{
    if (v > (double)low) {
        return v < (double)high ? (int64_t)v : high;
    }
    return v <= (double)low ? low : 0;
}

/* Truncates a double and clamps it to the range of uint64_t. */
static inline uint64_t mcugen_truncate_u64(double v)
{
    if (!(v > 0.0)) {
        return 0u;
    }
    return v >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)v;
}

/* Returns base^exponent, which wraps around. Negative bases are sign-extended; 1 / base^-exponent is truncated to a
 * whole number. */
static inline uint64_t mcugen_power(uint64_t base, int64_t exponent)
{
    uint64_t y = 1u;
    if (exponent < 0) {
        if (base == UINT64_MAX) {
            return (exponent & 1) != 0 ? base : 1u;
        }
        return base == 1u ? 1u : 0u;
    }
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0) {
            y *= base;
        }
        base *= base;
    }
    return y;
}

/* Converts half-precision bits to a float. */
static inline float mcugen_half_to_float(uint16_t h)
{
#if defined(MCUGEN_FPU)
    float v = mcugen_float(h);
    __asm__("vcvtb.f32.f16 %0, %0" : "+t"(v));
    return v;
#else
    const uint32_t sign = ((uint32_t)h & 0x8000u) << 16, magnitude = (uint32_t)h & 0x7fffu;
    uint32_t bits;
    if (magnitude < 0x400u) { /* denormal: units of 2^-24 */
        const float v = (float)magnitude * 5.9604645e-8f;
        return sign != 0u ? -v : v;
    }
    bits = sign | (magnitude << 13);
    bits += magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
    return mcugen_float(bits);
#endif
}

#if defined(MCUGEN_MVE_FLOAT)
/* Returns e^x of four numbers that are at most 88.73, with the method of mcugen_expf. */
static inline float32x4_t mcugen_exp_below(float32x4_t x)
{
    const mve_pred16_t is_low = vcmpgtq_f32(vdupq_n_f32(-86.9f), x);
    const int32x4_t k = vcvtnq_s32_f32(vmulq_n_f32(x, 1.44269504f));
    const float32x4_t n = vcvtq_f32_s32(k);
    const float32x4_t r = vfmaq_n_f32(vfmaq_n_f32(x, n, -0.693145752f), n, -1.42860677e-6f);
    float32x4_t q = vaddq_n_f32(vmulq_n_f32(r, 0.0027629163f), 0.01673745f);
    q = vfmasq_n_f32(q, r, 0.08333678f);
    q = vfmasq_n_f32(q, r, 0.33333042f);
    q = vfmasq_n_f32(q, r, 0.9999999f);
    q = vfmaq_f32(vaddq_n_f32(vaddq_f32(r, r), 2.0f), vmulq_f32(r, r), q);
    q = vmulq_f32(q, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_n_s32(k, 126), 23)));
    return vpselq_f32(vdupq_n_f32(0.0f), q, is_low);
}

/* Returns e^x of four numbers. */
static inline float32x4_t mcugen_exp_four(float32x4_t x)
{
    const mve_pred16_t is_high = vcmpgtq_n_f32(x, 88.73f);
    return vpselq_f32(vdupq_n_f32(mcugen_float(0x7f800000u)), mcugen_exp_below(x), is_high);
}

/* Returns 1 / (1 + e^x) of four numbers. Helium has no division; three steps of Newton's method end within 2 units in
 * the last place. Results below 5e-38 are 0. */
static inline float32x4_t mcugen_falling_sigmoid(float32x4_t x)
{
    const mve_pred16_t is_high = vcmpgtq_n_f32(x, 86.0f);
    const float32x4_t two = vdupq_n_f32(2.0f), d = vaddq_n_f32(mcugen_exp_below(x), 1.0f);
    float32x4_t y = vreinterpretq_f32_s32(vsubq_s32(vdupq_n_s32(0x7ef311c7), vreinterpretq_s32_f32(d)));
    y = vmulq_f32(y, vfmsq_f32(two, d, y));
    y = vmulq_f32(y, vfmsq_f32(two, d, y));
    return vpselq_f32(vdupq_n_f32(0.0f), vmulq_f32(y, vfmsq_f32(two, d, y)), is_high);
}

/* Returns 1 / (1 + e^-x) of four numbers. */
static inline float32x4_t mcugen_sigmoid_four(float32x4_t x)
{
    return mcugen_falling_sigmoid(vnegq_f32(x));
}

/* Returns tanh(x) of four numbers, with the method of mcugen_tanhf. */
static inline float32x4_t mcugen_tanh_four(float32x4_t x)
{
    const float32x4_t a = vabsq_f32(x), z = vmulq_f32(x, x), one = vdupq_n_f32(1.0f);
    const mve_pred16_t is_small = vcmpgtq_f32(vdupq_n_f32(0.625f), a), is_negative = vcmpgtq_f32(vdupq_n_f32(0.0f), x);
    const float32x4_t y = vfmsq_f32(one, mcugen_falling_sigmoid(vaddq_f32(a, a)), vdupq_n_f32(2.0f));
    float32x4_t p = vaddq_n_f32(vmulq_n_f32(z, -0.005704987f), 0.020639086f);
    p = vfmasq_n_f32(p, z, -0.05373972f);
    p = vfmasq_n_f32(p, z, 0.13331442f);
    p = vfmasq_n_f32(p, z, -0.3333328f);
    p = vfmaq_f32(x, vmulq_f32(x, z), p);
    return vpselq_f32(p, vpselq_f32(vnegq_f32(y), y, is_negative), is_small);
}

/* Converts four half-precision numbers to floats. The register is fixed, as GNU's assembler (2.40) encodes registers
 * other than q0 wrongly. */
static inline float32x4_t mcugen_halves_to_floats(const uint16_t *h)
{
    register uint32x4_t v __asm__("q0") = vldrhq_u32(h);
    __asm__("vcvtb.f32.f16 q0, q0" : "+w"(v));
    return vreinterpretq_f32_u32(v);
}
#endif

/* Converts a narrow float without infinities: its sign (the top bit of the float), and its other bits, of which
 * `mantissa` follow an exponent with this bias. */
static inline float mcugen_widen(uint32_t sign, uint32_t magnitude, uint32_t mantissa, uint32_t bias)
{
    if (magnitude >> mantissa == 0u) { /* denormal */
        const float v = (float)magnitude * mcugen_float((128u - bias - mantissa) << 23);
        return sign != 0u ? -v : v;
    }
    return mcugen_float(sign | ((magnitude << (23u - mantissa)) + ((127u - bias) << 23)));
}

static inline float mcugen_float8_e4m3fn_to_float(uint8_t v)
{
    const uint32_t sign = ((uint32_t)v & 0x80u) << 24, magnitude = (uint32_t)v & 0x7fu;
    return magnitude == 0x7fu ? mcugen_float(sign | 0x7fc00000u) : mcugen_widen(sign, magnitude, 3u, 7u);
}

static inline float mcugen_float8_e4m3fnuz_to_float(uint8_t v)
{
    const uint32_t sign = ((uint32_t)v & 0x80u) << 24;
    return v == 0x80u ? mcugen_float(0xffc00000u) : mcugen_widen(sign, (uint32_t)v & 0x7fu, 3u, 8u);
}

static inline float mcugen_float8_e5m2_to_float(uint8_t v)
{
    return mcugen_half_to_float((uint16_t)((uint32_t)v << 8)); /* its upper byte */
}

static inline float mcugen_float8_e5m2fnuz_to_float(uint8_t v)
{
    const uint32_t sign = ((uint32_t)v & 0x80u) << 24;
    return v == 0x80u ? mcugen_float(0xffc00000u) : mcugen_widen(sign, (uint32_t)v & 0x7fu, 2u, 16u);
}

static inline float mcugen_float4_e2m1fn_to_float(uint8_t v)
{
    return mcugen_widen(((uint32_t)v & 8u) << 28, (uint32_t)v & 7u, 1u, 1u);
}

/* 2^(v - 127) */
static inline float mcugen_float8_e8m0fnu_to_float(uint8_t v)
{
    if (v == 0xffu) {
        return mcugen_float(0x7fc00000u);
    }
    return mcugen_float(v == 0u ? 0x400000u : (uint32_t)v << 23);
}

/* Returns the bits of a positive float in a narrow format, with `mantissa` bits behind an exponent with this bias,
 * rounded half to even: any number above the largest finite one for larger values. */
static inline uint32_t mcugen_narrow(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
{
    const uint32_t cut = 23u - mantissa, exponent = magnitude >> 23;
    uint32_t shift, half, rest, y;
    if (exponent > 127u - bias) {
        y = magnitude + (((uint32_t)1u << (cut - 1u)) - 1u) + ((magnitude >> cut) & 1u);
        return (y - ((127u - bias) << 23)) >> cut;
    }
    shift = cut + 128u - bias - exponent; /* denormal */
    if (shift > 24u) {
        return 0u;
    }
    half = (uint32_t)1u << (shift - 1u);
    magnitude = (magnitude & 0x7fffffu) | 0x800000u;
    rest = magnitude & (2u * half - 1u);
    y = magnitude >> shift;
    return rest > half || (rest == half && (y & 1u) != 0u) ? y + 1u : y;
}

/* Returns IEEE half-precision bits, rounded half to even. */
static inline uint16_t mcugen_float_to_half(float v)
{
    const uint32_t bits = mcugen_bits(v), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t y;
    if (magnitude > 0x7f800000u) { /* NaN, as a quiet one */
        y = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    } else {
        y = mcugen_narrow(magnitude, 10u, 15u);
        y = y < 0x7c00u ? y : 0x7c00u;
    }
    return (uint16_t)(sign | y);
}

/* Returns the bits of a float8, rounded half to even: `most` for larger values, `nan` for NaN. */
static inline uint8_t mcugen_to_float8(float v, uint32_t mantissa, uint32_t bias, uint32_t most, uint32_t nan)
{
    const uint32_t bits = mcugen_bits(v), magnitude = bits & 0x7fffffffu;
    uint32_t sign = (bits >> 24) & 0x80u, y = nan;
    if (magnitude <= 0x7f800000u) {
        y = mcugen_narrow(magnitude, mantissa, bias);
        y = y < most ? y : most;
    }
    if (y == 0u && nan == 0x80u) { /* no negative zero */
        sign = 0u;
    }
    return (uint8_t)(sign | y);
}

static inline uint8_t mcugen_float_to_float8_e4m3fn(float v)
{
    return mcugen_to_float8(v, 3u, 7u, 0x7fu, 0x7fu);
}

static inline uint8_t mcugen_float_to_float8_e4m3fn_saturated(float v)
{
    return mcugen_to_float8(v, 3u, 7u, 0x7eu, 0x7fu);
}

static inline uint8_t mcugen_float_to_float8_e4m3fnuz(float v)
{
    return mcugen_to_float8(v, 3u, 8u, 0x80u, 0x80u);
}

static inline uint8_t mcugen_float_to_float8_e4m3fnuz_saturated(float v)
{
    return mcugen_to_float8(v, 3u, 8u, 0x7fu, 0x80u);
}

static inline uint8_t mcugen_float_to_float8_e5m2(float v)
{
    return mcugen_to_float8(v, 2u, 15u, 0x7cu, 0x7eu);
}

static inline uint8_t mcugen_float_to_float8_e5m2_saturated(float v)
{
    return mcugen_to_float8(v, 2u, 15u, 0x7bu, 0x7eu);
}

static inline uint8_t mcugen_float_to_float8_e5m2fnuz(float v)
{
    return mcugen_to_float8(v, 2u, 16u, 0x80u, 0x80u);
}

static inline uint8_t mcugen_float_to_float8_e5m2fnuz_saturated(float v)
{
    return mcugen_to_float8(v, 2u, 16u, 0x7fu, 0x80u);
}

/* Returns the bits of a float4, rounded half to even, at most 6; NaN gives 0. */
static inline uint8_t mcugen_float_to_float4_e2m1fn(float v)
{
    const uint32_t bits = mcugen_bits(v), magnitude = bits & 0x7fffffffu;
    uint32_t sign = (bits >> 28) & 8u, y = 0u;
    if (magnitude > 0x7f800000u) {
        sign ^= 8u;
    } else {
        y = mcugen_narrow(magnitude, 1u, 1u);
        y = y < 7u ? y : 7u;
    }
    return (uint8_t)(sign | y);
}

/* Returns the exponent of a magnitude after adding a rounding term, at most `most`. 2^-127 is exact, thus no tie. */
static inline uint8_t mcugen_to_power(float v, uint32_t more, uint32_t most)
{
    const uint32_t magnitude = mcugen_bits(v) & 0x7fffffffu;
    uint32_t y = 0xffu;
    if (magnitude < 0x7f800000u) {
        y = (magnitude + more - (magnitude == 0x400000u ? 1u : 0u)) >> 23;
        y = y < most ? y : most;
    }
    return (uint8_t)y;
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_up(float v)
{
    return mcugen_to_power(v, 0x7fffffu, 0xffu);
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_up_saturated(float v)
{
    return mcugen_to_power(v, 0x7fffffu, 0xfeu);
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_down(float v)
{
    return mcugen_to_power(v, 0u, 0xffu);
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_down_saturated(float v)
{
    return mcugen_to_power(v, 0u, 0xfeu);
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_nearest(float v)
{
    return mcugen_to_power(v, 0x400000u, 0xffu);
}

static inline uint8_t mcugen_float_to_float8_e8m0fnu_nearest_saturated(float v)
{
    return mcugen_to_power(v, 0x400000u, 0xfeu);
}

/* Converts a double with a single rounding: the float in between rounds to odd, so that no tie arises or is lost. */
static inline uint16_t mcugen_double_to_half(double v)
{
    float near = (float)v;
    uint32_t bits = mcugen_bits(near);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude != 0u && magnitude < 0x7f800000u && ((double)near < v || (double)near > v)) {
        bits -= (near > 0.0f ? (double)near > v : (double)near < v) ? 1u : 0u;
        near = mcugen_float(bits | 1u);
    }
    return mcugen_float_to_half(near);
}

/* Converts bfloat16 bits, which are the upper half of a float. */
static inline float mcugen_bfloat16_to_float(uint16_t b)
{
    return mcugen_float((uint32_t)b << 16);
}

/* Returns bfloat16 bits, rounded half to even. */
static inline uint16_t mcugen_float_to_bfloat16(float v)
{
    const uint32_t bits = mcugen_bits(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(((bits >> 16) & 0x8000u) | 0x7fc0u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif /* MCUGEN_FUNCTIONS_H */
