/* SPDX-License-Identifier: 0BSD */
/* Files of weights in two slots of non-volatile memory: an update is written to the slot that is not in use, and takes
 * effect at once when its head is written. The firmware tests it and confirms it; an update that a reset or a loss of
 * power ends before that is not used again, and the file before it is. One slot is always complete.
 *
 * A slot: head, two rows that are written once each (on trial, confirmed), a row that is never written, and the file.
 */
#ifndef MCUGEN_SLOTS_H
#define MCUGEN_SLOTS_H

#include "mcugen_store.h"

#define MCUGEN_SLOTS_ROW 32u   /* bytes: as MCUGEN_STORE_HEAD */
#define MCUGEN_SLOTS_DATA 128u /* bytes at the start of a slot, before the file */
#define MCUGEN_SLOTS_MAGIC 0x4c53434du
#define MCUGEN_SLOTS_FORMAT 1u
#define MCUGEN_SLOTS_CONFIRMED 0x464e4f43u
#define MCUGEN_SLOTS_NONE (-1) /* no slot has a file: use that of the firmware */

/* An update that is being written. */
typedef struct {
    const mcugen_storage *storage;
    uint32_t slot, sequence; /* the slot, and the sequence number that it gets */
    uint32_t nbytes, crc;    /* what is written of the file, with a signature behind it */
} mcugen_update;

/* The words of a head: magic, format, sequence number, bytes of the file, CRC-32 of the file, 0, 0, CRC-32 of these. */
enum { MCUGEN_SLOTS_SEQUENCE = 2,
    MCUGEN_SLOTS_BYTES = 3,
    MCUGEN_SLOTS_CRC = 4,
    MCUGEN_SLOTS_WORDS = 8 };

static inline int mcugen_slots_is_null(const mcugen_storage *storage)
{
    return mcugen_store_is_null(storage) != 0 || storage->slot_bytes < MCUGEN_SLOTS_DATA ? 1 : 0;
}

/* Reads a row of a slot: 0 is the head, 1 and 2 the marks, 3 the one that is never written. Returns 0 on success. */
static inline int mcugen_slots_row(const mcugen_storage *storage, uint32_t slot, uint32_t row, uint32_t *words)
{
    const uint32_t at = (slot * storage->slot_bytes) + (row * MCUGEN_SLOTS_ROW);
    return storage->read(storage->context, at, words, MCUGEN_SLOTS_ROW);
}

/* Reads the head of a slot, and returns whether the slot is complete. */
static inline int mcugen_slots_is_whole(const mcugen_storage *storage, uint32_t slot, uint32_t *head)
{
    const uint32_t first = (slot * storage->slot_bytes) + MCUGEN_SLOTS_DATA;
    uint32_t block[16], crc = 0, at, nbytes;
    if (mcugen_slots_row(storage, slot, 0, head) != 0 || head[0] != MCUGEN_SLOTS_MAGIC) {
        return 0;
    }
    nbytes = head[MCUGEN_SLOTS_BYTES];
    if (head[1] != MCUGEN_SLOTS_FORMAT || nbytes > storage->slot_bytes - MCUGEN_SLOTS_DATA) {
        return 0;
    }
    if (mcugen_crc32(head, MCUGEN_SLOTS_ROW - sizeof crc) != head[MCUGEN_SLOTS_WORDS - 1]) {
        return 0;
    }
    for (at = 0; at < nbytes; at += (uint32_t)sizeof block) {
        const uint32_t left = nbytes - at, size = left < (uint32_t)sizeof block ? left : (uint32_t)sizeof block;
        if (storage->read(storage->context, first + at, block, size) != 0) {
            return 0;
        }
        crc = mcugen_crc32_next(crc, block, (size_t)size);
    }
    return crc == head[MCUGEN_SLOTS_CRC] ? 1 : 0;
}

/* Returns whether a file has passed its test. */
static inline int mcugen_slots_is_confirmed(const mcugen_storage *storage, uint32_t slot)
{
    uint32_t mark[MCUGEN_SLOTS_WORDS], i;
    if (mcugen_slots_row(storage, slot, 2, mark) != 0) {
        return 0;
    }
    for (i = 0; i < (uint32_t)MCUGEN_SLOTS_WORDS; ++i) {
        if (mark[i] != MCUGEN_SLOTS_CONFIRMED + i) {
            return 0;
        }
    }
    return 1;
}

