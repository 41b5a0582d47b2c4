/*
 * test_chooser.c - gates, tables, pins and quarantine, one thread.
 */
#include "core/counters.h"
#include "fakes.h"
#include "heap.h"
#include "random.h"
#include "unit.h"

#include <string.h>

/* Every test starts from here, and leaves no table that points to its rows. */
static void reset(void)
{
    ptac_chooser_install(NULL, 0);
    ptac_chooser_pin(FAKE_OP, NULL);
    ptac_chooser_reset_quarantine();
    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    ptac_chooser_set_gate(OTHER_FAKE_OP, PTAC_TAKE);
}

static const ptac_kernel *choose(const fake_params *params, ptac_dtype dtype,
                                 int n_threads, ptac_reason *why)
{
    const ptac_call call = fake_call(params, dtype, n_threads);

    return ptac_select(&call, why);
}

/* The answer to a plain call: kind 0, float32. */
static const ptac_kernel *plain(int n_threads, int64_t work, ptac_reason *why)
{
    const fake_params params = {.work = work};

    return choose(&params, PTAC_F32, n_threads, why);
}

static ptac_point point(int n_threads, int64_t work, const ptac_kernel *row)
{
    return (ptac_point){.op = FAKE_OP,
                        .dtype = PTAC_F32,
                        .n_threads = n_threads,
                        .work = work,
                        .row = row};
}

static void install_one(int64_t work, const ptac_kernel *row)
{
    const ptac_point points[] = {point(1, work, row)};

    EXPECT(ptac_chooser_install(points, 1) == PTAC_OK);
}

UNIT(gates_are_off_at_first)
{
    /* An operator that no other test touches. */
    EXPECT(ptac_chooser_gate(PTAC_OP_SGD_STEP) == PTAC_OFF);
}

UNIT(a_gate_says_why)
{
    const fake_params params = {.classify = PTAC_SHAPE};
    ptac_reason why;

    reset();
    install_one(0, &fake_rows[0]);
    for (int reason = PTAC_OFF; reason < PTAC_N_REASONS; reason++) {
        ptac_chooser_set_gate(FAKE_OP, (ptac_reason)reason);
        EXPECT(ptac_chooser_gate(FAKE_OP) == (ptac_reason)reason);
        EXPECT(plain(1, 10, &why) == NULL && why == (ptac_reason)reason);
        /* before anything about the call is looked at */
        EXPECT(choose(&params, PTAC_OTHER_DTYPE, 1, &why) == NULL);
        EXPECT(why == (ptac_reason)reason);
    }
    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    EXPECT(plain(1, 10, &why) == &fake_rows[0] && why == PTAC_TAKE);
    reset();
}

UNIT(without_a_table_stock_runs)
{
    ptac_reason why;

    reset();
    EXPECT(plain(4, 1000, &why) == NULL && why == PTAC_NOT_FASTER);
}

UNIT(calls_that_no_row_can_do)
{
    const fake_params odd_shape = {.work = 10, .classify = PTAC_EMPTY};
    const fake_params odd_row = {.work = 10, .accept = PTAC_LAYOUT};
    const fake_params fine = {.work = 10};
    ptac_reason why;

    reset();
    install_one(0, &fake_rows[1]);
    EXPECT(choose(&fine, PTAC_OTHER_DTYPE, 1, &why) == NULL && why == PTAC_DTYPE);
    EXPECT(choose(&odd_shape, PTAC_F32, 1, &why) == NULL && why == PTAC_EMPTY);
    EXPECT(choose(&odd_row, PTAC_F32, 1, &why) == NULL && why == PTAC_LAYOUT);
    EXPECT(choose(&fine, PTAC_F32, 1, &why) == &fake_rows[1] && why == PTAC_TAKE);
    EXPECT(choose(&fine, PTAC_F64, 1, &why) == NULL && why == PTAC_NOT_FASTER);
    reset();
}

UNIT(lookup_by_example)
{
    const ptac_point points[] = {
        point(4, 1000, &fake_rows[2]), point(1, 100, &fake_rows[0]),
        point(1, 5000, NULL),          point(2, 300, &fake_rows[1]),
        point(1, 9000, &fake_rows[2]),
    };
    ptac_reason why;

    reset();
    EXPECT(ptac_chooser_install(points, 5) == PTAC_OK);
    /* one thread: stock below the smallest point, and again where it was faster */
    EXPECT(plain(1, 99, &why) == NULL && why == PTAC_NOT_FASTER);
    EXPECT(plain(1, 100, &why) == &fake_rows[0]);
    EXPECT(plain(1, 4999, &why) == &fake_rows[0]);
    EXPECT(plain(1, 5000, &why) == NULL && why == PTAC_NOT_FASTER);
    EXPECT(plain(1, INT64_MAX, &why) == &fake_rows[2]);
    /* two: its own points only, however large the call */
    EXPECT(plain(2, 299, &why) == NULL);
    EXPECT(plain(2, 300, &why) == &fake_rows[1]);
    EXPECT(plain(2, 9000, &why) == &fake_rows[1]);
    /* three counts as two, five as four */
    EXPECT(plain(3, 300, &why) == &fake_rows[1]);
    EXPECT(plain(5, 999, &why) == NULL);
    EXPECT(plain(5, 1000, &why) == &fake_rows[2]);
    reset();
}

