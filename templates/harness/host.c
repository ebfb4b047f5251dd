/* SPDX-License-Identifier: 0BSD */
/* The harness on a computer: files by stdio, no measurements. */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

static FILE *open_or_exit(const char *name, const char *mode) {
    FILE *file = fopen(name, mode);
    if (file == NULL) {
        perror(name);
        exit(1);
    }
    return file;
}

void harness_read(void *to, uint32_t size) {
    static FILE *file;
    if (file == NULL) {
        file = open_or_exit("input.bin", "rb");
    }
    if (fread(to, 1, size, file) != size) {
        perror("input.bin");
        exit(1);
    }
}

void harness_write(const void *from, uint32_t size) {
    static FILE *file;
    if (file == NULL) {
        file = open_or_exit("output.bin", "wb");
    }
    /* Flushed so that progress can be seen from outside. */
    if (fwrite(from, 1, size, file) != size || fflush(file) != 0) {
        perror("output.bin");
        exit(1);
    }
}

/* What a request consists of lies in files without buffers, as in firmware under QEMU; pipes say when to read them. */
static FILE *unbuffered(FILE *file) {
    setvbuf(file, NULL, _IONBF, 0);
    return file;
}

static FILE *request, *reply, *call, *answer;

void harness_open(void) {
    request = unbuffered(open_or_exit("request.bin", "wb"));
    reply = unbuffered(open_or_exit("reply.bin", "rb"));
    call = unbuffered(open_or_exit("request.pipe", "wb"));
    answer = unbuffered(open_or_exit("reply.pipe", "rb"));
}

void harness_send(const void *from, uint32_t size) {
    if (fwrite(from, 1, size, request) != size) {
        perror("request.bin");
        exit(1);
    }
}

void harness_receive(void *to, uint32_t size) {
    if (fread(to, 1, size, reply) != size) {
        perror("reply.bin");
        exit(1);
    }
}

void harness_call(void) {
    if (fputc(1, call) == EOF || fgetc(answer) == EOF) {
        perror("request.pipe");
        exit(1);
    }
    rewind(request);
    rewind(reply);
}

void harness_print(const char *key, const uint32_t *numbers, uint32_t count) {
    printf("%s", key);
    for (uint32_t i = 0; i < count; i++) {
        printf(" %08lx", (unsigned long)numbers[i]);
    }
    printf("\n");
    fflush(stdout);
}

int harness_time(const char *key, uint32_t measure, run_function run, void *arena) {
    (void)key;
    (void)measure;
    return run(arena);
}

int harness_measure(uint32_t measure, run_function run, void *arena) {
    (void)measure;
    return run(arena);
}
