/* SPDX-License-Identifier: 0BSD */
/* A camera that a DMA reads into two buffers by turns: while it fills one, the program reads the other. A timer's
 * interrupt stands in for the DMA's. */
#ifndef CAMERA_H
#define CAMERA_H

#include <stdint.h>

#include "images.h"

/* Begins; `on_picture` is called in the interrupt when a picture is there, unless it is null. */
void camera_start(void (*on_picture)(void));
void camera_stop(void);

/* The picture that is there and what it shows, or null. It stays until camera_release(). */
const uint8_t *camera_picture(uint32_t *digit);
void camera_release(void);

/* Pictures that came while the last one was still being read, and were dropped. */
uint32_t camera_lost(void);

#endif /* CAMERA_H */