/*
 * The rule in words: the largest thread count that was calibrated and is not above the
 * call's; among its points the one with the largest work that is not above the call's.
 */
static const ptac_kernel *by_the_rule(const ptac_point *points, int n,
                                      const ptac_call *call)
{
    const fake_params *params = call->params;
    const ptac_kernel *row = NULL;
    int n_threads = 0;
    int64_t work = -1;

    for (int i = 0; i < n; i++) {
        const ptac_point *p = &points[i];

        if (p->op == call->op && p->kind == params->kind &&
            p->dtype == call->inputs[0].dtype && p->n_threads <= call->n_threads &&
            p->n_threads > n_threads)
            n_threads = p->n_threads;
    }
    for (int i = 0; i < n; i++) {
        const ptac_point *p = &points[i];

        if (p->op == call->op && p->kind == params->kind &&
            p->dtype == call->inputs[0].dtype && p->n_threads == n_threads &&
            p->work <= params->work && p->work > work) {
            work = p->work;
            row = p->row;
        }
    }
    return row;
}

enum {
    MOST_POINTS = 40,
};

static bool is_new_place(const ptac_point *points, int n)
{
    const ptac_point *p = &points[n];

    for (int i = 0; i < n; i++)
        if (points[i].op == p->op && points[i].kind == p->kind &&
            points[i].dtype == p->dtype && points[i].n_threads == p->n_threads &&
            points[i].work == p->work)
            return false;
    return true;
}

static int random_points(rng *r, ptac_point *points)
{
    const int n = (int)rng_below(r, MOST_POINTS + 1);

    for (int i = 0; i < n; i++) {
        do {
            const bool other = rng_chance(r, 20);
            const int64_t row = rng_between(r, -1, N_FAKE_ROWS - 1);

            points[i] = (ptac_point){
                .op = other ? OTHER_FAKE_OP : FAKE_OP,
                .kind = (int)rng_below(r, N_FAKE_KINDS),
                .dtype = (ptac_dtype)rng_below(r, 2),
                .n_threads = (int)rng_between(r, 1, 4),
                .work = rng_below(r, 12),
                .row = row < 0 ? NULL
                       : other ? &other_fake_row
                               : &fake_rows[row],
            };
        } while (!is_new_place(points, i));
    }
    return n;
}

UNIT(lookup_follows_the_rule)
{
    rng r = {1};
    ptac_point points[MOST_POINTS];

    reset();
    for (int round = 0; round < 400; round++) {
        const int n = random_points(&r, points);

        EXPECT(ptac_chooser_install(points, n) == PTAC_OK);
        for (int i = 0; i < 60; i++) {
            const fake_params params = {.kind = (int)rng_below(&r, N_FAKE_KINDS),
                                        .work = rng_below(&r, 14)};
            ptac_call call = fake_call(&params, (ptac_dtype)rng_below(&r, 2),
                                       (int)rng_between(&r, 1, 6));
            ptac_reason why;

            if (rng_chance(&r, 20))
                call.op = OTHER_FAKE_OP;

            const ptac_kernel *expected = by_the_rule(points, n, &call);

            EXPECT(ptac_select(&call, &why) == expected);
            EXPECT(why == (expected ? PTAC_TAKE : PTAC_NOT_FASTER));
        }
    }
    reset();
}

UNIT(a_table_is_copied)
{
    ptac_point points[] = {point(1, 0, &fake_rows[0])};
    ptac_reason why;

    reset();
    EXPECT(ptac_chooser_install(points, 1) == PTAC_OK);
    memset(points, 0x5a, sizeof points);
    EXPECT(plain(1, 5, &why) == &fake_rows[0]);
    reset();
}

