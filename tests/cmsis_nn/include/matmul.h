/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

arm_cmsis_nn_status arm_batch_matmul_s8(const cmsis_nn_context *ctx, const cmsis_nn_bmm_params *bmm_params,
    const cmsis_nn_per_tensor_quant_params *quant_params, const cmsis_nn_dims *input_lhs_dims,
    const int8_t *input_lhs, const cmsis_nn_dims *input_rhs_dims, const int8_t *input_rhs,
    const cmsis_nn_dims *output_dims, int8_t *output);
