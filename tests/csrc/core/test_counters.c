/*
 * test_counters.c - counting in one thread, in threads that end, without memory and
 * across fork.
 */
#include "core/counters.h"
#include "heap.h"
#include "sanitizers.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

static ptac_op_counts counts_of(ptac_op op)
{
    ptac_op_counts sum;

    ptac_counters_read(op, &sum);
    return sum;
}

UNIT(each_count_has_its_place)
{
    ptac_op_counts before, after, other_after;
    const ptac_op_counts other = counts_of(PTAC_OP_SGD_STEP);

    ptac_count_saved(PTAC_OP_ZERO_GRAD, 99); /* the first, which is left out */
    before = counts_of(PTAC_OP_ZERO_GRAD);
    EXPECT(before.n_timed == 0 && before.t_saved_ns == 0);
    ptac_count_accelerated(PTAC_OP_ZERO_GRAD);
    ptac_count_accelerated(PTAC_OP_ZERO_GRAD);
    ptac_count_failed(PTAC_OP_ZERO_GRAD);
    ptac_count_saved(PTAC_OP_ZERO_GRAD, 500);
    ptac_count_saved(PTAC_OP_ZERO_GRAD, -2000); /* a row may have been slower */
    for (int reason = 0; reason < PTAC_N_REASONS; reason++)
        for (int i = 0; i <= reason; i++)
            ptac_count_forwarded(PTAC_OP_ZERO_GRAD, (ptac_reason)reason);

    after = counts_of(PTAC_OP_ZERO_GRAD);
    other_after = counts_of(PTAC_OP_SGD_STEP);
    EXPECT(after.accelerated == before.accelerated + 2);
    EXPECT(after.failed == before.failed + 1);
    EXPECT(after.t_saved_ns == before.t_saved_ns - 1500);
    EXPECT(after.n_timed == before.n_timed + 2);
    for (int reason = 0; reason < PTAC_N_REASONS; reason++)
        EXPECT(after.forwarded[reason] ==
               before.forwarded[reason] + (uint64_t)reason + 1);
    EXPECT(memcmp(&other, &other_after, sizeof other) == 0);
}

UNIT(flights_nest)
{
    const uint64_t entered = ptac_calls_entered();

    EXPECT(ptac_calls_in_flight() == 0);
    ptac_call_enter();
    ptac_call_enter();
    EXPECT(ptac_calls_in_flight() == 2);
    ptac_call_leave();
    EXPECT(ptac_calls_in_flight() == 1);
    ptac_call_leave();
    EXPECT(ptac_calls_in_flight() == 0);
    EXPECT(ptac_calls_entered() == entered + 2);
}

static void *count_once(void *unused)
{
    ptac_call_enter();
    ptac_count_accelerated(PTAC_OP_ADAM_STEP);
    ptac_call_leave();
    return unused;
}

static void in_a_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;

    EXPECT(pthread_create(&thread, NULL, body, argument) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
}

UNIT(counts_outlive_their_thread_and_blocks_are_used_again)
{
    const uint64_t before = counts_of(PTAC_OP_ADAM_STEP).accelerated;
    int n_blocks;

    in_a_thread(count_once, NULL);
    n_blocks = heap_count().n_aligned_allocs;
    for (int i = 0; i < 50; i++)
        in_a_thread(count_once, NULL);
    EXPECT(counts_of(PTAC_OP_ADAM_STEP).accelerated == before + 51);
    EXPECT(heap_count().n_aligned_allocs == n_blocks);
    EXPECT(ptac_calls_in_flight() == 0);
}

/* Threads that are alive at once, so that no block is free, and that have no memory. */
typedef struct crowd {
    pthread_barrier_t all;
    int refused;
} crowd;

static void *count_in_a_crowd(void *shared)
{
    crowd *c = shared;

    heap_refuse(c->refused);
    ptac_call_enter();
    pthread_barrier_wait(&c->all);
    ptac_count_forwarded(PTAC_OP_ADAM_STEP, PTAC_DEVICE);
    pthread_barrier_wait(&c->all);
    ptac_call_leave();
    return NULL;
}

static void run_crowd(int refused, int n)
{
    crowd c = {.refused = refused};
    pthread_t threads[16];

    pthread_barrier_init(&c.all, NULL, (unsigned int)n + 1);
    for (int i = 0; i < n; i++)
        EXPECT(pthread_create(&threads[i], NULL, count_in_a_crowd, &c) == 0);
    pthread_barrier_wait(&c.all);
    EXPECT(ptac_calls_in_flight() == n);
    pthread_barrier_wait(&c.all);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    EXPECT(ptac_calls_in_flight() == 0);
    pthread_barrier_destroy(&c.all);
}

UNIT(threads_at_once_have_a_block_each)
{
    const uint64_t before = counts_of(PTAC_OP_ADAM_STEP).forwarded[PTAC_DEVICE];

    run_crowd(0, 16);
    EXPECT(counts_of(PTAC_OP_ADAM_STEP).forwarded[PTAC_DEVICE] == before + 16);
}

