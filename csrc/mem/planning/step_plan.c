/*
 * step_plan.c - noting steps, making a plan of them, following it.
 */
#include "mem/planning/step_plan.h"

#include <string.h>

enum event_kind {
    REQUEST,
    FREE_OF_STEP,
    FREE_OF_PREVIOUS,
    FREE_OF_OLDER,
};

static ptac_step_log *last_log(ptac_step_plan *plan)
{
    return &plan->logs[!plan->now];
}

/* Whether the plan still waits for an event of this kind, or of any other kind. */
static bool waits_for(ptac_step_plan *plan, uint32_t kind, bool is_other)
{
    const ptac_step_log *last = last_log(plan);

    for (size_t i = plan->cursor; i < last->n; i++)
        if ((last->events[i].kind == kind) != is_other)
            return true;
    return false;
}

/* Whether the step has done what the plan says, this event included. */
static bool follows(ptac_step_plan *plan, ptac_step_event event)
{
    const ptac_step_log *last = last_log(plan);

    if (!plan->has_plan || plan->is_lost)
        return false;
    if (event.kind == FREE_OF_OLDER)
        return true; /* not planned, so of no consequence when it happens */
    while (plan->cursor < last->n && last->events[plan->cursor].kind == FREE_OF_OLDER)
        plan->cursor++;
    plan->is_lost = plan->cursor == last->n ||
                    memcmp(&last->events[plan->cursor], &event, sizeof event) != 0;
    plan->cursor += !plan->is_lost;
    return !plan->is_lost;
}

static bool are_alike(const ptac_step_log *a, const ptac_step_log *b)
{
    return a->n > 0 && a->n == b->n && !a->is_partial && !b->is_partial &&
           memcmp(a->events, b->events, a->n * sizeof *a->events) == 0;
}

/*
 * A lifetime a request, to be placed where the block is freed within the step or, as
 * gradients are, in the next one before it is requested again. Their number; none where
 * that makes no plan.
 */
static size_t find_lifetimes(const ptac_step_log *log, ptac_lifetime *blocks)
{
    size_t n = 0, n_placed = 0;

    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == REQUEST)
            blocks[n++] = (ptac_lifetime){
                .bytes = e->bytes, .from = (uint32_t)i, .to = PTAC_NOT_PLACED};
    }
    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind != FREE_OF_OLDER && e->n >= n)
            return 0; /* of a request that this step does not have */
        if (e->kind == FREE_OF_STEP ||
            (e->kind == FREE_OF_PREVIOUS && i < blocks[e->n].from)) {
            blocks[e->n].to = (uint32_t)i;
            n_placed++;
        }
    }
    return n_placed <= PTAC_MAX_PLANNED ? n : 0;
}

static bool is_placed(const ptac_lifetime *blocks, const ptac_step_event *event)
{
    return event->kind != FREE_OF_OLDER && blocks[event->n].offset != SIZE_MAX;
}

static size_t less(size_t bytes, size_t freed)
{
    return freed < bytes ? bytes - freed : 0;
}

/*
 * The most bytes in use by blocks that are not planned, in the course of the step; and
 * how many planned ones live from one step into the next.
 */
static size_t most_unplanned(const ptac_step_log *log, const ptac_lifetime *blocks,
                             int64_t *n_carried)
{
    size_t in_use = log->in_use, most;

    *n_carried = 0;
    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == FREE_OF_PREVIOUS && is_placed(blocks, e)) {
            in_use = less(in_use, blocks[e->n].bytes);
            ++*n_carried;
        }
    }
    most = in_use;
    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == FREE_OF_OLDER)
            in_use = less(in_use, e->bytes);
        else if (e->kind == FREE_OF_PREVIOUS && !is_placed(blocks, e))
            in_use = less(in_use, blocks[e->n].bytes);
        else if (e->kind == REQUEST && !is_placed(blocks, e))
            in_use += e->bytes;
        most = in_use > most ? in_use : most;
    }
    return most;
}

