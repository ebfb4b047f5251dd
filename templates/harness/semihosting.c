/* SPDX-License-Identifier: 0BSD */
/* Files and console through semihosting, as Arm and RISC-V have it; QEMU's current directory holds the files. */
#include "harness.h"
#include "target.h"

enum {
    SYS_OPEN = 0x01,
    SYS_WRITE0 = 0x04,
    SYS_WRITE = 0x05,
    SYS_READ = 0x06,
    SYS_SEEK = 0x0A,
    SYS_EXIT_EXTENDED = 0x20,
    OPEN_READ_BINARY = 1,
    OPEN_WRITE_BINARY = 5,
    APPLICATION_EXIT = 0x20026
};

/* A file once it is open; SYS_OPEN never returns 0 for one. */
struct file {
    const char *name;
    uint32_t name_length, mode, handle;
};

__attribute__((noreturn)) void semihosting_exit(uint32_t code) {
    const uint32_t arguments[] = {APPLICATION_EXIT, code};
    for (;;) {
        semihosting(SYS_EXIT_EXTENDED, arguments);
    }
}

static void fail(const struct file *file) {
    semihosting(SYS_WRITE0, "cannot read or write ");
    semihosting(SYS_WRITE0, file->name);
    semihosting(SYS_WRITE0, "\n");
    semihosting_exit(1);
}

/* SYS_READ and SYS_WRITE return how many bytes are missing. */
static void transfer(struct file *file, uint32_t operation, const void *memory, uint32_t size) {
    if (file->handle == 0) {
        const uint32_t arguments[] = {(uint32_t)file->name, file->mode, file->name_length};
        file->handle = semihosting(SYS_OPEN, arguments);
    }
    const uint32_t arguments[] = {file->handle, (uint32_t)memory, size};
    if (file->handle == UINT32_MAX || semihosting(operation, arguments) != 0) {
        fail(file);
    }
}

void harness_read(void *to, uint32_t size) {
    static struct file input = {"input.bin", sizeof "input.bin" - 1, OPEN_READ_BINARY, 0};
    transfer(&input, SYS_READ, to, size);
}

void harness_write(const void *from, uint32_t size) {
    static struct file output = {"output.bin", sizeof "output.bin" - 1, OPEN_WRITE_BINARY, 0};
    transfer(&output, SYS_WRITE, from, size);
}

#ifdef HARNESS_ACCELERATOR
/* What a request consists of lies in files: a pipe may take or give fewer bytes than it is asked for, but never one. */
static struct file request = {"request.bin", sizeof "request.bin" - 1, OPEN_WRITE_BINARY, 0};
static struct file reply = {"reply.bin", sizeof "reply.bin" - 1, OPEN_READ_BINARY, 0};
static struct file call = {"request.pipe", sizeof "request.pipe" - 1, OPEN_WRITE_BINARY, 0};
static struct file answer = {"reply.pipe", sizeof "reply.pipe" - 1, OPEN_READ_BINARY, 0};

/* A pipe may take or give less than it is asked for. */
static void pass(struct file *file, uint32_t operation, const void *memory, uint32_t size) {
    const unsigned char *at = memory;
    if (file->handle == 0) {
        const uint32_t arguments[] = {(uint32_t)file->name, file->mode, file->name_length};
        file->handle = semihosting(SYS_OPEN, arguments);
    }
    while (size > 0) {
        const uint32_t arguments[] = {file->handle, (uint32_t)at, size};
        const uint32_t missing = file->handle == UINT32_MAX ? size : semihosting(operation, arguments);
        if (missing >= size) {
            fail(file);
        }
        at += size - missing;
        size = missing;
    }
}

void harness_open(void) {
    pass(&request, SYS_WRITE, "", 0);
    pass(&reply, SYS_READ, "", 0);
    pass(&call, SYS_WRITE, "", 0);
    pass(&answer, SYS_READ, "", 0);
}

void harness_send(const void *from, uint32_t size) {
    pass(&request, SYS_WRITE, from, size);
}

void harness_receive(void *to, uint32_t size) {
    pass(&reply, SYS_READ, to, size);
}

static void go_to_start(const struct file *file) {
    const uint32_t arguments[] = {file->handle, 0};
    if (semihosting(SYS_SEEK, arguments) != 0) {
        fail(file);
    }
}

void harness_call(void) {
    unsigned char byte = 1;
    pass(&call, SYS_WRITE, &byte, 1);
    pass(&answer, SYS_READ, &byte, 1);
    go_to_start(&request);
    go_to_start(&reply);
}
#endif

static void print_hex(uint32_t number) {
    char text[10];
    text[0] = ' ';
    for (uint32_t i = 0; i < 8; i++) {
        text[1 + i] = "0123456789abcdef"[(number >> (28 - 4 * i)) & 15u];
    }
    text[9] = '\0';
    semihosting(SYS_WRITE0, text);
}

void harness_print(const char *key, const uint32_t *numbers, uint32_t count) {
    semihosting(SYS_WRITE0, key);
    for (uint32_t i = 0; i < count; i++) {
        print_hex(numbers[i]);
    }
    semihosting(SYS_WRITE0, "\n");
}
