/*
 * fuzz.c - random operations on pools, each beside a model of it (reference_model.h).
 *
 *   fuzz [--seed S] [--operations N] [--round R]
 *
 * A round is a pool of random shape and some thousand operations; it depends on the
 * seed and its number alone. A failure ends the program and names the command that
 * repeats it.
 */
#include "reference_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_OPERATIONS = 20000, /* a round */
};

typedef struct shape {
    size_t reserve, most; /* bytes of each arena, of most requests */
    int most_live;
    int period; /* operations from one thorough look to the next */
    int free_percent;
    int refused_percent;
    int n_sizes; /* training asks for few sizes, again and again; 0: any size */
    size_t sizes[16];
} shape;

static reference_model s;
static int64_t totals[64];

static const ptac_policy *any_policy(rng *r)
{
    int n = 0;

    while (ptac_policy_at(n))
        n++;
    return ptac_policy_at((int)rng_below(r, n));
}

static size_t any_size(rng *r, size_t most)
{
    const size_t limit = rng_chance(r, 70) ? most / 16 + 1 : most;
    size_t bytes = 1 + (size_t)rng_below(r, (int64_t)limit);

    if (rng_chance(r, 30))
        bytes = (bytes | 65535) + 1 - (size_t)rng_below(r, 2);
    return bytes;
}

static shape any_shape(rng *r)
{
    const bool is_real = rng_chance(r, 60);
    shape f = {
        .reserve = (size_t)RNG_PICK(r, 2, 4, 16, 64) << 20,
        .most_live = (int)RNG_PICK(r, 4, 20, 100, is_real ? 100 : 3000),
        .period = (int)RNG_PICK(r, 4, 32, 256),
        .free_percent = (int)RNG_PICK(r, 30, 45, 50),
        .refused_percent = (int)RNG_PICK(r, 0, 0, 0, 5, 30),
        .n_sizes = (int)RNG_PICK(r, 0, 0, 3, 16),
    };

    f.most = f.reserve / (size_t)RNG_PICK(r, 1, 4, 32);
    for (int i = 0; i < f.n_sizes; i++)
        f.sizes[i] = any_size(r, f.most);
    s.arenas[0].source.is_real = is_real;
    return f;
}

static bool open_pool(const shape *f)
{
    const bool is_real = s.arenas[0].source.is_real;
    const size_t granule = (size_t)RNG_PICK(&s.r, 64, 512, 4096);

    s.pool.budget.cap = SIZE_MAX;
    s.pool.has_streams = rng_chance(&s.r, 30);
    s.pool.keeps_spare = !s.pool.has_streams && rng_chance(&s.r, 50);
    s.n_arenas = (int)rng_between(&s.r, 1, SHADOW_MAX_ARENAS);
    for (int i = 0; i < s.n_arenas; i++) {
        checked_source *source = &s.arenas[i].source;

        checked_source_init(source, i, is_real, &s.r, &s.all_held);
        const ptac_arena like = {
            .source = &source->source,
            .policy = any_policy(&s.r),
            .granule = granule,
            .least_bytes = rng_chance(&s.r, 50) ? granule : 65536,
            .is_small = rng_chance(&s.r, 20),
        };
        if (!ptac_pool_add_arena(&s.pool, &like, f->reserve))
            return false;
        source->refused_percent = f->refused_percent;
    }
    return true;
}

static void close_pool(void)
{
    for (int i = 0; i < s.n_arenas; i++)
        s.arenas[i].source.refused_percent = 0;
    while (s.n_live)
        model_free(&s, (int)rng_below(&s.r, s.n_live));
    while (s.n_parted)
        model_give(&s, s.n_parted - 1);
    model_check(&s); /* which settles the spare */
    for (int i = 0; i < s.n_arenas; i++)
        if (s.pool.arenas[i]->last || s.arenas[i].extent.current)
            model_wrong(&s, "an arena without blocks is not empty");
    ptac_history_open(&s.pool.history, 0);
    ptac_pool_close(&s.pool);
    for (int i = 0; i < s.n_arenas; i++) {
        s.n_huge += s.arenas[i].source.n_huge;
        s.n_small += s.arenas[i].source.n_small;
    }
    if (s.all_held.current || s.pool.budget.held.current)
        model_wrong(&s, "something is held by a pool that was closed");
}

/* The last, the first, or any: stacks, queues and neither. */
static int any_live(void)
{
    const int64_t way = rng_below(&s.r, 4);

    return way == 0 ? s.n_live - 1 : way == 1 ? 0 : (int)rng_below(&s.r, s.n_live);
}

static void alloc(const shape *f)
{
    const int arena = (int)rng_below(&s.r, s.n_arenas);
    size_t bytes = f->n_sizes && !rng_chance(&s.r, 2)
                       ? f->sizes[rng_below(&s.r, f->n_sizes)]
                       : any_size(&s.r, f->most);

    if (rng_chance(&s.r, 1))
        bytes = SIZE_MAX - (size_t)rng_below(&s.r, 1 << 20) * 64 % 130;
    model_alloc(&s, arena, bytes);
}