/* Those that get no block share one, where only flights must be right. */
UNIT(without_memory_flights_still_balance)
{
    run_crowd(0, 3);
    run_crowd(1, 16);
}

static pthread_key_t late_key;

/* Runs after the counters' own destructor, whose key is older. */
static void count_late(void *late)
{
    pthread_barrier_t *both = late;

    pthread_barrier_wait(both);
    for (int i = 0; i < 1000000; i++)
        ptac_count_accelerated(PTAC_OP_ADAMW_STEP);
    pthread_barrier_wait(both);
}

static void *end_late(void *both)
{
    ptac_count_accelerated(PTAC_OP_ADAMW_STEP);
    pthread_setspecific(late_key, both);
    return NULL;
}

static void *count_beside(void *both)
{
    pthread_barrier_wait(both);
    for (int i = 0; i < 1000000; i++)
        ptac_count_accelerated(PTAC_OP_ADAMW_STEP);
    pthread_barrier_wait(both);
    return NULL;
}

/*
 * A thread's destructors may still call operators when its block has been given up.
 * Whoever takes the block over then must not share it with that thread.
 */
UNIT(a_thread_may_count_while_it_ends)
{
    const uint64_t before = counts_of(PTAC_OP_ADAMW_STEP).accelerated;
    pthread_barrier_t both;
    pthread_t ending, beside;

    pthread_barrier_init(&both, NULL, 2);
    pthread_key_create(&late_key, count_late);
    pthread_create(&ending, NULL, end_late, &both);
    pthread_create(&beside, NULL, count_beside, &both);
    pthread_join(ending, NULL);
    pthread_join(beside, NULL);
    EXPECT(counts_of(PTAC_OP_ADAMW_STEP).accelerated == before + 2000001);
    pthread_key_delete(late_key);
    pthread_barrier_destroy(&both);
}

typedef struct held {
    pthread_barrier_t inside, may_leave;
} held;

static void *stay_in_flight(void *shared)
{
    held *h = shared;

    ptac_call_enter();
    ptac_count_accelerated(PTAC_OP_SGD_STEP);
    pthread_barrier_wait(&h->inside);
    pthread_barrier_wait(&h->may_leave);
    ptac_call_leave();
    return NULL;
}

static uint64_t n_before_fork;

/* The other thread is not here, so its call never ends and must not count. */
static bool child_is_alone(void)
{
    bool fine = ptac_calls_in_flight() == 1; /* the forking thread's own */

    fine &= counts_of(PTAC_OP_SGD_STEP).accelerated == n_before_fork;
    ptac_call_leave();
    fine &= ptac_calls_in_flight() == 0;
    ptac_count_accelerated(PTAC_OP_SGD_STEP);
    for (int i = 0; i < 3; i++)
        in_a_thread(count_once, NULL);
    fine &= counts_of(PTAC_OP_SGD_STEP).accelerated == n_before_fork + 1;
    return fine && ptac_calls_in_flight() == 0;
}

UNIT(a_forked_child_is_alone)
{
    held h;
    pthread_t thread;

    pthread_barrier_init(&h.inside, NULL, 2);
    pthread_barrier_init(&h.may_leave, NULL, 2);
    pthread_create(&thread, NULL, stay_in_flight, &h);
    pthread_barrier_wait(&h.inside);
    ptac_call_enter();
    n_before_fork = counts_of(PTAC_OP_SGD_STEP).accelerated;
    EXPECT(ptac_calls_in_flight() == 2);
    EXPECT(unit_in_child(child_is_alone));
    EXPECT(ptac_calls_in_flight() == 2);
    EXPECT(counts_of(PTAC_OP_SGD_STEP).accelerated == n_before_fork);
    ptac_call_leave();
    pthread_barrier_wait(&h.may_leave);
    pthread_join(thread, NULL);
    EXPECT(ptac_calls_in_flight() == 0);
    pthread_barrier_destroy(&h.inside);
    pthread_barrier_destroy(&h.may_leave);
}

static bool stop_threads;

static void *start_threads(void *unused)
{
    while (!__atomic_load_n(&stop_threads, __ATOMIC_RELAXED))
        in_a_thread(count_once, NULL);
    return unused;
}

static bool child_counts(void)
{
    in_a_thread(count_once, NULL);
    return ptac_calls_in_flight() == 0;
}

/* The lock that guards the list of blocks must not be copied while it is held. */
UNIT(fork_while_threads_come_and_go)
{
    pthread_t thread;

#if defined(UNDER_ADDRESS_SANITIZER) || defined(UNDER_THREAD_SANITIZER)
    unit_skip("the sanitizer's own locks do not survive such a fork");
    return;
#endif
    stop_threads = false;
    pthread_create(&thread, NULL, start_threads, NULL);
    for (int i = 0; i < 100; i++)
        EXPECT(unit_in_child(child_counts));
    __atomic_store_n(&stop_threads, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}
