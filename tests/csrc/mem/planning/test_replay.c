/*
 * test_replay.c - traces replayed without memory: known results, and broken traces.
 */
#include "mem/engine/pool.h"
#include "replay.h"
#include "mem/cpu/source_cpu.h"

#include "calls.h"
#include "random.h"
#include "unit.h"

#include <stdlib.h>

#define KIB ((size_t)1 << 10)

static bool replay(const char *policy, const ptac_trace_step *steps, size_t n,
                   ptac_replay_result *result)
{
    return ptac_replay(ptac_policy_find(policy), 64, 64 * KIB, steps, n, result);
}

/* Three in a row, the middle one freed: a smaller and a larger one come. */
UNIT(holes_are_used_and_arenas_grow)
{
    const ptac_trace_step steps[] = {
        {100 * KIB, 0}, {200 * KIB, 0}, {100 * KIB, 0}, {0, 1}, {150 * KIB, 0},
        {300 * KIB, 0}, {0, 0},         {0, 2},         {0, 3}, {0, 4}};
    ptac_replay_result result;

    for (int i = 0; ptac_policy_at(i); i++) {
        EXPECT(replay(ptac_policy_at(i)->name, steps, 10, &result));
        EXPECT(result.peak_live == 650 * KIB);
        EXPECT(result.peak_arena == 700 * KIB);
        EXPECT(replay(ptac_policy_at(i)->name, steps, 3, &result));
        EXPECT(result.peak_live == 400 * KIB && result.peak_arena == 400 * KIB);
    }
    EXPECT(replay("best_fit", steps, 0, &result));
    EXPECT(result.peak_live == 0 && result.peak_arena == 0);
}

/* So many blocks at a time that no policy is kept from looking at all that are free. */
static void compare_with_and_without_spares(const ptac_policy *policy, size_t most)
{
    enum { N = 30000, MOST = 60, N_POOLS = 2 };
    ptac_source_cpu sources[N_POOLS];
    ptac_pool pools[N_POOLS] = {{.keeps_spare = true}, {.keeps_spare = false}};
    uintptr_t live[N_POOLS][MOST];
    size_t n_live = 0, n_spares = 0;
    rng r = {12};

    for (int p = 0; p < N_POOLS; p++) {
        const ptac_arena like = {.source = &sources[p].source,
                                 .policy = policy,
                                 .granule = 64,
                                 .least_bytes = 64 * KIB};

        ptac_source_cpu_init(&sources[p]);
        pools[p].budget.cap = SIZE_MAX;
        EXPECT(ptac_pool_add_arena(&pools[p], &like, (size_t)1 << 30));
    }
    for (int i = 0; i < N; i++) {
        const bool gives = n_live == most || (n_live && rng_chance(&r, 50));
        const size_t k = n_live ? (size_t)rng_below(&r, (int64_t)n_live) : 0;
        const size_t bytes = (size_t)rng_between(&r, 1, 12) * 64 * KIB;
        const ptac_block *spare = pools[0].spare;

        for (int p = 0; p < N_POOLS; p++) {
            if (gives) {
                ptac_pool_give(&pools[p], ptac_pool_part(&pools[p], live[p][k]));
                live[p][k] = live[p][n_live - 1];
            } else {
                const ptac_block *block =
                    ptac_pool_take(&pools[p], pools[p].arenas[0], bytes);

                live[p][n_live] = block->address;
                n_spares += p == 0 && block == spare;
            }
        }
        n_live = gives ? n_live - 1 : n_live + 1;
        EXPECT(gives || live[0][n_live - 1] - pools[0].arenas[0]->base ==
                            live[1][n_live - 1] - pools[1].arenas[0]->base);
    }
    EXPECT(n_spares > N / 50);
    for (int p = 0; p < N_POOLS; p++) {
        for (size_t k = 0; k < n_live; k++)
            ptac_pool_give(&pools[p], ptac_pool_part(&pools[p], live[p][k]));
        ptac_pool_close(&pools[p]);
    }
}

UNIT(spares_change_no_placement)
{
    for (int i = 0; ptac_policy_at(i); i++) {
        compare_with_and_without_spares(ptac_policy_at(i), 20);
        if (ptac_policy_at(i) != ptac_policy_find("exact_fit")) /* looks at sixteen */
            compare_with_and_without_spares(ptac_policy_at(i), 60);
    }
}

UNIT(broken_traces_are_refused)
{
    const ptac_trace_step unknown[] = {{100, 0}, {0, 1}};
    const ptac_trace_step twice[] = {{100, 0}, {0, 0}, {0, 0}};
    const ptac_trace_step too_large[] = {{SIZE_MAX, 0}};
    const int64_t mapped = calls_bytes_mapped();
    ptac_replay_result result;

    EXPECT(!replay("best_fit", unknown, 2, &result));
    EXPECT(!replay("best_fit", twice, 3, &result));
    EXPECT(!replay("best_fit", too_large, 1, &result));
    calls_refuse(CALL_mmap, 1, true);
    EXPECT(!replay("best_fit", twice, 2, &result));
    calls_allow();
    EXPECT(calls_bytes_mapped() == mapped);
}

/* Live bytes never exceed the arena, and are what a recount gives. */
UNIT(random_traces_agree_with_a_recount)
{
    enum { N = 20000, MOST = 200 };
    ptac_trace_step *steps = calloc(N, sizeof *steps);
    size_t bytes[N], live[MOST], n_live = 0, n_requests = 0, now = 0, peak = 0;
    rng r = {11};
    ptac_replay_result result;

    for (int i = 0; i < N; i++) {
        if (n_live == MOST || (n_live && rng_chance(&r, 49))) {
            const size_t k = (size_t)rng_below(&r, (int64_t)n_live);

            steps[i].n = live[k];
            now -= bytes[live[k]];
            live[k] = live[--n_live];
        } else {
            steps[i].bytes = (size_t)rng_between(&r, 1, 1 << 22);
            bytes[n_requests] = (steps[i].bytes + 63) & ~(size_t)63;
            now += bytes[n_requests];
            live[n_live++] = n_requests++;
        }
        if (now > peak)
            peak = now;
    }
    for (int i = 0; ptac_policy_at(i); i++) {
        EXPECT(replay(ptac_policy_at(i)->name, steps, N, &result));
        EXPECT(result.peak_live == peak);
        EXPECT(result.peak_arena >= peak && result.peak_arena < 2 * peak);
    }
    free(steps);
}
