/*
 * test_refusals.c - every call of the system fails once, and from then on, at every
 * place of a scenario.
 *
 * Whatever fails: what was written stays, the pool's structure is sound, nothing is
 * leaked, the cap is kept to, and once the system gives again, so does the pool.
 */
#include "calls.h"
#include "fixture.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

enum {
    N_SMALL = 1500, /* records beyond a slab, a table that grows twice */
    MOST_CALLS = 400,
};

#define CAP (400 * MIB)

typedef struct taken {
    void *memory;
    size_t bytes;
} taken;

static taken all[N_SMALL + 8];
static int n_taken;

/* Refused or not, the pool is sound. */
static void take(size_t bytes)
{
    void *memory = fixture_take(bytes);

    if (memory)
        all[n_taken++] = (taken){memory, bytes};
}

static void give(int i)
{
    if (i >= n_taken)
        return;
    EXPECT(fixture_give(all[i].memory, all[i].bytes));
    all[i] = all[--n_taken];
}

static void work(void)
{
    static const size_t large[] = {5, 90, 33, 1, 64, 7};
    ptac_cpu_pool_options o = fixture_options();

    o.cap = CAP;
    o.n_history = 1000;
    o.reserve_bytes = 2 * MIB;
    fixture_open(&o);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        take(large[i] * MIB);
    give(1);
    give(2);
    ptac_cpu_pool_trim();
    take(40 * MIB); /* of a free block that has holes */
    take(60 * MIB);
    for (int i = 0; i < N_SMALL; i++)
        take(65536 + (size_t)i % 7 * 64);
    for (int i = 0; i < n_taken; i += 2)
        give(i);
    o.policy = ptac_policy_find("first_fit");
    o.n_history = 10;
    fixture_open(&o);
    take(CAP); /* refused by the cap, after all has been given back */
    take(20 * MIB);
    calls_tick();
}

/* One run of the scenario; false when no call was refused any more. */
static bool was_survived(call_kind kind, int n, bool and_later)
{
    const int64_t mapped = calls_bytes_mapped();
    bool was_refused;

    calls_refuse(kind, n, and_later);
    work();
    was_refused = calls_were_refused();
    EXPECT(!fixture_trouble());
    EXPECT(fixture_stats().reserved_bytes[PTAC_ALL].peak <= (int64_t)CAP);
    calls_allow();
    EXPECT(fixture_draining() == -1 || n_taken == 0);
    EXPECT(fixture_open(NULL));
    take(3 * MIB); /* a smaller batch is served */
    EXPECT(n_taken > 0 && all[n_taken - 1].bytes == 3 * MIB);
    EXPECT(!fixture_trouble());
    if (and_later)
        calls_refuse(kind, 1, true);
    while (n_taken)
        give(n_taken / 2);
    fixture_shut();
    calls_allow();
    EXPECT(fixture_draining() == 0 && fixture_called.n_drained == 1);
    EXPECT(!calls_tick());
    ptac_history_close(&ptac_cpu_pool()->history);
    if (kind != CALL_munmap)
        EXPECT(calls_bytes_mapped() == mapped);
    return was_refused;
}

static void refuse_everywhere(call_kind kind, bool and_later)
{
    int n = 1;

    while (n < MOST_CALLS && was_survived(kind, n, and_later))
        n++;
    printf("  %s refused at %d places\n", call_name(kind), n - 1);
    EXPECT(n > 1 && n < MOST_CALLS);
}

#define REFUSED(function)                                                              \
    UNIT(function##_fails_once)                                                        \
    {                                                                                  \
        refuse_everywhere(CALL_##function, false);                                     \
    }                                                                                  \
    UNIT(function##_fails_from_then_on)                                                \
    {                                                                                  \
        refuse_everywhere(CALL_##function, true);                                      \
    }
FAILING_CALLS(REFUSED)

/* The range shrinks until the system has one, or it is said what is missing. */
UNIT(addresses_may_be_short)
{
    const size_t limits[] = {64u << 20, 259u << 20, 600u << 20, (size_t)3 << 30};

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const int64_t mapped = calls_bytes_mapped();

        calls_limit_addresses(limits[i]);

        const bool is_open = fixture_open(NULL);
        const ptac_arena *arena = is_open ? ptac_cpu_pool()->arenas[0] : NULL;

        EXPECT(is_open == (i > 0));
        EXPECT(!is_open || arena->end - arena->base < limits[i]);
        EXPECT(!is_open || fixture_give(fixture_take(MIB), MIB));
        calls_allow();
        fixture_shut();
        calls_tick();
        EXPECT(calls_bytes_mapped() == mapped);
    }
}
