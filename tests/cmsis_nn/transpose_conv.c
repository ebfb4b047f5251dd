/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static bool is_reversed(const cmsis_nn_transpose_conv_params *p, const cmsis_nn_dims *x)
{
    return p->stride.w <= 2 && p->stride.h <= 2 && x->c > 16;
}

/* Bytes of a ring of rows of sums, if a row spreads by so much beyond the last of the strides. */
static int32_t ring(const cmsis_nn_transpose_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y, int32_t stride)
{
    return ((x->w - 1) * p->stride.w + larger(w->w, stride)) * y->c * larger(w->h, p->stride.h) * 4;
}

/* In this size, the library takes the stride along the other axis. */
int32_t arm_transpose_conv_s8_get_buffer_size(const cmsis_nn_transpose_conv_params *transpose_conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *out_dims)
{
    const int32_t depth = filter_dims->w * filter_dims->h * input_dims->c;
    if (is_reversed(transpose_conv_params, input_dims)) {
        return VARIANT((depth + 3) / 4 * 16, (depth + 3) / 4 * 16, (depth + 15) / 16 * 64);
    }
    return ring(transpose_conv_params, input_dims, filter_dims, out_dims, transpose_conv_params->stride.h);
}

int32_t arm_transpose_conv_s8_get_reverse_conv_buffer_size(const cmsis_nn_transpose_conv_params *transpose_conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims)
{
    const bool reversed = is_reversed(transpose_conv_params, input_dims);
    return reversed ? input_dims->c * filter_dims->w * filter_dims->h * filter_dims->n : 0;
}

/* An axis as the library's ring of rows of sums takes it: from the first output to the last and no farther. */
static bool stays_inside(int32_t in, int32_t kernel, int32_t stride, int32_t pad, int32_t out)
{
    const int32_t written = in * stride - pad;
    return pad % stride == 0 && written >= 0 && written <= out && out <= written + larger(kernel - stride, 0);
}

static bool takes(const cmsis_nn_transpose_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y)
{
    if (is_reversed(p, x)) {
        return p->padding.h < w->h && p->padding.w < w->w && x->h * p->stride.h < 65536 && x->w * p->stride.w < 65536;
    }
    return stays_inside(x->h, w->h, p->stride.h, p->padding.h, y->h)
        && p->padding.w + y->w <= (x->w - 1) * p->stride.w + larger(w->w, p->stride.w);
}

/* The sum at an output pixel: a tap meets an input pixel wherever the strides allow it. */
static int32_t sum(const cmsis_nn_transpose_conv_params *p, const cmsis_nn_dims *xd, const int8_t *x,
    const cmsis_nn_dims *wd, const int8_t *w, int32_t row, int32_t column)
{
    int32_t acc = 0;
    for (int32_t i = 0; i < wd->h; ++i) {
        for (int32_t j = 0; j < wd->w; ++j, w += wd->c) {
            const int32_t down = row + p->padding.h - i, right = column + p->padding.w - j;
            const int32_t top = down / p->stride.h, left = right / p->stride.w;
            const bool meets = down >= 0 && right >= 0 && down % p->stride.h == 0 && right % p->stride.w == 0;
            for (int32_t c = 0; meets && top < xd->h && left < xd->w && c < wd->c; ++c) {
                acc += w[c] * (x[(top * xd->w + left) * xd->c + c] + p->input_offset);
            }
        }
    }
    return acc;
}

arm_cmsis_nn_status arm_transpose_conv_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_context *reverse_conv_ctx,
    const cmsis_nn_transpose_conv_params *transpose_conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
    const int8_t *filter_data, const cmsis_nn_dims *bias_dims, const int32_t *bias_data,
    const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    const cmsis_nn_transpose_conv_params *p = transpose_conv_params;
    const cmsis_nn_dims *xd = input_dims, *wd = filter_dims, *yd = output_dims;
    REQUIRE(xd->n > 0 && xd->h > 0 && xd->w > 0 && xd->c > 0 && wd->h > 0 && wd->w > 0 && yd->h > 0 && yd->w > 0);
    REQUIRE(xd->n == yd->n && wd->c == xd->c && wd->n == yd->c && bias_dims->c == yd->c);
    REQUIRE(p->stride.h > 0 && p->stride.w > 0 && p->padding.h >= 0 && p->padding.w >= 0);
    REQUIRE(p->dilation.h == 1 && p->dilation.w == 1 && takes(p, xd, wd, yd));
    REQUIRE(p->input_offset >= -127 && p->input_offset <= 128);
    REQUIRE(p->output_offset >= -128 && p->output_offset <= 127 && is_codes(-128, 127, &p->activation));
    const int32_t asked = arm_transpose_conv_s8_get_buffer_size(p, xd, wd, yd);
    const int32_t taken = is_reversed(p, xd) ? asked : ring(p, xd, wd, yd, p->stride.w);
    REQUIRE(takes_scratch(ctx, larger(asked, taken)));
    REQUIRE(takes_scratch(reverse_conv_ctx, arm_transpose_conv_s8_get_reverse_conv_buffer_size(p, xd, wd)));
    const int32_t taps = wd->h * wd->w * wd->c;
    for (int32_t n = 0; n < xd->n; ++n) {
        for (int32_t at = 0; at < yd->h * yd->w; ++at) {
            for (int32_t c = 0; c < yd->c; ++c) {
                const int8_t *x = input_data + n * xd->h * xd->w * xd->c;
                const int32_t acc = (bias_data ? bias_data[c] : 0)
                    + sum(p, xd, x, wd, filter_data + c * taps, at / yd->w, at % yd->w);
                const int32_t q = requantize(acc, quant_params->multiplier[c], quant_params->shift[c]);
                output_data[(n * yd->h * yd->w + at) * yd->c + c] = (int8_t)clamp(q + p->output_offset, &p->activation);
            }
        }
    }
    return ARM_CMSIS_NN_SUCCESS;
}