/* Of the last log, where a plan takes less than the engine has taken. */
static void adopt(ptac_step_plan *plan, ptac_pool *pool)
{
    ptac_arena *arena = pool->arenas[0];
    const ptac_step_log *log = last_log(plan);
    const size_t n = find_lifetimes(log, plan->blocks);
    const size_t height =
        ptac_plan_place(plan->blocks, n, arena->granule, log->n, plan->work);

    if (height > 0 && height != SIZE_MAX &&
        height + most_unplanned(log, plan->blocks, &plan->n_carried) <
            log->most_extent) {
        ptac_pool_trim(pool); /* what steps used before the plan */
        plan->region = ptac_arena_alloc(arena, height);
    }
    plan->has_plan = plan->region != NULL;
    plan->is_refused = !plan->has_plan;
    plan->n_lost = 0;
    plan->is_settled = false;
}

static bool is_below(const void *a, const void *b)
{
    return ((const ptac_block *)a)->address < ((const ptac_block *)b)->address;
}

/* Planned blocks in use become the arena's, and the rest of the region free. */
static bool dissolve(ptac_step_plan *plan, ptac_pool *pool)
{
    void **live = (void **)plan->work;
    size_t n = 0;

    for (size_t i = 0; i < pool->used.n_slots; i++) {
        ptac_block *block = pool->used.slots[i];

        if (block && block->flags & PTAC_BLOCK_PLANNED)
            live[n++] = block;
    }
    ptac_sort(live, n, is_below);
    return ptac_arena_dissolve(pool->arenas[0], plan->region, live, n);
}

bool ptac_step_plan_give_up(ptac_step_plan *plan, ptac_pool *pool)
{
    if (!plan->region)
        return false;
    plan->has_plan = false;
    last_log(plan)->n = 0;
    plan->logs[plan->now].is_partial = true; /* nothing was noted while there was one */
    if (plan->n_live == 0)
        ptac_arena_free(pool->arenas[0], plan->region);
    else if (!dissolve(plan, pool))
        return true; /* the region goes with the last block in it */
    plan->n_live = 0;
    plan->region = NULL;
    ptac_pool_check(pool);
    return true;
}

static void begin(ptac_step_plan *plan, const ptac_pool *pool)
{
    const ptac_arena *arena = pool->arenas[0];
    const size_t region = plan->region ? plan->region->bytes : 0;
    ptac_step_log *log = &plan->logs[plan->now];

    /* It begins as the plan says, or with nothing planned at all. */
    plan->is_lost =
        plan->n_live > 0 && (plan->is_lost || plan->n_live != plan->n_carried ||
                             waits_for(plan, FREE_OF_OLDER, true));
    plan->has_begun = true;
    plan->step++;
    plan->n_requests = 0;
    plan->cursor = 0;
    log->n = 0;
    log->is_partial = false;
    log->most_extent = (size_t)arena->extent.current;
    log->in_use = (size_t)(arena->extent.current - arena->free_bytes.current) - region;
}

void ptac_step_plan_boundary(ptac_step_plan *plan, ptac_pool *pool)
{
    if (!plan->is_on)
        return;
    ptac_pool_settle(pool);
    ptac_pool_check(pool);
    if (plan->has_plan) {
        plan->n_lost = plan->is_lost ? plan->n_lost + 1 : 0;
        pool->stats.plan_misses += plan->is_lost;
        if (plan->n_lost >= PTAC_MAX_LOST_STEPS)
            ptac_step_plan_give_up(plan, pool);
    } else if (plan->has_begun && !plan->region) {
        const bool is_repeated = are_alike(&plan->logs[0], &plan->logs[1]);

        plan->now = !plan->now;
        plan->is_refused = plan->is_refused && is_repeated;
        if (is_repeated && !plan->is_refused)
            adopt(plan, pool);
    }
    begin(plan, pool);
}

