/*
 * test_threads.c - the lock, and the CPU pool while eight threads use and switch it.
 *
 * Meant for ThreadSanitizer as well, so nothing here forks.
 */
#include "calls.h"
#include "fixture.h"
#include "random.h"
#include "sanitizers.h"
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum {
    N_THREADS = 8,
#if defined(UNDER_THREAD_SANITIZER)
    N_ROUNDS = 3000,
#else
    N_ROUNDS = 20000,
#endif
    N_SHELVES = 64,
};

static void run_all(void *(*body)(void *))
{
    pthread_t threads[N_THREADS];

    for (intptr_t i = 0; i < N_THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
}

/* --- the lock ------------------------------------------------------------------ */

static ptac_lock lock;
static int64_t guarded, owner;

static void *count(void *which)
{
    const int64_t self = (intptr_t)which + 1;
    rng r = {(uint64_t)self};

    errno = 77;
    for (int i = 0; i < N_ROUNDS; i++) {
        ptac_lock_take(&lock);
        EXPECT(owner == 0);
        owner = self;
        guarded++;
        if (rng_chance(&r, 2)) /* so long that the others go to sleep */
            sched_yield();
        EXPECT(owner == self);
        owner = 0;
        ptac_lock_give(&lock);
    }
    EXPECT(errno == 77);
    return NULL;
}

UNIT(one_thread_at_a_time_has_the_lock)
{
    guarded = 0;
    run_all(count);
    EXPECT(guarded == (int64_t)N_THREADS * N_ROUNDS);
    EXPECT(lock.word == 0);
}

/* Who takes the lock while others sleep leaves their mark, so that they are woken. */
UNIT(the_mark_of_those_who_wait_stays)
{
    lock.word = 2;
    EXPECT(!ptac_lock_try(&lock));
    EXPECT(lock.word == 2);
    ptac_lock_give(&lock);
    EXPECT(lock.word == 0 && ptac_lock_try(&lock) && lock.word == 1);
    ptac_lock_give(&lock);
}

/* --- the pool ------------------------------------------------------------------ */

typedef struct parcel {
    void *memory;
    size_t bytes;
    bool is_pooled;
} parcel;

static parcel *shelves[N_SHELVES]; /* what one thread leaves, another takes */
static int n_busy;

static parcel *make(rng *r)
{
    parcel *p = malloc(sizeof *p);

    p->bytes = (size_t)rng_between(r, 65536, rng_chance(r, 5) ? 4 << 20 : 200000);
    p->memory = fixture_take(p->bytes);
    p->is_pooled = p->memory != NULL;
    if (!p->memory) /* off for the moment: the others serve it */
        p->memory = malloc(p->bytes);
    return p;
}

static void unmake(parcel *p)
{
    if (!p)
        return;
    EXPECT(ptac_cpu_pool_owns(p->memory) == p->is_pooled);
    if (p->is_pooled)
        EXPECT(fixture_give(p->memory, p->bytes));
    else
        free(p->memory);
    free(p);
}

static void exchange(rng *r, parcel *p)
{
    unmake(__atomic_exchange_n(&shelves[rng_below(r, N_SHELVES)], p, __ATOMIC_ACQ_REL));
}

static void look(rng *r)
{
    ptac_mem_stats stats;

    switch (rng_below(r, 4)) {
    case 0:
        ptac_cpu_pool_trim();
        break;
    case 1:
        ptac_pool_reset_peaks(ptac_cpu_pool());
        break;
    case 2:
        EXPECT(fixture_draining() >= -1);
        break;
    default:
        stats = fixture_stats();
        EXPECT(stats.allocation[PTAC_ALL].peak >= stats.allocation[PTAC_ALL].current);
        EXPECT(stats.allocated_bytes[PTAC_ALL].current >=
               stats.requested_bytes[PTAC_ALL].current);
    }
}

static void *trade(void *which)
{
    rng r = {(uint64_t)(intptr_t)which};

    for (int i = 0; i < N_ROUNDS; i++) {
        exchange(&r, make(&r));
        if (rng_chance(&r, 1))
            look(&r);
    }
    for (int i = 0; i < N_SHELVES; i++)
        exchange(&r, NULL);
    __atomic_sub_fetch(&n_busy, 1, __ATOMIC_RELAXED);
    return NULL;
}

static bool is_busy(void)
{
    return __atomic_load_n(&n_busy, __ATOMIC_RELAXED) > 0;
}

static void *tick(void *unused)
{
    while (is_busy())
        calls_tick();
    return unused;
}

/* The lock is nobody's turn: who takes it again at once leaves the others waiting. */
static void *switch_often(void *unused)
{
    const struct timespec pause = {.tv_nsec = 100000};
    ptac_cpu_pool_options o = fixture_options();
    rng r = {5};

    while (is_busy()) {
        o.policy = ptac_policy_at((int)rng_below(&r, 3));
        o.cap = rng_chance(&r, 50) ? SIZE_MAX : 16 * MIB;
        o.n_history = (size_t)rng_below(&r, 3) * 100;
        o.idle_s = rng_between(&r, -1, 3);
        EXPECT(fixture_open(&o));
        if (rng_chance(&r, 50)) {
            fixture_shut();
            fixture_shut();
        }
        if (rng_chance(&r, 10))
            EXPECT(!fixture_trouble());
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return unused;
}

static void trade_beside(void *(*other)(void *))
{
    pthread_t ticker, switcher;

    n_busy = N_THREADS;
    EXPECT(pthread_create(&ticker, NULL, tick, NULL) == 0);
    EXPECT(!other || pthread_create(&switcher, NULL, other, NULL) == 0);
    run_all(trade);
    EXPECT(pthread_join(ticker, NULL) == 0);
    EXPECT(!other || pthread_join(switcher, NULL) == 0);
    for (int i = 0; i < N_SHELVES; i++) {
        unmake(shelves[i]);
        shelves[i] = NULL;
    }
    EXPECT(!fixture_trouble());
    EXPECT(fixture_open(NULL));
    fixture_shut();
    EXPECT(fixture_draining() == 0);
}

UNIT(blocks_change_hands)
{
    EXPECT(fixture_open(NULL));
    trade_beside(NULL);
    EXPECT(fixture_stats().allocation[PTAC_ALL].current == 0);
}

UNIT(it_is_switched_while_all_work)
{
    trade_beside(switch_often);
}
