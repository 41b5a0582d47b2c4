/*
 * checked_source.h - a source that keeps its own record of what is held, and may say
 * no.
 *
 * Behind it is the CPU's source, or nothing: then addresses are invented.
 */
#ifndef PTAC_TESTS_CHECKED_SOURCE_H
#define PTAC_TESTS_CHECKED_SOURCE_H

#include "random.h"

#include "mem/cpu/source_cpu.h"
#include "mem/engine/stats.h"

typedef struct checked_source {
    ptac_source source;
    ptac_source_cpu cpu;
    int number;
    bool is_real; /* memory is behind the addresses */
    rng *refuser;
    int refused_percent; /* of commits and releases */
    bool was_refused;    /* since this was last cleared */
    uintptr_t base;
    size_t bytes;
    uint8_t *is_held; /* a byte a chunk */
    uint8_t *is_huge; /* likewise */
    ptac_stat held;
    ptac_stat *all_held;     /* of several sources */
    int64_t n_huge, n_small; /* times that huge pages were wanted, and no more */
    const char *trouble;     /* what the engine did that it may not */
} checked_source;

void checked_source_init(checked_source *w, int number, bool is_real, rng *refuser,
                         ptac_stat *all_held);

#endif