UNIT(a_pin_beats_the_table_and_not_the_row)
{
    const fake_params odd_row = {.accept = PTAC_SHAPE};
    const fake_params odd_shape = {.classify = PTAC_EMPTY};
    ptac_reason why;

    reset();
    install_one(100, &fake_rows[0]);
    ptac_chooser_pin(FAKE_OP, &fake_rows[2]);
    EXPECT(plain(1, 100, &why) == &fake_rows[2]);
    EXPECT(plain(1, 0, &why) == &fake_rows[2]); /* where the table says stock */
    EXPECT(choose(&odd_row, PTAC_F32, 1, &why) == NULL && why == PTAC_SHAPE);
    EXPECT(choose(&odd_shape, PTAC_F32, 1, &why) == NULL && why == PTAC_EMPTY);
    ptac_chooser_set_gate(FAKE_OP, PTAC_EXCLUDED);
    EXPECT(plain(1, 100, &why) == NULL && why == PTAC_EXCLUDED);
    ptac_chooser_set_gate(FAKE_OP, PTAC_TAKE);
    ptac_chooser_pin(FAKE_OP, NULL);
    EXPECT(plain(1, 100, &why) == &fake_rows[0]);
    EXPECT(plain(1, 0, &why) == NULL && why == PTAC_NOT_FASTER);
    reset();
}

UNIT(rounding_is_for_products_that_use_each_element_often)
{
    const fake_params thin = {.work = 100, .uses = 47},
                      thick = {.work = 100, .uses = 48};
    ptac_reason why;

    reset();
    install_one(100, &rounding_fake_row);
    EXPECT(choose(&thin, PTAC_F32, 1, &why) == NULL && why == PTAC_NOT_FASTER);
    EXPECT(choose(&thick, PTAC_F32, 1, &why) == &rounding_fake_row);
    EXPECT(plain(1, 100, &why) == &rounding_fake_row); /* uses are not told */
    install_one(100, &fake_rows[0]);
    EXPECT(choose(&thin, PTAC_F32, 1, &why) == &fake_rows[0]);
    ptac_chooser_pin(FAKE_OP, &rounding_fake_row);
    EXPECT(choose(&thin, PTAC_F32, 1, &why) == &rounding_fake_row);
    reset();
}

UNIT(quarantine_is_for_one_row_until_pardoned)
{
    ptac_reason why;

    reset();
    install_one(0, &fake_rows[1]);
    ptac_chooser_quarantine(&fake_rows[0]);
    ptac_chooser_quarantine(&other_fake_row);
    EXPECT(plain(1, 1, &why) == &fake_rows[1]);
    ptac_chooser_quarantine(&fake_rows[1]);
    ptac_chooser_quarantine(&fake_rows[1]); /* twice is once */
    EXPECT(ptac_chooser_is_quarantined(&fake_rows[0]));
    EXPECT(ptac_chooser_is_quarantined(&fake_rows[1]));
    EXPECT(!ptac_chooser_is_quarantined(&fake_rows[2]));
    EXPECT(plain(1, 1, &why) == NULL && why == PTAC_QUARANTINED);
    ptac_chooser_pin(FAKE_OP, &fake_rows[1]); /* nor by a pin */
    EXPECT(plain(1, 1, &why) == NULL && why == PTAC_QUARANTINED);
    ptac_chooser_pin(FAKE_OP, NULL);
    install_one(0, &fake_rows[1]); /* nor by a new table */
    EXPECT(plain(1, 1, &why) == NULL && why == PTAC_QUARANTINED);
    ptac_chooser_reset_quarantine();
    EXPECT(plain(1, 1, &why) == &fake_rows[1]);
    EXPECT(!ptac_chooser_is_quarantined(&other_fake_row));
    reset();
}

UNIT(without_memory_the_old_table_stays)
{
    const ptac_point points[] = {point(1, 0, &fake_rows[2])};
    ptac_reason why;

    reset();
    install_one(0, &fake_rows[0]);
    ptac_error_set("%s", "");
    heap_refuse(1);
    EXPECT(ptac_chooser_install(points, 1) == PTAC_FAILED);
    heap_refuse(0);
    EXPECT(strstr(ptac_error_get(), "1 points") != NULL);
    EXPECT(plain(1, 5, &why) == &fake_rows[0]);
    reset();
}

UNIT(tables_are_freed_when_no_call_is_in_flight)
{
    int n_frees;

    reset();
    install_one(0, &fake_rows[0]);
    n_frees = heap_count().n_frees;
    install_one(0, &fake_rows[1]); /* nothing in flight: the old one goes at once */
    EXPECT(heap_count().n_frees == n_frees + 1);

    ptac_call_enter();
    ptac_call_enter();
    install_one(0, &fake_rows[2]);
    install_one(0, &fake_rows[0]);
    ptac_chooser_collect();
    EXPECT(heap_count().n_frees == n_frees + 1);
    ptac_call_leave();
    ptac_chooser_collect(); /* the outer call is still inside */
    EXPECT(heap_count().n_frees == n_frees + 1);
    ptac_call_leave();
    EXPECT(heap_count().n_frees == n_frees + 1);
    ptac_chooser_collect();
    EXPECT(heap_count().n_frees == n_frees + 3);
    ptac_chooser_collect(); /* and the table in use stays */
    EXPECT(heap_count().n_frees == n_frees + 3);
    reset();
}

