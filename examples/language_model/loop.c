/* SPDX-License-Identifier: 0BSD */
/* The token loop as a function of a text, for simulators: see simulate.py. */
#include "loop.h"
#include "language_model.h"
#include "vocabulary.h"

#define LOOP_PROMPT 64
#define LOOP_TOKENS 128

static uint8_t text[LOOP_PROMPT];
static int32_t options[3]; /* seed, top_k, number of new tokens */
static float temperature[1];
static int32_t generated[LOOP_TOKENS + 1]; /* number of tokens, then the tokens */
static language_model_state state;

uint8_t *loop_text(void *arena)
{
    (void)arena;
    return text;
}

int32_t *loop_options(void *arena)
{
    (void)arena;
    return options;
}

float *loop_temperature(void *arena)
{
    (void)arena;
    return temperature;
}

const int32_t *loop_generated(const void *arena)
{
    (void)arena;
    return generated;
}

static int step(void *context, int32_t token, int32_t position, const float **logits)
{
    int status;
    *language_model_input_token(context) = token;
    *language_model_input_pos(context) = position;
    status = language_model_run(context, &state);
    *logits = language_model_output(context);
    return status;
}

static bool take(void *context, int32_t token)
{
    (void)context;
    generated[0] += 1;
    generated[generated[0]] = token;
    return generated[0] < LOOP_TOKENS;
}

int loop_run(void *arena)
{
    static char characters[LOOP_PROMPT];
    static uint16_t prompt[LOOP_PROMPT];
    static tokens_sampler sampler;
    const tokens_model model = {step, take, arena, vocabulary.size, LOOP_TOKENS};
    int32_t length = 0;
    for (; length < LOOP_PROMPT && text[length] != 0u; ++length) {
        characters[length] = (char)text[length];
    }
    sampler.seed = (uint32_t)options[0];
    sampler.top_k = options[1];
    sampler.temperature = temperature[0];
    generated[0] = 0;
    language_model_reset(&state);
    return tokens_generate(&model, &sampler, prompt, tokens_encode(&vocabulary, characters, length, prompt, LOOP_PROMPT),
        options[2]);
}
