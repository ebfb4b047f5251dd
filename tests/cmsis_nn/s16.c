/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

/* Within which sums must stay: Helium doubles them where the library rounds once. */
#define MOST_SUM ((int64_t)1 << 30)

static bool is_int16(const cmsis_nn_activation *range)
{
    return is_codes(-32768, 32767, range);
}

static bool is_axis(int32_t in, int32_t kernel, int32_t stride, int32_t dilation, int32_t pad, int32_t out)
{
    return in > 0 && kernel > 0 && stride > 0 && dilation > 0 && pad >= 0 && out > 0 && in < 32768 && out < 32768;
}

static bool is_even(const void *p, uintptr_t size)
{
    return p != NULL && (uintptr_t)p % size == 0;
}

/* Whether sums of 64 bits are scaled rightly by these. */
static bool is_scale(int32_t multiplier, int32_t shift)
{
    return multiplier >= 0 && multiplier % 65536 == 0 && shift >= -31 && shift <= 7;
}

/* A sum of 64 bits times a multiplier reduced to 15, rounded once. Fails, with a code out of range, beyond 47 bits. */
static int32_t scaled(int64_t v, int32_t multiplier, int32_t shift, const cmsis_nn_activation *range)
{
    const int64_t most = (int64_t)1 << 47;
    const int64_t product = v * (multiplier < 0x7fff0000 ? (multiplier + 32768) >> 16 : 0x7fff);
    const int64_t q = (product + ((int64_t)1 << (14 - shift))) >> (15 - shift);
    if (v < -most || v >= most || q < -(MOST_SUM + 1) || q > MOST_SUM) {
        return 1 << 20;
    }
    return q < range->min ? range->min : q > range->max ? range->max : (int32_t)q;
}

/* ------------------------------------------------------------------------------------- convolutions */

int32_t arm_convolve_wrapper_s16_get_buffer_size(const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    const int32_t depth = filter_dims->w * filter_dims->h * input_dims->c;
    (void)conv_params;
    (void)output_dims;
    return VARIANT(4 * depth, 4 * depth, (depth + 7) / 8 * 64);
}

/* The sum of products of one channel of a window; w_step and x_step lead from one channel of a tap to the next, of
 * which there are `channels`. */
typedef struct {
    const cmsis_nn_dims *x;
    int32_t k_h, k_w, dilation_h, dilation_w, channels, tap;
} window_t;

static int64_t window_sum(const window_t *s, const int16_t *x, const int8_t *w, int32_t top, int32_t left)
{
    int64_t acc = 0;
    for (int32_t i = 0; i < s->k_h; ++i) {
        for (int32_t j = 0; j < s->k_w; ++j, w += s->tap) {
            const int32_t row = top + i * s->dilation_h, column = left + j * s->dilation_w;
            if (row >= 0 && row < s->x->h && column >= 0 && column < s->x->w) {
                for (int32_t c = 0; c < s->channels; ++c) {
                    acc += w[c] * x[(row * s->x->w + column) * s->x->c + c];
                }
            }
        }
    }
    return acc;
}

