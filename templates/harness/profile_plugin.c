/* SPDX-License-Identifier: 0BSD */
/* A QEMU plugin that counts how often the CPU went from one block of instructions to the next, and that models the
 * stall cycles of the board's memories and caches, which QEMU does not simulate.
 *
 * Arguments: out=FILE and setup=FILE. Lines of the setup file (addresses are hexadecimal, other numbers decimal):
 *     mark ADDRESS                write the counts and reset them whenever a block begins at ADDRESS
 *     refill CYCLES               cycles of the pipeline refill after a taken branch
 *     price ADDRESS CYCLES        cycles of an instruction without stalls; memories may prefetch meanwhile
 *     cache SETS WAYS LINE HIT KEEPS  a cache: bytes of a line, cycles of a hit; KEEPS 1: it stores prefetched lines
 *     memory LINE WAIT WORD AHEAD  a memory: bytes and cycles of an access, cycles of a data word; AHEAD 1: prefetch
 *     through KIND CACHE FIRST ALL  the cache of the last memory for instructions (KIND 0) or data (1): cycles that the
 *                                 CPU waits for a line, and cycles until the whole line is filled
 *     region BEGIN END MEMORY ADDRESS  address range of a memory, from its ADDRESS on; the first match counts
 *     ignore BEGIN END            address range that is in no memory of the board
 *     copies BEGIN END CYCLES     code that stands for DMA: the memory serves its reads when it is otherwise idle,
 *                                 while the CPU continues; CYCLES is the CPU's time to start the transfer
 *     awaits BEGIN END            code at which the CPU waits until the oldest transfer is done
 *
 * Lines of the output file:
 *     edge FROM LAST TO COUNT     the block from FROM to the instruction at LAST ran COUNT times before the block at TO
 *     memory INDEX …              then ACCESSES MISSES CYCLES of instructions, and the same three numbers of data
 *     unaligned COUNT             additional bus transfers of unaligned accesses
 *     mark ADDRESS                end of the counts of a mark
 *
 * Caches are set-associative with LRU replacement. A memory serves one access at a time. Stores never stall; they
 * allocate lines in a data cache.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of QEMU's plugin interface, version 1 (QEMU 4.2 and later), that is used here: no header is installed. */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_CB_NO_REGS = 0,
    QEMU_PLUGIN_MEM_RW = 3 };
__attribute__((visibility("default"))) extern int qemu_plugin_version;
__attribute__((visibility("default"))) int qemu_plugin_install(
    qemu_plugin_id_t id, const void *info, int argc, char **argv);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*run)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *tb, void (*run)(unsigned cpu, void *data), int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(
    struct qemu_plugin_insn *insn, void (*run)(unsigned cpu, void *data), int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn *insn,
    void (*run)(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data),
    int flags, int which, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);

enum { MAX_MARKS = 8,
    MAX_REGIONS = 32,
    MAX_MEMORIES = 16,
    MAX_CACHES = 16,
    MAX_COPIES = 256, /* largest number of simultaneous DMA transfers */
    MAX_LINE = 256 };
enum kind { INSTRUCTIONS,
    DATA,
    KINDS };

struct edge {
    struct edge *next; /* next edge of the same block */
    const struct block *to;
    uint64_t count;
};
struct block {
    struct block *next; /* next block in the list of all blocks */
    struct edge *edges;
    uint64_t begin, last;
    bool is_mark;
};
enum role { PLAIN, /* neither of the following */
    COPIES,
    AWAITS };
