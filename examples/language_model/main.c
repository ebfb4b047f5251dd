/* SPDX-License-Identifier: 0BSD */
/* Continues a text on a computer: see README.md. A microcontroller sends the characters elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "language_model.h"
#include "vocabulary.h"

static int step(void *context, int32_t token, int32_t position, const float **logits)
{
    void *arena = language_model_default_arena();
    int status;
    *language_model_input_token(arena) = token;
    *language_model_input_pos(arena) = position;
    status = language_model_run(arena, context);
    *logits = language_model_output(arena);
    return status;
}

static bool take(void *context, int32_t token)
{
    int32_t length;
    const char *text = tokens_decode(&vocabulary, token, &length);
    (void)context;
    return fwrite(text, 1, (size_t)length, stdout) == (size_t)length;
}

int main(int count, char **words)
{
    static language_model_state state;
    static uint16_t prompt[128];
    const char *text = count > 1 ? words[1] : "The ";
    tokens_sampler sampler = {1u, count > 2 ? (float)atof(words[2]) : 0.0f, count > 3 ? atoi(words[3]) : 0, {0.0f}};
    const tokens_model model = {step, take, &state, vocabulary.size, 128};
    const int32_t length = tokens_encode(&vocabulary, text, (int32_t)strlen(text), prompt, 128);
    int status;
    language_model_reset(&state);
    (void)fputs(text, stdout);
    status = tokens_generate(&model, &sampler, prompt, length, 128);
    (void)putchar('\n');
    return status;
}
