/*
 * threads.c - parallel_for on pthreads that live as long as the call.
 */
#include "threads.h"

#include "core/host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_PIECES = 4096,
};

typedef struct job {
    ptac_range_fn body;
    void *context;
    int64_t cuts[MAX_PIECES + 1];
    int n_pieces;
    int next;
} job;

static ptac_host serial;
static int n_threads_now;
static bool in_crumbs;
static rng cutter;
static int64_t n_shared;
static __thread bool is_inside;

static void *work(void *shared)
{
    job *j = shared;
    int i;

    is_inside = true;
    while ((i = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->n_pieces)
        j->body(j->cuts[i], j->cuts[i + 1], j->context);
    is_inside = false;
    return NULL;
}

/* at::parallel_for's cutting: even shares, which may be shorter than grain. */
static int64_t even_length(int64_t n, int64_t grain)
{
    const int64_t worth = grain > 0 ? (n + grain - 1) / grain : n;
    const int64_t n_pieces = worth < n_threads_now ? worth : n_threads_now;

    return (n + n_pieces - 1) / n_pieces;
}

static void cut(job *j, int64_t begin, int64_t end, int64_t grain)
{
    const int64_t even = even_length(end - begin, grain);

    j->cuts[0] = begin;
    while (begin < end) {
        int64_t length = in_crumbs ? rng_between(&cutter, 1, grain + 1) : even;

        if (length > end - begin || j->n_pieces == MAX_PIECES - 1)
            length = end - begin;
        begin += length;
        j->cuts[++j->n_pieces] = begin;
    }
}

static void shared_out(int64_t begin, int64_t end, int64_t grain, ptac_range_fn body,
                       void *context)
{
    job j = {.body = body, .context = context};
    pthread_t helpers[MAX_THREADS];

    /* As torch does: a parallel region inside another runs where it is. */
    if (is_inside || begin >= end) {
        if (begin < end)
            body(begin, end, context);
        return;
    }
    n_shared++;
    cut(&j, begin, end, grain);
    for (int i = 1; i < n_threads_now; i++) {
        if (pthread_create(&helpers[i], NULL, work, &j) != 0) {
            perror("pthread_create");
            exit(2);
        }
    }
    work(&j);
    for (int i = 1; i < n_threads_now; i++)
        pthread_join(helpers[i], NULL);
}

static int count_threads(void)
{
    return n_threads_now;
}

void threads_install(int n_threads, rng *r)
{
    if (!serial.parallel_for)
        serial = ptac_the_host;
    ptac_the_host.parallel_for = serial.parallel_for;
    ptac_the_host.n_threads = serial.n_threads;
    if (n_threads == 0)
        return;
    n_threads_now = n_threads;
    in_crumbs = rng_chance(r, 50);
    cutter.state = rng_next(r);
    ptac_the_host.parallel_for = shared_out;
    ptac_the_host.n_threads = count_threads;
}

int64_t threads_n_shared(void)
{
    return n_shared;
}