/* Returns whether a trial of a file has begun: its row differs from the one that is never written. */
static inline int mcugen_slots_is_tried(const mcugen_storage *storage, uint32_t slot)
{
    uint32_t mark[MCUGEN_SLOTS_WORDS], never[MCUGEN_SLOTS_WORDS];
    if (mcugen_slots_row(storage, slot, 1, mark) != 0 || mcugen_slots_row(storage, slot, 3, never) != 0) {
        return 1;
    }
    return memcmp(mark, never, sizeof mark) != 0 ? 1 : 0;
}

static inline int mcugen_slots_mark(const mcugen_storage *storage, uint32_t slot, uint32_t row)
{
    const uint32_t at = (slot * storage->slot_bytes) + (row * MCUGEN_SLOTS_ROW);
    uint32_t mark[MCUGEN_SLOTS_WORDS], i;
    for (i = 0; i < (uint32_t)MCUGEN_SLOTS_WORDS; ++i) {
        mark[i] = MCUGEN_SLOTS_CONFIRMED + i;
    }
    return storage->write(storage->context, at, mark, MCUGEN_SLOTS_ROW) == 0 ? MCUGEN_OK : MCUGEN_ERROR_STORAGE;
}

/* Returns the confirmed slot with the newest file, or MCUGEN_SLOTS_NONE; `sequence` receives the largest number of any
 * complete slot, and may be NULL. Sequence numbers may wrap around. */
static inline int32_t mcugen_slots_newest(const mcugen_storage *storage, int is_trial, uint32_t *sequence)
{
    uint32_t head[MCUGEN_SLOTS_WORDS], newest = 0, last = 0, slot;
    int32_t found = MCUGEN_SLOTS_NONE;
    int is_any = 0;
    for (slot = 0; slot < 2u; ++slot) {
        if (mcugen_slots_is_whole(storage, slot, head) != 0) {
            const uint32_t number = head[MCUGEN_SLOTS_SEQUENCE];
            const int is_confirmed = mcugen_slots_is_confirmed(storage, slot);
            const int may_be_tried = is_trial != 0 && mcugen_slots_is_tried(storage, slot) == 0 ? 1 : 0;
            if (is_any == 0 || number - last < 0x80000000u) {
                last = number;
            }
            if ((is_confirmed != 0 || may_be_tried != 0) &&
                (found == MCUGEN_SLOTS_NONE || number - newest < 0x80000000u)) {
                newest = number;
                found = (int32_t)slot;
            }
            is_any = 1;
        }
    }
    if (sequence != NULL) {
        *sequence = is_any != 0 ? last : 0u;
    }
    return found;
}

/* At start-up: returns the slot whose file is to be used, or MCUGEN_SLOTS_NONE. A file that is not confirmed yet is
 * returned once: test it, then call mcugen_slots_confirm, or this function again, which returns the file before it. */
static inline int32_t mcugen_slots_select(const mcugen_storage *storage)
{
    int32_t slot;
    if (mcugen_slots_is_null(storage) != 0) {
        return MCUGEN_SLOTS_NONE;
    }
    slot = mcugen_slots_newest(storage, 1, NULL);
    if (slot != MCUGEN_SLOTS_NONE && mcugen_slots_is_confirmed(storage, (uint32_t)slot) == 0) {
        if (mcugen_slots_mark(storage, (uint32_t)slot, 1) != MCUGEN_OK ||
            mcugen_slots_is_tried(storage, (uint32_t)slot) == 0) {
            slot = mcugen_slots_newest(storage, 0, NULL);
        }
    }
    return slot;
}

/* Confirms a file that passed its test: MCUGEN_OK, or MCUGEN_ERROR_STORAGE. */
static inline int mcugen_slots_confirm(const mcugen_storage *storage, int32_t slot)
{
    if (mcugen_slots_is_null(storage) != 0 || slot < 0 || slot > 1) {
        return MCUGEN_ERROR_NULL;
    }
    if (mcugen_slots_is_confirmed(storage, (uint32_t)slot) != 0) {
        return MCUGEN_OK;
    }
    if (mcugen_slots_mark(storage, (uint32_t)slot, 2) != MCUGEN_OK) {
        return MCUGEN_ERROR_STORAGE;
    }
    return mcugen_slots_is_confirmed(storage, (uint32_t)slot) != 0 ? MCUGEN_OK : MCUGEN_ERROR_STORAGE;
}