/* Consecutive instructions in one line of a memory. */
struct segment {
    struct memory *memory;
    enum role role;
    uint64_t address; /* address of the line on the board */
    uint64_t begin, end; /* addresses of the instructions in QEMU */
    uint32_t cycles;
};
/* The memory accesses of one instruction. */
struct place {
    uint32_t cycles; /* cycles since the beginning of its segment */
};
struct line {
    uint64_t tag, used; /* line number plus one, or 0; time of the last use */
};
struct cache {
    uint64_t sets, ways, size_of_line, hit;
    bool keeps; /* whether it stores prefetched lines */
    struct line *lines;
    uint64_t clock;
    uint64_t filling, wanted, begun; /* line that is being filled, first part of it, start time */
};
struct through {
    struct cache *cache;
    uint64_t first, all;
};
struct counts {
    uint64_t accesses, misses, cycles;
};
struct memory {
    uint64_t size_of_line, wait, wait_for_word;
    bool reads_ahead;
    struct through through[KINDS];
    uint64_t busy;   /* time until which it serves an access */
    uint64_t line;   /* line of the running instructions, plus one */
    uint64_t ahead;  /* prefetched line, plus one */
    uint64_t ready;  /* time at which the prefetched line is complete */
    uint64_t used;   /* total cycles of accesses */
    uint64_t asked, done;      /* memory cycles that all transfers need, and have got */
    uint64_t since, used_then; /* time and `used` at the last update of `done` */
    uint64_t before[MAX_COPIES]; /* memory cycles that all transfers before each one need */
    uint64_t copied;           /* line that a transfer read last, plus one */
    struct counts counts[KINDS];
};
struct region {
    uint64_t begin, end, address;
    struct memory *memory; /* NULL if the range is in no memory */
};

int qemu_plugin_version = 1;

static FILE *out;
static uint64_t marks[MAX_MARKS];
static size_t mark_count;
static struct region regions[MAX_REGIONS];
static size_t region_count;
static struct memory memories[MAX_MEMORIES];
static size_t memory_count;
static struct cache caches[MAX_CACHES];
static size_t cache_count;
static uint8_t *prices; /* cycles of instructions, one entry per halfword of code */
static uint64_t first_price, price_count;
static uint64_t refill;
static uint64_t begun, ended; /* numbers of transfers that have begun and ended */
static uint64_t copies_begin, copies_end, begin_cycles, awaits_begin, awaits_end;

static struct block *blocks;
static struct block *current; /* the running block */
static uint64_t unaligned;
static uint64_t now, running; /* cycles at the beginning of the running segment, and of the segment itself */
static uint64_t next;         /* address in QEMU of the code behind it */
static const struct place *accessing;
static uint64_t accesses; /* earlier accesses of the same instruction, counted in words, also for vectors */
static uint64_t word;     /* word that the instruction accessed last */

