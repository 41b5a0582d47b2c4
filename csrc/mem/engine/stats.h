/*
 * stats.h - what a pool has done, in the terms of torch.cuda.memory_stats.
 *
 * Written under the pool's lock. "freed" is not kept: it is allocated - current.
 */
#ifndef PTAC_MEM_ENGINE_STATS_H
#define PTAC_MEM_ENGINE_STATS_H

#include <stdint.h>

typedef struct ptac_stat {
    int64_t current, peak, allocated;
} ptac_stat;

/* Blocks of up to a MiB are the small pool's, as in torch. */
enum {
    PTAC_ALL,
    PTAC_LARGE,
    PTAC_SMALL,
    PTAC_N_CLASSES,
    PTAC_SMALL_BYTES = 1 << 20,
};

/* X(name): counted for each class of sizes. */
#define PTAC_CLASS_STATS(X)                                                            \
    X(allocation)                                                                      \
    X(segment)                                                                         \
    X(active)                                                                          \
    X(inactive_split)                                                                  \
    X(allocated_bytes)                                                                 \
    X(reserved_bytes)                                                                  \
    X(active_bytes)                                                                    \
    X(inactive_split_bytes)                                                            \
    X(requested_bytes)

/* X(name): since the pool was opened. */
#define PTAC_PLAIN_STATS(X)                                                            \
    X(num_alloc_retries)                                                               \
    X(num_ooms)                                                                        \
    X(num_sync_all_streams)                                                            \
    X(num_device_alloc)                                                                \
    X(num_device_free)

/* The same, of our own: torch has none of these. */
#define PTAC_OWN_STATS(X)                                                              \
    X(purged_bytes)                                                                    \
    X(huge_bytes)                                                                      \
    X(plan_hits)                                                                       \
    X(plan_misses)                                                                     \
    X(stream_steals)

typedef struct ptac_mem_stats {
#define X(name) ptac_stat name[PTAC_N_CLASSES];
    PTAC_CLASS_STATS(X)
#undef X
#define X(name) int64_t name;
    PTAC_PLAIN_STATS(X)
    PTAC_OWN_STATS(X)
#undef X
    ptac_stat arena_bytes; /* from the base of each arena to its top */
} ptac_mem_stats;

static inline void ptac_stat_add(ptac_stat *stat, int64_t n)
{
    stat->current += n;
    stat->allocated += n;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

static inline void ptac_stat_sub(ptac_stat *stat, int64_t n)
{
    stat->current -= n;
}

/*
 * The same for a stat of each class. Of PTAC_ALL only the peak is kept: the rest is the
 * sum of the classes, which readers add up.
 */
static inline void ptac_class_add(ptac_stat *stats, int class, int64_t n)
{
    const int64_t both = stats[PTAC_LARGE].current + stats[PTAC_SMALL].current + n;

    ptac_stat_add(&stats[class], n);
    if (both > stats[PTAC_ALL].peak)
        stats[PTAC_ALL].peak = both;
}

static inline void ptac_class_sum(ptac_stat *stats)
{
    stats[PTAC_ALL].current = stats[PTAC_LARGE].current + stats[PTAC_SMALL].current;
    stats[PTAC_ALL].allocated =
        stats[PTAC_LARGE].allocated + stats[PTAC_SMALL].allocated;
}

static inline void ptac_stat_merge(ptac_stat *sum, const ptac_stat *stat)
{
    sum->current += stat->current;
    sum->peak += stat->peak;
    sum->allocated += stat->allocated;
}

#endif
