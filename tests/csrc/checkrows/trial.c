/*
 * trial.c - running rows on guarded buffers, in every way that they can be run.
 */
#include "trial.h"

#include "core/host.h"
#include "faults.h"
#include "judge.h"
#include "narrow.h"
#include "threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is run now, and how. */
typedef struct trial {
    const generator *gen;
    const ptac_kernel *row;
    uint64_t seed;
    int64_t number; /* of the case */
    ptac_isa limit;
    int n_threads;    /* 0: serial */
    ptac_dtype dtype; /* of what may be of 16 bits */
} trial;

static test_call c;

tested_device the_device;

const char *name_of_buffer(int slot)
{
    return slot < c.n_buffers ? c.buffers[slot].name : "no buffer";
}

static uint64_t hash(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

    while (*text)
        h = (h ^ (unsigned char)*text++) * UINT64_C(0x100000001b3);
    return h;
}

rng rng_for_case(uint64_t seed, ptac_op op, int64_t number)
{
    rng r = {seed ^ hash(ptac_op_name(op))};

    r.state = rng_next(&r) + (uint64_t)number;
    r.state = rng_next(&r);
    return r;
}

/*
 * Places and threads of a run do not depend on which other rows there are. On a device
 * runs differ in the order of threads alone: which of them adds up what may depend on
 * how addresses lie for packs.
 */
static rng rng_for_run(const trial *t)
{
    rng r = rng_for_case(t->seed, t->row->op, t->number);

    r.state ^= hash(t->row->name) + (uint64_t)t->limit * 16 +
               (t->row->device ? 0 : (uint64_t)t->n_threads);
    r.state = rng_next(&r);
    return r;
}

static void describe(const trial *t)
{
    faults_note("%s row %s, cpu limit %s, %d threads%s\n"
                "  call: %s%s%s\n"
                "  again: checkrows --seed %llu --op %s --case %lld",
                ptac_op_name(t->row->op), t->row->name, ptac_isa_name(t->limit),
                t->n_threads ? t->n_threads : 1, t->n_threads ? "" : " (serial host)",
                c.note, t->dtype == PTAC_F32 ? "" : ", narrowed to ",
                t->dtype == PTAC_F32 ? "" : ptac_dtype_name(t->dtype),
                (unsigned long long)t->seed, ptac_op_name(t->row->op),
                (long long)t->number);
}

/*
 * Run the row on buffers that were laid out anew. *why is its refusal, else *status
 * its outcome. False: it did something that no row may do.
 */
static bool run_row(const trial *t, ptac_reason *why, ptac_status *status)
{
    static unsigned char params[PARAMS_BYTES];
    rng r = rng_for_run(t);
    ptac_call early;

    describe(t);
    ptac_cpu_limit(t->limit);
    test_call_place(&r, &c, t->gen);
    threads_install(t->n_threads, &r);
    if (t->gen->scale && strcmp(t->row->name, "scalar") == 0)
        t->gen->scale(&c);
    c.call.n_threads = ptac_the_host.n_threads();
    c.call.stream = the_device.stream;
    if (the_device.set_order)
        the_device.set_order(t->n_threads ? rng_next(&r) : 0);
    memcpy(params, c.params, sizeof params);

    early = c.call; /* rows are asked before outputs exist */
    memset(early.outputs, 0, sizeof early.outputs);
    *status = PTAC_UNSUPPORTED;
    arena_forbid(t->row->device != PTAC_ON_CPU);
    *why = t->row->accepts(&early);
    if (!*why)
        *status = t->row->run(&c.call);
    arena_forbid(false);
    threads_install(0, &r);
    if (!left_alone(&c, *status))
        return false;
    if (memcmp(params, c.params, sizeof params) != 0)
        return fail("the params were changed");
    if (*status == PTAC_FAILED)
        return fail("PTAC_FAILED: %s", ptac_error_get());
    return true;
}