arm_cmsis_nn_status arm_convolve_wrapper_s16(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params,
    const cmsis_nn_per_channel_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int16_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const cmsis_nn_bias_data *bias_data, const cmsis_nn_dims *output_dims, int16_t *output_data)
{
    const cmsis_nn_conv_params *p = conv_params;
    const cmsis_nn_dims *xd = input_dims, *wd = filter_dims, *yd = output_dims;
    const int32_t depth = wd->h * wd->w * wd->c;
    const window_t window = { xd, wd->h, wd->w, p->dilation.h, p->dilation.w, wd->c, wd->c };
    const bool is_short = bias_data->is_int32_bias;
    REQUIRE(wd->c > 0 && xd->c == wd->c && wd->n == yd->c && bias_dims->c == yd->c && xd->n == yd->n && depth < 65536);
    REQUIRE(is_axis(xd->h, wd->h, p->stride.h, p->dilation.h, p->padding.h, yd->h));
    REQUIRE(is_axis(xd->w, wd->w, p->stride.w, p->dilation.w, p->padding.w, yd->w));
    REQUIRE(p->input_offset == 0 && p->output_offset == 0 && is_int16(&p->activation));
    REQUIRE(is_even(bias_data->data, is_short ? sizeof(int32_t) : sizeof(int64_t)));
    /* In 64 bits, the last of an odd number of pixels is added in 32, and of the last of an odd number of channels
     * some elements are left out. */
    REQUIRE(is_short || depth <= 512 || (yd->h * yd->w % 2 == 0 && (yd->c % 2 == 0 || depth % 4 == 0)));
    REQUIRE(takes_scratch(ctx, arm_convolve_wrapper_s16_get_buffer_size(p, xd, wd, yd)));
    for (int32_t at = 0; at < yd->n * yd->h * yd->w; ++at) {
        const int32_t n = at / (yd->h * yd->w), place = at % (yd->h * yd->w);
        const int32_t top = place / yd->w * p->stride.h - p->padding.h;
        const int32_t left = place % yd->w * p->stride.w - p->padding.w;
        for (int32_t c = 0; c < yd->c; ++c) {
            const int32_t multiplier = quant_params->multiplier[c], shift = quant_params->shift[c];
            int64_t acc = window_sum(&window, input_data + n * xd->h * xd->w * xd->c, filter_data + c * depth, top, left);
            int32_t q;
            if (is_short) {
                acc += ((const int32_t *)bias_data->data)[c];
                REQUIRE(multiplier >= 0 && shift >= 0 && shift < 31);
                REQUIRE(acc * ((int64_t)1 << shift) < MOST_SUM && -acc * ((int64_t)1 << shift) <= MOST_SUM);
                q = clamp(requantize((int32_t)acc, multiplier, shift), &p->activation);
            } else {
                acc += ((const int64_t *)bias_data->data)[c];
                REQUIRE(is_scale(multiplier, shift));
                q = scaled(acc, multiplier, shift, &p->activation);
            }
            REQUIRE(q < 65536);
            output_data[at * yd->c + c] = (int16_t)q;
        }
    }
    return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_depthwise_conv_wrapper_s16_get_buffer_size(const cmsis_nn_dw_conv_params *dw_conv_params,
    const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    const cmsis_nn_dw_conv_params *p = dw_conv_params;
    const int32_t taps = filter_dims->w * filter_dims->h;
    (void)input_dims;
    (void)output_dims;
    if (p->ch_mult > 1 || p->dilation.w > 1 || p->dilation.h > 1 || taps >= 512) {
        return 0;
    }
    return VARIANT(0, 2 * input_dims->c * taps, 8 * input_dims->c * taps + 8);
}

/* Where columns are gathered, rows outside of the input must not be more than the window has. */
static bool touches(int32_t in, int32_t kernel, int32_t stride, int32_t pad, int32_t out)
{
    return pad <= kernel && (out - 1) * stride - pad <= in;
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s16(const cmsis_nn_context *ctx,
    const cmsis_nn_dw_conv_params *dw_conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int16_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int64_t *bias, const cmsis_nn_dims *output_dims, int16_t *output)
{
    const cmsis_nn_dw_conv_params *p = dw_conv_params;
    const cmsis_nn_dims *xd = input_dims, *wd = filter_dims, *yd = output_dims;
    const window_t window = { xd, wd->h, wd->w, p->dilation.h, p->dilation.w, 1, wd->c };
    REQUIRE(p->ch_mult > 0 && xd->c * p->ch_mult == yd->c && wd->c == yd->c && wd->n == 1 && bias_dims->c == yd->c);
    REQUIRE(xd->n == yd->n && is_axis(xd->h, wd->h, p->stride.h, p->dilation.h, p->padding.h, yd->h));
    REQUIRE(is_axis(xd->w, wd->w, p->stride.w, p->dilation.w, p->padding.w, yd->w));
    REQUIRE(p->dilation.h > 1 || touches(xd->h, wd->h, p->stride.h, p->padding.h, yd->h));
    REQUIRE(p->input_offset == 0 && p->output_offset == 0 && is_int16(&p->activation));
    REQUIRE(is_even(bias, sizeof(int64_t)));
    REQUIRE(takes_scratch(ctx, arm_depthwise_conv_wrapper_s16_get_buffer_size(p, xd, wd, yd)));
    for (int32_t at = 0; at < yd->n * yd->h * yd->w; ++at) {
        const int32_t n = at / (yd->h * yd->w), place = at % (yd->h * yd->w);
        const int32_t top = place / yd->w * p->stride.h - p->padding.h;
        const int32_t left = place % yd->w * p->stride.w - p->padding.w;
        for (int32_t c = 0; c < yd->c; ++c) {
            const int32_t multiplier = quant_params->multiplier[c], shift = quant_params->shift[c];
            const int16_t *x = input + n * xd->h * xd->w * xd->c + c / p->ch_mult;
            const int64_t acc = bias[c] + window_sum(&window, x, filter + c, top, left);
            REQUIRE(is_scale(multiplier, shift));
            const int32_t q = scaled(acc, multiplier, shift, &p->activation);
            REQUIRE(q < 65536);
            output[at * yd->c + c] = (int16_t)q;
        }
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* ---------------------------------------------------------------------------------- matrix products */

int32_t arm_fully_connected_s16_get_buffer_size(const cmsis_nn_dims *filter_dims)
{
    (void)filter_dims;
    return 0;
}

arm_cmsis_nn_status arm_fully_connected_s16(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *fc_params,
    const cmsis_nn_per_tensor_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int16_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int64_t *bias_data, const cmsis_nn_dims *output_dims, int16_t *output_data)
{
    const cmsis_nn_fc_params *p = fc_params;
    const int32_t depth = filter_dims->n, channels = output_dims->c;
    (void)ctx;
    REQUIRE(depth > 0 && input_dims->h * input_dims->w * input_dims->c == depth && input_dims->n > 0);
    REQUIRE(filter_dims->c == channels && bias_dims->c == channels && output_dims->n == input_dims->n);
    REQUIRE(output_dims->h == 1 && output_dims->w == 1 && p->input_offset == 0 && p->filter_offset == 0);
    REQUIRE(p->output_offset == 0 && is_int16(&p->activation) && is_scale(quant_params->multiplier, quant_params->shift));
    REQUIRE(is_even(bias_data, sizeof(int64_t)));
    for (int32_t at = 0; at < input_dims->n * channels; ++at) {
        int64_t acc = bias_data[at % channels];
        for (int32_t k = 0; k < depth; ++k) {
            acc += filter_data[at % channels * depth + k] * input_data[at / channels * depth + k];
        }
        const int32_t q = scaled(acc, quant_params->multiplier, quant_params->shift, &p->activation);
        REQUIRE(q < 65536);
        output_data[at] = (int16_t)q;
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_batch_matmul_s16(const cmsis_nn_context *ctx, const cmsis_nn_bmm_params *bmm_params,
    const cmsis_nn_per_tensor_quant_params *quant_params, const cmsis_nn_dims *input_lhs_dims,
    const int16_t *input_lhs, const cmsis_nn_dims *input_rhs_dims, const int16_t *input_rhs,
    const cmsis_nn_dims *output_dims, int16_t *output)
{
    const cmsis_nn_dims *ad = input_lhs_dims, *bd = input_rhs_dims, *yd = output_dims;
    const cmsis_nn_fc_params *p = &bmm_params->fc_params;
    (void)ctx;
    REQUIRE(ad->n == 1 && ad->h == 1 && bd->n == 1 && bd->h == 1 && yd->n == 1 && yd->h == 1);
    REQUIRE(ad->w > 0 && ad->c > 0 && bd->w > 0 && bd->c == ad->c && yd->w == ad->w && yd->c == bd->w);
    REQUIRE(p->input_offset == 0 && p->filter_offset == 0 && p->output_offset == 0 && is_int16(&p->activation));
    REQUIRE(!bmm_params->adj_x && !bmm_params->adj_y && is_scale(quant_params->multiplier, quant_params->shift));
    for (int32_t at = 0; at < yd->w * yd->c; ++at) {
        int64_t acc = 0;
        for (int32_t k = 0; k < ad->c; ++k) {
            acc += (int64_t)input_lhs[at / yd->c * ad->c + k] * input_rhs[at % yd->c * ad->c + k];
        }
        const int32_t q = scaled(acc, quant_params->multiplier, quant_params->shift, &p->activation);
        REQUIRE(q < 65536);
        output[at] = (int16_t)q;
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* ------------------------------------------------------------------------------------------ pooling */

static bool is_pool(const cmsis_nn_pool_params *p, const cmsis_nn_dims *xd, const cmsis_nn_dims *wd,
    const cmsis_nn_dims *yd)
{
    return xd->n > 0 && xd->c > 0 && xd->n == yd->n && xd->c == yd->c && is_int16(&p->activation)
        && xd->h > 0 && xd->w > 0 && wd->h > 0 && wd->w > 0 && p->stride.h > 0 && p->stride.w > 0
        && p->padding.h >= 0 && p->padding.w >= 0 && yd->h > 0 && yd->w > 0;
}

static arm_cmsis_nn_status pool(const cmsis_nn_pool_params *p, const cmsis_nn_dims *xd, const int16_t *x,
    const cmsis_nn_dims *wd, const cmsis_nn_dims *yd, int16_t *y, bool is_mean)
{
    for (int32_t at = 0; at < yd->n * yd->h * yd->w * yd->c; ++at) {
        const int32_t c = at % yd->c, place = at / yd->c % (yd->h * yd->w), n = at / (yd->h * yd->w * yd->c);
        const int32_t top = place / yd->w * p->stride.h - p->padding.h;
        const int32_t left = place % yd->w * p->stride.w - p->padding.w;
        int32_t count = 0, total = 0, most = -32768;
        for (int32_t tap = 0; tap < wd->h * wd->w; ++tap) {
            const int32_t row = top + tap / wd->w, column = left + tap % wd->w;
            if (row >= 0 && row < xd->h && column >= 0 && column < xd->w) {
                const int32_t v = x[((n * xd->h + row) * xd->w + column) * xd->c + c];
                most = v > most ? v : most;
                total += v;
                ++count;
            }
        }
        REQUIRE(count > 0 && count < 65536);
        const int32_t mean = ((total < 0 ? -total : total) + count / 2) / count;
        y[at] = (int16_t)clamp(!is_mean ? most : total < 0 ? -mean : mean, &p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_avgpool_s16_get_buffer_size(const int dim_dst_width, const int ch_src)
{
    (void)dim_dst_width;
    (void)ch_src;
    return VARIANT(0, 4 * ch_src, 0);
}

arm_cmsis_nn_status arm_avgpool_s16(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
    const cmsis_nn_dims *input_dims, const int16_t *input_data, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int16_t *output_data)
{
    REQUIRE(is_pool(pool_params, input_dims, filter_dims, output_dims));
    REQUIRE(takes_scratch(ctx, arm_avgpool_s16_get_buffer_size(output_dims->w, input_dims->c)));
    return pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, true);
}

arm_cmsis_nn_status arm_max_pool_s16(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
    const cmsis_nn_dims *input_dims, const int16_t *input_data, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int16_t *output_data)
{
    (void)ctx;
    REQUIRE(is_pool(pool_params, input_dims, filter_dims, output_dims));
    return pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, false);
}

/* ------------------------------------------------------------------------------- element by element */

arm_cmsis_nn_status arm_elementwise_add_s16(const int16_t *input_1_vect, const int16_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_1_mult, const int32_t input_1_shift, const int32_t input_2_offset,
    const int32_t input_2_mult, const int32_t input_2_shift, const int32_t left_shift, int16_t *output,
    const int32_t out_offset, const int32_t out_mult, const int32_t out_shift, const int32_t out_activation_min,
    const int32_t out_activation_max, const int32_t block_size)
{
    const cmsis_nn_activation range = { out_activation_min, out_activation_max };
    REQUIRE(input_1_offset == 0 && input_2_offset == 0 && out_offset == 0 && left_shift >= 0 && left_shift <= 15);
    REQUIRE(input_1_mult > INT32_MIN && input_2_mult > INT32_MIN && out_mult >= 0 && block_size > 0 && is_int16(&range));
    REQUIRE(input_1_shift == 0 && input_2_shift == 0 && out_shift == 0);
    for (int32_t i = 0; i < block_size; ++i) {
        const int32_t a = requantize(input_1_vect[i] * (1 << left_shift), input_1_mult, input_1_shift);
        const int32_t b = requantize(input_2_vect[i] * (1 << left_shift), input_2_mult, input_2_shift);
        const int64_t sum = (int64_t)a + b;
        REQUIRE(sum < MOST_SUM && -sum <= MOST_SUM);
        output[i] = (int16_t)clamp(requantize((int32_t)sum, out_mult, out_shift), &range);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_mul_s16(const int16_t *input_1_vect, const int16_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_2_offset, int16_t *output, const int32_t out_offset,
    const int32_t out_mult, const int32_t out_shift, const int32_t out_activation_min,
    const int32_t out_activation_max, const int32_t block_size)
{
    const cmsis_nn_activation range = { out_activation_min, out_activation_max };
    REQUIRE(input_1_offset == 0 && input_2_offset == 0 && out_offset == 0 && out_mult >= 0 && out_shift == 0);
    REQUIRE(block_size > 0 && is_int16(&range));
    for (int32_t i = 0; i < block_size; ++i) {
        output[i] = (int16_t)clamp(requantize(input_1_vect[i] * input_2_vect[i], out_mult, out_shift), &range);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* 65536 / (1 + exp(-i / 24)) for the first 256 i, raised by half of what a line misses in the middle of the segment. */
static const int32_t *sigmoid_table(void)
{
    static int32_t table[256];
    double e = 1.0; /* exp(-i / 24), by products of exp(-1 / 48) */
    for (int i = 0; i < 256 && table[255] == 0; ++i) {
        const double step = 0.9793821813312401, middle = e * step, next = middle * step;
        const double start = 65536.0 / (1.0 + e), end = 65536.0 / (1.0 + next);
        const double bend = 65536.0 / (1.0 + middle) - (start + end) / 2.0;
        table[i] = i < 255 ? (int32_t)(start + bend / 2.0 + 0.5) : 65535;
        e = next;
    }
    return table;
}

/* Lines between entries; tanh(x) is 2 sigmoid(2 x) - 1. */
arm_cmsis_nn_status arm_nn_activation_s16(const int16_t *input, int16_t *output, const int32_t size,
    const int32_t left_shift, const arm_nn_activation_type type)
{
    const int32_t *table = sigmoid_table();
    const bool is_sigmoid = type == ARM_SIGMOID;
    const int32_t apart = is_sigmoid ? 512 : 256, unit = is_sigmoid ? 1024 : 256, zero = is_sigmoid ? 0 : 32768 * 256;
    REQUIRE((is_sigmoid || type == ARM_TANH) && size > 0 && left_shift > -16 && left_shift < 14);
    for (int32_t i = 0; i < size; ++i) {
        const int64_t tripled = (int64_t)3 * input[i] * (1 << (left_shift > 0 ? left_shift : 0));
        const int32_t down = left_shift < 0 ? -left_shift : 0;
        const int64_t at = (tripled + (down > 0 ? (int64_t)1 << (down - 1) : 0)) >> down;
        const int64_t distance = at < 0 ? -at : at, whole = distance / apart;
        int64_t y = is_sigmoid ? 32767 * 1024 : 65535 * 256;
        if (whole < 255) {
            y = apart * (int64_t)table[whole] + distance % apart * (table[whole + 1] - table[whole]);
        }
        y -= zero;
        y = at < 0 ? (is_sigmoid ? 65536 * 512 : 0) - y - 1 : y;
        output[i] = (int16_t)((y + unit / 2) >> (is_sigmoid ? 10 : 8));
    }
    return ARM_CMSIS_NN_SUCCESS;
}
