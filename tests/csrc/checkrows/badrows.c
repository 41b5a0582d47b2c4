/*
 * badrows.c - a row of max_pool2d with one fault, to see that checkrows finds it.
 *
 * Linked into a program of its own. The environment variable PTAC_BAD_ROW names the
 * fault; the row does what "scalar" does, and that.
 */
#include "core/host.h"
#include "core/kernel.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *fault = "";

static bool is(const char *name)
{
    return strcmp(fault, name) == 0;
}

static const ptac_kernel *scalar(void)
{
    return ptac_registry_find(PTAC_OP_MAX_POOL2D, "scalar");
}

static size_t element_bytes(const ptac_view *view)
{
    return view->dtype == PTAC_BF16 ? 2 : view->dtype == PTAC_F32 ? 4 : 8;
}

/* The element right behind the view's last one (0), or before its first (-1). */
static volatile unsigned char *beside(const ptac_view *view, int64_t distance)
{
    const int64_t from = distance < 0 ? 0 : view->n_elements;

    return (unsigned char *)view->data +
           (from + distance) * (int64_t)element_bytes(view);
}

static ptac_reason accepts(const ptac_call *call)
{
    if (is("refuses"))
        return PTAC_ARGUMENT;
    if (is("accepts_writes"))
        *(unsigned char *)call->inputs[0].data ^= 1;
    if (is("accepts_looks_at_outputs"))
        return *(const unsigned char *)call->outputs[0].data ? PTAC_TAKE : PTAC_LAYOUT;
    return is("accepts_more") ? PTAC_TAKE : scalar()->accepts(call);
}

/* Changes the first element as often as there is a piece that does not begin at 0. */
static void mark_pieces(int64_t begin, int64_t end, void *first)
{
    (void)end;
    if (begin > 0)
        __atomic_fetch_xor((unsigned char *)first, 1, __ATOMIC_RELAXED);
}

typedef struct race {
    int64_t n; /* of the whole range */
    volatile int n_pieces;
    const void *first_thread;
    bool has_second;
} race;

/*
 * Changes no result, so that only ThreadSanitizer can see it. The first thread waits
 * for a second one, for else it might do all pieces before that has begun. Relaxed, so
 * that the waiting does not put their counting in order.
 */
static void count_pieces(int64_t begin, int64_t end, void *context)
{
    static __thread char self;
    race *race = context;
    const void *first = NULL;

    ++race->n_pieces;
    if (__atomic_compare_exchange_n(&race->first_thread, &first, &self, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        first = &self;
    if (first != &self)
        __atomic_store_n(&race->has_second, true, __ATOMIC_RELAXED);
    while (end - begin < race->n &&
           !__atomic_load_n(&race->has_second, __ATOMIC_RELAXED))
        sched_yield();
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *x = &call->inputs[0], *y = &call->outputs[0];
    const ptac_view *indices = &call->outputs[1];
    unsigned char *last =
        (unsigned char *)beside(y, -1) + (size_t)y->n_elements * element_bytes(y);

    if (is("fails")) {
        ptac_error_set("on purpose");
        return PTAC_FAILED;
    }
    if (is("gives_back"))
        return PTAC_UNSUPPORTED;
    if (scalar()->accepts(call))
        return PTAC_OK;

    const ptac_status status = scalar()->run(call);

    if (is("reads_behind"))
        (void)*beside(x, 0);
    if (is("reads_before"))
        (void)*beside(x, -1);
    if (is("writes_behind"))
        *beside(y, 0) ^= 1;
    if (is("writes_before"))
        *beside(indices, -1) ^= 1;
    if (is("writes_input"))
        *(unsigned char *)x->data ^= 1;
    if (is("writes_params"))
        *(unsigned char *)call->params ^= 1;
    if (is("one_bit"))
        *last ^= 1;
    if (is("forgets_the_last"))
        memset(last, 0x70, element_bytes(y));
    if (is("wrong_index"))
        ((int64_t *)indices->data)[indices->n_elements - 1]++;
    if (is("only_with_threads") && call->n_threads > 1)
        *last ^= 1;
    if (is("depends_on_pieces"))
        ptac_parallel_for(0, y->n_elements, 1, mark_pieces, y->data);
    if (is("races") && call->n_threads > 1) {
        race race = {.n = y->n_elements};

        ptac_parallel_for(0, y->n_elements, 1, count_pieces, &race);
    }
    if (is("only_without_limit") && ptac_cpu_isa() != PTAC_ISA_SCALAR)
        *last ^= 1;
    return status;
}

static ptac_kernel bad = {
    .op = PTAC_OP_MAX_POOL2D, .name = "bad", .accepts = accepts, .run = run};

__attribute__((constructor)) static void add_bad_row(void)
{
    if (getenv("PTAC_BAD_ROW"))
        fault = getenv("PTAC_BAD_ROW");
    if (is("states_no_tolerance"))
        bad.level = PTAC_CLOSE;
    ptac_registry_add(&bad);
}
