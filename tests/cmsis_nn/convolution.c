/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

static bool is_pointwise(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w)
{
    return w->w == 1 && w->h == 1 && w->c == x->c && p->padding.w == 0 && p->padding.h == 0;
}

int32_t arm_convolve_wrapper_s8_get_buffer_size(const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    const int32_t depth = filter_dims->w * filter_dims->h * input_dims->c;
    (void)output_dims;
    if (is_pointwise(conv_params, input_dims, filter_dims)) {
        return 0;
    }
    return VARIANT((depth + 3) / 4 * 16, (depth + 3) / 4 * 16, (depth + 15) / 16 * 64);
}

static bool fits(int32_t in, int32_t kernel, int32_t stride, int32_t dilation, int32_t pad, int32_t out)
{
    return in > 0 && kernel > 0 && stride > 0 && dilation > 0 && pad >= 0 && out > 0 && in < 65536 && out < 65536;
}

static int32_t sum(const cmsis_nn_conv_params *p, const cmsis_nn_dims *xd, const int8_t *x, const cmsis_nn_dims *wd,
    const int8_t *w, int32_t first_channel, int32_t top, int32_t left)
{
    int32_t acc = 0;
    for (int32_t i = 0; i < wd->h; ++i) {
        for (int32_t j = 0; j < wd->w; ++j) {
            const int32_t row = top + i * p->dilation.h, column = left + j * p->dilation.w;
            for (int32_t c = 0; c < wd->c; ++c, ++w) {
                if (row >= 0 && row < xd->h && column >= 0 && column < xd->w) {
                    acc += *w * (x[(row * xd->w + column) * xd->c + first_channel + c] + p->input_offset);
                }
            }
        }
    }
    return acc;
}

arm_cmsis_nn_status arm_convolve_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_per_channel_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    const cmsis_nn_conv_params *p = conv_params;
    const cmsis_nn_dims *xd = input_dims, *wd = filter_dims, *yd = output_dims;
    REQUIRE(wd->c > 0 && xd->c % wd->c == 0 && wd->n == yd->c && bias_dims->c == yd->c && xd->n == yd->n);
    REQUIRE(yd->c % (xd->c / wd->c) == 0);
    REQUIRE(fits(xd->h, wd->h, p->stride.h, p->dilation.h, p->padding.h, yd->h));
    REQUIRE(fits(xd->w, wd->w, p->stride.w, p->dilation.w, p->padding.w, yd->w));
    REQUIRE(p->input_offset >= -127 && p->input_offset <= 128);
    REQUIRE(p->output_offset >= -128 && p->output_offset <= 127 && is_codes(-128, 127, &p->activation));
    REQUIRE(takes_scratch(ctx, arm_convolve_wrapper_s8_get_buffer_size(p, xd, wd, yd)));
    const int32_t per_group = yd->c / (xd->c / wd->c), taps = wd->h * wd->w * wd->c;
    for (int32_t n = 0; n < xd->n; ++n) {
        for (int32_t at = 0; at < yd->h * yd->w; ++at) {
            const int32_t top = at / yd->w * p->stride.h - p->padding.h;
            const int32_t left = at % yd->w * p->stride.w - p->padding.w;
            for (int32_t c = 0; c < yd->c; ++c) {
                const int32_t acc = (bias_data ? bias_data[c] : 0)
                    + sum(p, xd, input_data + n * xd->h * xd->w * xd->c, wd, filter_data + c * taps,
                        c / per_group * wd->c, top, left);
                const int32_t q = requantize(acc, quant_params->multiplier[c], quant_params->shift[c]);
                output_data[(n * yd->h * yd->w + at) * yd->c + c] = (int8_t)clamp(q + p->output_offset, &p->activation);
            }
        }
    }
    return ARM_CMSIS_NN_SUCCESS;
}
