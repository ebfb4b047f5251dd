/* SPDX-License-Identifier: Apache-2.0 */
#include "weighted.h"

int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter_dims)
{
    return VARIANT(0, 0, filter_dims->c * (int32_t)sizeof(int32_t));
}

/* `sums` are what a row starts from instead of the bias and the offset of x, or NULL. */
static arm_cmsis_nn_status multiply(const cmsis_nn_fc_params *p, const int32_t *multiplier, const int32_t *shift,
    bool is_per_channel, const cmsis_nn_dims *xd, const int8_t *x, const cmsis_nn_dims *wd, const int8_t *w,
    const cmsis_nn_dims *bd, const int32_t *bias, const int32_t *sums, const cmsis_nn_dims *yd, int8_t *y,
    bool is_small)
{
    REQUIRE(xd->n > 0 && yd->n == xd->n && wd->c > 0 && yd->c == wd->c && bd->c == wd->c);
    REQUIRE(wd->n > 0 && xd->h * xd->w * xd->c == wd->n);
    REQUIRE(p->filter_offset == 0 && are_offsets(p->input_offset, p->output_offset, &p->activation));
    REQUIRE(are_multipliers(multiplier, shift, is_per_channel ? yd->c : 1));
    for (int32_t at = 0; at < yd->n * yd->c; ++at) {
        const int32_t c = at % yd->c, scale = is_per_channel ? c : 0;
        const int32_t offset = sums ? 0 : p->input_offset;
        int32_t sum = sums ? sums[c] : bias ? bias[c] : 0;
        for (int32_t k = 0; k < wd->n; ++k) {
            sum += weight(w, is_small, c * wd->n + k) * (x[at / yd->c * wd->n + k] + offset);
        }
        y[at] = (int8_t)clamp(requantize(sum, multiplier[scale], shift[scale]) + p->output_offset, &p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_fully_connected_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *fc_params,
    const cmsis_nn_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    const int32_t needed = arm_fully_connected_s8_get_buffer_size(filter_dims);
    REQUIRE(needed == 0 || (ctx->buf && ctx->size >= needed && (uintptr_t)ctx->buf % 4u == 0));
    return multiply(fc_params, quant_params->multiplier, quant_params->shift, quant_params->is_per_channel != 0,
        input_dims, input_data, filter_dims, filter_data, bias_dims, bias_data, needed ? ctx->buf : NULL, output_dims,
        output_data, false);
}

arm_cmsis_nn_status arm_fully_connected_s4(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *fc_params,
    const cmsis_nn_per_tensor_quant_params *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data,
    const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims,
    const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)
{
    (void)ctx;
    return multiply(fc_params, &quant_params->multiplier, &quant_params->shift, false, input_dims, input_data,
        filter_dims, filter_data, bias_dims, bias_data, NULL, output_dims, output_data, true);
}
