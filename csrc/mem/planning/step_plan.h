/*
 * step_plan.h - training steps that repeat: blocks at offsets planned beforehand.
 *
 * Between two boundaries every request and every free is noted. When two steps in a
 * row were alike, the blocks that live within a step, or from one into the next, are
 * planned, and if that takes less than the engine needed, the next step follows the
 * plan: its n-th request gets the n-th offset of one region of the arena. The first
 * request or free that differs ends that for the rest of the step, and the engine
 * serves it. A plan can never hand out what is in use: as long as a step has done what
 * the plan says, nothing that overlaps is.
 *
 * Everything is called with the pool's lock held.
 */
#ifndef PTAC_MEM_PLANNING_STEP_PLAN_H
#define PTAC_MEM_PLANNING_STEP_PLAN_H

#include "mem/engine/pool.h"
#include "mem/planning/plan.h"

enum {
    PTAC_MAX_STEP_EVENTS = 1 << 18, /* steps that do more are not planned */
    PTAC_MAX_LOST_STEPS = 3,        /* in a row; then the plan is dropped */
    PTAC_MAX_PLANNED = 4096,        /* lifetimes: placing them is quadratic */
};

/* A request; frees of a request of this step, of the one before, of older ones. */
typedef struct ptac_step_event {
    size_t bytes;
    uint32_t n; /* which request of the step */
    uint32_t kind;
} ptac_step_event;

_Static_assert(sizeof(ptac_step_event) == sizeof(size_t) + 8, "compared as bytes");

typedef struct ptac_step_log {
    size_t n;
    size_t most_extent; /* of the arena, in the course of the step */
    size_t in_use;      /* bytes of blocks at its beginning */
    bool is_partial;    /* for some of its events there was no room, or no time */
    ptac_step_event events[PTAC_MAX_STEP_EVENTS];
} ptac_step_log;

/*
 * Zeroed memory is a plan that is off. Large, for static storage: the system brings in
 * what steps use of it, and nothing is allocated under the pool's lock.
 */
typedef struct ptac_step_plan {
    bool is_on;
    bool has_begun;  /* there was a boundary since it is on */
    bool is_refused; /* what was alike so far makes no plan that pays */
    bool is_lost;    /* this step has differed */
    bool is_settled; /* what was used before the plan has been given back */
    bool has_plan;   /* of the last log; its requests are blocks, which have offsets */
    uint32_t step;   /* never seen before: blocks keep theirs while planning is off */
    uint32_t n_requests;
    ptac_block *region; /* may outlive the plan, for blocks that are in use */
    size_t cursor;      /* in the events of the last log */
    int n_lost;         /* steps in a row */
    int64_t n_live;     /* planned blocks in use */
    int64_t n_carried;  /* of them at a boundary, when all goes by the plan */
    int now;            /* which of the logs is of this step */
    ptac_step_log logs[2];
    ptac_lifetime blocks[PTAC_MAX_STEP_EVENTS];
    ptac_plan_word work[(PTAC_PLAN_WORDS + 1) * PTAC_MAX_STEP_EVENTS];
} ptac_step_plan;

/* From the next boundary on steps are noted; off: they are not, and no plan is made. */
void ptac_step_plan_switch(ptac_step_plan *plan, ptac_pool *pool, bool is_on);

/* A step ends, and another begins. */
void ptac_step_plan_boundary(ptac_step_plan *plan, ptac_pool *pool);

/* A block of the pool's first arena, planned or not, or NULL. */
ptac_block *ptac_step_plan_take(ptac_step_plan *plan, ptac_pool *pool, size_t bytes);

/* A block that was parted from the pool goes back to where it belongs. */
void ptac_step_plan_give(ptac_step_plan *plan, ptac_pool *pool, ptac_block *block);

/*
 * Gives up the plan, so that its memory can be given back; another may be made of later
 * steps. Whether there was one.
 */
bool ptac_step_plan_give_up(ptac_step_plan *plan, ptac_pool *pool);

#endif
