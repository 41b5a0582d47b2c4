/*
 * step_plan.c - noting steps, making a plan of them, following it.
 */
#include "mem/planning/step_plan.h"

#include "mem/planning/plan.h"

#include <stdlib.h>
#include <string.h>

/* A request; frees of a request of this step, of the one before, of older ones. */
typedef enum event_kind {
    REQUEST,
    FREE_OF_STEP,
    FREE_OF_PREVIOUS,
    FREE_OF_OLDER,
} event_kind;

typedef struct ptac_step_event {
    size_t bytes;
    uint32_t n; /* which request of the step */
    uint32_t kind;
} ptac_step_event;

static bool is_alike(const ptac_step_event *a, const ptac_step_event *b)
{
    return a->bytes == b->bytes && a->n == b->n && a->kind == b->kind;
}

static void write_event(ptac_step_log *log, ptac_step_event event)
{
    if (log->n == log->n_slots) {
        const size_t n_slots = log->n_slots ? 2 * log->n_slots : 1024;
        ptac_step_event *events = NULL;

        if (n_slots <= PTAC_MAX_STEP_EVENTS)
            events = realloc(log->events, n_slots * sizeof *events);
        if (!events) {
            log->is_partial = true;
            return;
        }
        log->events = events;
        log->n_slots = n_slots;
    }
    log->events[log->n++] = event;
}

/*
 * Gives back, once, what blocks of the step before the plan had: as soon as the last of
 * them is gone, before the region has been touched much.
 */
static void settle(ptac_step_plan *plan, ptac_pool *pool)
{
    for (size_t i = plan->cursor; i < plan->last.n; i++)
        if (plan->last.events[i].kind == FREE_OF_PREVIOUS)
            return;
    ptac_pool_trim(pool);
    plan->is_settled = true;
}

/* Whether the step has done what the plan says, this event included. */
static bool follows(ptac_step_plan *plan, ptac_step_event event)
{
    if (!plan->offsets || plan->is_lost)
        return false;
    if (event.kind == FREE_OF_OLDER)
        return true; /* not planned, so of no consequence when it happens */
    while (plan->cursor < plan->last.n &&
           plan->last.events[plan->cursor].kind == FREE_OF_OLDER)
        plan->cursor++;
    if (plan->cursor < plan->last.n &&
        is_alike(&plan->last.events[plan->cursor], &event)) {
        plan->cursor++;
        return true;
    }
    plan->is_lost = true;
    return false;
}

/* Whether all that the plan knows of has come. */
static bool is_done(const ptac_step_plan *plan)
{
    for (size_t i = plan->cursor; i < plan->last.n; i++)
        if (plan->last.events[i].kind != FREE_OF_OLDER)
            return false;
    return true;
}

/* --- making a plan --------------------------------------------------------------- */

static bool are_alike(const ptac_step_log *a, const ptac_step_log *b)
{
    if (a->n != b->n || a->n == 0 || a->is_partial || b->is_partial)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!is_alike(&a->events[i], &b->events[i]))
            return false;
    return true;
}

static size_t count_requests(const ptac_step_log *log)
{
    size_t n = 0;

    for (size_t i = 0; i < log->n; i++)
        n += log->events[i].kind == REQUEST;
    return n;
}

/* Whether every event is of a request that the step has. */
static bool is_sound(const ptac_step_log *log, size_t n_requests)
{
    for (size_t i = 0; i < log->n; i++)
        if (log->events[i].kind != FREE_OF_OLDER && log->events[i].n >= n_requests)
            return false;
    return true;
}

/*
 * Lifetimes of what is freed within the step or, as gradients are, in the next one
 * before it is requested again; their number.
 */
static size_t find_lifetimes(const ptac_step_log *log, ptac_lifetime *blocks,
                             uint32_t *numbers)
{
    size_t n = 0, kept = 0;

    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == REQUEST)
            blocks[n++] = (ptac_lifetime){
                .bytes = e->bytes, .from = (uint32_t)i, .to = UINT32_MAX};
    }
    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == FREE_OF_STEP ||
            (e->kind == FREE_OF_PREVIOUS && i < blocks[e->n].from))
            blocks[e->n].to = (uint32_t)i;
    }
    for (size_t i = 0; i < n; i++) {
        if (blocks[i].to == UINT32_MAX)
            continue;
        numbers[kept] = (uint32_t)i;
        blocks[kept++] = blocks[i];
    }
    return kept;
}

