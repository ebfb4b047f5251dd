/* SPDX-License-Identifier: 0BSD */
/* Tokenizer, sampler and token loop for language models whose steps mcugen compiled.
 *
 * There is no heap, no recursion and no global state. Logits are floats; after one subtraction and one multiplication
 * by the reciprocal of the temperature, all arithmetic is done in integers. tokens.py computes the same, so that both
 * choose equal tokens from equal logits. */
#ifndef TOKENS_H
#define TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A vocabulary by byte-pair encoding: characters, then tokens that join two earlier ones. */
typedef struct {
    int32_t characters;     /* number of tokens that are one character */
    int32_t size;           /* number of tokens */
    const char *text;       /* texts of all tokens, one behind the other */
    const uint16_t *ends;   /* where the text of each token begins; then where the last one ends */
    const uint16_t *merges; /* the two tokens that each token behind the characters joins */
} tokens_vocabulary;

/* Returns the text of a token, without an end mark, and its length. */
static inline const char *tokens_decode(const tokens_vocabulary *vocabulary, int32_t token, int32_t *length)
{
    const int32_t start = (int32_t)vocabulary->ends[token];
    *length = (int32_t)vocabulary->ends[token + 1] - start;
    return vocabulary->text + start;
}

/* Writes the tokens of a text of `length` characters, and returns their number. Characters that are no tokens are left
 * out, and so are those behind the first `capacity` that are. The time grows with capacity * vocabulary->size. */
static inline int32_t tokens_encode(const tokens_vocabulary *vocabulary, const char *text, int32_t length,
    uint16_t *tokens, int32_t capacity)
{
    int32_t count = 0, i, token;
    for (i = 0; i < length && count < capacity; ++i) {
        for (token = 0; token < vocabulary->characters && vocabulary->text[token] != text[i]; ++token) {
        }
        if (token < vocabulary->characters) {
            tokens[count++] = (uint16_t)token;
        }
    }
    for (token = vocabulary->characters; token < vocabulary->size; ++token) {
        const uint16_t *pair = vocabulary->merges + 2 * (token - vocabulary->characters);
        int32_t kept = 0;
        for (i = 0; i < count; ++i, ++kept) {
            const bool joins = i + 1 < count && tokens[i] == pair[0] && tokens[i + 1] == pair[1];
            tokens[kept] = joins ? (uint16_t)token : tokens[i];
            i += joins ? 1 : 0;
        }
        count = kept;
    }
    return count;
}

#define TOKENS_MAX_TOP_K 64

/* How tokens are chosen. */
typedef struct {
    uint32_t seed;     /* state of the random numbers (xorshift32), not 0 */
    float temperature; /* divisor of the logits; 0 chooses the most likely token */
    int32_t top_k;     /* number of tokens to choose from, at most TOKENS_MAX_TOP_K; 0 for all */
    float largest[TOKENS_MAX_TOP_K]; /* working memory */
} tokens_sampler;

/* Returns a random integer from 0 to before `total`. */
static inline uint32_t tokens_draw(tokens_sampler *sampler, uint32_t total)
{
    uint32_t x = sampler->seed;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    sampler->seed = x;
    return (uint32_t)(((uint64_t)x * total) >> 32);
}

/* Returns the most likely token: the first one with the largest logit. */
static inline int32_t tokens_best(const float *logits, int32_t count)
{
    int32_t best = 0, i;
    for (i = 1; i < count; ++i) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* Returns the smallest of the top_k largest logits. */
static inline float tokens_lowest(tokens_sampler *sampler, const float *logits, int32_t count)
{
    const int32_t limit = sampler->top_k < TOKENS_MAX_TOP_K ? sampler->top_k : TOKENS_MAX_TOP_K;
    int32_t held = 0, i, place;
    for (i = 0; i < count; ++i) {
        if (held < limit || logits[i] > sampler->largest[held - 1]) {
            held += held < limit ? 1 : 0;
            for (place = held - 1; place > 0 && logits[i] > sampler->largest[place - 1]; --place) {
                sampler->largest[place] = sampler->largest[place - 1];
            }
            sampler->largest[place] = logits[i];
        }
    }
    return sampler->largest[held - 1];
}

/* Returns 2^(16 - steps / 256), rounded down, by a polynomial with errors below 0.02 %. */
static inline uint32_t tokens_power_of_half(uint32_t steps)
{
    const uint32_t t = steps & 255u;
    const uint32_t cubic = 15206u - ((2636u * t) >> 8);
    return (65536u - (((45343u - ((cubic * t) >> 8)) * t) >> 8)) >> (steps >> 8);
}

#define TOKENS_MAX_STEPS 4352.0f /* from 17 octaves below the largest logit on, a token has no share */

/* Returns a token, by the logits of all `count` tokens, at most 65,535. */
static inline int32_t tokens_sample(tokens_sampler *sampler, const float *logits, int32_t count)
{
    const int32_t best = tokens_best(logits, count);
    float lowest, scale;
    uint32_t total = 0, end = 0, drawn = 0;
    int32_t i, pass, token = best;
    if (!(sampler->temperature > 0.0f)) {
        return best;
    }
    lowest = sampler->top_k > 0 ? tokens_lowest(sampler, logits, count) : 0.0f;
    scale = 369.329935f / sampler->temperature; /* 256 / ln 2: steps of 1 / 256 octave */
    for (pass = 0; pass < 2; ++pass) {
        for (i = 0; i < count; ++i) {
            const float below = (logits[best] - logits[i]) * scale;
            const bool chosen = sampler->top_k <= 0 || logits[i] >= lowest;
            const float steps = below < TOKENS_MAX_STEPS ? below : TOKENS_MAX_STEPS;
            const uint32_t share = chosen ? tokens_power_of_half((uint32_t)steps) : 0u;
            if (pass == 0) {
                total += share;
            } else {
                end += share;
                if (end > drawn) {
                    token = i;
                    break;
                }
            }
        }
        drawn = pass == 0 ? tokens_draw(sampler, total) : drawn;
    }
    return token;
}

/* A language model: functions of the caller, to which `context` is passed through. */
typedef struct {
    /* Runs a step for a token and its position, and gives the logits of the next token; returns 0, or an error. */
    int (*step)(void *context, int32_t token, int32_t position, const float **logits);
    /* Takes a token that was generated; returns whether to go on. */
    bool (*take)(void *context, int32_t token);
    void *context;
    int32_t vocabulary_size;
    int32_t positions; /* positions of the caches */
} tokens_model;

/* Reads a prompt of at least one token, whose first position is 0, and generates tokens until `take` returns false, or
 * the caches are full, or there are `limit` tokens. Returns 0, or the error of a step. */
static inline int tokens_generate(const tokens_model *model, tokens_sampler *sampler, const uint16_t *prompt,
    int32_t prompt_length, int32_t limit)
{
    const float *logits = NULL;
    int32_t position = 0, token = 0, left = limit;
    int status = 0;
    bool more = prompt_length > 0 && limit > 0;
    while (more && status == 0 && position < model->positions) {
        token = position < prompt_length ? (int32_t)prompt[position] : token;
        status = model->step(model->context, token, position, &logits);
        ++position;
        if (status == 0 && position >= prompt_length) {
            token = tokens_sample(sampler, logits, model->vocabulary_size);
            --left;
            more = model->take(model->context, token) && left > 0;
        }
    }
    return status;
}

#endif /* TOKENS_H */