static void *allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static void count_edge(struct block *from, const struct block *to)
{
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

static void write_block(const struct block *block)
{
    for (struct edge *edge = block->edges; edge != NULL; edge = edge->next) {
        if (edge->count != 0) {
            fprintf(out, "edge %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIu64 "\n", block->begin, block->last,
                edge->to->begin, edge->count);
        }
        edge->count = 0;
    }
}

static void write_span(uint64_t mark)
{
    for (const struct block *block = blocks; block != NULL; block = block->next) {
        write_block(block);
    }
    for (size_t i = 0; i < memory_count; i++) {
        fprintf(out, "memory %zu", i);
        for (int kind = 0; kind < KINDS; kind++) {
            struct counts *counts = &memories[i].counts[kind];
            fprintf(out, " %" PRIu64 " %" PRIu64 " %" PRIu64, counts->accesses, counts->misses, counts->cycles);
            *counts = (struct counts){0, 0, 0};
        }
        fprintf(out, "\n");
    }
    fprintf(out, "unaligned %" PRIu64 "\nmark %" PRIx64 "\n", unaligned, mark);
    unaligned = 0;
}

static void on_block(unsigned cpu, void *data)
{
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

static const struct region *find_region(uint64_t address)
{
    for (size_t i = 0; i < region_count; i++) {
        if (regions[i].begin <= address && address < regions[i].end) {
            return &regions[i];
        }
    }
    return NULL;
}

/* Returns whether the cache has the line; if not, the line replaces the least recently used one. */
static bool look_up(struct cache *cache, uint64_t number)
{
    struct line *set = &cache->lines[number % cache->sets * cache->ways], *oldest = set;
    cache->clock++;
    for (struct line *line = set; line < set + cache->ways; line++) {
        if (line->tag == number + 1) {
            line->used = cache->clock;
            return true;
        }
        oldest = line->used < oldest->used ? line : oldest;
    }
    *oldest = (struct line){number + 1, cache->clock};
    return false;
}

static bool has_line(const struct cache *cache, uint64_t number)
{
    const struct line *set = &cache->lines[number % cache->sets * cache->ways];
    for (const struct line *line = set; line < set + cache->ways; line++) {
        if (line->tag == number + 1) {
            return true;
        }
    }
    return false;
}

/* Begins an access of `cycles` beyond one as soon as the memory is free, and returns the time of its end. */
static uint64_t begin_access(struct memory *memory, uint64_t time, uint64_t cycles)
{
    const uint64_t begin = time > memory->busy ? time : memory->busy;
    memory->busy = begin + cycles + 1;
    memory->used += cycles + 1;
    return begin + cycles;
}

/* A line is filled by successive memory accesses, beginning with the requested part (critical word first). */
static uint64_t parts_of_line(const struct memory *memory, const struct cache *cache)
{
    return cache->size_of_line > memory->size_of_line ? cache->size_of_line / memory->size_of_line : 1;
}

/* Returns the time at which a part of the line that is being filled is available. */
static uint64_t arrival(const struct memory *memory, const struct through *through, uint64_t address)
{
    const struct cache *cache = through->cache;
    const uint64_t parts = parts_of_line(memory, cache);
    const uint64_t turn = (address / memory->size_of_line + parts - cache->wanted) % parts;
    const uint64_t rest = turn == 0 ? 0 : (through->all - through->first) * turn / (parts - 1);
    return cache->begun + through->first + rest;
}

/* Returns the time at which the data at an address is available. */
static uint64_t read_through(struct memory *memory, enum kind kind, uint64_t address, uint64_t time)
{
    const struct through *through = &memory->through[kind];
    struct cache *cache = through->cache;
    const uint64_t number = address / cache->size_of_line;
    if (look_up(cache, number)) {
        const uint64_t hit = time + cache->hit;
        const uint64_t filled = cache->filling == number + 1 ? arrival(memory, through, address) : 0;
        return filled > hit ? filled : hit;
    }
    memory->counts[kind].misses++;
    cache->begun = begin_access(memory, time, through->all) - through->all;
    cache->filling = number + 1;
    cache->wanted = address / memory->size_of_line % parts_of_line(memory, cache);
    return cache->begun + through->first;
}

static void wait_until(struct memory *memory, enum kind kind, uint64_t time, uint64_t then)
{
    memory->counts[kind].accesses++;
    if (then > time) {
        memory->counts[kind].cycles += then - time;
        now += then - time;
    }
}

/* Prefetches the next line while instructions of this line run, unless the cache has it. */
static void read_ahead(struct memory *memory, uint64_t line)
{
    const struct cache *cache = memory->through[INSTRUCTIONS].cache;
    const uint64_t following = (line + 1) * memory->size_of_line;
    if (cache == NULL || !has_line(cache, following / cache->size_of_line)) {
        memory->ahead = line + 2;
        memory->ready = begin_access(memory, now, memory->wait);
    }
}

static void fetch(struct memory *memory, uint64_t address)
{
    const uint64_t line = address / memory->size_of_line, time = now;
    if (memory->line == line + 1) {
        return;
    }
    struct cache *cache = memory->through[INSTRUCTIONS].cache;
    const bool cached = cache != NULL && has_line(cache, address / cache->size_of_line);
    uint64_t then;
    if (memory->ahead == line + 1 && !cached) {
        then = memory->ready;
        if (cache != NULL && cache->keeps) {
            look_up(cache, address / cache->size_of_line);
        }
    } else if (cache != NULL) {
        then = read_through(memory, INSTRUCTIONS, address, time);
    } else {
        memory->counts[INSTRUCTIONS].misses++;
        then = begin_access(memory, time, memory->wait);
    }
    wait_until(memory, INSTRUCTIONS, time, then);
    memory->line = line + 1;
    if (memory->reads_ahead && !(cached && cache->keeps)) { /* the controller does not see accesses that hit the cache */
        read_ahead(memory, line);
    }
}

/* Advances the DMA transfers, one after the other, by the cycles in which the memory was otherwise idle. */
static void advance_copies(struct memory *memory)
{
    const uint64_t passed = now - memory->since, used = memory->used - memory->used_then;
    const uint64_t idle = passed > used ? passed - used : 0, left = memory->asked - memory->done;
    memory->done += idle < left ? idle : left;
    memory->since = now;
    memory->used_then = memory->used;
}

static void begin_copy(void)
{
    for (size_t i = 0; i < memory_count; i++) {
        advance_copies(&memories[i]);
        memories[i].before[begun % MAX_COPIES] = memories[i].asked;
        memories[i].copied = 0;
    }
    begun++;
    running = begin_cycles;
}

/* Waits for the oldest transfer that is not done. */
static void end_copy(void)
{
    ended++;
    for (size_t i = 0; i < memory_count; i++) {
        struct memory *memory = &memories[i];
        const uint64_t needed = ended < begun ? memory->before[ended % MAX_COPIES] : memory->asked;
        advance_copies(memory);
        const uint64_t left = needed > memory->done ? needed - memory->done : 0;
        memory->counts[DATA].cycles += left;
        now += left;
    }
}

static void on_copied(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    (void)cpu;
    (void)data;
    const struct region *region = find_region(address);
    if (region == NULL || region->memory == NULL || qemu_plugin_mem_is_store(info)) {
        return;
    }
    struct memory *memory = region->memory;
    const struct through *through = &memory->through[DATA];
    const uint64_t size = through->cache != NULL ? through->cache->size_of_line : 4;
    const uint64_t line = (region->address + (address - region->begin)) / size;
    if (memory->copied != line + 1) {
        memory->copied = line + 1;
        memory->asked += (through->cache != NULL ? through->all : memory->wait_for_word) + 1;
    }
}

static void on_segment(unsigned cpu, void *data)
{
    const struct segment *segment = data;
    (void)cpu;
    now += running + (segment->begin == next || segment->role == COPIES ? 0 : refill);
    running = segment->cycles;
    next = segment->end;
    accessing = NULL;
    if (segment->begin == copies_begin) {
        begin_copy();
    } else if (segment->begin == awaits_begin) {
        end_copy();
    } else if (segment->role == PLAIN && segment->memory != NULL) {
        fetch(segment->memory, segment->address);
    }
}

static void count_unaligned(uint64_t address, unsigned shift)
{
    if ((address & 1u) != 0 && shift > 0) {
        unaligned += shift; /* halfword: two bytes; word: byte, halfword, byte */
    } else if ((address & 2u) != 0 && shift > 1) {
        unaligned++;
    }
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    const struct place *place = data;
    (void)cpu;
    count_unaligned(address, qemu_plugin_mem_size_shift(info));
    const struct region *region = find_region(address);
    if (region == NULL || region->memory == NULL) {
        return;
    }
    struct memory *memory = region->memory;
    if (place == accessing && address / 4 == word) {
        return;
    }
    accesses = place == accessing ? accesses + 1 : 0;
    accessing = place;
    word = address / 4;
    const uint64_t there = region->address + (address - region->begin), time = now + place->cycles + accesses;
    struct cache *cache = memory->through[DATA].cache;
    if (qemu_plugin_mem_is_store(info)) {
        if (cache != NULL) {
            look_up(cache, there / cache->size_of_line);
        }
    } else if (cache != NULL) {
        wait_until(memory, DATA, time, read_through(memory, DATA, there, time));
    } else {
        memory->counts[DATA].misses++;
        wait_until(memory, DATA, time, begin_access(memory, time, memory->wait_for_word));
    }
}

static bool is_mark(uint64_t address)
{
    bool found = false;
    for (size_t i = 0; i < mark_count; i++) {
        found = found || marks[i] == address;
    }
    return found;
}

static uint32_t price_at(uint64_t address)
{
    const uint64_t index = (address - first_price) / 2;
    return address >= first_price && index < price_count ? prices[index] : 1;
}

/* Creates the segment that begins at `address`, the start of a line of the board's memory or of a block of QEMU. */
static struct segment *begin_segment(struct qemu_plugin_insn *insn, uint64_t address)
{
    struct segment *segment = allocate(sizeof *segment);
    const struct region *region = find_region(address);
    segment->begin = segment->end = address;
    if (copies_begin <= address && address < copies_end) {
        segment->role = COPIES;
    } else if (awaits_begin <= address && address < awaits_end) {
        segment->role = AWAITS;
    }
    if (region != NULL) {
        segment->memory = region->memory;
        segment->address = region->address + (address - region->begin);
    }
    qemu_plugin_register_vcpu_insn_exec_cb(insn, on_segment, QEMU_PLUGIN_CB_NO_REGS, segment);
    return segment;
}

static bool leaves_line(const struct segment *segment, uint64_t address)
{
    const uint64_t line = segment->memory != NULL ? segment->memory->size_of_line : MAX_LINE;
    return (segment->address + (address - segment->begin)) / line != segment->address / line;
}

/* Divides the instructions of a block into segments at memory lines; an instruction across lines is in both. */
static void follow(struct qemu_plugin_tb *tb, size_t count)
{
    struct segment *segment = begin_segment(qemu_plugin_tb_get_insn(tb, 0), qemu_plugin_tb_vaddr(tb));
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        const uint64_t address = qemu_plugin_insn_vaddr(insn), end = address + qemu_plugin_insn_size(insn);
        if (leaves_line(segment, address)) {
            segment = begin_segment(insn, address);
        }
        segment->end = end;
        if (leaves_line(segment, end - 1)) {
            uint64_t line = segment->memory != NULL ? segment->memory->size_of_line : MAX_LINE;
            uint64_t rest = line - segment->address % line;
            segment->end = segment->begin + rest;
            segment = begin_segment(insn, segment->end);
            segment->end = end;
        }
        struct place *place = allocate(sizeof *place);
        place->cycles = segment->cycles;
        const bool copies = segment->role == COPIES;
        segment->cycles += copies ? 0 : price_at(address);
        qemu_plugin_register_vcpu_mem_cb(
            insn, copies ? on_copied : on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, place);
    }
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    const size_t count = qemu_plugin_tb_n_insns(tb);
    struct block *block = allocate(sizeof *block);
    (void)id;
    block->begin = qemu_plugin_tb_vaddr(tb);
    /* This is not the block's end: QEMU may fetch the following halfword as part of the last instruction. */
    block->last = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, count - 1));
    block->is_mark = is_mark(block->begin);
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
    follow(tb, count);
}

