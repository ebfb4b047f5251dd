/* SPDX-License-Identifier: 0BSD */
/* Forced into the model's files, to learn when each of its layers is done. */
void mcugen_harness_on_layer(int index);

#define MCUGEN_ON_LAYER(model, index) mcugen_harness_on_layer(index)
