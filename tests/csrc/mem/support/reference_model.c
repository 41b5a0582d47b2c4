/*
 * reference_model.c - what each operation changes, by the model.
 */
#include "reference_model.h"

#include "invariants.h"

#include <stdio.h>
#include <string.h>

void model_wrong(reference_model *s, const char *what)
{
    if (!s->trouble)
        s->trouble = what;
}

/* --- marks in memory ----------------------------------------------------------- */

static uint64_t *word(const model_block *live, size_t offset)
{
    return (uint64_t *)(live->block->address + offset);
}

static void write_marks(reference_model *s, model_block *live)
{
    const size_t last = live->block->bytes - 8;

    live->mark = rng_next(&s->r);
    live->where = (size_t)rng_below(&s->r, (int64_t)live->block->bytes / 8) * 8;
    *word(live, live->where) = live->mark;
    *word(live, 0) = live->mark;
    *word(live, last) = live->mark;
}

static void read_marks(reference_model *s, const model_block *live)
{
    const size_t last = live->block->bytes - 8;

    if (*word(live, 0) != live->mark || *word(live, last) != live->mark ||
        *word(live, live->where) != live->mark)
        model_wrong(s, "what was written into a block has changed");
}

static bool is_real(const reference_model *s)
{
    return s->arenas[0].source.is_real;
}

/* --- statistics ---------------------------------------------------------------- */

static void count(ptac_stat *stats, int class, int64_t n)
{
    (n > 0 ? ptac_stat_add : ptac_stat_sub)(&stats[class], n > 0 ? n : -n);
    (n > 0 ? ptac_stat_add : ptac_stat_sub)(&stats[PTAC_ALL], n > 0 ? n : -n);
}

static int class_of(const ptac_block *b)
{
    return b->requested <= PTAC_SMALL_BYTES ? PTAC_SMALL : PTAC_LARGE;
}

static void count_used(reference_model *s, const ptac_block *b, int sign)
{
    count(s->stats.allocation, class_of(b), sign);
    count(s->stats.allocated_bytes, class_of(b), sign * (int64_t)b->bytes);
    count(s->stats.requested_bytes, class_of(b), sign * (int64_t)b->requested);
}

static void count_active(reference_model *s, const ptac_block *b, int sign)
{
    count(s->stats.active, class_of(b), sign);
    count(s->stats.active_bytes, class_of(b), sign * (int64_t)b->bytes);
}

static void count_free(model_arena *a, int64_t n, size_t bytes)
{
    if (n > 0) {
        ptac_stat_add(&a->n_free, n);
        ptac_stat_add(&a->free_bytes, (int64_t)bytes);
    } else {
        ptac_stat_sub(&a->n_free, -n);
        ptac_stat_sub(&a->free_bytes, (int64_t)bytes);
    }
}

static bool has_free(const ptac_block *b)
{
    return b && b->flags & PTAC_BLOCK_FREE;
}

/* A block that is about to go back to its arena. */
static void count_back(reference_model *s, const ptac_block *b)
{
    model_arena *a = &s->arenas[b->arena];
    size_t bytes = b->bytes;

    if (has_free(b->below)) {
        bytes += b->below->bytes;
        count_free(a, -1, b->below->bytes);
        s->n_merges++;
    }
    if (has_free(b->above)) {
        bytes += b->above->bytes;
        count_free(a, -1, b->above->bytes);
        s->n_merges++;
    }
    if (!b->above) {
        ptac_stat_sub(&a->extent, (int64_t)bytes);
        s->n_folds++;
    } else {
        count_free(a, 1, bytes);
    }
}

/* The same of the spare, before whatever has the pool settle it. */
static void count_spare_back(reference_model *s)
{
    if (s->pool.spare)
        count_back(s, s->pool.spare);
}

static void merge(ptac_stat *stats, int class, const ptac_stat *stat)
{
    ptac_stat_merge(&stats[class], stat);
    ptac_stat_merge(&stats[PTAC_ALL], stat);
}

