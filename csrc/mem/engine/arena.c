/*
 * arena.c - blocks of one range of addresses.
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

/* --- memory behind the addresses ------------------------------------------------- */

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

/*
 * Has every chunk that [from, to) touches held; false if one cannot be. Those before it
 * stay held then, until memory is given back: a request that fails tries that next.
 */
static bool hold(ptac_arena *arena, uintptr_t from, uintptr_t to)
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

/* --- blocks ---------------------------------------------------------------------- */

static void list(ptac_arena *arena, ptac_block *block)
{
    ptac_stat_add(&arena->n_free, 1);
    ptac_stat_add(&arena->free_bytes, (int64_t)block->bytes);
    block->flags |= PTAC_BLOCK_FREE;
    if (block->bytes >= arena->least_bytes) {
        block->flags |= PTAC_BLOCK_LISTED;
        arena->policy->add(arena->index, block);
    }
}

static void unlist(ptac_arena *arena, ptac_block *block)
{
    ptac_stat_sub(&arena->n_free, 1);
    ptac_stat_sub(&arena->free_bytes, (int64_t)block->bytes);
    if (block->flags & PTAC_BLOCK_LISTED)
        arena->policy->drop(arena->index, block);
    block->flags &= ~(uint32_t)(PTAC_BLOCK_FREE | PTAC_BLOCK_LISTED);
}

void ptac_arena_note_visit(ptac_arena *arena, const ptac_block *block)
{
    const uintptr_t from = block->address - arena->base;

    arena->visits[from / PTAC_REGION_BYTES]++;
    arena->visits[(from + block->bytes - 1) / PTAC_REGION_BYTES + 1]--;
}

/* The free block found, cut to size. It is left as it was when that cannot be. */
static ptac_block *cut(ptac_arena *arena, ptac_block *block, size_t bytes)
{
    const size_t rest_bytes = block->bytes - bytes;
    ptac_block *rest = NULL;

    if (rest_bytes) {
        rest = ptac_record_take(arena->records);
        if (!rest)
            return NULL;
    }
    if (block->flags & PTAC_BLOCK_HOLED &&
        !hold(arena, block->address, block->address + bytes)) {
        if (rest)
            ptac_record_give(arena->records, rest);
        return NULL;
    }
    unlist(arena, block);
    if (rest) {
        rest->address = block->address + bytes;
        rest->bytes = rest_bytes;
        rest->arena = arena->number;
        rest->flags = block->flags & PTAC_BLOCK_HOLED;
        rest->below = block;
        rest->above = block->above; /* which is there: free blocks are not at the top */
        rest->above->below = rest;
        block->above = rest;
        block->bytes = bytes;
        list(arena, rest);
    }
    block->flags = 0;
    return block;
}

static ptac_block *grow(ptac_arena *arena, size_t bytes)
{
    ptac_block *block;

    if (bytes > arena->end - arena->top)
        return NULL;
    block = ptac_record_take(arena->records);
    if (!block)
        return NULL;
    if (arena->top + bytes > arena->high) {
        if (!hold(arena, arena->top, arena->top + bytes)) {
            ptac_record_give(arena->records, block);
            return NULL;
        }
        arena->high = arena->top + bytes;
    }
    block->address = arena->top;
    block->bytes = bytes;
    block->arena = arena->number;
    block->below = arena->last;
    if (block->below)
        block->below->above = block;
    arena->last = block;
    arena->top += bytes;
    ptac_stat_add(&arena->extent, (int64_t)bytes);
    return block;
}

ptac_block *ptac_arena_alloc(ptac_arena *arena, size_t bytes)
{
    ptac_block *block;

    if (bytes > arena->end - arena->base)
        return NULL;
    bytes = ptac_round_up(bytes, arena->granule);
    block = arena->policy->find(arena->index, bytes);
    block = block ? cut(arena, block, bytes) : grow(arena, bytes);
    if (block)
        ptac_arena_note_visit(arena, block);
    return block;
}

bool ptac_arena_has_room(const ptac_arena *arena, size_t bytes)
{
    if (bytes > arena->end - arena->base)
        return false;
    bytes = ptac_round_up(bytes, arena->granule);
    return bytes <= arena->end - arena->top ||
           arena->policy->find(arena->index, bytes) != NULL;
}

/* Takes a free neighbour into the block; the neighbour's record goes. */
static void absorb(ptac_arena *arena, ptac_block *block, ptac_block *neighbour)
{
    unlist(arena, neighbour);
    block->bytes += neighbour->bytes;
    block->flags |= neighbour->flags & PTAC_BLOCK_HOLED;
    if (neighbour == block->below) {
        block->address = neighbour->address;
        block->below = neighbour->below;
        if (block->below)
            block->below->above = block;
    } else {
        block->above = neighbour->above; /* used, or the block would be at the top */
        block->above->below = block;
    }
    ptac_record_give(arena->records, neighbour);
}

void ptac_arena_free(ptac_arena *arena, ptac_block *block)
{
    block->flags = 0;
    if (block->below && block->below->flags & PTAC_BLOCK_FREE)
        absorb(arena, block, block->below);
    if (block->above && block->above->flags & PTAC_BLOCK_FREE)
        absorb(arena, block, block->above);
    if (block->above) {
        list(arena, block);
        return;
    }
    arena->top = block->address;
    ptac_stat_sub(&arena->extent, (int64_t)block->bytes);
    if (block->flags & PTAC_BLOCK_HOLED)
        arena->high = arena->top;
    arena->last = block->below;
    if (arena->last)
        arena->last->above = NULL;
    ptac_record_give(arena->records, block);
}

/* --- blocks within a block -------------------------------------------------------- */

bool ptac_arena_dissolve(ptac_arena *arena, ptac_block *whole, void *const *parts,
                         size_t n)
{
    const uintptr_t end = whole->address + whole->bytes;
    ptac_block *const below = whole->below, *const above = whole->above, *last = below;
    uintptr_t at = whole->address;

    if (!ptac_records_prepare(arena->records, n + 1))
        return false;
    ptac_record_give(arena->records, whole);
    for (size_t i = 0; at < end;) {
        ptac_block *block = i < n ? parts[i] : NULL;

        if (!block || at < block->address) { /* a gap */
            const uintptr_t next = block ? block->address : end;

            block = ptac_record_take(arena->records);
            block->address = at;
            block->bytes = next - at;
        } else {
            i++;
        }
        block->arena = arena->number;
        block->below = last;
        if (last)
            last->above = block;
        last = block;
        at = block->address + block->bytes;
    }
    last->above = above;
    if (above)
        above->below = last;
    else
        arena->last = last;
    for (ptac_block *b = last, *next; b != below; b = next) {
        next = b->below;
        if (b->flags & PTAC_BLOCK_PLANNED)
            b->flags &= ~(uint32_t)PTAC_BLOCK_PLANNED;
        else
            ptac_arena_free(arena, b);
    }
    return true;
}

/* --- memory given back ---------------------------------------------------------- */

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

void ptac_arena_use_policy(ptac_arena *arena, const ptac_policy *policy)
{
    __builtin_memset(arena->index, 0, arena->policy->index_bytes);
    arena->policy = policy;
    for (ptac_block *b = arena->last; b; b = b->below)
        if (b->flags & PTAC_BLOCK_LISTED)
            policy->add(arena->index, b);
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
    if (!hold(arena, arena->top, from + bytes))
        return false;
    if (arena->high < from + bytes)
        arena->high = from + bytes;
    return arena->source->populate(arena->source, from, bytes);
}
