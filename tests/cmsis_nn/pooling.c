/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

/* Along an axis: sizes, and whether every window has an element of the input. */
static bool fits(int32_t in, int32_t kernel, int32_t stride, int32_t pad, int32_t out)
{
    return in > 0 && kernel > 0 && stride > 0 && pad >= 0 && pad < kernel && out > 0 && (out - 1) * stride - pad < in;
}

static bool is_pool(const cmsis_nn_pool_params *p, const cmsis_nn_dims *x, const cmsis_nn_dims *window,
    const cmsis_nn_dims *y)
{
    return x->n > 0 && y->n == x->n && x->c > 0 && y->c == x->c && is_codes(-128, 127, &p->activation)
        && fits(x->h, window->h, p->stride.h, p->padding.h, y->h)
        && fits(x->w, window->w, p->stride.w, p->padding.w, y->w);
}

typedef struct {
    int32_t most, sum, count;
} Seen;

/* The elements of one channel of one image under a window. */
static Seen look(const int8_t *x, const cmsis_nn_dims *d, const cmsis_nn_dims *window, int32_t top, int32_t left)
{
    Seen seen = { INT8_MIN, 0, 0 };
    for (int32_t row = top; row < top + window->h; ++row) {
        for (int32_t column = left; column < left + window->w; ++column) {
            if (row >= 0 && row < d->h && column >= 0 && column < d->w) {
                const int32_t v = x[(row * d->w + column) * d->c];
                seen.most = v > seen.most ? v : seen.most;
                seen.sum += v;
                ++seen.count;
            }
        }
    }
    return seen;
}

static void pool(const cmsis_nn_pool_params *p, const cmsis_nn_dims *xd, const int8_t *x, const cmsis_nn_dims *window,
    const cmsis_nn_dims *yd, int8_t *y, bool averages)
{
    for (int32_t i = 0; i < count_of(yd); ++i) {
        const int32_t channel = i % yd->c, column = i / yd->c % yd->w, row = i / yd->c / yd->w % yd->h;
        const int8_t *image = x + i / yd->c / yd->w / yd->h * xd->h * xd->w * xd->c + channel;
        const Seen seen
            = look(image, xd, window, row * p->stride.h - p->padding.h, column * p->stride.w - p->padding.w);
        const int32_t half = seen.sum < 0 ? -(seen.count / 2) : seen.count / 2;
        y[i] = (int8_t)clamp(averages ? (seen.sum + half) / seen.count : seen.most, &p->activation);
    }
}

arm_cmsis_nn_status arm_max_pool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    REQUIRE(ctx != NULL && is_pool(pool_params, input_dims, filter_dims, output_dims));
    REQUIRE(are_apart(input_data, count_of(input_dims), output_data, count_of(output_dims), false));
    pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, false);
    return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_avgpool_s8_get_buffer_size(const int dim_dst_width, const int ch_src)
{
    (void)dim_dst_width;
    (void)ch_src;
    return VARIANT(0, 4 * ch_src, 0);
}

arm_cmsis_nn_status arm_avgpool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    REQUIRE(is_pool(pool_params, input_dims, filter_dims, output_dims));
    REQUIRE(are_apart(input_data, count_of(input_dims), output_data, count_of(output_dims), false));
    REQUIRE(takes_scratch(ctx, arm_avgpool_s8_get_buffer_size(output_dims->w, input_dims->c)));
    pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, true);
    return ARM_CMSIS_NN_SUCCESS;
}
