/*
 * test_reclaim_thread.c - what happens once a second, second by second.
 */
#include "calls.h"
#include "fixture.h"
#include "files.h"
#include "unit.h"

#include <string.h>

static int64_t purged(void)
{
    return fixture_stats().purged_bytes;
}

/* Give back what is used; the reclaimer of a closed pool ends at its next look. */
static void end_pool(void *used)
{
    EXPECT(!used || fixture_give(used, MIB));
    fixture_shut();
    EXPECT(fixture_draining() == 0);
    EXPECT(!calls_tick());
    EXPECT(calls_n_threads() == 0);
}

UNIT(idle_memory_is_given_back_once)
{
    ptac_cpu_pool_options o = fixture_options();

    o.idle_s = 3;
    EXPECT(fixture_open(&o));
    EXPECT(calls_n_threads() == 1);

    void *one = fixture_take(MIB), *two = fixture_take(MIB);

    for (int i = 0; i < 10; i++) /* idle, but everything is used */
        EXPECT(calls_tick());
    EXPECT(fixture_give(one, MIB)); /* a use as well */
    for (int i = 0; i < 3; i++)
        EXPECT(calls_tick() && purged() == 0);
    EXPECT(calls_tick() && purged() >= (int64_t)MIB - 65536);

    const int64_t once = purged();

    for (int i = 0; i < 10; i++)
        EXPECT(calls_tick() && purged() == once);
    EXPECT(fixture_give(fixture_take(MIB), MIB));
    for (int i = 0; i < 3; i++)
        EXPECT(calls_tick() && purged() == once);
    EXPECT(calls_tick() && purged() > once);
    end_pool(two);
}

UNIT(idle_memory_stays_when_asked_to)
{
    EXPECT(fixture_open(NULL));

    void *one = fixture_take(MIB), *two = fixture_take(MIB);

    EXPECT(fixture_give(one, MIB));
    for (int i = 0; i < 100; i++)
        EXPECT(calls_tick() && purged() == 0);
    end_pool(two);
}

UNIT(a_new_idle_time_counts_from_now)
{
    ptac_cpu_pool_options o = fixture_options();

    o.idle_s = 100;
    EXPECT(fixture_open(&o));

    void *one = fixture_take(MIB), *two = fixture_take(MIB);

    EXPECT(fixture_give(one, MIB));
    for (int i = 0; i < 50; i++)
        EXPECT(calls_tick());
    o.idle_s = 5;
    EXPECT(fixture_open(&o));
    for (int i = 0; i < 4; i++)
        EXPECT(calls_tick() && purged() == 0);
    EXPECT(calls_tick() && purged() > 0);
    end_pool(two);
}

UNIT(a_machine_short_of_memory_gets_it_back)
{
    EXPECT(fixture_open(NULL));

    void *one = fixture_take(MIB), *two = fixture_take(MIB);

    EXPECT(fixture_give(one, MIB));
    EXPECT(files_begin());
    files_write("/proc/self/cgroup", "0::/\n");
    files_write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 60 kB\n");
    EXPECT(calls_tick() && purged() == 0);
    files_write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 40 kB\n");
    EXPECT(calls_tick() && purged() > 0);

    const int64_t once = purged();

    EXPECT(fixture_give(fixture_take(MIB), MIB));
    for (int i = 0; i < 9; i++) /* not again at once */
        EXPECT(calls_tick() && purged() == once);
    EXPECT(calls_tick() && purged() > once);
    files_end();
    end_pool(two);
}

UNIT(huge_pages_where_memory_is_held)
{
    EXPECT(fixture_open(NULL));
    for (int i = 0; i < 49; i++)
        EXPECT(fixture_give(fixture_take(4 * MIB), 4 * MIB));
    EXPECT(calls_tick() && fixture_stats().huge_bytes == 0);

    void *kept = fixture_take(4 * MIB);

    EXPECT(calls_tick() && fixture_stats().huge_bytes == 0); /* nobody has touched it */
    memset(kept, 1, 4 * MIB - 4096);
    calls_refuse(CALL_madvise, 1, true);
    EXPECT(calls_tick() && fixture_stats().huge_bytes == 0);
    calls_allow();
    EXPECT(calls_tick());

    const bool is_possible = fixture_stats().huge_bytes != 0;

    if (!is_possible)
        unit_skip("this kernel has no transparent huge pages");
    EXPECT(!is_possible || fixture_stats().huge_bytes == (int64_t)(4 * MIB));
    EXPECT(calls_made(CALL_madvise) <= 2);
    EXPECT(calls_tick());
    EXPECT(!is_possible || calls_made(CALL_madvise) == 2);
    EXPECT(ptac_cpu_pool_free(kept)); /* without its marks */
    end_pool(NULL);
}

/* A thread's stack may come from the heap, and takes microseconds in any case. */
UNIT(a_reclaimer_is_started_without_the_lock)
{
    const int n_before = calls_under_lock();

    EXPECT(fixture_open(NULL));
    EXPECT(calls_n_threads() == 1 && calls_under_lock() == n_before);
    end_pool(NULL);
}

UNIT(a_pool_lives_without_reclaimer)
{
    calls_refuse(CALL_pthread_create, 1, false);
    EXPECT(fixture_open(NULL));
    EXPECT(calls_were_refused() && calls_n_threads() == 0);
    calls_allow();
    EXPECT(fixture_give(fixture_take(MIB), MIB));
    EXPECT(fixture_open(NULL)); /* it is tried again */
    EXPECT(calls_n_threads() == 1);
    end_pool(NULL);
}

UNIT(a_reclaimer_outlives_a_moment_off)
{
    EXPECT(fixture_open(NULL));
    fixture_shut();
    EXPECT(fixture_open(NULL));
    EXPECT(calls_n_threads() == 1);
    EXPECT(calls_tick());
    end_pool(NULL);
    EXPECT(fixture_open(NULL));
    EXPECT(calls_n_threads() == 1 && calls_tick());
    end_pool(NULL);
}