UNIT(a_place_is_known_or_not)
{
    const ptac_point points[] = {point(2, 300, NULL), point(2, 500, &fake_rows[1])};
    const ptac_kernel *row = &fake_rows[0];
    ptac_shape shape = {.kind = 0, .work = 400};

    reset();
    EXPECT(!ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 2, &row));
    EXPECT(ptac_chooser_install(points, 2) == PTAC_OK);
    EXPECT(ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 2, &row) && !row);
    shape.work = 500;
    EXPECT(ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 8, &row));
    EXPECT(row == &fake_rows[1]);
    /* fewer threads, smaller calls, other kinds and dtypes were not measured */
    EXPECT(!ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 1, &row) && !row);
    EXPECT(!ptac_chooser_knows(FAKE_OP, &shape, PTAC_F64, 2, &row));
    EXPECT(!ptac_chooser_knows(OTHER_FAKE_OP, &shape, PTAC_F32, 2, &row));
    shape.work = 299;
    EXPECT(!ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 2, &row));
    shape = (ptac_shape){.kind = 1, .work = 500};
    EXPECT(!ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 2, &row));
    /* and what is known asks neither gate nor quarantine */
    ptac_chooser_set_gate(FAKE_OP, PTAC_OFF);
    ptac_chooser_quarantine(&fake_rows[1]);
    shape.kind = 0;
    EXPECT(ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, 2, &row) && row);
    reset();
}

/* The row of a decided operator that a limit leaves. */
static const ptac_kernel *decided_under(ptac_isa limit, const fake_params *params,
                                        ptac_reason *why)
{
    ptac_call call = fake_call(params, PTAC_F32, 1);
    const ptac_kernel *row;

    call.op = DECIDED_FAKE_OP;
    ptac_cpu_limit(limit);
    row = ptac_select(&call, why);
    ptac_cpu_limit(PTAC_ISA_AVX512);
    return row;
}

UNIT(what_is_decided_asks_no_table)
{
    const fake_params fine = {.work = 1}, odd_row = {.accept = PTAC_SHAPE};
    const fake_params odd_shape = {.classify = PTAC_EMPTY};
    const ptac_kernel *best = &decided_rows[ptac_cpu_isa()];
    ptac_reason why;

    reset();
    ptac_chooser_set_gate(DECIDED_FAKE_OP, PTAC_OFF);
    EXPECT(!decided_under(PTAC_ISA_AVX512, &fine, &why) && why == PTAC_OFF);
    ptac_chooser_set_gate(DECIDED_FAKE_OP, PTAC_TAKE);
    for (int limit = PTAC_ISA_SCALAR; limit <= PTAC_ISA_AVX512; limit++) {
        const ptac_kernel *row = decided_under((ptac_isa)limit, &fine, &why);

        EXPECT(row == (&decided_rows[limit] < best ? &decided_rows[limit] : best));
    }
    EXPECT(!decided_under(PTAC_ISA_AVX512, &odd_shape, &why) && why == PTAC_EMPTY);
    EXPECT(!decided_under(PTAC_ISA_AVX512, &odd_row, &why) && why == PTAC_SHAPE);
    ptac_chooser_pin(DECIDED_FAKE_OP, &decided_rows[0]);
    EXPECT(decided_under(PTAC_ISA_AVX512, &fine, &why) == &decided_rows[0]);
    ptac_chooser_pin(DECIDED_FAKE_OP, NULL);
    ptac_chooser_quarantine(best);
    EXPECT(!decided_under(PTAC_ISA_AVX512, &fine, &why) && why == PTAC_QUARANTINED);
    ptac_chooser_reset_quarantine();
    EXPECT(decided_under(PTAC_ISA_AVX512, &fine, &why) == best);
    ptac_chooser_set_gate(DECIDED_FAKE_OP, PTAC_OFF);
}

