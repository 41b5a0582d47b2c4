/*
 * reference_model.h - a plain model of a pool beside the real one, which has to agree
 * with it.
 *
 * Every operation goes to both. The model keeps a list of what is in use, writes and
 * reads marks in real memory, and counts every statistic anew in the simplest way.
 */
#ifndef PTAC_TESTS_MEMORY_SHADOW_H
#define PTAC_TESTS_MEMORY_SHADOW_H

#include "checked_source.h"

#include "mem/engine/pool.h"

enum {
    SHADOW_MAX_ARENAS = 3,
    SHADOW_MAX_LIVE = 4096,
};

typedef struct shadow_block {
    ptac_block *block;
    uint64_t mark;
    size_t where; /* the second mark's offset */
} shadow_block;

typedef struct shadow_arena {
    watched source;
    ptac_stat extent, n_free, free_bytes;
} shadow_arena;

/* How often the interesting things have happened. */
#define SHADOW_COUNTS(X)                                                               \
    X(cuts)                                                                            \
    X(exact)                                                                           \
    X(spares)                                                                          \
    X(growths)                                                                         \
    X(merges)                                                                          \
    X(folds)                                                                           \
    X(refusals)                                                                        \
    X(ooms)                                                                            \
    X(caps)                                                                            \
    X(released)                                                                        \
    X(huge)                                                                            \
    X(small)

typedef struct shadow {
    ptac_pool pool;
    rng r;
    int n_arenas;
    shadow_arena arenas[SHADOW_MAX_ARENAS];
    ptac_mem_stats stats; /* as they should be, but for what arenas keep */
    ptac_stat all_held;
    shadow_block live[SHADOW_MAX_LIVE];
    int n_live;
    ptac_block *parted[SHADOW_MAX_LIVE]; /* freed, and still active */
    int n_parted;
#define X(what) int64_t n_##what;
    SHADOW_COUNTS(X)
#undef X
    const char *trouble; /* the first thing that was wrong */
} shadow;

void shadow_alloc(shadow *s, int arena, size_t bytes);
/* The i-th block in use. */
void shadow_free(shadow *s, int i);
/* The i-th block that is active only because of a stream. */
void shadow_give(shadow *s, int i);
void shadow_trim(shadow *s);
void shadow_reset_peaks(shadow *s);

/* All marks, all statistics, all of invariants.h. */
void shadow_check(shadow *s);
void shadow_wrong(shadow *s, const char *what);

#endif
