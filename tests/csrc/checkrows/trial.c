/*
 * trial.c - running a row on guarded buffers, and judging what it did to them.
 */
#include "trial.h"

#include "core/host.h"
#include "faults.h"
#include "threads.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct results {
    void *of[MAX_BUFFERS];
} results;

/* What is run now, and how. */
typedef struct trial {
    const generator *gen;
    const ptac_kernel *row;
    uint64_t seed;
    int64_t number; /* of the case */
    ptac_isa limit;
    int n_threads; /* 0: serial */
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

/* Places and threads of a run do not depend on which other rows there are. */
static rng rng_for_run(const trial *t)
{
    rng r = rng_for_case(t->seed, t->row->op, t->number);

    r.state ^= hash(t->row->name) + (uint64_t)t->limit * 16 + (uint64_t)t->n_threads;
    r.state = rng_next(&r);
    return r;
}

static void describe(const trial *t)
{
    faults_note("%s row %s, cpu limit %s, %d threads%s\n"
                "  call: %s\n"
                "  again: checkrows --seed %llu --op %s --case %lld",
                ptac_op_name(t->row->op), t->row->name, ptac_isa_name(t->limit),
                t->n_threads ? t->n_threads : 1, t->n_threads ? "" : " (serial host)",
                c.note, (unsigned long long)t->seed, ptac_op_name(t->row->op),
                (long long)t->number);
}

/* Say what went wrong in the run at hand; always false. */
__attribute__((format(printf, 1, 2))) static bool fail(const char *format, ...)
{
    va_list args;

    printf("FAIL %s\n  ", faults_noted());
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    return false;
}

static bool fail_at(const test_buffer *b, int64_t i, const void *expected,
                    const void *got, const char *against)
{
    const size_t at = (size_t)i * b->element_bytes;
    uint64_t bits[2] = {0, 0};

    memcpy(&bits[0], (const char *)expected + at, b->element_bytes);
    memcpy(&bits[1], (const char *)got + at, b->element_bytes);
    return fail("%s of %s, element %lld: %.17g (%llx), but by %s %.17g (%llx)", b->name,
                ptac_dtype_name(b->dtype), (long long)i, real_at(b->dtype, &bits[1], 0),
                (unsigned long long)bits[1], against, real_at(b->dtype, &bits[0], 0),
                (unsigned long long)bits[0]);
}

/* Guards, inputs and, unless the row said PTAC_OK, everything updated in place. */
static bool left_alone(ptac_status status)
{
    for (int i = 0; i < c.n_buffers; i++) {
        const test_buffer *b = &c.buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;
        const char *damage = arena_damage(i);
        const bool may_change =
            b->use == WRITES || b->use == SCRATCH || (b->use == UPDATES && !status);

        if (damage)
            return fail("%s: %s", b->name, damage);
        if (!may_change && memcmp(b->data, b->content, bytes) != 0)
            return fail("%s was changed", b->name);
    }
    return true;
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
    threads_install(t->n_threads, &r);
    test_call_place(&r, &c, t->gen);
    c.call.n_threads = ptac_the_host.n_threads();
    c.call.stream = the_device.stream;
    if (the_device.set_order)
        the_device.set_order(t->n_threads ? rng_next(&r) : 0);
    memcpy(params, c.params, sizeof params);

    early = c.call; /* rows are asked before outputs exist */
    memset(early.outputs, 0, sizeof early.outputs);
    *status = PTAC_UNSUPPORTED;
    *why = t->row->accepts(&early);
    if (!*why)
        *status = t->row->run(&c.call);
    threads_install(0, &r);
    if (!left_alone(*status))
        return false;
    if (memcmp(params, c.params, sizeof params) != 0)
        return fail("the params were changed");
    if (*status == PTAC_FAILED)
        return fail("PTAC_FAILED: %s", ptac_error_get());
    return true;
}

static bool is_compared(const test_buffer *b)
{
    return b->use == WRITES || b->use == UPDATES;
}

static void results_keep(results *kept)
{
    for (int i = 0; i < c.n_buffers; i++) {
        const test_buffer *b = &c.buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;

        free(kept->of[i]);
        kept->of[i] = is_compared(b) ? malloc(bytes + 1) : NULL;
        if (kept->of[i])
            memcpy(kept->of[i], b->data, bytes);
    }
}

static void results_drop(results *kept)
{
    for (int i = 0; i < MAX_BUFFERS; i++)
        free(kept->of[i]);
    memset(kept, 0, sizeof *kept);
}

/* How far a buffer of the row may lie from that of "scalar"; 0: it has equal bits. */
static double roundings_for(const trial *t, const test_buffer *b)
{
    const ptac_kernel *row = t->row;

    if (strcmp(row->name, "scalar") == 0)
        return 0;
    if (row->level != PTAC_EXACT)
        return t->gen->roundings;
    return row->device && b->element_bytes == 2 ? t->gen->device_roundings : 0;
}

/* Compare what lies in the outputs with that of "scalar", or of the row itself. */
static bool agrees(const results *with, const trial *t, bool with_itself)
{
    for (int i = 0; i < c.n_buffers; i++) {
        const test_buffer *b = &c.buffers[i];

        if (!is_compared(b))
            continue;

        const double roundings = with_itself ? 0 : roundings_for(t, b);
        const equality rule = {
            .bits = roundings == 0,
            .nan_bits = with_itself ? 0 : t->gen->nan_bits,
            .allowed = roundings_of(b, with->of[i], roundings),
        };
        const int64_t at = first_difference(b, with->of[i], b->data, &rule);

        if (at >= 0)
            return fail_at(b, at, with->of[i], b->data,
                           with_itself ? "the same row without threads" : "\"scalar\"");
    }
    return true;
}

/* The row, serially and with threads, under one limit. */
static bool check_row(trial *t, rng *r, const results *expected, ptac_status outcome,
                      tally *record)
{
    const generator *g = t->gen;
    const int n_threads[] = {0, (int)rng_between(r, 1, MAX_THREADS)};
    results serially = {{NULL}};
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
        fine = agrees(expected, t, false);
        if (fine && has_serial && !g->threads_change_bits)
            fine = agrees(&serially, t, true);
        if (i == 0)
            results_keep(&serially);
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
    const ptac_kernel *scalar = ptac_registry_find(g->op, "scalar");
    trial t = {.gen = g, .row = scalar, .seed = seed, .number = number};
    rng r = rng_for_case(seed, g->op, number);
    results expected = {{NULL}};
    ptac_status outcome;
    ptac_reason why;
    bool fine;
    int n;
    const ptac_isa *limit = limits(&n);

    test_call_clear(&c);
    g->make(&r, &c);
    describe(&t);
    fine = classifies(g) && run_row(&t, &why, &outcome);
    if (fine && c.must_be_given_back && outcome == PTAC_OK)
        fine = fail("PTAC_OK for a call that no row may do");
    results_keep(&expected);
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