static bool add_price(const char *line)
{
    uint64_t address;
    unsigned cycles;
    if (sscanf(line, "price %" SCNx64 " %u", &address, &cycles) != 2) {
        return false;
    }
    if (price_count == 0) {
        first_price = address;
    }
    const uint64_t index = (address - first_price) / 2, room = 4096;
    if (address < first_price || index >= (uint64_t)1 << 24) {
        return false;
    }
    if (index / room >= (price_count + room - 1) / room) {
        prices = realloc(prices, (index / room + 1) * room);
        if (prices == NULL) {
            abort();
        }
    }
    for (; price_count <= index; price_count++) {
        prices[price_count] = 1;
    }
    prices[index] = (uint8_t)(cycles < UINT8_MAX ? cycles : UINT8_MAX);
    return true;
}

static bool add_cache(const char *line)
{
    struct cache *cache = &caches[cache_count];
    const char *form = "cache %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u";
    unsigned keeps;
    if (cache_count == MAX_CACHES ||
        sscanf(line, form, &cache->sets, &cache->ways, &cache->size_of_line, &cache->hit, &keeps) != 5) {
        return false;
    }
    cache->keeps = keeps != 0;
    cache->lines = allocate(cache->sets * cache->ways * sizeof *cache->lines);
    cache_count++;
    return true;
}