/* Begins an update: erases the slot that has not the newest confirmed file. MCUGEN_OK, or MCUGEN_ERROR_*. */
static inline int mcugen_update_begin(mcugen_update *update, const mcugen_storage *storage)
{
    int32_t active;
    if (update == NULL || mcugen_slots_is_null(storage) != 0) {
        return MCUGEN_ERROR_NULL;
    }
    active = mcugen_slots_newest(storage, 0, &update->sequence);
    update->storage = storage;
    update->slot = active == 0 ? 1u : 0u;
    update->sequence += 1u;
    update->nbytes = 0;
    update->crc = 0;
    if (storage->erase != NULL) {
        if (storage->erase(storage->context, update->slot * storage->slot_bytes, storage->slot_bytes) != 0) {
            return MCUGEN_ERROR_STORAGE;
        }
    } else {
        uint32_t row, words[MCUGEN_SLOTS_WORDS];
        (void)memset(words, 0xff, sizeof words);
        for (row = 0; row < MCUGEN_SLOTS_DATA; row += MCUGEN_SLOTS_ROW) {
            const uint32_t at = (update->slot * storage->slot_bytes) + row;
            if (storage->write(storage->context, at, words, MCUGEN_SLOTS_ROW) != 0) {
                return MCUGEN_ERROR_STORAGE;
            }
        }
    }
    return MCUGEN_OK;
}

/* Writes the next bytes of the file; all but the last ones a multiple of the memory's row. */
static inline int mcugen_update_write(mcugen_update *update, const void *data, uint32_t nbytes)
{
    uint32_t at;
    if (update == NULL || update->storage == NULL || data == NULL) {
        return MCUGEN_ERROR_NULL;
    }
    if (nbytes > update->storage->slot_bytes - MCUGEN_SLOTS_DATA - update->nbytes) {
        return MCUGEN_ERROR_STORAGE;
    }
    at = (update->slot * update->storage->slot_bytes) + MCUGEN_SLOTS_DATA + update->nbytes;
    if (update->storage->write(update->storage->context, at, data, nbytes) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    update->crc = mcugen_crc32_next(update->crc, data, (size_t)nbytes);
    update->nbytes += nbytes;
    return MCUGEN_OK;
}

/* Ends an update that NAME_check_update accepts: from now on, mcugen_slots_select returns its slot. */
static inline int mcugen_update_end(mcugen_update *update)
{
    uint32_t head[MCUGEN_SLOTS_WORDS];
    const mcugen_storage *storage;
    if (update == NULL || update->storage == NULL || update->nbytes == 0u) {
        return MCUGEN_ERROR_NULL;
    }
    storage = update->storage;
    (void)memset(head, 0, sizeof head);
    head[0] = MCUGEN_SLOTS_MAGIC;
    head[1] = MCUGEN_SLOTS_FORMAT;
    head[MCUGEN_SLOTS_SEQUENCE] = update->sequence;
    head[MCUGEN_SLOTS_BYTES] = update->nbytes;
    head[MCUGEN_SLOTS_CRC] = update->crc;
    head[MCUGEN_SLOTS_WORDS - 1] = mcugen_crc32(head, sizeof head - sizeof head[0]);
    update->storage = NULL;
    if (storage->write(storage->context, update->slot * storage->slot_bytes, head, MCUGEN_SLOTS_ROW) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    return mcugen_slots_is_whole(storage, update->slot, head) != 0 ? MCUGEN_OK : MCUGEN_ERROR_STORAGE;
}

/* Reads the file of a slot, for NAME_run and NAME_check_update of a model with --weights-reader. */
typedef struct {
    const mcugen_storage *storage;
    uint32_t slot;
} mcugen_slot;

static inline int mcugen_slot_read(void *context, uint32_t offset, void *to, uint32_t nbytes)
{
    const mcugen_slot *const slot = (const mcugen_slot *)context;
    const mcugen_storage *const storage = slot->storage;
    const uint32_t at = (slot->slot * storage->slot_bytes) + MCUGEN_SLOTS_DATA + offset;
    return storage->read(storage->context, at, to, nbytes);
}

#endif
