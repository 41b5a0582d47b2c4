/*
 * replay.h - what a sequence of requests would have taken, without any memory.
 *
 * For recorded traces: the same engine on a source that only invents addresses, and the
 * planner's placement beside it. benchmarks/memory/replay.py calls it too.
 */
#ifndef PTAC_TESTS_MEMORY_REPLAY_H
#define PTAC_TESTS_MEMORY_REPLAY_H

#include "mem/engine/policy.h"

#include <stdint.h>

/* bytes > 0: a request, numbered from 0 on; bytes == 0: request n is freed. */
typedef struct ptac_trace_step {
    size_t bytes;
    size_t n;
} ptac_trace_step;

typedef struct ptac_replay_result {
    size_t peak_live;  /* bytes of requests, rounded to the granule */
    size_t peak_arena; /* from the base to the top */
    size_t planned;    /* the same if all offsets were planned beforehand */
} ptac_replay_result;

/* False when there is no memory for it, or a step frees what is not in use. */
bool ptac_replay(const ptac_policy *policy, size_t granule, size_t least_bytes,
                 const ptac_trace_step *steps, size_t n_steps,
                 ptac_replay_result *result);

#endif
