/*
 * block.c - records in slabs, and the table of used blocks.
 */
#include "mem/engine/block.h"

#include <sys/mman.h>

enum {
    SLAB_BYTES = 64 << 10,
    LEAST_SLOTS = 1024,
};

typedef struct ptac_slab {
    struct ptac_slab *next;
    char padding[56];
    ptac_block records[];
} ptac_slab;

_Static_assert(sizeof(ptac_slab) % 64 == 0, "records start on a cache line");

void *ptac_pages_take(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return pages == MAP_FAILED ? NULL : pages;
}

bool ptac_records_add(ptac_records *records)
{
    const size_t n = (SLAB_BYTES - sizeof(ptac_slab)) / sizeof(ptac_block);
    ptac_slab *slab = ptac_pages_take(SLAB_BYTES);

    if (!slab)
        return false;
    slab->next = records->slabs;
    records->slabs = slab;
    for (size_t i = n; i-- > 0;) {
        slab->records[i].next = records->free;
        records->free = &slab->records[i];
    }
    return true;
}

bool ptac_records_prepare(ptac_records *records, size_t n)
{
    const ptac_block *record = records->free;

    for (; n > 0; record = record->next, n--) {
        if (!record && !ptac_records_add(records))
            return false;
        record = record ? record : records->free;
    }
    return true;
}

void ptac_records_close(ptac_records *records)
{
    while (records->slabs) {
        ptac_slab *slab = records->slabs;

        records->slabs = slab->next;
        munmap(slab, SLAB_BYTES);
    }
    records->free = NULL;
}

/* Fibonacci hashing (Knuth, TAOCP 6.4): addresses differ in their middle bits. */
static size_t slot_of(const ptac_block_table *table, uintptr_t address)
{
    const uint64_t mixed = (uint64_t)address * UINT64_C(0x9E3779B97F4A7C15);

    return (size_t)(mixed >> 32) & (table->n_slots - 1);
}

bool ptac_table_grow(ptac_block_table *table)
{
    const ptac_block_table old = *table;
    const size_t n_slots = old.n_slots ? 2 * old.n_slots : LEAST_SLOTS;
    ptac_block **slots = ptac_pages_take(n_slots * sizeof *slots);

    if (!slots)
        return false;
    *table = (ptac_block_table){.slots = slots, .n_slots = n_slots};
    for (size_t i = 0; i < old.n_slots; i++)
        if (old.slots[i])
            ptac_table_put(table, old.slots[i]);
    if (old.slots)
        munmap(old.slots, old.n_slots * sizeof *old.slots);
    return true;
}

void ptac_table_put(ptac_block_table *table, ptac_block *block)
{
    size_t i = slot_of(table, block->address);

    while (table->slots[i])
        i = (i + 1) & (table->n_slots - 1);
    table->slots[i] = block;
    table->n_blocks++;
}

/* The slot of this address, or of the gap where it would be. */
static size_t look_up(const ptac_block_table *table, uintptr_t address)
{
    size_t i = slot_of(table, address);

    while (table->slots[i] && table->slots[i]->address != address)
        i = (i + 1) & (table->n_slots - 1);
    return i;
}

ptac_block *ptac_table_find(const ptac_block_table *table, uintptr_t address)
{
    return table->n_slots ? table->slots[look_up(table, address)] : NULL;
}

/* Moves up what a gap at i would cut off from where its search begins. */
static void close_gap(ptac_block_table *table, size_t i)
{
    const size_t mask = table->n_slots - 1;
    size_t gap = i;

    for (i = (i + 1) & mask; table->slots[i]; i = (i + 1) & mask) {
        const size_t home = slot_of(table, table->slots[i]->address);

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            table->slots[gap] = table->slots[i];
            gap = i;
        }
    }
    table->slots[gap] = NULL;
}

ptac_block *ptac_table_take(ptac_block_table *table, uintptr_t address)
{
    if (!table->n_slots)
        return NULL;

    const size_t i = look_up(table, address);
    ptac_block *block = table->slots[i];

    if (block) {
        close_gap(table, i);
        table->n_blocks--;
    }
    return block;
}

void ptac_table_close(ptac_block_table *table)
{
    if (table->slots)
        munmap(table->slots, table->n_slots * sizeof *table->slots);
    *table = (ptac_block_table){0};
}
