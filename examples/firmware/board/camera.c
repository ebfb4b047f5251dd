/* SPDX-License-Identifier: 0BSD */
/* Recorded pictures, one after the other, 50 a second. */
#include "camera.h"

#include <stddef.h>
#include <string.h>

#include "board.h"

#define TICKS_A_PICTURE 500000u /* 20 ms at 25 MHz */

static uint8_t buffers[2][PIXELS];
static uint32_t digits[2];

static uint32_t filling, delivered; /* only the interrupt's */
static volatile uint32_t lost;
static uint8_t *volatile ready; /* the interrupt sets it, the program clears it */

static void (*callback)(void);

static void on_transfer(void)
{
    memcpy(buffers[filling], images[delivered % IMAGES], PIXELS); /* what a DMA has done by now */
    digits[filling] = delivered++ % IMAGES;
    if (ready != NULL) {
        ++lost; /* the same buffer is filled again */
        return;
    }
    ready = buffers[filling];
    filling ^= 1u;
    if (callback != NULL) {
        callback();
    }
}

void camera_start(void (*on_picture)(void))
{
    callback = on_picture;
    board_start_timer(TICKS_A_PICTURE, on_transfer);
}

void camera_stop(void)
{
    board_stop_timer();
}

const uint8_t *camera_picture(uint32_t *digit)
{
    const uint8_t *picture = ready;
    if (picture != NULL) {
        *digit = digits[picture == buffers[1]];
    }
    return picture;
}

void camera_release(void)
{
    ready = NULL;
}

uint32_t camera_lost(void)
{
    return lost;
}
