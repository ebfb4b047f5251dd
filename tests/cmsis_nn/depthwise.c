/* SPDX-License-Identifier: Apache-2.0 */
#include "weighted.h"

/* The library has fast ways for single images, windows without gaps, and one filter a channel. */
static bool is_fast(const cmsis_nn_dw_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *y)
{
    return x->c == y->c && x->n == 1 && p->dilation.w == 1 && p->dilation.h == 1;
}

static bool is_near(const cmsis_nn_dw_conv_params *p, const cmsis_nn_dims *w)
{
    return w->h == 3 && w->w == 3 && p->padding.h <= 1 && p->padding.w <= 1;
}

static int32_t buffer_size(const cmsis_nn_dw_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y, bool is_small)
{
    const int32_t window = 2 * w->h * w->w * x->c, blocks = 4 * 124 * w->h * w->w;
    if (!is_fast(p, x, y)) {
        return 0;
    }
    return is_small ? VARIANT(window, window, blocks) : VARIANT(0, is_near(p, w) ? 0 : window, blocks);
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size(const cmsis_nn_dw_conv_params *dw_conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return buffer_size(dw_conv_params, input_dims, filter_dims, output_dims, false);
}

int32_t arm_depthwise_conv_wrapper_s4_get_buffer_size(const cmsis_nn_dw_conv_params *dw_conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return buffer_size(dw_conv_params, input_dims, filter_dims, output_dims, true);
}

/* Whether the first and the last window of an axis touch the input. */
static bool touches(int32_t in, int32_t kernel, int32_t stride, int32_t pad, int32_t out)
{
    return pad <= kernel && (out - 1) * stride - pad <= in;
}

static arm_cmsis_nn_status convolve(const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *p,
    const cmsis_nn_per_channel_quant_params *quant, const cmsis_nn_dims *xd, const int8_t *x, const cmsis_nn_dims *wd,
    const int8_t *w, const cmsis_nn_dims *bd, const int32_t *bias, const cmsis_nn_dims *yd, int8_t *y, bool is_small)
{
    REQUIRE(xd->n == 1 && yd->n == 1 && wd->n == 1 && wd->c == yd->c && bd->c == yd->c);
    REQUIRE(p->ch_mult > 0 && yd->c == p->ch_mult * xd->c && xd->c < 32768 && yd->c < 32768);
    REQUIRE(is_axis(xd->h, wd->h, p->stride.h, p->dilation.h, p->padding.h, yd->h));
    REQUIRE(is_axis(xd->w, wd->w, p->stride.w, p->dilation.w, p->padding.w, yd->w));
    REQUIRE(are_offsets(p->input_offset, p->output_offset, &p->activation));
    REQUIRE(are_multipliers(quant->multiplier, quant->shift, yd->c));
    REQUIRE(takes_scratch(ctx, buffer_size(p, xd, wd, yd, is_small)));
    if (is_fast(p, xd, yd)) {
        REQUIRE(touches(xd->h, wd->h, p->stride.h, p->padding.h, yd->h));
        REQUIRE(touches(xd->w, wd->w, p->stride.w, p->padding.w, yd->w));
        REQUIRE(!is_near(p, wd) || (yd->w - 1) * p->stride.w - p->padding.w + 1 < xd->w);
        REQUIRE(!is_small || REFERENCE_VARIANT != 2);
    } else {
        REQUIRE(!is_small || xd->c % 2 == 0);
    }
    for (int32_t at = 0; at < yd->h * yd->w * yd->c; ++at) {
        const int32_t c = at % yd->c, column = at / yd->c % yd->w, row = at / yd->c / yd->w;
        int32_t sum = bias ? bias[c] : 0;
        for (int32_t k = 0; k < wd->h * wd->w; ++k) {
            const int32_t i = row * p->stride.h - p->padding.h + k / wd->w * p->dilation.h;
            const int32_t j = column * p->stride.w - p->padding.w + k % wd->w * p->dilation.w;
            sum += weight(w, is_small, k * yd->c + c) * pixel(x, xd, i, j, c / p->ch_mult, p->input_offset);
        }
        const int32_t q = requantize(sum, quant->multiplier[c], quant->shift[c]) + p->output_offset;
        y[at] = (int8_t)clamp(q, &p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(const cmsis_nn_context *ctx,
    const cmsis_nn_dw_conv_params *dw_conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
    const int8_t *filter_data, const cmsis_nn_dims *bias_dims, const int32_t *bias_data,
    const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    return convolve(ctx, dw_conv_params, quant_params, input_dims, input_data, filter_dims, filter_data, bias_dims,
        bias_data, output_dims, output_data, false);
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s4(const cmsis_nn_context *ctx,
    const cmsis_nn_dw_conv_params *dw_conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
    const int8_t *filter_data, const cmsis_nn_dims *bias_dims, const int32_t *bias_data,
    const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    return convolve(ctx, dw_conv_params, quant_params, input_dims, input_data, filter_dims, filter_data, bias_dims,
        bias_data, output_dims, output_data, true);
}
