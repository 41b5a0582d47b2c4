/*
 * test_concurrent.c - the chooser and the counters while many threads use them.
 *
 * Meant for ThreadSanitizer as well, so nothing here forks.
 */
#include "core/counters.h"
#include "fakes.h"
#include "random.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

enum {
    N_THREADS = 4,
    N_COUNTS = 20000,
    N_TABLES = 3000,
};

static bool stop;

static bool is_stopped(void)
{
    return __atomic_load_n(&stop, __ATOMIC_ACQUIRE);
}

static void start(pthread_t *threads, void *(*body)(void *))
{
    __atomic_store_n(&stop, false, __ATOMIC_RELEASE);
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, body, (void *)(intptr_t)i) == 0);
}

static void finish(pthread_t *threads)
{
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < N_THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
}

static void *count_all(void *which)
{
    const int64_t step = (intptr_t)which + 1;

    for (int i = 0; i < N_COUNTS; i++) {
        ptac_call_enter();
        ptac_count_accelerated(PTAC_OP_LOG_SOFTMAX);
        ptac_count_forwarded(PTAC_OP_LOG_SOFTMAX, PTAC_GRAD);
        ptac_count_failed(PTAC_OP_LOG_SOFTMAX);
        ptac_count_saved(PTAC_OP_LOG_SOFTMAX, step);
        ptac_call_leave();
    }
    return NULL;
}

/* Sums never go back while they grow, and miss nothing in the end. */
UNIT(many_threads_count)
{
    const uint64_t all = (uint64_t)N_THREADS * N_COUNTS;
    const uint64_t entered = ptac_calls_entered();
    ptac_op_counts first, last, now;
    pthread_t threads[N_THREADS];
    uint64_t entered_last = entered;

    ptac_count_saved(PTAC_OP_LOG_SOFTMAX, 1); /* the first, which is left out */
    ptac_counters_read(PTAC_OP_LOG_SOFTMAX, &first);
    last = first;
    start(threads, count_all);
    for (int i = 0; i < 2000; i++) {
        const uint64_t entered_now = ptac_calls_entered();

        ptac_counters_read(PTAC_OP_LOG_SOFTMAX, &now);
        EXPECT(now.accelerated >= last.accelerated);
        EXPECT(now.forwarded[PTAC_GRAD] >= last.forwarded[PTAC_GRAD]);
        EXPECT(now.t_saved_ns >= last.t_saved_ns);
        EXPECT(entered_now >= entered_last);
        EXPECT(ptac_calls_in_flight() >= 0 && ptac_calls_in_flight() <= N_THREADS);
        last = now;
        entered_last = entered_now;
    }
    finish(threads);
    ptac_counters_read(PTAC_OP_LOG_SOFTMAX, &now);
    EXPECT(now.accelerated == first.accelerated + all);
    EXPECT(now.forwarded[PTAC_GRAD] == first.forwarded[PTAC_GRAD] + all);
    EXPECT(now.failed == first.failed + all);
    EXPECT(now.n_timed == first.n_timed + all);
    EXPECT(now.t_saved_ns ==
           first.t_saved_ns + (int64_t)N_COUNTS * N_THREADS * (N_THREADS + 1) / 2);
    EXPECT(ptac_calls_entered() == entered + all);
    EXPECT(ptac_calls_in_flight() == 0);
}

static void *count_in_short_threads(void *unused)
{
    pthread_t thread;

    for (int i = 0; i < 100; i++) {
        EXPECT(pthread_create(&thread, NULL, count_all, NULL) == 0);
        EXPECT(pthread_join(thread, NULL) == 0);
        if (is_stopped())
            break;
    }
    return unused;
}

/* Blocks change hands while others read them. */
UNIT(threads_come_and_go_while_others_read)
{
    pthread_t threads[N_THREADS];
    ptac_op_counts sum;

    start(threads, count_in_short_threads);
    for (int i = 0; i < 2000; i++)
        ptac_counters_read(PTAC_OP_LOG_SOFTMAX, &sum);
    finish(threads);
    EXPECT(ptac_calls_in_flight() == 0);
}

