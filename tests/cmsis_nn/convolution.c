/* SPDX-License-Identifier: Apache-2.0 */
#include "weighted.h"

static bool is_pointwise(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w)
{
    return w->w == 1 && w->h == 1 && w->c == x->c && p->padding.w == 0 && p->padding.h == 0 && p->dilation.w == 1
        && p->dilation.h == 1;
}

/* Whether Helium computes it as a single line, the ends apart from the middle. */
static bool is_line(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w)
{
    return x->h == 1 && w->h == 1 && w->c == x->c && p->dilation.w == 1 && p->stride.w * x->c % 4 == 0
        && !is_pointwise(p, x, w);
}

static int32_t padding_behind(int32_t in, int32_t kernel, int32_t stride, int32_t pad, int32_t out)
{
    return (out - 1) * stride + kernel - in - pad;
}

/* A line's windows before its beginning, and behind its end. */
static int32_t windows_out(int32_t padding, int32_t stride)
{
    return padding > 0 ? (padding + stride - 1) / stride : 0;
}

static int32_t line_size(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y)
{
    const int32_t behind = padding_behind(x->w, w->w, p->stride.w, p->padding.w, y->w);
    const int32_t left = w->w + p->padding.w;
    const int32_t right = w->w - 1
        + (behind == p->padding.w ? p->padding.w : windows_out(behind, p->stride.w));
    return (left > right ? left : right) * x->c;
}

/* What Helium's way with lines does not check: it would give wrong results, or read what is not there. */
static bool is_computed_right(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y)
{
    const int32_t stride = p->stride.w, pad = p->padding.w;
    const int32_t behind = padding_behind(x->w, w->w, stride, pad, y->w);
    const int32_t left = windows_out(pad, stride), right = windows_out(behind, stride);
    const int32_t held = w->w - 1 + (behind == pad ? pad : right);
    if (y->h != 1 || w->w > x->w || left + right > y->w || (behind != pad && behind != pad + 1)) {
        return false;
    }
    if (right > 0 && x->w - ((y->w - right) * stride - pad) != w->w - 1) {
        return false;
    }
    return (left - 1) * stride - pad + w->w <= x->w && (right == 0 ? stride == 1 : (right - 1) * stride + w->w <= held);
}

static int32_t buffer_size(const cmsis_nn_conv_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *w,
    const cmsis_nn_dims *y, bool is_small)
{
    const int32_t depth = w->w * w->h * x->c, columns = is_small ? 4 * depth : (depth + 3) / 4 * 16;
    const int32_t vectors = (depth + 15) / 16 * 64;
    if (is_pointwise(p, x, w)) {
        return 0;
    }
    return VARIANT(columns, columns, is_line(p, x, w) ? line_size(p, x, w, y) : vectors);
}

int32_t arm_convolve_wrapper_s8_get_buffer_size(const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return buffer_size(conv_params, input_dims, filter_dims, output_dims, false);
}

int32_t arm_convolve_wrapper_s4_get_buffer_size(const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return buffer_size(conv_params, input_dims, filter_dims, output_dims, true);
}

static arm_cmsis_nn_status convolve(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *p,
    const cmsis_nn_per_channel_quant_params *quant, const cmsis_nn_dims *xd, const int8_t *x, const cmsis_nn_dims *wd,
    const int8_t *w, const cmsis_nn_dims *bd, const int32_t *bias, const cmsis_nn_dims *yd, int8_t *y, bool is_small)
{
    REQUIRE(wd->c > 0 && xd->c % wd->c == 0 && wd->n == yd->c && bd->c == yd->c && xd->n == yd->n && xd->n > 0);
    REQUIRE(yd->c % (xd->c / wd->c) == 0 && (!is_small || wd->c == xd->c));
    REQUIRE(wd->h * wd->w * wd->c < 65536 && xd->c < 32768 && yd->c < 32768);
    REQUIRE(is_axis(xd->h, wd->h, p->stride.h, p->dilation.h, p->padding.h, yd->h));
    REQUIRE(is_axis(xd->w, wd->w, p->stride.w, p->dilation.w, p->padding.w, yd->w));
    REQUIRE(are_offsets(p->input_offset, p->output_offset, &p->activation));
    REQUIRE(are_multipliers(quant->multiplier, quant->shift, yd->c));
    REQUIRE(takes_scratch(ctx, buffer_size(p, xd, wd, yd, is_small)));
    if (is_pointwise(p, xd, wd)) {
        REQUIRE(yd->h == (xd->h - 1) / p->stride.h + 1 && yd->w == (xd->w - 1) / p->stride.w + 1);
    } else if (is_line(p, xd, wd)) {
        REQUIRE(!is_small && is_computed_right(p, xd, wd, yd));
    }
    const int32_t per_group = yd->c / (xd->c / wd->c), taps = wd->h * wd->w * wd->c;
    for (int32_t at = 0; at < xd->n * yd->h * yd->w * yd->c; ++at) {
        const int32_t c = at % yd->c, column = at / yd->c % yd->w, row = at / yd->c / yd->w % yd->h;
        const int8_t *image = x + at / yd->c / yd->w / yd->h * xd->h * xd->w * xd->c;
        int32_t sum = bias ? bias[c] : 0;
        for (int32_t k = 0; k < taps; ++k) {
            const int32_t i = row * p->stride.h - p->padding.h + k / wd->c / wd->w * p->dilation.h;
            const int32_t j = column * p->stride.w - p->padding.w + k / wd->c % wd->w * p->dilation.w;
            const int32_t channel = c / per_group * wd->c + k % wd->c;
            sum += weight(w, is_small, c * taps + k) * pixel(image, xd, i, j, channel, p->input_offset);
        }
        const int32_t q = requantize(sum, quant->multiplier[c], quant->shift[c]) + p->output_offset;
        y[at] = (int8_t)clamp(q, &p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_convolve_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_per_channel_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    return convolve(ctx, conv_params, quant_params, input_dims, input_data, filter_dims, filter_data, bias_dims,
        bias_data, output_dims, output_data, false);
}

arm_cmsis_nn_status arm_convolve_wrapper_s4(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_per_channel_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    return convolve(ctx, conv_params, quant_params, input_dims, input_data, filter_dims, filter_data, bias_dims,
        bias_data, output_dims, output_data, true);
}
