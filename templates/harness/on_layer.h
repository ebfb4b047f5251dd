/* SPDX-License-Identifier: 0BSD */
/* Forced into the model's files where MCUGEN_ON_LAYER is defined to be this function. */
void mcugen_harness_on_layer(int index);
