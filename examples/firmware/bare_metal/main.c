/* SPDX-License-Identifier: 0BSD */
/* Pictures come by DMA into a double buffer; the loop classifies each, and runs another model in between.
 *
 * The two never run at once: one arena, as large as the larger one needs, serves both. */
#include <stdio.h>

#define SHARED_ARENA 1

#include "arena.h"
#include "board.h"
#include "camera.h"
#include "classify.h"

#define PICTURES (2u * IMAGES)

int main(void)
{
    uint32_t seen = 0, right = 0, passed = 0, digit = 0;
    camera_start(NULL);
    while (seen < PICTURES) {
        const uint8_t *picture = camera_picture(&digit);
        if (picture == NULL) {
            board_sleep();
            continue;
        }
        right += classify(arena.digits, picture) == digit;
        camera_release();
        passed += keyword_selftest(arena.keyword) == MCUGEN_OK;
        ++seen;
    }
    camera_stop();
    printf("digits: %u of %u right, %u lost\n", (unsigned)right, (unsigned)seen, (unsigned)camera_lost());
    printf("keyword: %u of %u self-tests passed\n", (unsigned)passed, (unsigned)seen);
    return right == seen && passed == seen && camera_lost() == 0 ? 0 : 1;
}
