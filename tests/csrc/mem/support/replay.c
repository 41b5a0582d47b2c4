/*
 * replay.c - a pool of addresses without memory.
 */
#include "replay.h"

#include "mem/planning/plan.h"
#include "mem/engine/pool.h"

#include <stdlib.h>

#define BASE    ((uintptr_t)1 << 40)
#define RESERVE ((size_t)1 << 40)

static uintptr_t reserve(ptac_source *source, size_t bytes)
{
    return BASE;
}

static void unreserve(ptac_source *source, uintptr_t base, size_t bytes)
{
}

static bool agree(ptac_source *source, uintptr_t at, size_t bytes)
{
    return true;
}

static bool run(ptac_pool *pool, const ptac_trace_step *steps, size_t n_steps,
                uintptr_t *addresses)
{
    size_t n_requests = 0;

    for (size_t i = 0; i < n_steps; i++) {
        if (steps[i].bytes) {
            const ptac_block *block =
                ptac_pool_take(pool, pool->arenas[0], steps[i].bytes);

            if (!block)
                return false;
            addresses[n_requests++] = block->address;
        } else {
            ptac_block *block = steps[i].n < n_requests
                                    ? ptac_pool_part(pool, addresses[steps[i].n])
                                    : NULL;

            if (!block)
                return false;
            addresses[steps[i].n] = 0;
            ptac_pool_give(pool, block);
        }
    }
    return true;
}

/* What is never freed lives to the end. */
static size_t plan_all(const ptac_trace_step *steps, size_t n_steps, size_t granule)
{
    ptac_lifetime *blocks = calloc(n_steps + 1, sizeof *blocks);
    ptac_plan_word *work = calloc((PTAC_PLAN_WORDS + 1) * (n_steps + 1), sizeof *work);
    size_t n = 0, height = SIZE_MAX;

    for (size_t i = 0; blocks && i < n_steps; i++) {
        if (steps[i].bytes)
            blocks[n++] = (ptac_lifetime){
                .bytes = steps[i].bytes, .from = (uint32_t)i, .to = (uint32_t)n_steps};
        else
            blocks[steps[i].n].to = (uint32_t)i;
    }
    if (blocks && work)
        height = ptac_plan_place(blocks, n, granule, n_steps + 1, work);
    free(work);
    free(blocks);
    return height;
}

bool ptac_replay(const ptac_policy *policy, size_t granule, size_t least_bytes,
                 const ptac_trace_step *steps, size_t n_steps,
                 ptac_replay_result *result)
{
    ptac_source none = {.chunk_bytes = 2 << 20,
                        .reserve = reserve,
                        .unreserve = unreserve,
                        .commit = agree,
                        .release = agree};
    const ptac_arena like = {.source = &none,
                             .policy = policy,
                             .granule = granule,
                             .least_bytes = least_bytes};
    ptac_pool pool = {.budget.cap = SIZE_MAX, .keeps_spare = true};
    uintptr_t *addresses = calloc(n_steps + 1, sizeof *addresses);
    bool is_done = addresses && ptac_pool_add_arena(&pool, &like, RESERVE) &&
                   run(&pool, steps, n_steps, addresses);
    ptac_mem_stats stats;

    ptac_pool_stats(&pool, &stats);
    result->peak_live = (size_t)stats.allocated_bytes[PTAC_ALL].peak;
    result->peak_arena = (size_t)stats.arena_bytes.peak;
    result->planned = is_done ? plan_all(steps, n_steps, granule) : SIZE_MAX;
    ptac_pool_close(&pool);
    free(addresses);
    return is_done;
}
