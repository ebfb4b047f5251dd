/* SPDX-License-Identifier: 0BSD */
/* A QEMU plugin that counts how often the CPU went from one block of instructions to the next.
 *
 * Arguments: out=FILE, and mark=ADDRESS (hexadecimal) any number of times. Whenever a block at a mark begins, the
 * counts since the last mark are written and start anew. A line each:
 *     edge FROM LAST TO COUNT     the block from FROM to the instruction at LAST ran COUNT times before the one at TO
 *     unaligned COUNT             further bus transfers of unaligned accesses
 *     reads COUNT                 reads from the ranges given as read=FROM-END
 *     mark ADDRESS                ends them
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is needed of QEMU's plugin interface, version 1 (QEMU 4.2 and later; there is no header to install). */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_CB_NO_REGS = 0, QEMU_PLUGIN_MEM_RW = 3 };
__attribute__((visibility("default"))) extern int qemu_plugin_version;
__attribute__((visibility("default"))) int qemu_plugin_install(
    qemu_plugin_id_t id, const void *info, int argc, char **argv);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*run)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *tb, void (*run)(unsigned cpu, void *data), int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn *insn,
    void (*run)(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data),
    int flags, int which, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);

enum { MAX_MARKS = 8, MAX_RANGES = 8 };

struct edge {
    struct edge *next; /* of the same block */
    const struct block *to;
    uint64_t count;
};
struct block {
    struct block *next; /* of all */
    struct edge *edges;
    uint64_t begin, last;
    bool is_mark;
};
struct range {
    uint64_t begin, end;
};

int qemu_plugin_version = 1;

static FILE *out;
static uint64_t marks[MAX_MARKS];
static size_t mark_count;
static struct range ranges[MAX_RANGES];
static size_t range_count;
static struct block *blocks;
static struct block *current; /* the one that runs */
static uint64_t unaligned, reads;

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static void count_edge(struct block *from, const struct block *to) {
    struct edge *edge = from->edges;
    while (edge != NULL && edge->to != to) {
        edge = edge->next;
    }
    if (edge == NULL) {
        edge = allocate(sizeof *edge);
        edge->next = from->edges;
        edge->to = to;
        from->edges = edge;
    }
    edge->count++;
}

static void write_block(const struct block *block) {
    for (struct edge *edge = block->edges; edge != NULL; edge = edge->next) {
        if (edge->count != 0) {
            fprintf(out, "edge %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIu64 "\n", block->begin, block->last,
                    edge->to->begin, edge->count);
        }
        edge->count = 0;
    }
}

static void write_span(uint64_t mark) {
    for (const struct block *block = blocks; block != NULL; block = block->next) {
        write_block(block);
    }
    fprintf(out, "unaligned %" PRIu64 "\nreads %" PRIu64 "\nmark %" PRIx64 "\n", unaligned, reads, mark);
    unaligned = reads = 0;
}

static void on_block(unsigned cpu, void *data) {
    struct block *block = data;
    (void)cpu;
    if (current != NULL) {
        count_edge(current, block);
    }
    if (block->is_mark) {
        write_span(block->begin);
    }
    current = block;
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
    const unsigned shift = qemu_plugin_mem_size_shift(info);
    (void)cpu;
    (void)data;
    if ((address & 1u) != 0 && shift > 0) {
        unaligned += shift; /* halfword: two bytes; word: byte, halfword, byte */
    } else if ((address & 2u) != 0 && shift > 1) {
        unaligned++;
    }
    for (size_t i = 0; i < range_count && !qemu_plugin_mem_is_store(info); i++) {
        reads += ranges[i].begin <= address && address < ranges[i].end;
    }
}

static bool is_mark(uint64_t address) {
    bool found = false;
    for (size_t i = 0; i < mark_count; i++) {
        found = found || marks[i] == address;
    }
    return found;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    const size_t count = qemu_plugin_tb_n_insns(tb);
    struct block *block = allocate(sizeof *block);
    (void)id;
    block->begin = qemu_plugin_tb_vaddr(tb);
    /* Not its end: QEMU takes a look at what follows for a part of the last instruction. */
    block->last = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, count - 1));
    block->is_mark = is_mark(block->begin);
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
    for (size_t i = 0; i < count; i++) {
        qemu_plugin_register_vcpu_mem_cb(
            qemu_plugin_tb_get_insn(tb, i), on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
    }
}

static bool read_argument(char *text) {
    char *value = strchr(text, '=');
    if (value == NULL) {
        return false;
    }
    *value++ = '\0';
    if (strcmp(text, "out") == 0) {
        out = fopen(value, "w");
        return out != NULL;
    }
    if (strcmp(text, "mark") == 0 && mark_count < MAX_MARKS) {
        marks[mark_count++] = strtoull(value, NULL, 16);
        return true;
    }
    if (strcmp(text, "read") == 0 && range_count < MAX_RANGES) {
        char *end;
        ranges[range_count].begin = strtoull(value, &end, 16);
        ranges[range_count++].end = *end == '-' ? strtoull(end + 1, NULL, 16) : 0;
        return true;
    }
    return false;
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (!read_argument(argv[i])) {
            fprintf(stderr, "profile_plugin: wrong argument %s\n", argv[i]);
            return 1;
        }
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return out == NULL;
}