static bool is_fake_row(const ptac_kernel *row)
{
    return row >= fake_rows && row < fake_rows + N_FAKE_ROWS;
}

static void *choose_always(void *which)
{
    rng r = {(uint64_t)(intptr_t)which};

    while (!is_stopped()) {
        const fake_params params = {.kind = (int)rng_below(&r, N_FAKE_KINDS),
                                    .work = rng_between(&r, 0, 100)};
        const ptac_call call = fake_call(&params, PTAC_F32, (int)rng_between(&r, 1, 4));
        ptac_reason why;

        ptac_call_enter();
        EXPECT(is_fake_row(ptac_select(&call, &why)) && why == PTAC_TAKE);
        ptac_call_leave();
    }
    return NULL;
}

static int table_of(const ptac_kernel *row, ptac_point *points, int n_works)
{
    int n = 0;

    for (int kind = 0; kind < N_FAKE_KINDS; kind++)
        for (int64_t work = 0; work < n_works; work++)
            points[n++] = (ptac_point){.op = FAKE_OP,
                                       .kind = kind,
                                       .dtype = PTAC_F32,
                                       .n_threads = 1,
                                       .work = work * 10,
                                       .row = row};
    return n;
}

/*
 * Tables come and go while threads choose by them: every choice is a row, and, under
 * AddressSanitizer, none is read from a table that was freed.
 */
UNIT(tables_are_replaced_while_others_choose)
{
    ptac_point points[N_FAKE_KINDS * 8];
    pthread_t threads[N_THREADS];

    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    ptac_chooser_install(points, table_of(&fake_rows[0], points, 1));
    start(threads, choose_always);
    for (int i = 0; i < N_TABLES; i++) {
        const int n = table_of(&fake_rows[i % N_FAKE_ROWS], points, 1 + i % 8);

        EXPECT(ptac_chooser_install(points, n) == PTAC_OK);
        if (i % 3 == 0)
            ptac_chooser_collect();
    }
    finish(threads);
    EXPECT(ptac_calls_in_flight() == 0);
    ptac_chooser_install(NULL, 0);
    ptac_chooser_set_gate(FAKE_OP, PTAC_OFF);
}

static void *choose_or_learn_why(void *which)
{
    rng r = {(uint64_t)(intptr_t)which + 100};

    while (!is_stopped()) {
        const fake_params params = {.work = rng_between(&r, 0, 100)};
        const ptac_call call = fake_call(&params, PTAC_F32, 1);
        ptac_reason why;
        const ptac_kernel *row;

        ptac_call_enter();
        row = ptac_select(&call, &why);
        EXPECT(row ? is_fake_row(row) && why == PTAC_TAKE
                   : why == PTAC_QUARANTINED || why == PTAC_OFF ||
                         why == PTAC_EXCLUDED);
        ptac_call_leave();
        if (row && rng_chance(&r, 5))
            ptac_chooser_quarantine(row);
    }
    return NULL;
}

/* Switches are thrown while threads choose: they see the old state or the new one. */
UNIT(switches_are_thrown_while_others_choose)
{
    ptac_point points[N_FAKE_KINDS];
    pthread_t threads[N_THREADS];

    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    ptac_chooser_install(points, table_of(&fake_rows[0], points, 1));
    start(threads, choose_or_learn_why);
    for (int i = 0; i < 20000; i++) {
        ptac_chooser_set_gate(FAKE_OP, i % 5 == 0   ? PTAC_OFF
                                       : i % 5 == 1 ? PTAC_EXCLUDED
                                                    : PTAC_TAKE);
        ptac_chooser_pin(FAKE_OP, i % 4 == 0 ? &fake_rows[i / 4 % N_FAKE_ROWS] : NULL);
        if (i % 7 == 0)
            ptac_chooser_reset_quarantine();
    }
    finish(threads);
    ptac_chooser_reset_quarantine();
    ptac_chooser_pin(FAKE_OP, NULL);
    ptac_chooser_set_gate(FAKE_OP, PTAC_OFF);
    ptac_chooser_install(NULL, 0);
}
