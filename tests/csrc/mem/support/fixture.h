/*
 * fixture.h - the CPU pool as tests use it: callbacks that count, blocks with marks.
 */
#ifndef PTAC_TESTS_MEMORY_FIXTURE_H
#define PTAC_TESTS_MEMORY_FIXTURE_H

#include "mem/cpu/cpu_pool.h"

#define MIB ((size_t)1 << 20)

/* What has been called since fixture_open() took the pool from closed to on. */
typedef struct fixture_calls {
    int n_installed, n_removed, n_drained;
} fixture_calls;

extern fixture_calls fixture_called;
extern bool fixture_refuses_install;

/* No cap, nothing reserved, no history, idle memory is kept, exact_fit. */
ptac_cpu_pool_options fixture_options(void);

/* With these, or NULL for the above; true when the pool is on. */
bool fixture_open(const ptac_cpu_pool_options *options);
void fixture_shut(void);
/* Blocks in use while it is draining; -1 when it is on, 0 when it is off. */
int64_t fixture_draining(void);

/* A block with marks at its ends and in between, or NULL. */
void *fixture_take(size_t bytes);
/* Whether the marks were there still and the pool took it back. */
bool fixture_give(void *memory, size_t bytes);

ptac_mem_stats fixture_stats(void);
/* NULL, or what is wrong with the pool (invariants.h). */
const char *fixture_trouble(void);

/* Resident bytes of this process. */
size_t fixture_rss(void);

#endif
