/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

/* Products of numbers with 31 bits behind the point, rounded half up. */
static int64_t times(int64_t a, int64_t b)
{
    return (a * b + ((int64_t)1 << 30)) >> 31;
}

static int64_t at_most_int32(int64_t v)
{
    return v > INT32_MAX ? INT32_MAX : v;
}

/* exp(-v / 2^26) * 2^31 for v > 0: of the last quarter (0 excluded, 1 included) by the Taylor series around 1/8, times
 * exp(-2^i / 4) for the bits of the number of quarters before. */
static int64_t exponential_of_negative(int64_t v)
{
    static const int32_t powers[7] = { 1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242 };
    const int64_t eighth = 1895147668, third = 715827883;
    const int64_t quarters = (v - 1) >> 24;
    const int64_t x = (1 << 28) - (v - (quarters << 24)) * 32;
    const int64_t square = times(x, x);
    const int64_t cube = divide_by_power_of_two((int32_t)times(square, square), 2) + times(square, x);
    const int64_t series = x + divide_by_power_of_two((int32_t)(times(cube, third) + square), 1);
    int64_t result = eighth + times(eighth, series);
    for (int i = 0; i < 7; ++i) {
        result = (quarters >> i & 1) != 0 ? times(result, powers[i]) : result;
    }
    return result;
}

/* 2^62 / d for 2^31 <= d < 2^32, by Newton's method. */
static int64_t reciprocal(int64_t d)
{
    const int64_t half = d >> 1;
    int64_t x = 1515870810 + times(half, -1010580540);
    for (int i = 0; i < 3; ++i) {
        x += 4 * times(x, (1 << 29) - times(half, x));
    }
    return at_most_int32(2 * x);
}

/* With 31 bits behind the point; 0 for what is too small to count. */
static int64_t exponential(int32_t diff, int32_t mult, int32_t shift, int32_t diff_min)
{
    if (diff == 0 || diff < diff_min) {
        return diff == 0 ? INT32_MAX : 0;
    }
    const int64_t exponent = times(diff * ((int64_t)1 << shift), mult);
    return exponent == 0 ? INT32_MAX : exponential_of_negative(-exponent);
}

void arm_softmax_s8(const int8_t *input, const int32_t num_rows, const int32_t row_size, const int32_t mult,
    const int32_t shift, const int32_t diff_min, int8_t *output)
{
    /* Sums of 31 bits, which are normalized by a shift of less than 32; differences above -32, with 26 bits behind the
     * point. Whatever else is asked for has no result. */
    if (row_size < 1 || row_size > 511 || mult < 1 << 30 || shift < 0 || shift > 30 || diff_min > 0
        || -(int64_t)diff_min * ((int64_t)1 << shift) > (int64_t)31 << 26
        || !are_apart(input, num_rows * row_size, output, num_rows * row_size, false)) {
        return;
    }
    for (int32_t row = 0; row < num_rows; ++row, input += row_size, output += row_size) {
        int32_t most = INT8_MIN, bits = 31;
        int64_t sum = 0;
        for (int32_t i = 0; i < row_size; ++i) {
            most = input[i] > most ? input[i] : most;
        }
        for (int32_t i = 0; i < row_size; ++i) {
            sum += divide_by_power_of_two((int32_t)exponential(input[i] - most, mult, shift, diff_min), 12);
        }
        while (sum >> bits == 0) {
            --bits;
        }
        for (int32_t i = 0; i < row_size; ++i) {
            const int64_t e = exponential(input[i] - most, mult, shift, diff_min);
            const int64_t q = times(reciprocal(sum * ((int64_t)1 << (31 - bits))), e);
            const int32_t rounded = divide_by_power_of_two((int32_t)q, bits + 4) - 128;
            output[i] = (int8_t)(e == 0 ? -128 : rounded > 127 ? 127 : rounded);
        }
    }
}
