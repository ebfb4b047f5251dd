/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

static bool are_offsets(int32_t input_1, int32_t input_2, int32_t output)
{
    return input_1 >= -127 && input_1 <= 128 && input_2 >= -127 && input_2 <= 128 && output >= -128 && output <= 127;
}

/* Whether it may be doubled, as Helium with single rounding does before it multiplies. */
static bool has_room(int64_t v)
{
    return v >= -((int64_t)1 << 30) && v < (int64_t)1 << 30;
}

arm_cmsis_nn_status arm_elementwise_add_s8(const int8_t *input_1_vect, const int8_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_1_mult, const int32_t input_1_shift,
    const int32_t input_2_offset, const int32_t input_2_mult, const int32_t input_2_shift, const int32_t left_shift,
    int8_t *output, const int32_t out_offset, const int32_t out_mult, const int32_t out_shift,
    const int32_t out_activation_min, const int32_t out_activation_max, const int32_t block_size)
{
    const cmsis_nn_activation range = { out_activation_min, out_activation_max };
    REQUIRE(block_size > 0 && are_offsets(input_1_offset, input_2_offset, out_offset) && is_codes(-128, 127, &range));
    REQUIRE(input_1_shift <= 0 && input_1_shift >= -31 && input_2_shift <= 0 && input_2_shift >= -31);
    REQUIRE(out_shift <= 0 && out_shift >= -31 && out_mult > 0);
    REQUIRE(input_1_mult != INT32_MIN && input_2_mult != INT32_MIN);
    REQUIRE(left_shift >= 16 && left_shift < 31); /* with DSP, 16 bits of a difference are shifted */
    REQUIRE(are_apart(input_1_vect, block_size, output, block_size, true));
    REQUIRE(are_apart(input_2_vect, block_size, output, block_size, true));
    for (int32_t i = 0; i < block_size; ++i) {
        const int64_t a = (int64_t)(input_1_vect[i] + input_1_offset) * ((int64_t)1 << left_shift);
        const int64_t b = (int64_t)(input_2_vect[i] + input_2_offset) * ((int64_t)1 << left_shift);
        REQUIRE(has_room(a) && has_room(b));
        const int64_t sum = (int64_t)requantize((int32_t)a, input_1_mult, input_1_shift)
            + requantize((int32_t)b, input_2_mult, input_2_shift);
        REQUIRE(has_room(sum));
        output[i] = (int8_t)clamp(requantize((int32_t)sum, out_mult, out_shift) + out_offset, &range);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_mul_s8(const int8_t *input_1_vect, const int8_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_2_offset, int8_t *output, const int32_t out_offset,
    const int32_t out_mult, const int32_t out_shift, const int32_t out_activation_min,
    const int32_t out_activation_max, const int32_t block_size)
{
    const cmsis_nn_activation range = { out_activation_min, out_activation_max };
    REQUIRE(block_size > 0 && are_offsets(input_1_offset, input_2_offset, out_offset) && is_codes(-128, 127, &range));
    REQUIRE(out_mult > 0 && out_shift >= -31 && out_shift <= 30);
    REQUIRE(are_apart(input_1_vect, block_size, output, block_size, true));
    REQUIRE(are_apart(input_2_vect, block_size, output, block_size, true));
    for (int32_t i = 0; i < block_size; ++i) {
        const int32_t product = (input_1_vect[i] + input_1_offset) * (input_2_vect[i] + input_2_offset);
        REQUIRE(has_room((int64_t)product * ((int64_t)1 << (out_shift > 0 ? out_shift : 0))));
        output[i] = (int8_t)clamp(requantize(product, out_mult, out_shift) + out_offset, &range);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* Whether the result has this axis, which operands have, or 1 in its place. */
static bool spans(int32_t a, int32_t b, int32_t y)
{
    return y > 0 && (a == y || (a == 1 && b == y)) && (b == y || b == 1);
}

static int8_t element(const int8_t *x, const cmsis_nn_dims *d, int32_t n, int32_t h, int32_t w, int32_t c)
{
    const int32_t image = d->n == 1 ? 0 : n, row = d->h == 1 ? 0 : h, pixel = d->w == 1 ? 0 : w;
    return x[((image * d->h + row) * d->w + pixel) * d->c + (d->c == 1 ? 0 : c)];
}

static arm_cmsis_nn_status extremes(int32_t sign, const cmsis_nn_context *ctx, const int8_t *a,
    const cmsis_nn_dims *ad, const int8_t *b, const cmsis_nn_dims *bd, int8_t *y, const cmsis_nn_dims *yd)
{
    REQUIRE(ctx != NULL && spans(ad->n, bd->n, yd->n) && spans(ad->h, bd->h, yd->h));
    REQUIRE(spans(ad->w, bd->w, yd->w) && spans(ad->c, bd->c, yd->c));
    REQUIRE(are_apart(a, count_of(ad), y, count_of(yd), true) && are_apart(b, count_of(bd), y, count_of(yd), true));
    for (int32_t i = 0; i < count_of(yd); ++i) {
        const int32_t c = i % yd->c, w = i / yd->c % yd->w, h = i / yd->c / yd->w % yd->h;
        const int32_t n = i / yd->c / yd->w / yd->h;
        const int8_t first = element(a, ad, n, h, w, c), second = element(b, bd, n, h, w, c);
        y[i] = sign * first > sign * second ? first : second;
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_maximum_s8(const cmsis_nn_context *ctx, const int8_t *input_1_data,
    const cmsis_nn_dims *input_1_dims, const int8_t *input_2_data, const cmsis_nn_dims *input_2_dims,
    int8_t *output_data, const cmsis_nn_dims *output_dims)
{
    return extremes(1, ctx, input_1_data, input_1_dims, input_2_data, input_2_dims, output_data, output_dims);
}

arm_cmsis_nn_status arm_minimum_s8(const cmsis_nn_context *ctx, const int8_t *input_1_data,
    const cmsis_nn_dims *input_1_dims, const int8_t *input_2_data, const cmsis_nn_dims *input_2_dims,
    int8_t *output_data, const cmsis_nn_dims *output_dims)
{
    return extremes(-1, ctx, input_1_data, input_1_dims, input_2_data, input_2_dims, output_data, output_dims);
}
