/* SPDX-License-Identifier: 0BSD */
/* Included in the model's files by a compiler option, to record when each layer ends. */
void mcugen_harness_on_layer(int index);

#define MCUGEN_ON_LAYER(model, index) mcugen_harness_on_layer(index)
