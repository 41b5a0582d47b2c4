/*
 * arena_memory.c - memory behind an arena's addresses: held, given back, huge.
 *
 * What is held: every chunk that a used block touches, always. Below `high` also every
 * chunk of free blocks that are not marked as holed. So the common request, which takes
 * a free block or grows up to where the arena has been before, looks at no table.
 *
 * Huge pages are asked for where every chunk of a region is held, and no longer wanted
 * before one is given back: a touch brings in the whole region, which nobody would have
 * counted, above any cap.
 */
#include "mem/engine/arena.h"

#include <string.h>
#include <sys/mman.h>

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

static bool is_huge(const ptac_arena *arena, size_t region)
{
    return arena->heat[region] == PTAC_REGION_HUGE;
}

/* How many regions next to [from, to) are huge: 0, 1 or 2. */
static size_t n_beside(const ptac_arena *arena, size_t from, size_t to)
{
    return (size_t)(from > 0 && is_huge(arena, from - 1)) + (size_t)is_huge(arena, to);
}

static uintptr_t address_of(const ptac_arena *arena, size_t region)
{
    return arena->base + region * PTAC_REGION_BYTES;
}

/* No huge page comes behind the huge regions [from, to) from now on. */
static bool cool(ptac_arena *arena, size_t from, size_t to)
{
    if (!arena->source->want_small(arena->source, address_of(arena, from),
                                   (to - from) * PTAC_REGION_BYTES))
        return false;
    arena->n_hot_runs += n_beside(arena, from, to);
    arena->n_hot_runs--;
    memset(&arena->heat[from], PTAC_REGION_COOLED, to - from);
    return true;
}

/* The same of the whole run they are in, which cuts no mapping in two. */
static bool cool_whole_run(ptac_arena *arena, size_t from, size_t to)
{
    while (from > 0 && is_huge(arena, from - 1))
        from--;
    while (is_huge(arena, to))
        to++;
    return cool(arena, from, to);
}

/*
 * Before chunks in [from, to) are given back: no more huge pages behind any region that
 * this touches, nor behind its neighbours where there would be too many runs. False:
 * some regions are as they were, and none of their chunks may be given back.
 */
static bool cool_regions(ptac_arena *arena, uintptr_t from, uintptr_t to)
{
    const size_t end = (to - 1 - arena->base) / PTAC_REGION_BYTES + 1;
    size_t i = (from - arena->base) / PTAC_REGION_BYTES;

    while (arena->n_hot_runs && i < end) {
        size_t next = i + 1;

        if (is_huge(arena, i)) {
            while (next < end && is_huge(arena, next))
                next++;

            const bool is_one_too_many = arena->n_hot_runs >= PTAC_MOST_HOT_RUNS &&
                                         n_beside(arena, i, next) == 2;

            if ((is_one_too_many || !cool(arena, i, next)) &&
                !cool_whole_run(arena, i, next))
                return false;
        }
        i = next;
    }
    return true;
}

/* Gives back a run of held chunks; where the whole cannot be, as of its halves can. */
static size_t release_run(ptac_arena *arena, size_t from, size_t to)
{
    const size_t bytes = (to - from) * arena->source->chunk_bytes;
    const size_t middle = from + (to - from) / 2;
    const uintptr_t at = arena->base + from * arena->source->chunk_bytes;

    if (cool_regions(arena, at, at + bytes) &&
        arena->source->release(arena->source, at, bytes)) {
        memset(&arena->is_held[from], 0, to - from);
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
        memset(&arena->is_held[i], true, next - i);
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
    const size_t end = chunk_of(arena, to);
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

/* The region's visits of before count no more; those of the others do. */
static void forget_visits(ptac_arena *arena, size_t region, uint32_t visits)
{
    arena->visits[region] -= visits;
    arena->visits[region + 1] += visits;
    arena->heat[region] = PTAC_REGION_COLD;
}

/* Whether a huge page would bring in nothing that is not held, and little at all. */
static bool is_there(const ptac_arena *arena, size_t region)
{
    const size_t n_chunks = PTAC_REGION_BYTES / arena->source->chunk_bytes;

    return !memchr(&arena->is_held[region * n_chunks], 0, n_chunks) &&
           arena->source->is_touched(arena->source, address_of(arena, region),
                                     PTAC_REGION_BYTES);
}

size_t ptac_arena_promote(ptac_arena *arena)
{
    const size_t n = (arena->high - arena->base) / PTAC_REGION_BYTES;
    uint32_t visits = 0; /* modulo 2^32, as its parts */
    size_t asked = 0;

    if (!arena->source->want_huge)
        return 0;
    for (size_t i = 0; i < n; i++) {
        visits += arena->visits[i];
        if (arena->heat[i] == PTAC_REGION_COOLED) {
            forget_visits(arena, i, visits);
            visits = 0;
        }
        if (visits < PTAC_HOT_VISITS || is_huge(arena, i))
            continue;

        const size_t n_joined = n_beside(arena, i, i + 1);

        if ((!n_joined && arena->n_hot_runs >= PTAC_MOST_HOT_RUNS) ||
            !is_there(arena, i))
            continue;
        if (!arena->source->want_huge(arena->source, address_of(arena, i),
                                      PTAC_REGION_BYTES))
            break;
        arena->heat[i] = PTAC_REGION_HUGE;
        arena->n_hot_runs += 1 - n_joined;
        asked += PTAC_REGION_BYTES;
    }
    return asked;
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
