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

typedef struct model_block {
    ptac_block *block;
    uint64_t mark;
    size_t where; /* the second mark's offset */
} model_block;

typedef struct model_arena {
    checked_source source;
    ptac_stat extent, n_free, free_bytes;
} model_arena;

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

typedef struct reference_model {
    ptac_pool pool;
    rng r;
    int n_arenas;
    model_arena arenas[SHADOW_MAX_ARENAS];
    ptac_mem_stats stats; /* as they should be, but for what arenas keep */
    ptac_stat all_held;
    model_block live[SHADOW_MAX_LIVE];
    int n_live;
    ptac_block *parted[SHADOW_MAX_LIVE]; /* freed, and still active */
    int n_parted;
#define X(what) int64_t n_##what;
    SHADOW_COUNTS(X)
#undef X
    const char *trouble; /* the first thing that was wrong */
} reference_model;

void model_alloc(reference_model *s, int arena, size_t bytes);
/* The i-th block in use. */
void model_free(reference_model *s, int i);
/* The i-th block that is active only because of a stream. */
void model_give(reference_model *s, int i);
void model_trim(reference_model *s);
void model_reset_peaks(reference_model *s);

/* All marks, all statistics, all of invariants.h. */
void model_check(reference_model *s);
void model_wrong(reference_model *s, const char *what);

#endif
