/*
 * invariants.c - the invariants of blocks, of what is held, of the table and of the
 * indexes.
 */
#include "invariants.h"

#include "mem/engine/size_classes.h"

#include <stdio.h>
#include <string.h>

/* One line, which is what somebody who reads a failure wants to see. */
#define HOLDS(condition)                                                               \
    do {                                                                               \
        if (!(condition))                                                              \
            return __FILE__ ": not so: " #condition;                                   \
    } while (0)

typedef struct totals {
    size_t n_used, n_free, n_listed, free_bytes, n_held;
    size_t largest_listed;
    const ptac_block *region; /* a plan's: used, and not in the table */
} totals;

static bool is_free(const ptac_block *b)
{
    return b->flags & PTAC_BLOCK_FREE;
}

static bool is_held(const ptac_arena *arena, uintptr_t from, uintptr_t to)
{
    const size_t chunk = arena->source->chunk_bytes;

    for (uintptr_t at = from & ~(uintptr_t)(chunk - 1); at < to; at += chunk)
        if (!arena->is_held[(at - arena->base) / chunk])
            return false;
    return true;
}

static const char *check_free(const ptac_arena *arena, const ptac_block *b, totals *t)
{
    const bool is_large = b->bytes >= arena->least_bytes;

    HOLDS(!(b->flags & PTAC_BLOCK_SMALL));
    HOLDS(b->above && !is_free(b->above));
    HOLDS(!b->below || !is_free(b->below));
    HOLDS(is_large == !!(b->flags & PTAC_BLOCK_LISTED));
    HOLDS(b->flags & PTAC_BLOCK_HOLED ||
          is_held(arena, b->address, b->address + b->bytes));
    t->n_free++;
    t->n_listed += is_large;
    t->free_bytes += b->bytes;
    if (is_large && b->bytes > t->largest_listed)
        t->largest_listed = b->bytes;
    return NULL;
}

static const char *check_used(const ptac_pool *pool, const ptac_arena *arena,
                              const ptac_block *b, totals *t)
{
    if (b == pool->spare) {
        HOLDS(pool->keeps_spare && b->flags == 0);
        HOLDS(is_held(arena, b->address, b->address + b->bytes));
        return NULL;
    }
    t->n_used++;
    if (!pool->has_streams && ptac_table_find(&pool->used, b->address) != b) {
        HOLDS(!t->region && b->flags == 0);
        HOLDS(is_held(arena, b->address, b->address + b->bytes));
        t->region = b;
        return NULL;
    }
    HOLDS(!(b->flags & ~(uint32_t)PTAC_BLOCK_SMALL));
    HOLDS(b->requested > 0 && b->requested <= b->bytes);
    HOLDS(b->bytes - b->requested < arena->granule);
    HOLDS(is_held(arena, b->address, b->address + b->bytes));
    return NULL;
}

static const char *check_blocks(const ptac_pool *pool, const ptac_arena *arena,
                                totals *t)
{
    uintptr_t end = arena->top;
    const ptac_block *above = NULL;

    HOLDS(!arena->last || !is_free(arena->last));
    for (const ptac_block *b = arena->last; b; above = b, b = b->below) {
        const char *trouble;

        HOLDS(b->above == above);
        HOLDS(b->bytes > 0 && b->bytes % arena->granule == 0);
        HOLDS(b->address + b->bytes == end);
        HOLDS(b->arena == arena->number);
        trouble = is_free(b) ? check_free(arena, b, t) : check_used(pool, arena, b, t);
        if (trouble)
            return trouble;
        end = b->address;
    }
    HOLDS(end == arena->base);
    HOLDS(arena->base % arena->granule == 0);
    return NULL;
}

static const char *check_held(const ptac_arena *arena, totals *t)
{
    const size_t chunk = arena->source->chunk_bytes;
    const size_t n = (arena->end - arena->base) / chunk;

    HOLDS(arena->base <= arena->top && arena->top <= arena->high);
    HOLDS(arena->high <= arena->end && arena->held_end <= arena->end);
    HOLDS(arena->top == arena->high || is_held(arena, arena->top, arena->high));
    for (size_t i = 0; i < n; i++) {
        HOLDS(arena->is_held[i] <= 1);
        HOLDS(!arena->is_held[i] || arena->base + i * chunk < arena->held_end);
        t->n_held += arena->is_held[i];
    }
    HOLDS((size_t)arena->held.current == t->n_held * chunk);
    return NULL;
}

