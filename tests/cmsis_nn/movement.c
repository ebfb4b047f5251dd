/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

static void list(const cmsis_nn_dims *dims, int32_t sizes[4])
{
    sizes[0] = dims->n;
    sizes[1] = dims->h;
    sizes[2] = dims->w;
    sizes[3] = dims->c;
}

arm_cmsis_nn_status arm_pad_s8(const int8_t *input, int8_t *output, const int8_t pad_value,
    const cmsis_nn_dims *input_size, const cmsis_nn_dims *pre_pad, const cmsis_nn_dims *post_pad)
{
    int32_t in[4], before[4], after[4], out[4], count = 1;
    list(input_size, in);
    list(pre_pad, before);
    list(post_pad, after);
    for (int axis = 0; axis < 4; ++axis) {
        REQUIRE(in[axis] > 0 && before[axis] >= 0 && after[axis] >= 0);
        out[axis] = before[axis] + in[axis] + after[axis];
        count *= out[axis];
    }
    REQUIRE(are_apart(input, count_of(input_size), output, count, false));
    for (int32_t i = 0; i < count; ++i) {
        int32_t rest = i, from = 0, pitch = 1;
        bool is_inside = true;
        for (int axis = 3; axis >= 0; --axis) {
            const int32_t at = rest % out[axis] - before[axis];
            is_inside = is_inside && at >= 0 && at < in[axis];
            from += at * pitch;
            rest /= out[axis];
            pitch *= in[axis];
        }
        output[i] = is_inside ? input[from] : pad_value;
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* Of two axes n and h are the sizes, of three also w. */
arm_cmsis_nn_status arm_transpose_s8(const int8_t *input_data, int8_t *const output_data,
    const cmsis_nn_dims *const input_dims, const cmsis_nn_dims *const output_dims,
    const cmsis_nn_transpose_params *const transpose_params)
{
    const int32_t axes = transpose_params->num_dims;
    const uint32_t *perm = transpose_params->permutations;
    int32_t in[4], out[4], count = 1;
    uint32_t seen = 0;
    list(input_dims, in);
    list(output_dims, out);
    REQUIRE(axes >= 1 && axes <= 4);
    for (int32_t axis = 0; axis < axes; ++axis) {
        REQUIRE(perm[axis] < (uint32_t)axes && out[axis] == in[perm[axis]]);
        REQUIRE(in[axis] > 0 && in[axis] < 65536);
        seen |= 1u << perm[axis];
        count *= in[axis];
    }
    REQUIRE(seen == (1u << axes) - 1u && in[axes - 1] <= 65535 / 7); /* with Helium, offsets of 8 rows have 16 bits */
    REQUIRE(are_apart(input_data, count, output_data, count, false));
    for (int32_t i = 0; i < count; ++i) {
        int32_t at[4], rest = i, to = 0;
        for (int32_t axis = axes - 1; axis >= 0; --axis) {
            at[axis] = rest % in[axis];
            rest /= in[axis];
        }
        for (int32_t axis = 0; axis < axes; ++axis) {
            to = to * out[axis] + at[perm[axis]];
        }
        output_data[to] = input_data[i];
    }
    return ARM_CMSIS_NN_SUCCESS;
}

void arm_concatenation_s8_y(const int8_t *input, const uint16_t input_x, const uint16_t input_y,
    const uint16_t input_z, const uint16_t input_w, int8_t *output, const uint16_t output_y, const uint32_t offset_y)
{
    const int32_t run = input_x * input_y, row = input_x * output_y, rows = input_z * input_w;
    if (run == 0 || offset_y + input_y > output_y || !are_apart(input, rows * run, output, rows * row, false)) {
        return; /* without a result */
    }
    for (int32_t i = 0; i < rows; ++i) {
        memcpy(output + i * row + (int32_t)offset_y * input_x, input + i * run, (size_t)run);
    }
}
