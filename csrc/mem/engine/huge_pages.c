/*
 * huge_pages.c - huge pages behind regions that are in use.
 *
 * Where the system may use a huge page, the first touch of a single chunk brings in all
 * 32 of the region, and what is missing there may come by itself later. So they are
 * asked for where every chunk of a region is held, and no longer wanted before one is
 * given back: else there would be memory that nobody has counted, above any cap.
 */
#include "mem/engine/arena.h"

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
    __builtin_memset(&arena->heat[from], PTAC_REGION_COOLED, to - from);
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

bool ptac_arena_cool(ptac_arena *arena, uintptr_t from, uintptr_t to)
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
    const uintptr_t from = address_of(arena, region);

    for (size_t at = 0; at < PTAC_REGION_BYTES; at += arena->source->chunk_bytes)
        if (!arena->is_held[(from + at - arena->base) / arena->source->chunk_bytes])
            return false;
    return arena->source->is_touched(arena->source, from, PTAC_REGION_BYTES);
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
