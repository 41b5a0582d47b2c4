/*
 * arena.c - blocks of one range of addresses.
 */
#include "mem/engine/arena.h"

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

/* The free block found, cut to size. It stays as it was, but held, if it cannot be. */
static ptac_block *cut(ptac_arena *arena, ptac_block *block, size_t bytes)
{
    const size_t rest_bytes = block->bytes - bytes;
    ptac_block *rest = NULL;

    if (block->flags & PTAC_BLOCK_HOLED &&
        !ptac_arena_hold(arena, block->address, block->address + bytes))
        return NULL;
    if (rest_bytes && !(rest = ptac_record_take(arena->records)))
        return NULL;
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
    if (arena->top + bytes > arena->high) {
        if (!ptac_arena_hold(arena, arena->top, arena->top + bytes))
            return NULL;
        arena->high = arena->top + bytes;
    }
    block = ptac_record_take(arena->records);
    if (!block)
        return NULL;
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

void ptac_arena_use_policy(ptac_arena *arena, const ptac_policy *policy)
{
    __builtin_memset(arena->index, 0, arena->policy->index_bytes);
    arena->policy = policy;
    for (ptac_block *b = arena->last; b; b = b->below)
        if (b->flags & PTAC_BLOCK_LISTED)
            policy->add(arena->index, b);
}