static bool add_memory(const char *line)
{
    struct memory *memory = &memories[memory_count];
    const char *form = "memory %" SCNu64 " %" SCNu64 " %" SCNu64 " %u";
    unsigned ahead;
    if (memory_count == MAX_MEMORIES ||
        sscanf(line, form, &memory->size_of_line, &memory->wait, &memory->wait_for_word, &ahead) != 4) {
        return false;
    }
    memory->reads_ahead = ahead != 0;
    memory_count++;
    return true;
}

static bool add_through(const char *line)
{
    size_t cache;
    unsigned kind;
    uint64_t first, all;
    const char *form = "through %u %zu %" SCNu64 " %" SCNu64;
    if (sscanf(line, form, &kind, &cache, &first, &all) != 4 || kind >= KINDS || cache >= cache_count ||
        memory_count == 0) {
        return false;
    }
    memories[memory_count - 1].through[kind] = (struct through){&caches[cache], first, all};
    return true;
}

static bool add_region(const char *line)
{
    struct region *region = &regions[region_count];
    size_t memory;
    const char *form = "region %" SCNx64 " %" SCNx64 " %zu %" SCNx64;
    if (region_count == MAX_REGIONS ||
        sscanf(line, form, &region->begin, &region->end, &memory, &region->address) != 4 || memory >= memory_count) {
        return false;
    }
    region->memory = &memories[memory];
    region_count++;
    return true;
}