/* Huge pages are wanted only where all is held, in as many runs as counted. */
static const char *check_huge(const ptac_arena *arena)
{
    const size_t n = (arena->end - arena->base) / PTAC_REGION_BYTES;
    size_t n_runs = 0;

    for (size_t i = 0; i < n; i++) {
        const uintptr_t at = arena->base + i * PTAC_REGION_BYTES;
        const bool is_huge = arena->heat[i] == PTAC_REGION_HUGE;

        HOLDS(!is_huge || is_held(arena, at, at + PTAC_REGION_BYTES));
        n_runs += is_huge && (i == 0 || arena->heat[i - 1] != PTAC_REGION_HUGE);
    }
    HOLDS(n_runs == arena->n_hot_runs && n_runs <= PTAC_MOST_HOT_RUNS);
    return NULL;
}

/* --- indexes ------------------------------------------------------------------- */

static const char *check_lists(const ptac_size_classes *lists, size_t n_listed)
{
    size_t n = 0;

    for (int class = 0; class < PTAC_N_SIZE_CLASSES; class ++) {
        const ptac_block *previous = NULL;
        const int power = class / PTAC_N_SUB, sub = class % PTAC_N_SUB;

        HOLDS(!lists->heads[class] == !(lists->subs[power] >> sub & 1));
        HOLDS(!lists->subs[power] == !(lists->powers >> power & 1));
        for (const ptac_block *b = lists->heads[class]; b; previous = b, b = b->next) {
            HOLDS(b->flags & PTAC_BLOCK_LISTED);
            HOLDS(b->previous == previous);
            HOLDS(ptac_size_class(b->bytes) == class);
            HOLDS(++n <= n_listed);
        }
    }
    HOLDS(n == n_listed);
    return NULL;
}

/* first_fit's tree: previous is left, next is right, requested the largest below. */
static const char *check_tree(const ptac_block *b, uintptr_t from, uintptr_t to,
                              size_t *n, size_t *largest)
{
    size_t below = 0, above = 0;
    const char *trouble;

    *largest = 0;
    if (!b)
        return NULL;
    HOLDS(b->flags & PTAC_BLOCK_LISTED);
    HOLDS(from <= b->address && b->address < to);
    ++*n;
    trouble = check_tree(b->previous, from, b->address, n, &below);
    if (!trouble)
        trouble = check_tree(b->next, b->address + 1, to, n, &above);
    if (trouble)
        return trouble;
    *largest = below > above ? below : above;
    if (b->bytes > *largest)
        *largest = b->bytes;
    HOLDS(b->requested == *largest);
    return NULL;
}

/* What a policy of this name has to find, or NULL for any that is large enough. */
static const ptac_block *expected(const ptac_arena *arena, size_t bytes, bool *is_told)
{
    const char *name = arena->policy->name;
    const ptac_block *lowest = NULL, *exact = NULL;

    for (const ptac_block *b = arena->last; b; b = b->below) {
        if (!(b->flags & PTAC_BLOCK_LISTED) || b->bytes < bytes)
            continue;
        lowest = b;
        if (b->bytes == bytes)
            exact = b;
    }
    *is_told = strcmp(name, "first_fit") == 0 || (exact && !strcmp(name, "exact_fit"));
    return *is_told && strcmp(name, "exact_fit") == 0 ? exact : lowest;
}

static const char *check_finding(const ptac_arena *arena, const totals *t, size_t bytes)
{
    const ptac_block *b = arena->policy->find(arena->index, bytes);
    const ptac_block *best;
    bool is_told;

    HOLDS(!b || (b->flags & PTAC_BLOCK_LISTED && b->bytes >= bytes));
    HOLDS(b || t->n_listed > 16 || t->largest_listed < bytes);
    best = expected(arena, bytes, &is_told);
    HOLDS(!is_told || t->n_listed > 16 || b == best);
    HOLDS(strcmp(arena->policy->name, "first_fit") != 0 || b == best);
    return NULL;
}