/* The most bytes in use by blocks that are not planned, in the course of the step. */
static size_t most_unplanned(const ptac_step_log *log, const size_t *offsets,
                             const size_t *bytes)
{
    size_t in_use = log->in_use, most;

    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == FREE_OF_PREVIOUS && offsets[e->n] != SIZE_MAX)
            in_use -= bytes[e->n] < in_use ? bytes[e->n] : in_use;
    }
    most = in_use;
    for (size_t i = 0; i < log->n; i++) {
        const ptac_step_event *e = &log->events[i];

        if (e->kind == FREE_OF_OLDER)
            in_use -= e->bytes < in_use ? e->bytes : in_use;
        else if (e->kind == FREE_OF_PREVIOUS && offsets[e->n] == SIZE_MAX)
            in_use -= bytes[e->n] < in_use ? bytes[e->n] : in_use;
        else if (e->kind == REQUEST && offsets[e->n] == SIZE_MAX)
            in_use += bytes[e->n];
        most = in_use > most ? in_use : most;
    }
    return most;
}

/* Fills in offsets, one a request; the height of the plan, SIZE_MAX for no plan. */
static size_t make(const ptac_step_log *log, size_t granule, size_t n_requests,
                   size_t *offsets)
{
    ptac_lifetime *blocks = calloc(n_requests + 1, sizeof *blocks);
    uint32_t *numbers = calloc(n_requests + 1, sizeof *numbers);
    size_t *bytes = calloc(n_requests + 1, sizeof *bytes);
    size_t height = SIZE_MAX;

    if (blocks && numbers && bytes) {
        const size_t n = find_lifetimes(log, blocks, numbers);

        if (n <= PTAC_MAX_PLANNED)
            height = ptac_plan_place(blocks, n, granule);
        memset(offsets, 0xFF, n_requests * sizeof *offsets);
        for (size_t i = 0; i < n; i++)
            offsets[numbers[i]] = blocks[i].offset;
        for (size_t i = 0; i < log->n; i++)
            if (log->events[i].kind == REQUEST)
                bytes[log->events[i].n] = log->events[i].bytes;
        if (height != SIZE_MAX &&
            (height == 0 ||
             height + most_unplanned(log, offsets, bytes) >= log->most_extent))
            height = SIZE_MAX;
    }
    free(blocks);
    free(numbers);
    free(bytes);
    return height;
}

/* Planned blocks that live from one step into the next. */
static int64_t count_carried(const ptac_step_log *log, const size_t *offsets)
{
    int64_t n = 0;

    for (size_t i = 0; i < log->n; i++)
        n += log->events[i].kind == FREE_OF_PREVIOUS &&
             offsets[log->events[i].n] != SIZE_MAX;
    return n;
}

static void adopt(ptac_step_plan *plan, ptac_pool *pool)
{
    ptac_arena *arena = pool->arenas[0];
    const size_t n = count_requests(&plan->last);
    size_t *offsets = is_sound(&plan->last, n) ? calloc(n + 1, sizeof *offsets) : NULL;
    const size_t height =
        offsets ? make(&plan->last, arena->granule, n, offsets) : SIZE_MAX;

    if (height != SIZE_MAX) {
        ptac_pool_trim(pool); /* what steps used before the plan */
        plan->region = ptac_arena_alloc(arena, height);
    }
    if (!plan->region) {
        plan->is_refused = true;
        free(offsets);
        return;
    }
    plan->offsets = offsets;
    plan->n_carried = count_carried(&plan->last, offsets);
    plan->n_lost = 0;
    plan->is_settled = false;
}

/* --- giving it up --------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const ptac_block *x = *(ptac_block *const *)a, *y = *(ptac_block *const *)b;

    return x->address < y->address ? -1 : x->address > y->address;
}

/* Planned blocks in use become the arena's, and the rest of the region free. */
static bool dissolve(ptac_step_plan *plan, ptac_pool *pool)
{
    const size_t n_live = (size_t)plan->n_live;
    ptac_block **live = malloc(n_live * sizeof *live);
    size_t n = 0;
    bool is_done = false;

    for (size_t i = 0; live && i < pool->used.n_slots && n < n_live; i++) {
        ptac_block *block = pool->used.slots[i];

        if (block && block->flags & PTAC_BLOCK_PLANNED)
            live[n++] = block;
    }
    if (live) {
        qsort(live, n, sizeof *live, by_address);
        is_done = ptac_arena_dissolve(pool->arenas[0], plan->region, live, n);
    }
    for (size_t i = 0; is_done && i < n; i++)
        live[i]->flags &= ~(uint32_t)PTAC_BLOCK_PLANNED;
    free(live);
    return is_done;
}

