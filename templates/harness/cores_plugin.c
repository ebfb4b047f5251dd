/* SPDX-License-Identifier: 0BSD */
/* A QEMU plugin that counts instructions by CPU.
 *
 * Arguments: out=FILE and setup=FILE, whose lines are (numbers hexadecimal):
 *     mark ADDRESS        whenever a block begins there, counts are written
 *     ignore BEGIN END    blocks that begin there are not counted
 *
 * What it writes at marks: ADDRESS CPU, then the instructions of CPU 0 and CPU 1 so far.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is needed of QEMU's plugin interface, version 1 (QEMU 4.2 and later; there is no header to install). */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum { QEMU_PLUGIN_CB_NO_REGS = 0 };
__attribute__((visibility("default"))) extern int qemu_plugin_version;
__attribute__((visibility("default"))) int qemu_plugin_install(
    qemu_plugin_id_t id, const void *info, int argc, char **argv);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*run)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *tb, void (*run)(unsigned cpu, void *data), int flags, void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*run)(qemu_plugin_id_t, void *data), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);

enum { MAX_RANGES = 16,
    CPUS = 2 };

struct block {
    uint64_t begin, count;
    bool is_mark;
};
struct range {
    uint64_t begin, end;
};

int qemu_plugin_version = 1;

static FILE *out;
static struct range marks[MAX_RANGES], ignored[MAX_RANGES];
static size_t mark_count, ignored_count;
static uint64_t counts[CPUS];

static bool is_in(const struct range *ranges, size_t count, uint64_t address)
{
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].begin <= address && address < ranges[i].end) {
            return true;
        }
    }
    return false;
}

static void on_block(unsigned cpu, void *data)
{
    const struct block *block = data;
    if (block->is_mark) {
        fprintf(out, "%" PRIx64 " %u %" PRIu64 " %" PRIu64 "\n", block->begin, cpu, counts[0], counts[1]);
    }
    counts[cpu % CPUS] += block->count;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    struct block *block = calloc(1, sizeof *block); /* lives as long as QEMU */
    (void)id;
    if (block == NULL) {
        abort();
    }
    block->begin = qemu_plugin_tb_vaddr(tb);
    block->count = is_in(ignored, ignored_count, block->begin) ? 0 : qemu_plugin_tb_n_insns(tb);
    block->is_mark = is_in(marks, mark_count, block->begin);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

static void at_end(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    fclose(out);
}

static bool read_setup(const char *name)
{
    FILE *setup = fopen(name, "r");
    char line[128];
    uint64_t begin, end;
    if (setup == NULL) {
        return false;
    }
    while (fgets(line, sizeof line, setup) != NULL) {
        if (sscanf(line, "mark %" SCNx64, &begin) == 1 && mark_count < MAX_RANGES) {
            marks[mark_count++] = (struct range){begin, begin + 1};
        } else if (sscanf(line, "ignore %" SCNx64 " %" SCNx64, &begin, &end) == 2 && ignored_count < MAX_RANGES) {
            ignored[ignored_count++] = (struct range){begin, end};
        } else {
            fclose(setup);
            return false;
        }
    }
    return fclose(setup) == 0;
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) {
            out = fopen(argv[i] + 4, "w");
        } else if (strncmp(argv[i], "setup=", 6) != 0 || !read_setup(argv[i] + 6)) {
            return -1;
        }
    }
    if (out == NULL) {
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, at_end, NULL);
    return 0;
}