UNIT(products_are_found_by_their_sizes)
{
    const ptac_kernel *const fast = &fake_rows[1];
    ptac_point points[] = {
        {.n_threads = 1, .work = 8 * 1024 * 8, .sizes = {8, 1024, 8}},
        {.n_threads = 1, .work = 64 * 64 * 64, .sizes = {64, 64, 64}},
        {.n_threads = 1, .work = 64 * 512 * 512, .sizes = {64, 512, 512}},
        {.n_threads = 1,
         .work = 512 * 512 * 512,
         .sizes = {512, 512, 512},
         .row = fast},
        {.n_threads = 1, .work = 64 * 64 * 4096, .sizes = {64, 64, 4096}, .row = fast},
        {.n_threads = 4, .work = 64 * 512 * 512, .sizes = {64, 512, 512}, .row = fast},
    };
    static const struct {
        int64_t sizes[3];
        int n_threads;
        bool is_known, is_fast;
    } calls[] = {
        {{512, 512, 512}, 1, true, true},
        {{1024, 3072, 768}, 1, true, true},
        {{196, 2048, 512},
         1,
         true,
         false},                           /* the work of what is fast, not its shape */
        {{512, 512, 511}, 1, true, false}, /* less than the point in one size */
        {{64, 64, 8192}, 1, true, true},
        {{64, 512, 4096}, 1, true, false},   /* two neighbours disagree */
        {{4096, 4096, 4096}, 1, true, true}, /* and here both have the row */
        {{512, 1024, 512}, 1, true, true},   /* {8, 1024, 8} is far and has no say */
        {{7, 9000, 9000}, 1, false, false},
        {{196, 2048, 512}, 4, true, true},
        {{196, 2048, 512}, 3, true, false},
        {{64, 511, 512}, 4, false, false}, /* four threads: their own points only */
    };

    reset();
    for (int i = 0; i < 6; i++) {
        points[i].op = FAKE_OP;
        points[i].dtype = PTAC_F32;
    }
    EXPECT(ptac_chooser_install(points, 6) == PTAC_OK);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int64_t *sizes = calls[i].sizes;
        ptac_shape shape = {.work = sizes[0] * sizes[1] * sizes[2]};
        const ptac_kernel *row = NULL;

        memcpy(shape.sizes, sizes, sizeof shape.sizes);
        EXPECT(ptac_chooser_knows(FAKE_OP, &shape, PTAC_F32, calls[i].n_threads,
                                  &row) == calls[i].is_known);
        EXPECT(row == (calls[i].is_fast ? fast : NULL));
    }
    reset();
}

/* A product's row, and whether its "avx512" leaves such calls to others. */
static const ptac_kernel *of_product(int64_t m, int64_t k, int64_t n, bool leaves)
{
    const fake_params params = {
        .work = m * k * n, .sizes = {m, k, n}, .leaves = leaves};
    ptac_reason why;

    return choose(&params, PTAC_F32, 1, &why);
}

UNIT(a_row_that_all_neighbours_know)
{
    const ptac_kernel *const library = &fake_rows[0], *const avx2 = &fake_rows[1];
    const ptac_kernel *const avx512 = &fake_rows[2];
    ptac_point points[] = {
        {.sizes = {64, 64, 512},
         .row = avx512,
         .ratio = 1.4,
         .others = {library, avx2},
         .other_ratios = {1.3, 1.2}},
        {.sizes = {64, 512, 64},
         .row = library,
         .ratio = 1.5,
         .others = {avx2, avx512},
         .other_ratios = {1.1, 1.01}},
    };

    reset();
    for (int i = 0; i < 2; i++) {
        const int64_t *sizes = points[i].sizes;

        points[i].op = FAKE_OP;
        points[i].dtype = PTAC_F32;
        points[i].n_threads = 1;
        points[i].stock_ns = 1000;
        points[i].work = sizes[0] * sizes[1] * sizes[2];
    }
    EXPECT(ptac_chooser_install(points, 2) == PTAC_OK);
    EXPECT(of_product(64, 64, 512, false) == avx512);
    EXPECT(of_product(64, 512, 64, false) == library);
    /* Both know all three: avx512 is no faster at one, a library's does not count. */
    EXPECT(of_product(64, 512, 512, false) == avx2);
    /* A row that leaves such calls: the next that is fast enough. */
    EXPECT(of_product(64, 64, 512, true) == avx2);
    points[1].others[0] = NULL;
    points[1].other_ratios[0] = 0;
    EXPECT(ptac_chooser_install(points, 2) == PTAC_OK);
    EXPECT(of_product(64, 512, 512, false) == NULL); /* one does not know it */
    points[1].others[0] = avx2;
    points[1].other_ratios[0] = 1.04;
    EXPECT(ptac_chooser_install(points, 2) == PTAC_OK);
    EXPECT(of_product(64, 512, 512, false) == NULL);
    EXPECT(of_product(64, 64, 512, true) == avx2);
    reset();
}
