/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

arm_cmsis_nn_status arm_elementwise_add_s8(const int8_t *input_1_vect, const int8_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_1_mult, const int32_t input_1_shift,
    const int32_t input_2_offset, const int32_t input_2_mult, const int32_t input_2_shift, const int32_t left_shift,
    int8_t *output, const int32_t out_offset, const int32_t out_mult, const int32_t out_shift,
    const int32_t out_activation_min, const int32_t out_activation_max, const int32_t block_size);

arm_cmsis_nn_status arm_elementwise_mul_s8(const int8_t *input_1_vect, const int8_t *input_2_vect,
    const int32_t input_1_offset, const int32_t input_2_offset, int8_t *output, const int32_t out_offset,
    const int32_t out_mult, const int32_t out_shift, const int32_t out_activation_min,
    const int32_t out_activation_max, const int32_t block_size);

arm_cmsis_nn_status arm_maximum_s8(const cmsis_nn_context *ctx, const int8_t *input_1_data,
    const cmsis_nn_dims *input_1_dims, const int8_t *input_2_data, const cmsis_nn_dims *input_2_dims,
    int8_t *output_data, const cmsis_nn_dims *output_dims);

arm_cmsis_nn_status arm_minimum_s8(const cmsis_nn_context *ctx, const int8_t *input_1_data,
    const cmsis_nn_dims *input_1_dims, const int8_t *input_2_data, const cmsis_nn_dims *input_2_dims,
    int8_t *output_data, const cmsis_nn_dims *output_dims);
