/*
 * fixture.c - opening, shutting, marking.
 */
#include "fixture.h"

#include "calls.h"
#include "invariants.h"

#include <stdio.h>
#include <unistd.h>

fixture_calls fixture_called;
bool fixture_refuses_install;

/* No test waits for a second to pass. */
__attribute__((constructor)) static void stop_clock(void)
{
    calls_stop_clock();
}

static bool install(ptac_cpu_state before)
{
    (void)before;
    fixture_called.n_installed++;
    return !fixture_refuses_install;
}

static void remove_requests(void)
{
    fixture_called.n_removed++;
}

static void drained(void)
{
    fixture_called.n_drained++;
}

ptac_cpu_pool_options fixture_options(void)
{
    return (ptac_cpu_pool_options){
        .policy = ptac_policy_find("exact_fit"), .cap = SIZE_MAX, .idle_s = -1};
}

int64_t fixture_draining(void)
{
    int64_t n;

    return ptac_cpu_pool_state(&n) == PTAC_CPU_ON ? -1 : n;
}

bool fixture_open(const ptac_cpu_pool_options *options)
{
    const ptac_cpu_pool_options plain = fixture_options();

    if (fixture_draining() == 0)
        fixture_called = (fixture_calls){0};
    return ptac_cpu_pool_open(options ? options : &plain, install) == NULL;
}

void fixture_shut(void)
{
    ptac_cpu_pool_shut(remove_requests, drained);
}

static const size_t places = 5;

static uint64_t *place(void *memory, size_t bytes, size_t i)
{
    return (uint64_t *)((char *)memory + (bytes - 8) / 8 * i / (places - 1) * 8);
}

void *fixture_take(size_t bytes)
{
    bool is_refused;
    void *memory = ptac_cpu_pool_alloc(bytes, &is_refused);

    for (size_t i = 0; memory && i < places; i++)
        *place(memory, bytes, i) = (uintptr_t)memory * 31 + i;
    return memory;
}

bool fixture_give(void *memory, size_t bytes)
{
    for (size_t i = 0; i < places; i++)
        if (*place(memory, bytes, i) != (uintptr_t)memory * 31 + i)
            return false;
    return ptac_cpu_pool_owns(memory) && ptac_cpu_pool_free(memory);
}

ptac_mem_stats fixture_stats(void)
{
    ptac_mem_stats stats;

    ptac_pool_stats(ptac_cpu_pool(), &stats);
    return stats;
}

const char *fixture_trouble(void)
{
    ptac_pool *pool = ptac_cpu_pool();
    const char *trouble;

    ptac_lock_take(&pool->lock);
    trouble = walk_pool(pool);
    ptac_lock_give(&pool->lock);
    return trouble;
}

size_t fixture_rss(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;

    if (file) {
        if (fscanf(file, "%*u %lu", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}
