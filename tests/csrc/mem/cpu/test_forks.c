/*
 * test_forks.c - children in the middle of other threads' work; limits and end of a
 * process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "calls.h"
#include "fixture.h"
#include "mem/cpu/memory_limits.h"
#include "random.h"
#include "sanitizers.h"
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    N_THREADS = 8,
    N_FORKS = 60,
    N_KEPT = 6,
};

static bool stop;

static size_t any_bytes(rng *r)
{
    return (size_t)rng_between(r, 65536, rng_chance(r, 10) ? 8 << 20 : 300000);
}

static void *take_and_give(void *which)
{
    rng r = {(uint64_t)(intptr_t)which};
    void *kept[N_KEPT] = {0};
    size_t bytes[N_KEPT];

    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        const int64_t i = rng_below(&r, N_KEPT);

        EXPECT(!kept[i] || fixture_give(kept[i], bytes[i]));
        bytes[i] = any_bytes(&r);
        kept[i] = fixture_take(bytes[i]);
        if (rng_chance(&r, 1))
            ptac_cpu_pool_trim();
    }
    for (int i = 0; i < N_KEPT; i++)
        EXPECT(!kept[i] || fixture_give(kept[i], bytes[i]));
    return NULL;
}

static void *inherited;

/* The child frees what the parent had, and lives on. */
static bool works_in_child(void)
{
    rng r = {7};

#if defined(UNDER_ADDRESS_SANITIZER)
    /*
     * No reclaimer: the sanitizer's allocator, which a new thread asks, may have been
     * locked by another thread when the child was born (gcc 12).
     */
    calls_refuse(CALL_pthread_create, 1, true);
#endif
    EXPECT(!fixture_trouble());
    EXPECT(fixture_give(inherited, MIB));
    EXPECT(calls_n_threads() == 0);
    for (int i = 0; i < 50; i++) {
        const size_t bytes = any_bytes(&r);
        void *memory = fixture_take(bytes);

        EXPECT(memory && fixture_give(memory, bytes));
    }
    ptac_cpu_pool_trim();
#if !defined(UNDER_ADDRESS_SANITIZER)
    EXPECT(calls_n_threads() == 1 && calls_tick()); /* a reclaimer of its own */
    EXPECT(fixture_open(NULL));
    EXPECT(calls_n_threads() == 1);
#endif
    EXPECT(!fixture_trouble());
    return true;
}

UNIT(children_are_born_in_the_middle_of_requests)
{
    pthread_t threads[N_THREADS];

#if defined(UNDER_THREAD_SANITIZER)
    unit_skip("ThreadSanitizer ends children that start threads");
    return;
#endif
    EXPECT(fixture_open(NULL));
    inherited = fixture_take(MIB);
    __atomic_store_n(&stop, false, __ATOMIC_RELAXED);
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(!pthread_create(&threads[i], NULL, take_and_give, (void *)(intptr_t)i));
    for (int i = 0; i < N_FORKS; i++)
        EXPECT(unit_in_child(works_in_child));
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT(fixture_give(inherited, MIB));
    EXPECT(!fixture_trouble());
    fixture_shut();
    EXPECT(fixture_draining() == 0);
}

static bool has_reclaimer_after_asking(void)
{
    EXPECT(calls_n_threads() == 0);
    EXPECT(fixture_give(fixture_take(MIB), MIB));
    EXPECT(calls_n_threads() == 1);
    return true;
}

/* Its parent, a child too, never asked for memory. */
static bool has_child(void)
{
    EXPECT(unit_in_child(has_reclaimer_after_asking));
    return true;
}

UNIT(a_child_of_a_child_has_a_reclaimer)
{
#if defined(UNDER_THREAD_SANITIZER)
    unit_skip("ThreadSanitizer ends children that start threads");
    return;
#endif
    EXPECT(fixture_open(NULL));
    EXPECT(unit_in_child(has_child));
    fixture_shut();
}