/* The model's numbers with those of its arenas. */
static void sum_up(const reference_model *s, ptac_mem_stats *sum)
{
    const ptac_stat one = {1, 1, 1};

    *sum = s->stats;
    for (int i = 0; i < s->n_arenas; i++) {
        const model_arena *a = &s->arenas[i];
        const int class = s->pool.arenas[i]->is_small ? PTAC_SMALL : PTAC_LARGE;

        merge(sum->segment, class, &one);
        merge(sum->inactive_split, class, &a->n_free);
        merge(sum->inactive_split_bytes, class, &a->free_bytes);
        merge(sum->reserved_bytes, class, &a->source.held);
        ptac_stat_merge(&sum->arena_bytes, &a->extent);
    }
    sum->reserved_bytes[PTAC_ALL] = s->all_held;
}

static void compare(reference_model *s, const char *name, const ptac_stat *found,
                    const ptac_stat *expected)
{
    if (memcmp(found, expected, sizeof *found) == 0)
        return;
    printf("  %s is %lld, peak %lld, allocated %lld; not %lld, %lld, %lld\n", name,
           (long long)found->current, (long long)found->peak,
           (long long)found->allocated, (long long)expected->current,
           (long long)expected->peak, (long long)expected->allocated);
    model_wrong(s, "a statistic is not what a recount gives");
}

static void check_stats(reference_model *s)
{
    ptac_mem_stats found, expected;

    count_spare_back(s);
    ptac_pool_stats(&s->pool, &found);
    sum_up(s, &expected);
    for (int c = 0; c < PTAC_N_CLASSES; c++) {
#define X(name) compare(s, #name, &found.name[c], &expected.name[c]);
        PTAC_CLASS_STATS(X)
#undef X
    }
    compare(s, "arena_bytes", &found.arena_bytes, &expected.arena_bytes);
    if (found.purged_bytes != expected.purged_bytes)
        model_wrong(s, "purged_bytes is not what a recount gives");
}

void model_reset_peaks(reference_model *s)
{
    count_spare_back(s);
    ptac_pool_reset_peaks(&s->pool);
    for (int c = 0; c < PTAC_N_CLASSES; c++) {
#define X(name) s->stats.name[c].peak = s->stats.name[c].current;
        PTAC_CLASS_STATS(X)
#undef X
    }
    for (int i = 0; i < s->n_arenas; i++) {
        model_arena *a = &s->arenas[i];
        ptac_stat *stats[] = {&a->extent, &a->n_free, &a->free_bytes, &a->source.held};

        for (int k = 0; k < 4; k++)
            stats[k]->peak = stats[k]->current;
    }
    s->all_held.peak = s->all_held.current;
}

/* --- operations ---------------------------------------------------------------- */

/* A failure needs a reason: the system, the cap, or no room. */
static void check_refusal(reference_model *s, int arena, size_t bytes)
{
    const ptac_arena *a = s->pool.arenas[arena];
    const size_t rounded = (bytes + a->granule - 1) & ~(a->granule - 1);
    const size_t held = (size_t)s->pool.budget.held.current, cap = s->pool.budget.cap;
    const size_t needed = rounded + 2 * a->source->chunk_bytes;
    const bool is_full = bytes > a->end - a->base || a->end - a->top < rounded;
    const bool is_sure = strcmp(a->policy->name, "first_fit") == 0;

    if (s->arenas[arena].source.was_refused)
        s->n_refusals++;
    else if (is_full && (bytes > a->end - a->base || walk_largest(a) < rounded))
        s->n_ooms++;
    else if (held > cap || needed > cap - held)
        s->n_caps++;
    else if (!is_full || is_sure)
        model_wrong(s, "a request was refused without a reason");
}

/* Whether the pool takes the spare as it is. */
static bool is_spares_place(const reference_model *s, const ptac_arena *a, size_t bytes)
{
    const ptac_block *spare = s->pool.spare, *found;

    if (!spare || spare->arena != a->number || has_free(spare->below) ||
        bytes > spare->bytes ||
        ((bytes + a->granule - 1) & ~(a->granule - 1)) != spare->bytes)
        return false;
    if (!a->policy->takes_lowest && spare->above &&
        spare->above->flags & PTAC_BLOCK_LISTED)
        return false;
    found = a->policy->find(a->index, spare->bytes);
    return !found || (found == spare->above && found->bytes > spare->bytes);
}