static bool add_ignored(const char *line)
{
    struct region *region = &regions[region_count];
    return region_count < MAX_REGIONS &&
        sscanf(line, "ignore %" SCNx64 " %" SCNx64, &region->begin, &region->end) == 2 && ++region_count != 0;
}

static bool add_copies(const char *line)
{
    const char *form = "copies %" SCNx64 " %" SCNx64 " %" SCNu64;
    return sscanf(line, form, &copies_begin, &copies_end, &begin_cycles) == 3 ||
        sscanf(line, "awaits %" SCNx64 " %" SCNx64, &awaits_begin, &awaits_end) == 2;
}

static bool add_mark(const char *line)
{
    return mark_count < MAX_MARKS && sscanf(line, "mark %" SCNx64, &marks[mark_count++]) == 1;
}

static bool read_setup(const char *name)
{
    char line[128];
    FILE *file = fopen(name, "r");
    bool ok = file != NULL;
    while (ok && fgets(line, sizeof line, file) != NULL) {
        ok = add_price(line) || add_region(line) || add_cache(line) || add_memory(line) || add_through(line) ||
            add_ignored(line) || add_copies(line) || sscanf(line, "refill %" SCNu64, &refill) == 1 || add_mark(line);
    }
    if (file != NULL) {
        fclose(file);
    }
    return ok;
}

static bool read_argument(char *text)
{
    char *value = strchr(text, '=');
    if (value == NULL) {
        return false;
    }
    *value++ = '\0';
    if (strcmp(text, "out") == 0) {
        out = fopen(value, "w");
        return out != NULL;
    }
    return strcmp(text, "setup") == 0 && read_setup(value);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
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