/* A worker that only exits must not wait for, or free, what it has inherited. */
static bool drains_in_child(void)
{
    fixture_shut();
    return fixture_draining() == 1 && fixture_give(inherited, MIB) &&
           fixture_draining() == 0 && fixture_called.n_drained == 1;
}

UNIT(a_child_may_switch_off_alone)
{
    EXPECT(fixture_open(NULL));
    inherited = fixture_take(MIB);
    EXPECT(unit_in_child(drains_in_child));
    EXPECT(fixture_draining() == -1 && fixture_called.n_removed == 0);
    EXPECT(fixture_give(inherited, MIB));
    fixture_shut();
}

static bool exits_with_blocks(void)
{
    if (!fixture_open(NULL))
        return false;
    for (int i = 0; i < 10; i++)
        if (!fixture_take(MIB))
            return false;
    exit(0);
}

UNIT(a_process_may_end_with_blocks_in_use)
{
    EXPECT(unit_in_child(exits_with_blocks));
}

#if !defined(UNDER_ADDRESS_SANITIZER) && !defined(UNDER_THREAD_SANITIZER)
static size_t addresses_used(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file && fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static bool limit_addresses(size_t more)
{
    const struct rlimit limit = {addresses_used() + more, RLIM_INFINITY};

    return setrlimit(RLIMIT_AS, &limit) == 0;
}

static bool opens_within_a_limit(void)
{
    const ptac_arena *arena;

    if (!limit_addresses((size_t)2 << 30) || !fixture_open(NULL))
        return false;
    arena = ptac_cpu_pool()->arenas[0];
    /* Half is left to the others. */
    return arena->end - arena->base <= (size_t)1 << 30 &&
           fixture_give(fixture_take(100 * MIB), 100 * MIB) &&
           !fixture_take(2048 * MIB);
}

static bool yes(ptac_cpu_state before)
{
    (void)before;
    return true;
}

static bool says_why_not(void)
{
    const ptac_cpu_pool_options o = fixture_options();

    return limit_addresses(100 * MIB) && ptac_cpu_pool_open(&o, yes) != NULL &&
           fixture_draining() == 0;
}

/* No more than 150 MiB of data: what is refused is refused, the rest is served. */
static bool serves_within_a_limit_of_data(void)
{
    const struct rlimit limit = {150 * MIB, RLIM_INFINITY};
    void *half;

    if (!fixture_open(NULL) || setrlimit(RLIMIT_DATA, &limit) != 0)
        return false;
    half = fixture_take(80 * MIB);
    return half && !fixture_take(80 * MIB) && fixture_give(half, 80 * MIB) &&
           fixture_take(90 * MIB) && !fixture_trouble();
}

UNIT(limits_of_the_process_are_kept)
{
    EXPECT(fixture_draining() == 0);
    EXPECT(unit_in_child(opens_within_a_limit));
    EXPECT(unit_in_child(says_why_not));
    EXPECT(unit_in_child(serves_within_a_limit_of_data));
}
#endif

/*
 * PTAC_TEST_CGROUP names a memory control group that somebody made for this, with a
 * limit of 64 MiB to 1 GiB, and that this process may join.
 */
static bool gives_back_in_its_group(void)
{
    const char *group = getenv("PTAC_TEST_CGROUP");
    ptac_cpu_pool_options o = fixture_options();
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    file = fopen(path, "we");
    if (!file || fprintf(file, "%d\n", (int)getpid()) < 0 || fclose(file) != 0)
        return false;

    const size_t limit = ptac_cgroup_limit();

    o.reserve_bytes = limit - limit / 40;
    return limit <= 1024 * MIB && fixture_open(&o) && ptac_memory_is_short() &&
           calls_tick() && fixture_stats().purged_bytes > 0 && !ptac_memory_is_short();
}

UNIT(a_control_group_short_of_memory_gets_it_back)
{
    if (!getenv("PTAC_TEST_CGROUP")) {
        unit_skip("PTAC_TEST_CGROUP names no group");
        return;
    }
    EXPECT(unit_in_child(gives_back_in_its_group));
}
