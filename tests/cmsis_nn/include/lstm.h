/* SPDX-License-Identifier: Apache-2.0 */
/* Included by arm_nnfunctions.h. */

typedef enum {
    ARM_SIGMOID = 0,
    ARM_TANH = 1,
} arm_nn_activation_type;

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

arm_cmsis_nn_status arm_lstm_unidirectional_s8(const int8_t *input, int8_t *output,
    const cmsis_nn_lstm_params *params, cmsis_nn_lstm_context *buffers);
