/*
 * arena_memory.c - memory behind an arena's addresses: held, given back, counted.
 *
 * What is held: every chunk that a used block touches, always. Below `high` also every
 * chunk of free blocks that are not marked as holed. So the common request, which takes
 * a free block or grows up to where the arena has been before, looks at no table.
 */
#include "mem/engine/arena.h"

#include <sys/mman.h>

static uintptr_t down(uintptr_t address, size_t unit)
{
    return address & ~(uintptr_t)(unit - 1);
}

static size_t chunk_of(const ptac_arena *arena, uintptr_t address)
{
    return (address - arena->base) / arena->source->chunk_bytes;
}

static void note_released(ptac_arena *arena, size_t bytes)
{
    ptac_stat_sub(&arena->held, (int64_t)bytes);
    ptac_stat_sub(&arena->budget->held, (int64_t)bytes);
}

/* The end of the run of chunks from this one on that are alike in being held. */
static size_t run_end(const ptac_arena *arena, size_t from, size_t to)
{
    size_t i = from + 1;

    while (i < to && !arena->is_held[i] == !arena->is_held[from])
        i++;
    return i;
}

/* Gives back a run of held chunks; where the whole cannot be, as of its halves can. */
static size_t release_run(ptac_arena *arena, size_t from, size_t to)
{
    const size_t bytes = (to - from) * arena->source->chunk_bytes;
    const size_t middle = from + (to - from) / 2;
    const uintptr_t at = arena->base + from * arena->source->chunk_bytes;

    if (ptac_arena_cool(arena, at, at + bytes) &&
        arena->source->release(arena->source, at, bytes)) {
        __builtin_memset(&arena->is_held[from], 0, to - from);
        note_released(arena, bytes);
        return bytes;
    }
    if (middle == from)
        return 0;
    return release_run(arena, from, middle) + release_run(arena, middle, to);
}

bool ptac_arena_hold(ptac_arena *arena, uintptr_t from, uintptr_t to)
{
    const size_t chunk = arena->source->chunk_bytes;
    const size_t end = chunk_of(arena, to - 1) + 1;

    for (size_t i = chunk_of(arena, from), next; i < end; i = next) {
        next = run_end(arena, i, end);
        if (arena->is_held[i])
            continue;

        const uintptr_t at = arena->base + i * chunk;
        const size_t bytes = (next - i) * chunk;

        if (!ptac_budget_allows(arena->budget, bytes) ||
            !arena->source->commit(arena->source, at, bytes))
            return false;
        __builtin_memset(&arena->is_held[i], true, next - i);
        ptac_stat_add(&arena->held, (int64_t)bytes);
        ptac_stat_add(&arena->budget->held, (int64_t)bytes);
        if (arena->held_end < at + bytes)
            arena->held_end = at + bytes;
    }
    return true;
}

/* Gives back the held chunks that lie wholly in [from, to). */
static size_t release(ptac_arena *arena, uintptr_t from, uintptr_t to)
{
    const size_t chunk = arena->source->chunk_bytes;
    const size_t first = chunk_of(arena, ptac_round_up(from, chunk));
    const size_t end = chunk_of(arena, down(to, chunk));
    size_t released = 0;

    for (size_t i = first, next; i < end; i = next) {
        next = run_end(arena, i, end);
        if (arena->is_held[i])
            released += release_run(arena, i, next);
    }
    return released;
}

size_t ptac_arena_trim(ptac_arena *arena)
{
    size_t released = release(arena, arena->top, arena->held_end);

    for (ptac_block *b = arena->last; b; b = b->below) {
        if (!(b->flags & PTAC_BLOCK_FREE))
            continue;

        const size_t bytes = release(arena, b->address, b->address + b->bytes);

        if (bytes)
            b->flags |= PTAC_BLOCK_HOLED;
        released += bytes;
    }
    arena->high = arena->top;
    return released;
}

bool ptac_arena_populate(ptac_arena *arena, size_t bytes)
{
    const size_t chunk = arena->source->chunk_bytes;
    const uintptr_t from = ptac_round_up(arena->top, chunk);

    if (!arena->source->populate || bytes > arena->end - from)
        return false;
    if (bytes == 0)
        return true;
    bytes = ptac_round_up(bytes, chunk);
    if (!ptac_arena_hold(arena, arena->top, from + bytes))
        return false;
    if (arena->high < from + bytes)
        arena->high = from + bytes;
    return arena->source->populate(arena->source, from, bytes);
}

bool ptac_arena_open(ptac_arena *arena, size_t bytes)
{
    const size_t n_chunks = bytes / arena->source->chunk_bytes;
    const size_t n_regions = bytes / PTAC_REGION_BYTES + 2;
    const size_t tables_bytes =
        PTAC_INDEX_BYTES + n_regions * (sizeof *arena->visits + 1) + n_chunks;
    char *tables = ptac_pages_take(tables_bytes);
    const uintptr_t base = tables ? arena->source->reserve(arena->source, bytes) : 0;

    if (!base) {
        if (tables)
            munmap(tables, tables_bytes);
        return false;
    }
    arena->base = arena->top = arena->high = arena->held_end = base;
    arena->end = base + bytes;
    arena->index = tables;
    arena->visits = (uint32_t *)(tables + PTAC_INDEX_BYTES);
    arena->heat = (uint8_t *)(arena->visits + n_regions);
    arena->is_held = arena->heat + n_regions;
    arena->tables_bytes = tables_bytes;
    return true;
}

void ptac_arena_close(ptac_arena *arena)
{
    ptac_arena_trim(arena);
    arena->source->unreserve(arena->source, arena->base, arena->end - arena->base);
    note_released(arena, (size_t)arena->held.current);
    munmap(arena->index, arena->tables_bytes);
    arena->base = arena->end = arena->top = arena->high = arena->held_end = 0;
}