/* The row, serially and with threads, under one limit. */
static bool check_row(trial *t, rng *r, const results *expected, ptac_status outcome,
                      tally *record)
{
    const generator *g = t->gen;
    const int n_threads[] = {0, (int)rng_between(r, 1, MAX_THREADS)};
    results serially = {0};
    bool fine = true, has_serial = false;

    for (int i = 0; i < 2 && fine; i++) {
        ptac_reason why;
        ptac_status status;

        t->n_threads = n_threads[i];
        record->n_shared -= threads_n_shared();
        fine = run_row(t, &why, &status);
        record->n_shared += threads_n_shared();
        if (!fine)
            break;
        if (why) {
            record->n_refused++;
            break;
        }
        if (status != outcome && !(status != PTAC_FAILED && c.may_be_given_back)) {
            fine = fail("%s", status ? "PTAC_UNSUPPORTED where \"scalar\" does the call"
                                     : "PTAC_OK where \"scalar\" gives the call back");
            break;
        }
        if (status) {
            record->n_given_back++;
            continue;
        }
        record->n_compared++;
        record->n_16_bits[0] += t->dtype == PTAC_F16;
        record->n_16_bits[1] += t->dtype == PTAC_BF16;
        fine = agrees(&c, expected, g, t->row, false);
        if (fine && has_serial && !g->threads_change_bits)
            fine = agrees(&c, &serially, g, t->row, true);
        if (i == 0)
            results_keep(&serially, &c);
        has_serial = i == 0;
    }
    results_drop(&serially);
    return fine;
}

/* Every row that runs under this limit. */
static bool check_limit(trial *t, rng *r, const results *expected, ptac_status outcome,
                        tally *records)
{
    int n;
    const ptac_kernel *const *rows =
        ptac_registry_rows_on(the_device.device, t->gen->op, &n);

    /* Only rows of the CPU know by their values which calls to give back. */
    if (the_device.device && (c.may_be_given_back || c.must_be_given_back))
        return true;
    for (int i = 0; i < n; i++) {
        ptac_cpu_limit(t->limit);
        t->row = rows[i];
        if ((t->row->needs & ~ptac_cpu_features()) == 0 &&
            !check_row(t, r, expected, outcome, &records[i]))
            return false;
    }
    return true;
}

/* The limits that differ on this CPU, *n of them. */
static const ptac_isa *limits(int *n)
{
    static ptac_isa found[PTAC_ISA_AVX512 + 1];
    uint32_t last = ~0u;

    if (the_device.device) {
        *n = 1;
        return found;
    }

    *n = 0;
    for (int isa = PTAC_ISA_SCALAR; isa <= PTAC_ISA_AVX512; isa++) {
        ptac_cpu_limit((ptac_isa)isa);
        if (ptac_cpu_features() != last)
            found[(*n)++] = (ptac_isa)isa;
        last = ptac_cpu_features();
    }
    return found;
}

static bool classifies(const generator *g)
{
    const ptac_op_shapes *shapes = ptac_registry_shapes(g->op);
    ptac_shape shape = {.kind = -1, .work = -1};

    if (!shapes)
        return fail("no PTAC_REGISTER_SHAPES");
    if (shapes->classify(&c.call, &shape))
        return true;
    if (shape.kind < 0 || shape.kind >= PTAC_MAX_KINDS || !shapes->kinds[shape.kind])
        return fail("classify() gave a kind that has no name");
    return shape.work >= 0 || fail("classify() gave negative work");
}

bool check_case(const generator *g, uint64_t seed, int64_t number, tally *records)
{
    const bool has_own = the_device.device && g->definition;
    const ptac_kernel *scalar =
        has_own ? g->definition : ptac_registry_find(g->op, "scalar");
    trial t = {.gen = g, .row = scalar, .seed = seed, .number = number};
    rng r = rng_for_case(seed, g->op, number);
    results expected = {0};
    ptac_status outcome;
    ptac_reason why;
    bool fine;
    int n;
    const ptac_isa *limit = limits(&n);

    test_call_clear(&c);
    g->make(&r, &c);
    if (the_device.device && test_widen(&c))
        t.dtype = (ptac_dtype)RNG_PICK(&r, PTAC_F32, PTAC_F16, PTAC_BF16);
    if (t.dtype != PTAC_F32)
        test_round(&c, t.dtype);
    if (t.dtype != PTAC_F32 && has_own)
        test_narrow(&c, t.dtype);
    describe(&t);
    fine = classifies(g) && run_row(&t, &why, &outcome);
    if (fine && c.must_be_given_back && outcome == PTAC_OK)
        fine = fail("PTAC_OK for a call that no row may do");
    results_keep(&expected, &c);
    if (t.dtype != PTAC_F32 && !has_own)
        test_narrow(&c, t.dtype);
    for (int i = 0; i < n && fine; i++) {
        t.limit = limit[i];
        fine = check_limit(&t, &r, &expected, outcome, records);
    }
    results_drop(&expected);
    return fine;
}

void forget_case(void)
{
    test_call_clear(&c);
}
