/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

#define DENSE(name, quant) \
    arm_cmsis_nn_status name(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *fc_params, \
        const quant *quant_params, const cmsis_nn_dims *input_dims, const int8_t *input_data, \
        const cmsis_nn_dims *filter_dims, const int8_t *filter_data, const cmsis_nn_dims *bias_dims, \
        const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data)

int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter_dims);
DENSE(arm_fully_connected_wrapper_s8, cmsis_nn_quant_params);
DENSE(arm_fully_connected_s4, cmsis_nn_per_tensor_quant_params);
