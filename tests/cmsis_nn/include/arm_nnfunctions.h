/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CMSIS-NN's public interface (version 7) that generated code calls, for a reference implementation that
 * is written for tests: slow, and strict about its arguments. Names, parameters and fields are those of the library. */
#ifndef ARM_NNFUNCTIONS_H
#define ARM_NNFUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ARM_CMSIS_NN_SUCCESS = 0,
    ARM_CMSIS_NN_ARG_ERROR = -1,
    ARM_CMSIS_NN_NO_IMPL_ERROR = -2,
    ARM_CMSIS_NN_FAILURE = -3,
} arm_cmsis_nn_status;

typedef struct {
    int32_t w, h;
} cmsis_nn_tile;

typedef struct {
    void *buf;
    int32_t size;
} cmsis_nn_context;

typedef struct {
    int32_t n, h, w, c;
} cmsis_nn_dims;

typedef struct {
    int32_t *multiplier, *shift;
} cmsis_nn_per_channel_quant_params;

typedef struct {
    int32_t multiplier, shift;
} cmsis_nn_per_tensor_quant_params;

typedef struct {
    int32_t min, max;
} cmsis_nn_activation;

typedef struct {
    int32_t input_offset, output_offset;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_conv_params;

typedef struct {
    int32_t input_offset, filter_offset, output_offset;
    cmsis_nn_activation activation;
} cmsis_nn_fc_params;

typedef struct {
    int32_t *multiplier, *shift, is_per_channel;
} cmsis_nn_quant_params;

typedef struct {
    int32_t input_offset, output_offset, ch_mult;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_dw_conv_params;

typedef struct {
    const bool adj_x, adj_y;
    cmsis_nn_fc_params fc_params;
} cmsis_nn_bmm_params;

typedef struct {
    const int32_t num_dims;
    const uint32_t *permutations;
} cmsis_nn_transpose_params;

typedef struct {
    cmsis_nn_tile stride, padding;
    cmsis_nn_activation activation;
} cmsis_nn_pool_params;

typedef enum {
    ARM_SIGMOID = 0,
    ARM_TANH = 1,
} arm_nn_activation_type;

typedef struct {
    const void *data;
    const bool is_int32_bias;
} cmsis_nn_bias_data;

typedef struct {
    int32_t input_offset, output_offset;
    cmsis_nn_tile stride, padding, padding_offsets, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_transpose_conv_params;

typedef struct {
    int32_t input_multiplier, input_shift;
    const void *input_weights, *input_effective_bias;
    int32_t hidden_multiplier, hidden_shift;
    const void *hidden_weights, *hidden_effective_bias;
    const void *bias;
    arm_nn_activation_type activation_type;
} cmsis_nn_lstm_gate;

typedef struct {
    int32_t time_major, batch_size, time_steps, input_size, hidden_size;
    int32_t input_offset;
    int32_t forget_to_cell_multiplier, forget_to_cell_shift;
    int32_t input_to_cell_multiplier, input_to_cell_shift;
    int32_t cell_clip, cell_scale_power;
    int32_t output_multiplier, output_shift, output_offset;
    cmsis_nn_lstm_gate forget_gate, input_gate, cell_gate, output_gate;
} cmsis_nn_lstm_params;

typedef struct {
    void *temp1, *temp2, *cell_state;
    void *hidden_state; /* newer than 7.0: where it goes on from, if it is not NULL */
} cmsis_nn_lstm_context;

#include "convolution.h"
#include "dense.h"
#include "depthwise.h"
#include "lstm.h"
#include "matmul.h"
#include "transpose_conv.h"
#include "elementwise.h"
#include "movement.h"
#include "pooling.h"
#include "softmax.h"
#include "s16.h"

#ifdef __cplusplus
}
#endif

#endif
