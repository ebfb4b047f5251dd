/* SPDX-License-Identifier: 0BSD */
/* Learned state of a model that survives resets and losses of power: two slots in memory of the caller, one of which
 * is complete at any time. A new state overwrites the older slot, its head last. A head has a checksum of itself and
 * of the state.
 */
#ifndef MCUGEN_STORE_H
#define MCUGEN_STORE_H

#include "mcugen.h"

#define MCUGEN_STORE_HEAD 32u   /* bytes: a power of two, so that no row of a flash with ECC is written twice */
#define MCUGEN_STORE_FORMAT 1u  /* bytes at the start of a slot: its head has eight words */
#define MCUGEN_STORE_MAGIC 0x4c47434du

/* Non-volatile memory, accessed by functions of the caller that return 0 on success. Offsets count from the first
 * slot; the second slot begins at `slot_bytes`, a multiple of the erasable unit and at least NAME_STORED_BYTES.
 * Numbers have the byte order of the CPU. */
typedef struct {
    int (*read)(void *context, uint32_t offset, void *to, uint32_t nbytes);
    int (*erase)(void *context, uint32_t offset, uint32_t nbytes); /* NULL if the memory needs no erasing */
    int (*write)(void *context, uint32_t offset, const void *from, uint32_t nbytes);
    void *context;
    uint32_t slot_bytes;
} mcugen_storage;

/* The words of a head: magic, format, model (two words), sequence number, bytes, 0, checksum. */
enum { MCUGEN_STORE_SEQUENCE = 4,
    MCUGEN_STORE_BYTES = 5,
    MCUGEN_STORE_CRC = 7,
    MCUGEN_STORE_WORDS = 8 };

static inline int mcugen_store_is_null(const mcugen_storage *storage)
{
    return storage == NULL || storage->read == NULL || storage->write == NULL ? 1 : 0;
}

/* Reads the head of a slot, and returns whether the slot is complete and belongs to this model. */
static inline int mcugen_store_is_whole(const mcugen_storage *storage, uint32_t slot, const uint32_t *model,
    uint32_t nbytes, uint32_t *head)
{
    const uint32_t first = slot * storage->slot_bytes;
    uint32_t block[16], crc, at;
    if (storage->read(storage->context, first, head, MCUGEN_STORE_HEAD) != 0) {
        return 0;
    }
    if (head[0] != MCUGEN_STORE_MAGIC || head[1] != MCUGEN_STORE_FORMAT || head[MCUGEN_STORE_BYTES] != nbytes) {
        return 0;
    }
    if (head[2] != model[0] || head[3] != model[1]) {
        return 0;
    }
    crc = mcugen_crc32(head, MCUGEN_STORE_HEAD - sizeof crc);
    for (at = 0; at < nbytes; at += (uint32_t)sizeof block) {
        const uint32_t left = nbytes - at, size = left < (uint32_t)sizeof block ? left : (uint32_t)sizeof block;
        if (storage->read(storage->context, first + MCUGEN_STORE_HEAD + at, block, size) != 0) {
            return 0;
        }
        crc = mcugen_crc32_next(crc, block, (size_t)size);
    }
    return crc == head[MCUGEN_STORE_CRC] ? 1 : 0;
}

/* Returns the number of the newest complete slot, and its head; -1 if there is none. Sequence numbers may wrap around.
 */
static inline int32_t mcugen_store_newest(const mcugen_storage *storage, const uint32_t *model, uint32_t nbytes,
    uint32_t *head)
{
    uint32_t other[MCUGEN_STORE_WORDS];
    const int first = mcugen_store_is_whole(storage, 0u, model, nbytes, head);
    if (mcugen_store_is_whole(storage, 1u, model, nbytes, other) == 0) {
        return first != 0 ? 0 : -1;
    }
    if (first != 0 && head[MCUGEN_STORE_SEQUENCE] - other[MCUGEN_STORE_SEQUENCE] < 0x80000000u) {
        return 0;
    }
    (void)memcpy(head, other, sizeof other);
    return 1;
}

/* Writes a state to the older slot: MCUGEN_OK if that slot is complete then, else MCUGEN_ERROR_STORAGE; the newer slot
 * is unchanged. */
static inline int mcugen_store_state(const mcugen_storage *storage, const uint32_t *model, const void *state,
    uint32_t nbytes)
{
    uint32_t head[MCUGEN_STORE_WORDS], slot = 0u, sequence, first;
    int32_t newest;
    if (mcugen_store_is_null(storage) != 0 || state == NULL) {
        return MCUGEN_ERROR_NULL;
    }
    if (storage->slot_bytes < MCUGEN_STORE_HEAD || storage->slot_bytes - MCUGEN_STORE_HEAD < nbytes) {
        return MCUGEN_ERROR_STORAGE;
    }
    newest = mcugen_store_newest(storage, model, nbytes, head);
    if (newest == 0) {
        slot = 1u;
    }
    first = slot * storage->slot_bytes;
    sequence = newest < 0 ? 0u : head[MCUGEN_STORE_SEQUENCE] + 1u;
    head[0] = MCUGEN_STORE_MAGIC;
    head[1] = MCUGEN_STORE_FORMAT;
    head[2] = model[0];
    head[3] = model[1];
    head[MCUGEN_STORE_SEQUENCE] = sequence;
    head[MCUGEN_STORE_BYTES] = nbytes;
    head[6] = 0u;
    head[MCUGEN_STORE_CRC] = mcugen_crc32_next(mcugen_crc32(head, MCUGEN_STORE_HEAD - sizeof *head), state,
        (size_t)nbytes);
    if (storage->erase != NULL && storage->erase(storage->context, first, storage->slot_bytes) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    if (storage->write(storage->context, first + MCUGEN_STORE_HEAD, state, nbytes) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    if (storage->write(storage->context, first, head, MCUGEN_STORE_HEAD) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    return mcugen_store_is_whole(storage, slot, model, nbytes, head) != 0 ? MCUGEN_OK : MCUGEN_ERROR_STORAGE;
}

/* Reads the newest complete state: MCUGEN_OK; MCUGEN_ERROR_STORED if there is none of this model; MCUGEN_ERROR_STORAGE
 * if it cannot be read a second time, after which the contents of `state` are undefined. */
static inline int mcugen_load_state(const mcugen_storage *storage, const uint32_t *model, void *state, uint32_t nbytes)
{
    uint32_t head[MCUGEN_STORE_WORDS], from, crc;
    int32_t newest;
    if (mcugen_store_is_null(storage) != 0 || state == NULL) {
        return MCUGEN_ERROR_NULL;
    }
    newest = mcugen_store_newest(storage, model, nbytes, head);
    if (newest < 0) {
        return MCUGEN_ERROR_STORED;
    }
    from = (newest == 0 ? 0u : storage->slot_bytes) + MCUGEN_STORE_HEAD;
    if (storage->read(storage->context, from, state, nbytes) != 0) {
        return MCUGEN_ERROR_STORAGE;
    }
    crc = mcugen_crc32_next(mcugen_crc32(head, MCUGEN_STORE_HEAD - sizeof crc), state, (size_t)nbytes);
    return crc == head[MCUGEN_STORE_CRC] ? MCUGEN_OK : MCUGEN_ERROR_STORAGE;
}

#endif