/* Where the arena would end without its spare. */
static uintptr_t top_without(const ptac_arena *a, const ptac_block *spare)
{
    if (!spare || spare->arena != a->number || spare->above)
        return a->top;
    return has_free(spare->below) ? spare->below->address : spare->address;
}

static void note_new(reference_model *s, model_arena *a, const ptac_block *b,
                     uintptr_t top)
{
    if (b->address == top) {
        ptac_stat_add(&a->extent, (int64_t)b->bytes);
        s->n_growths++;
    } else if (has_free(b->above)) { /* the rest of what was cut */
        count_free(a, -1, b->bytes + b->above->bytes);
        count_free(a, 1, b->above->bytes);
        s->n_cuts++;
    } else {
        count_free(a, -1, b->bytes);
        s->n_exact++;
    }
}

void model_alloc(reference_model *s, int arena, size_t bytes)
{
    ptac_arena *a = s->pool.arenas[arena];
    const ptac_block *spare = s->pool.spare;
    const bool is_spare = is_spares_place(s, a, bytes);
    const uintptr_t top = is_spare ? a->top : top_without(a, spare);
    const int64_t held = s->all_held.current;
    ptac_block *b;

    if (!is_spare)
        count_spare_back(s);
    s->arenas[arena].source.was_refused = false;
    b = ptac_pool_take(&s->pool, a, bytes);
    if (s->all_held.current > held && (size_t)s->all_held.current > s->pool.budget.cap)
        model_wrong(s, "the pool took more than its cap allows");
    if (!b) {
        check_refusal(s, arena, bytes);
        return;
    }
    if (b->address % a->granule || b->bytes < bytes || b->requested != bytes ||
        b->bytes - bytes >= a->granule || b->arena != (uint32_t)arena)
        model_wrong(s, "a block is not what was asked for");
    if (is_spare && b != spare)
        model_wrong(s, "the spare was not taken");
    if (is_spare)
        s->n_spares++;
    else
        note_new(s, &s->arenas[arena], b, top);
    count_used(s, b, 1);
    count_active(s, b, 1);
    s->live[s->n_live].block = b;
    if (is_real(s))
        write_marks(s, &s->live[s->n_live]);
    s->n_live++;
}

void model_give(reference_model *s, int i)
{
    ptac_block *b = s->parted[i];

    count_active(s, b, -1);
    if (s->pool.keeps_spare)
        count_spare_back(s);
    else
        count_back(s, b);
    ptac_pool_give(&s->pool, b);
    s->parted[i] = s->parted[--s->n_parted];
}

void model_free(reference_model *s, int i)
{
    const model_block freed = s->live[i];
    const uintptr_t address = freed.block->address;

    if (is_real(s))
        read_marks(s, &freed);
    count_used(s, freed.block, -1);
    s->live[i] = s->live[--s->n_live];
    if (ptac_pool_part(&s->pool, address + 1) ||
        ptac_pool_part(&s->pool, address) != freed.block ||
        ptac_pool_part(&s->pool, address))
        model_wrong(s, "a block is not found by its address, or twice");
    s->parted[s->n_parted++] = freed.block;
    if (!s->pool.has_streams)
        model_give(s, s->n_parted - 1);
}

void model_trim(reference_model *s)
{
    const int64_t held = s->all_held.current;
    size_t released;

    count_spare_back(s);
    released = ptac_pool_trim(&s->pool);
    if ((int64_t)released != held - s->all_held.current)
        model_wrong(s, "other bytes were given back than told");
    s->stats.purged_bytes += (int64_t)released;
    s->n_released += released > 0;
}

void model_check(reference_model *s)
{
    const char *trouble = walk_pool(&s->pool);

    if (trouble)
        model_wrong(s, trouble);
    for (int i = 0; i < s->n_arenas; i++)
        if (s->arenas[i].source.trouble)
            model_wrong(s, s->arenas[i].source.trouble);
    for (int i = 0; i < s->n_live; i++) {
        if (ptac_table_find(&s->pool.used, s->live[i].block->address) !=
            s->live[i].block)
            model_wrong(s, "a block in use is not in the table");
        if (is_real(s))
            read_marks(s, &s->live[i]);
    }
    if ((size_t)s->n_live != s->pool.used.n_blocks)
        model_wrong(s, "the table holds another number of blocks");
    check_stats(s);
}
