/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

static const cmsis_nn_activation INT8 = { -128, 127 }, INT16 = { -32768, 32767 };

/* A sum of 12 bits of fraction, times 2^left, by its function to 15 bits of fraction. */
static int16_t activated(int32_t sum, int32_t left, arm_nn_activation_type type)
{
    int16_t x = (int16_t)sum, y = 0;
    (void)arm_nn_activation_s16(&x, &y, 1, left, type);
    return y;
}

static int32_t row_sum(const int8_t *x, const void *weights, const void *bias, int32_t row, int32_t size)
{
    int32_t sum = ((const int32_t *)bias)[row];
    for (int32_t k = 0; k < size; ++k) {
        sum += x[k] * ((const int8_t *)weights)[row * size + k];
    }
    return sum;
}

/* A row of a gate. Without a hidden state, that of zeros, there is nothing to add. */
static int16_t gate_of(const cmsis_nn_lstm_params *p, const cmsis_nn_lstm_gate *gate, const int8_t *x,
    const int8_t *h, int32_t row)
{
    int32_t v = row_sum(x, gate->input_weights, gate->input_effective_bias, row, p->input_size);
    v = clamp(requantize(v, gate->input_multiplier, gate->input_shift), &INT16);
    if (h) {
        const int32_t more = row_sum(h, gate->hidden_weights, gate->hidden_effective_bias, row, p->hidden_size);
        v = clamp(v + requantize(more, gate->hidden_multiplier, gate->hidden_shift), &INT16);
    }
    return activated(v, 0, gate->activation_type);
}

static bool is_gate(const cmsis_nn_lstm_gate *gate, arm_nn_activation_type type)
{
    return gate->input_multiplier > 0 && gate->hidden_multiplier > 0 && gate->activation_type == type
        && gate->input_weights && gate->hidden_weights && gate->input_effective_bias && gate->hidden_effective_bias;
}

/* A hidden state's step: a sequence's element of one batch. */
static void step(const cmsis_nn_lstm_params *p, const int8_t *x, const int8_t *before,
    int16_t *cells, int8_t *after)
{
    const cmsis_nn_activation clip = { -p->cell_clip, p->cell_clip };
    for (int32_t row = 0; row < p->hidden_size; ++row) {
        const int32_t forget = gate_of(p, &p->forget_gate, x, before, row);
        const int32_t input = gate_of(p, &p->input_gate, x, before, row);
        const int32_t fresh = gate_of(p, &p->cell_gate, x, before, row);
        const int32_t shown = gate_of(p, &p->output_gate, x, before, row);
        int32_t cell = requantize(forget * cells[row], p->forget_to_cell_multiplier, p->forget_to_cell_shift);
        cell = clamp(cell, &INT16);
        cell += requantize(input * fresh, p->input_to_cell_multiplier, p->input_to_cell_shift);
        cells[row] = (int16_t)clamp(cell, &clip);
        const int32_t result = shown * activated(cells[row], p->cell_scale_power + 12, ARM_TANH);
        const int32_t q = requantize(result, p->output_multiplier, p->output_shift);
        after[row] = (int8_t)clamp(q + p->output_offset, &INT8);
    }
}

arm_cmsis_nn_status arm_lstm_unidirectional_s8(const int8_t *input, int8_t *output,
    const cmsis_nn_lstm_params *params, cmsis_nn_lstm_context *buffers)
{
    const cmsis_nn_lstm_params *p = params;
    const int32_t cells = p->batch_size * p->hidden_size;
    REQUIRE(p->batch_size > 0 && p->time_steps > 0 && p->input_size > 0 && p->hidden_size > 0);
    REQUIRE((p->time_major == 0 || p->time_major == 1) && p->input_offset >= -127 && p->input_offset <= 128);
    REQUIRE(p->forget_to_cell_multiplier > 0 && p->input_to_cell_multiplier > 0 && p->output_multiplier > 0);
    REQUIRE(p->cell_clip > 0 && p->cell_clip <= 32767 && p->cell_scale_power > -28 && p->cell_scale_power < 2);
    REQUIRE(p->output_offset >= -128 && p->output_offset <= 127 && buffers->hidden_state == NULL);
    REQUIRE(is_gate(&p->forget_gate, ARM_SIGMOID) && is_gate(&p->input_gate, ARM_SIGMOID));
    REQUIRE(is_gate(&p->output_gate, ARM_SIGMOID) && is_gate(&p->cell_gate, ARM_TANH));
    REQUIRE(buffers->temp1 && buffers->temp2 && buffers->cell_state);
    REQUIRE((uintptr_t)buffers->temp1 % 2 == 0 && (uintptr_t)buffers->temp2 % 2 == 0);
    REQUIRE((uintptr_t)buffers->cell_state % 2 == 0);
    memset(buffers->temp1, 0x5a, (size_t)cells * 2);
    memset(buffers->temp2, 0x5a, (size_t)cells * 2);
    memset(buffers->cell_state, 0, (size_t)cells * 2);
    for (int32_t t = 0; t < p->time_steps; ++t) {
        for (int32_t n = 0; n < p->batch_size; ++n) {
            const int32_t at = p->time_major ? t * p->batch_size + n : n * p->time_steps + t;
            const int32_t apart = (p->time_major ? p->batch_size : 1) * p->hidden_size;
            int8_t *after = output + at * p->hidden_size;
            step(p, input + at * p->input_size, t > 0 ? after - apart : NULL,
                (int16_t *)buffers->cell_state + n * p->hidden_size, after);
        }
    }
    return ARM_CMSIS_NN_SUCCESS;
}