static void note(ptac_step_plan *plan, const ptac_pool *pool, ptac_step_event event)
{
    const size_t extent = (size_t)pool->arenas[0]->extent.current;
    ptac_step_log *log = &plan->logs[plan->now];

    if (plan->region)
        return;
    if (log->n < PTAC_MAX_STEP_EVENTS)
        log->events[log->n++] = event;
    else
        log->is_partial = true;
    if (extent > log->most_extent)
        log->most_extent = extent;
}

static ptac_block *take_planned(ptac_step_plan *plan, ptac_pool *pool, size_t bytes,
                                size_t rounded)
{
    ptac_block *block = ptac_record_take(&pool->records);

    if (!block)
        return NULL;
    block->address = plan->region->address + plan->blocks[plan->n_requests].offset;
    block->bytes = rounded;
    block->flags = PTAC_BLOCK_PLANNED;
    if (!ptac_pool_enter(pool, block, bytes)) {
        ptac_record_give(&pool->records, block);
        return NULL;
    }
    ptac_arena_note_visit(pool->arenas[0], block);
    plan->n_live++;
    pool->stats.plan_hits++;
    return block;
}

ptac_block *ptac_step_plan_take(ptac_step_plan *plan, ptac_pool *pool, size_t bytes)
{
    const size_t rounded = ptac_round_up(bytes, pool->arenas[0]->granule);
    const ptac_step_event event = {.bytes = rounded, .n = plan->n_requests};
    ptac_block *block = NULL;

    if (!plan->is_on || !plan->has_begun || rounded < bytes)
        return ptac_pool_take(pool, pool->arenas[0], bytes);
    if (follows(plan, event) && is_placed(plan->blocks, &event))
        block = take_planned(plan, pool, bytes, rounded);
    if (!block) {
        block = ptac_pool_take(pool, pool->arenas[0], bytes);
        if (!block)
            return NULL;
    }
    block->step = plan->step;
    block->n = plan->n_requests++;
    note(plan, pool, event);
    return block;
}

static ptac_step_event free_event(const ptac_step_plan *plan, const ptac_pool *pool,
                                  const ptac_block *block)
{
    if (block->step && block->step == plan->step)
        return (ptac_step_event){.n = block->n, .kind = FREE_OF_STEP};
    if (block->step && block->step + 1 == plan->step)
        return (ptac_step_event){.n = block->n, .kind = FREE_OF_PREVIOUS};
    return (ptac_step_event){.bytes =
                                 ptac_round_up(block->bytes, pool->arenas[0]->granule),
                             .kind = FREE_OF_OLDER};
}

void ptac_step_plan_give(ptac_step_plan *plan, ptac_pool *pool, ptac_block *block)
{
    const ptac_step_event event = free_event(plan, pool, block);

    if (block->flags & PTAC_BLOCK_PLANNED) {
        plan->n_live--;
        ptac_pool_leave(pool, block);
        ptac_record_give(&pool->records, block);
    } else {
        ptac_pool_give(pool, block);
    }
    if (plan->is_on && plan->has_begun) {
        /*
         * What blocks of the step before the plan had goes back once, as soon as the
         * last of them is gone, before the region has been touched much.
         */
        if (follows(plan, event) && !plan->is_settled &&
            !waits_for(plan, FREE_OF_PREVIOUS, false)) {
            ptac_pool_trim(pool);
            plan->is_settled = true;
        }
        note(plan, pool, event);
    }
    if (plan->region && !plan->has_plan && plan->n_live == 0)
        ptac_step_plan_give_up(plan, pool);
}

void ptac_step_plan_switch(ptac_step_plan *plan, ptac_pool *pool, bool is_on)
{
    if (plan->is_on == is_on)
        return;
    plan->is_on = is_on;
    plan->has_begun = false;
    plan->step += 2; /* what was noted is neither of this step nor of the one before */
    plan->logs[0].n = plan->logs[1].n = 0;
    ptac_step_plan_give_up(plan, pool);
}
