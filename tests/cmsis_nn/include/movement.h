/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

arm_cmsis_nn_status arm_pad_s8(const int8_t *input, int8_t *output, const int8_t pad_value,
    const cmsis_nn_dims *input_size, const cmsis_nn_dims *pre_pad, const cmsis_nn_dims *post_pad);

arm_cmsis_nn_status arm_transpose_s8(const int8_t *input_data, int8_t *const output_data,
    const cmsis_nn_dims *const input_dims, const cmsis_nn_dims *const output_dims,
    const cmsis_nn_transpose_params *const transpose_params);

void arm_concatenation_s8_y(const int8_t *input, const uint16_t input_x, const uint16_t input_y,
    const uint16_t input_z, const uint16_t input_w, int8_t *output, const uint16_t output_y, const uint32_t offset_y);
