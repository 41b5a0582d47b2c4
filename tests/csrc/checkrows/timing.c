/*
 * timing.c - the least time of several blocks of runs, row against row.
 */
#include "timing.h"

#include "threads.h"
#include "trial.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    BLOCKS = 9,
    LEAST_BLOCK_NS = 5000, /* a clock's reading takes some 25 ns */
    MOST_RUNS = 4096,
};

static test_call c;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static double block_ns(const ptac_kernel *row, int n_runs)
{
    const int64_t start = now_ns();

    for (int i = 0; i < n_runs; i++)
        row->run(&c.call);
    return (double)(now_ns() - start);
}

/* Nanoseconds of a run; 0 for a call that the row does not do. */
static double row_ns(const ptac_kernel *row)
{
    ptac_call early = c.call; /* rows are asked before outputs exist */
    double least = INFINITY;
    int n_runs = 1;

    memset(early.outputs, 0, sizeof early.outputs);
    if (row->needs & ~ptac_cpu_features() || row->accepts(&early) ||
        row->run(&c.call) != PTAC_OK)
        return 0;
    while (n_runs < MOST_RUNS && block_ns(row, n_runs) < LEAST_BLOCK_NS)
        n_runs *= 2;
    for (int i = 0; i < BLOCKS; i++)
        least = fmin(least, block_ns(row, n_runs) / n_runs);
    return least;
}

static void add_ratio(row_speed *speed, double ratio, int64_t number)
{
    if (speed->n_timed == 0 || ratio < speed->least) {
        speed->least = ratio;
        speed->least_case = number;
    }
    if (speed->n_timed == 0 || ratio > speed->most) {
        speed->most = ratio;
        speed->most_case = number;
    }
    speed->n_timed++;
    speed->sum_of_logs += log(ratio);
}

void time_case(const generator *g, uint64_t seed, int64_t number, bool shown,
               row_speed *speeds)
{
    rng r = rng_for_case(seed, g->op, number);
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(g->op, &n);

    test_call_clear(&c);
    g->make(&r, &c);
    ptac_cpu_limit(PTAC_ISA_AVX512);
    threads_install(0, &r);
    test_call_place(&r, &c, g);
    c.call.n_threads = 1;
    if (shown)
        printf("%s: %s\n", ptac_op_name(g->op), c.note);

    const double scalar = row_ns(ptac_registry_find(g->op, "scalar"));

    for (int i = 0; i < n; i++) {
        const double ns = row_ns(rows[i]);

        if (shown && ns > 0)
            printf("  %-8s %10.0f ns\n", rows[i]->name, ns);
        if (scalar > 0 && ns > 0)
            add_ratio(&speeds[i], scalar / ns, number);
    }
    test_call_clear(&c);
}

void print_speeds(ptac_op op, const row_speed *speeds)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(op, &n);

    printf("%s\n", ptac_op_name(op));
    for (int i = 0; i < n; i++) {
        const row_speed *s = &speeds[i];

        if (s->n_timed == 0 || strcmp(rows[i]->name, "scalar") == 0)
            continue;
        printf("  %-8s %5lld calls, %6.2fx scalar, from %.2fx (case %lld) to %.2fx "
               "(case %lld)\n",
               rows[i]->name, (long long)s->n_timed,
               exp(s->sum_of_logs / (double)s->n_timed), s->least,
               (long long)s->least_case, s->most, (long long)s->most_case);
    }
}