static void write_history(void)
{
    ptac_event events[8];
    const size_t n = (size_t)rng_below(&s.r, 9);
    uint64_t first;

    ptac_history_note(&s.pool.history, PTAC_EVENT_ALLOC,
                      (uintptr_t)s.pool.history.n_written, 1, 2);
    first = s.pool.history.n_written;

    const size_t copied = ptac_history_copy(&s.pool.history, events, n);

    for (size_t i = 0; i < copied; i++)
        if (events[i].address != first - copied + i)
            model_wrong(&s, "history is not in order");
}

static void populate(ptac_arena *arena, size_t bytes)
{
    const bool is_done = ptac_arena_populate(arena, bytes);

    if (is_done && bytes && arena->high < arena->top + bytes)
        model_wrong(&s, "memory was promised that is not held");
}

static void seldom(const shape *f)
{
    ptac_arena *arena = s.pool.arenas[rng_below(&s.r, s.n_arenas)];
    ptac_budget *budget = &s.pool.budget;

    switch (rng_below(&s.r, 8)) {
    case 0:
        ptac_arena_use_policy(arena, any_policy(&s.r));
        break;
    case 1:
        budget->cap = rng_chance(&s.r, 50) ? SIZE_MAX
                                           : (size_t)budget->held.current +
                                                 (size_t)rng_below(&s.r, 4 << 20);
        break;
    case 2:
        budget->cap = (size_t)rng_below(&s.r, (int64_t)f->reserve);
        break;
    case 3:
        if (!ptac_history_open(&s.pool.history, (size_t)rng_below(&s.r, 3) * 5))
            model_wrong(&s, "history could not be opened");
        break;
    case 4:
        model_reset_peaks(&s);
        break;
    case 5:
        populate(arena, (size_t)rng_below(&s.r, 1 << 20));
        break;
    case 6:
        if (ptac_arena_promote(arena) > arena->end - arena->base)
            model_wrong(&s, "more became huge than there is");
        break;
    default:
        model_trim(&s);
    }
    model_check(&s);
}

static void operate(const shape *f)
{
    const bool is_full = s.n_live == f->most_live;

    write_history();
    if (s.n_parted && rng_chance(&s.r, 40))
        model_give(&s, (int)rng_below(&s.r, s.n_parted));
    if (s.n_parted > f->most_live)
        model_give(&s, 0);
    if (rng_chance(&s.r, 1))
        seldom(f);
    else if (s.n_live && (is_full || rng_chance(&s.r, f->free_percent)))
        model_free(&s, any_live());
    else
        alloc(f);
}

static void add_up(void)
{
    int i = 0;

#define X(what) totals[i++] += s.n_##what;
    SHADOW_COUNTS(X)
#undef X
}

static bool run_round(uint64_t seed, int64_t number, int64_t *n_left)
{
    int64_t n = *n_left < N_OPERATIONS ? *n_left : N_OPERATIONS;

    memset(&s, 0, sizeof s);
    s.r.state = seed * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)number << 20;

    const shape f = any_shape(&s.r);

    if (!open_pool(&f))
        model_wrong(&s, "a pool could not be opened");
    for (int64_t i = 0; i < n && !s.trouble; i++) {
        operate(&f);
        if (i % f.period == 0)
            model_check(&s);
        if (s.trouble)
            printf("operation %" PRId64 " of round %" PRId64 "\n", i, number);
    }
    if (!s.trouble)
        close_pool();
    if (s.trouble)
        printf("FAIL %s\n  again: fuzz --seed %" PRIu64 " --round %" PRId64 "\n",
               s.trouble, seed, number);
    add_up();
    *n_left -= n;
    return !s.trouble;
}

/* A test that never came to what it is for proves nothing. */
static bool is_thorough(void)
{
    bool is = true;
    int i = 0;

#define X(what)                                                                        \
    printf("%s %" PRId64 "  ", #what, totals[i]);                                      \
    is = totals[i++] >= 100 && is;
    SHADOW_COUNTS(X)
#undef X
    puts(is ? "" : "\nFAIL some of these hardly ever happened");
    return is;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int64_t n = 1000000, number = -1, n_rounds = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--operations") == 0)
            n = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--round") == 0)
            number = strtoll(argv[i + 1], NULL, 10);
    }
    printf("seed %" PRIu64 ", %" PRId64 " operations\n", seed, n);
    if (number >= 0)
        return run_round(seed, number, &n) ? 0 : 1;

    const bool is_long = n >= 1000000;

    while (n > 0)
        if (!run_round(seed, n_rounds++, &n))
            return 1;
    return !is_long || is_thorough() ? 0 : 1;
}
