/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

/* Batches lie along n and h, of which one may be 1 on one side; w counts rows, and c what is summed over. */
arm_cmsis_nn_status arm_batch_matmul_s8(const cmsis_nn_context *ctx, const cmsis_nn_bmm_params *bmm_params,
    const cmsis_nn_per_tensor_quant_params *quant_params, const cmsis_nn_dims *input_lhs_dims,
    const int8_t *input_lhs, const cmsis_nn_dims *input_rhs_dims, const int8_t *input_rhs,
    const cmsis_nn_dims *output_dims, int8_t *output)
{
    const cmsis_nn_dims *ad = input_lhs_dims, *bd = input_rhs_dims, *yd = output_dims;
    const cmsis_nn_fc_params *p = &bmm_params->fc_params;
    REQUIRE(ad->n > 0 && ad->h > 0 && ad->w > 0 && ad->c > 0 && bd->w > 0 && bd->c == ad->c);
    REQUIRE((ad->n == bd->n || ad->n == 1 || bd->n == 1) && yd->n == (ad->n > bd->n ? ad->n : bd->n));
    REQUIRE((ad->h == bd->h || ad->h == 1 || bd->h == 1) && yd->h == (ad->h > bd->h ? ad->h : bd->h));
    REQUIRE(yd->w == ad->w && yd->c == bd->w && !bmm_params->adj_x && !bmm_params->adj_y);
    REQUIRE(p->input_offset >= -127 && p->input_offset <= 128 && p->filter_offset >= -127 && p->filter_offset <= 128);
    REQUIRE(p->output_offset >= -128 && p->output_offset <= 127 && is_codes(-128, 127, &p->activation));
    REQUIRE(takes_scratch(ctx, VARIANT(0, 0, 4 * bd->w)));
    for (int32_t at = 0; at < yd->n * yd->h * yd->w * yd->c; ++at) {
        const int32_t column = at % yd->c, row = at / yd->c % yd->w, h = at / yd->c / yd->w % yd->h;
        const int32_t n = at / yd->c / yd->w / yd->h;
        const int8_t *a = input_lhs + ((n % ad->n * ad->h + h % ad->h) * ad->w + row) * ad->c;
        const int8_t *b = input_rhs + ((n % bd->n * bd->h + h % bd->h) * bd->w + column) * bd->c;
        int32_t acc = 0;
        for (int32_t k = 0; k < ad->c; ++k) {
            acc += (a[k] + p->input_offset) * (b[k] + p->filter_offset);
        }
        const int32_t q = requantize(acc, quant_params->multiplier, quant_params->shift);
        output[at] = (int8_t)clamp(q + p->output_offset, &p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}