static const char *check_index(const ptac_arena *arena, const totals *t)
{
    const size_t sizes[] = {arena->least_bytes, t->largest_listed,
                            t->largest_listed + arena->granule,
                            t->largest_listed / 2 & ~(arena->granule - 1)};
    const char *trouble = NULL;
    size_t n = 0, largest;

    if (strcmp(arena->policy->name, "first_fit") == 0) {
        trouble =
            check_tree(*(ptac_block **)arena->index, 0, UINTPTR_MAX, &n, &largest);
        HOLDS(trouble || (n == t->n_listed && largest == t->largest_listed));
    } else if (arena->policy->index_bytes == sizeof(ptac_size_classes)) {
        trouble = check_lists(arena->index, t->n_listed);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !trouble; i++)
        if (sizes[i] >= arena->least_bytes)
            trouble = check_finding(arena, t, sizes[i]);
    return trouble;
}

size_t walk_largest(const ptac_arena *arena)
{
    size_t largest = 0;

    for (const ptac_block *b = arena->last; b; b = b->below)
        if (b->flags & PTAC_BLOCK_LISTED && b->bytes > largest)
            largest = b->bytes;
    return largest;
}

/* --- the pool ------------------------------------------------------------------ */

static const char *check_arena(const ptac_pool *pool, const ptac_arena *arena,
                               totals *t)
{
    const char *trouble = check_blocks(pool, arena, t);

    if (!trouble)
        trouble = check_held(arena, t);
    if (!trouble)
        trouble = check_huge(arena);
    if (!trouble)
        trouble = check_index(arena, t);
    if (trouble)
        return trouble;
    HOLDS((size_t)arena->n_free.current == t->n_free);
    HOLDS((size_t)arena->free_bytes.current == t->free_bytes);
    HOLDS((size_t)arena->extent.current == arena->top - arena->base);
    return NULL;
}

static const char *check_table(const ptac_block_table *table)
{
    size_t n = 0;

    for (size_t i = 0; i < table->n_slots; i++) {
        const ptac_block *b = table->slots[i];

        HOLDS(!b || ptac_table_find(table, b->address) == b);
        n += b != NULL;
    }
    HOLDS(n == table->n_blocks);
    HOLDS(2 * n <= table->n_slots);
    return NULL;
}

/* Planned blocks lie in the region and share nothing; n: of the table's blocks. */
static const char *check_planned(const ptac_pool *pool, const ptac_block *region,
                                 size_t *n)
{
    const ptac_block_table *table = &pool->used;

    for (size_t i = 0; i < table->n_slots; i++) {
        const ptac_block *a = table->slots[i];

        if (!a || !(a->flags & PTAC_BLOCK_PLANNED))
            continue;
        HOLDS(!(a->flags & ~(uint32_t)(PTAC_BLOCK_PLANNED | PTAC_BLOCK_SMALL)));
        HOLDS(region && a->address >= region->address);
        HOLDS(a->address + a->bytes <= region->address + region->bytes);
        HOLDS(a->requested > 0 && a->requested <= a->bytes);
        for (size_t j = 0; j < i; j++) {
            const ptac_block *b = table->slots[j];

            HOLDS(!b || !(b->flags & PTAC_BLOCK_PLANNED) ||
                  a->address + a->bytes <= b->address ||
                  b->address + b->bytes <= a->address);
        }
        ++*n;
    }
    return NULL;
}

const char *walk_pool(const ptac_pool *pool)
{
    size_t n_used = 0, n_planned = 0;
    int64_t held = 0;

    for (int i = 0; i < pool->n_arenas; i++) {
        totals t = {0};
        const char *trouble = check_arena(pool, pool->arenas[i], &t);

        if (trouble)
            return trouble;
        n_used += t.n_used - (t.region != NULL);
        if (i == 0 && (trouble = check_planned(pool, t.region, &n_planned)))
            return trouble;
        held += pool->arenas[i]->held.current;
    }
    HOLDS(pool->has_streams ? n_used >= pool->used.n_blocks
                            : n_used + n_planned == pool->used.n_blocks);
    HOLDS(held == pool->budget.held.current);
    return check_table(&pool->used);
}
