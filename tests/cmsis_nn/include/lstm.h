/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

arm_cmsis_nn_status arm_lstm_unidirectional_s8(const int8_t *input, int8_t *output,
    const cmsis_nn_lstm_params *params, cmsis_nn_lstm_context *buffers);