static void drop(ptac_step_plan *plan, ptac_pool *pool)
{
    free(plan->offsets);
    plan->offsets = NULL;
    plan->last.n = 0;
    plan->log.is_partial = true; /* nothing was noted while there was a plan */
    if (plan->n_live == 0)
        ptac_arena_free(pool->arenas[0], plan->region);
    else if (!dissolve(plan, pool))
        return; /* the region goes with the last block in it */
    plan->n_live = 0;
    plan->region = NULL;
}

bool ptac_step_plan_give_up(ptac_step_plan *plan, ptac_pool *pool)
{
    const bool has_region = plan->region != NULL;

    if (has_region)
        drop(plan, pool);
    return has_region;
}

/* --- steps ----------------------------------------------------------------------- */

/* Whether the step that ends has left what the plan says, or nothing planned at all. */
static bool is_clean(const ptac_step_plan *plan)
{
    return plan->n_live == 0 ||
           (!plan->is_lost && plan->n_live == plan->n_carried && is_done(plan));
}

static void begin(ptac_step_plan *plan, const ptac_pool *pool)
{
    const ptac_arena *arena = pool->arenas[0];
    const size_t region = plan->region ? plan->region->bytes : 0;

    plan->is_lost = !is_clean(plan);
    plan->has_begun = true;
    plan->step++;
    plan->n_requests = 0;
    plan->cursor = 0;
    plan->log.n = 0;
    plan->log.is_partial = false;
    plan->log.most_extent = (size_t)arena->extent.current;
    plan->log.in_use =
        (size_t)(arena->extent.current - arena->free_bytes.current) - region;
}

void ptac_step_plan_boundary(ptac_step_plan *plan, ptac_pool *pool)
{
    if (!plan->is_on)
        return;
    ptac_pool_settle(pool);
    if (plan->offsets) {
        plan->n_lost = plan->is_lost ? plan->n_lost + 1 : 0;
        pool->stats.plan_misses += plan->is_lost;
        if (plan->n_lost >= PTAC_MAX_LOST_STEPS)
            drop(plan, pool);
    } else if (plan->has_begun && !plan->region) {
        const bool is_repeated = are_alike(&plan->log, &plan->last);
        const ptac_step_log log = plan->last;

        plan->last = plan->log;
        plan->log = log;
        plan->is_refused = plan->is_refused && is_repeated;
        if (is_repeated && !plan->is_refused)
            adopt(plan, pool);
    }
    begin(plan, pool);
}

static void note(ptac_step_plan *plan, const ptac_pool *pool, ptac_step_event event)
{
    const size_t extent = (size_t)pool->arenas[0]->extent.current;

    if (plan->region)
        return;
    write_event(&plan->log, event);
    if (extent > plan->log.most_extent)
        plan->log.most_extent = extent;
}

static ptac_block *take_planned(ptac_step_plan *plan, ptac_pool *pool, size_t bytes,
                                size_t rounded)
{
    ptac_block *block = ptac_record_take(&pool->records);

    if (!block)
        return NULL;
    block->address = plan->region->address + plan->offsets[plan->n_requests];
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
    const size_t granule = pool->arenas[0]->granule;
    const size_t rounded = (bytes + granule - 1) & ~(granule - 1);
    const ptac_step_event event = {.bytes = rounded, .n = plan->n_requests};
    ptac_block *block = NULL;

    if (!plan->is_on || !plan->has_begun || rounded < bytes)
        return ptac_pool_take(pool, pool->arenas[0], bytes);
    if (follows(plan, event) && plan->offsets[event.n] != SIZE_MAX)
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
    const size_t granule = pool->arenas[0]->granule;

    if (block->step && block->step == plan->step)
        return (ptac_step_event){.n = block->n, .kind = FREE_OF_STEP};
    if (block->step && block->step + 1 == plan->step)
        return (ptac_step_event){.n = block->n, .kind = FREE_OF_PREVIOUS};
    return (ptac_step_event){.bytes = (block->bytes + granule - 1) & ~(granule - 1),
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
        if (follows(plan, event) && !plan->is_settled)
            settle(plan, pool);
        note(plan, pool, event);
    }
    if (plan->region && !plan->offsets && plan->n_live == 0)
        drop(plan, pool);
}

void ptac_step_plan_switch(ptac_step_plan *plan, ptac_pool *pool, bool is_on)
{
    if (plan->is_on == is_on)
        return;
    plan->is_on = is_on;
    plan->has_begun = false;
    plan->step += 2; /* what was noted is neither of this step nor of the one before */
    plan->last.n = plan->log.n = 0;
    ptac_step_plan_give_up(plan, pool);
}

void ptac_step_plan_close(ptac_step_plan *plan, ptac_pool *pool)
{
    ptac_step_plan_give_up(plan, pool);
    free(plan->log.events);
    free(plan->last.events);
    *plan = (ptac_step_plan){0};
}
