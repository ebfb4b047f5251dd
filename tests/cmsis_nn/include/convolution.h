/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

#define CONVOLUTION(name) \
    int32_t name##_get_buffer_size(const cmsis_nn_conv_params *conv_params, const cmsis_nn_dims *input_dims, \
        const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims); \
    arm_cmsis_nn_status name(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params, \
        const cmsis_nn_per_channel_quant_params *quant_params, const cmsis_nn_dims *input_dims, \
        const int8_t *input_data, const cmsis_nn_dims *filter_dims, const int8_t *filter_data, \
        const cmsis_nn_dims *bias_dims, const int32_t *bias_data, const cmsis_nn_dims *output_dims, \
        int8_t *output_data)

CONVOLUTION(arm_convolve_wrapper_s8);
CONVOLUTION(arm_convolve_wrapper_s4);
