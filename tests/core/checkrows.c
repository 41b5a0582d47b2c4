/*
 * checkrows.c - every row of every operator against the operator's row "scalar".
 *
 *   checkrows [--seed N] [--seconds S | --cases N] [--op NAME [--case K]]
 *
 * After dav1d's checkasm: random calls, each run on buffers that notice stray reads and
 * writes, under every instruction set limit and with several threads. Case K depends on
 * the seed, the operator's name and K alone, so a failure is repeated by its last line.
 */
#include "checkrows.h"

#include "core/clock.h"
#include "core/host.h"
#include "faults.h"
#include "threads.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_COMPARED = 20, /* of each row; what fewer calls say is not worth a pass */
    MOST_CASES = 5000,   /* to get there */
};

/* Operators with rows whose calls cannot be made up here, and why. */
static const struct {
    ptac_op op;
    const char *why;
} excused[] = {
    {PTAC_N_OPS, ""},
};

typedef struct options {
    uint64_t seed;
    double seconds;
    int64_t n_cases; /* 0: as many as the time allows */
    int64_t only_case;
    ptac_op only_op;
} options;

typedef struct results {
    void *of[MAX_BUFFERS];
} results;

/* One row's record. */
typedef struct tally {
    int64_t n_compared, n_refused, n_given_back;
} tally;

/* What is run now, and how. */
typedef struct trial {
    const options *asked;
    const generator *gen;
    const ptac_kernel *row;
    int64_t number; /* of the case */
    ptac_isa limit;
    int n_threads; /* 0: serial */
} trial;

static const generator *generators[PTAC_N_OPS];
static test_call c;

void generator_add(const generator *g)
{
    generators[g->op] = g;
}

static const char *name_of_buffer(int slot)
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

static rng rng_for(const options *asked, ptac_op op, int64_t number)
{
    rng r = {asked->seed ^ hash(ptac_op_name(op))};

    r.state = rng_next(&r) + (uint64_t)number;
    r.state = rng_next(&r);
    return r;
}

/* Places and threads of a run do not depend on which other rows there are. */
static rng rng_for_run(const trial *t)
{
    rng r = rng_for(t->asked, t->row->op, t->number);

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
                t->n_threads ? t->n_threads : 1, t->n_threads ? "" : " (serial host)", c.note,
                (unsigned long long)t->asked->seed, ptac_op_name(t->row->op),
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
        const char *damage = arena_damage(i);
        const bool may_change = b->use == WRITES || (b->use == UPDATES && !status);

        if (damage)
            return fail("%s: %s", b->name, damage);
        if (!may_change && memcmp(b->data, b->content,
                                  (size_t)b->n_elements * b->element_bytes) != 0)
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

static void results_keep(results *kept)
{
    for (int i = 0; i < c.n_buffers; i++) {
        const test_buffer *b = &c.buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;

        free(kept->of[i]);
        kept->of[i] = b->use == READS ? NULL : malloc(bytes + 1);
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

/* Compare what lies in the outputs; roundings 0 asks for equal bits. */
static bool agrees(const results *with, uint32_t nan_bits, double roundings,
                   const char *against)
{
    for (int i = 0; i < c.n_buffers; i++) {
        const test_buffer *b = &c.buffers[i];

        if (b->use == READS)
            continue;

        const equality rule = {
            .bits = roundings == 0,
            .nan_bits = nan_bits,
            .allowed = roundings_of(b, with->of[i], roundings),
        };
        const int64_t at = first_difference(b, with->of[i], b->data, &rule);

        if (at >= 0)
            return fail_at(b, at, with->of[i], b->data, against);
    }
    return true;
}

/* The row, serially and with threads, under one limit. */
static bool check_row(trial *t, rng *r, const results *expected, ptac_status outcome,
                      tally *record)
{
    const generator *g = t->gen;
    const bool is_scalar = strcmp(t->row->name, "scalar") == 0;
    const double roundings =
        is_scalar || t->row->level == PTAC_EXACT ? 0 : g->roundings;
    const int n_threads[] = {0, (int)rng_between(r, 1, MAX_THREADS)};
    results serially = {{NULL}};
    bool fine = true, has_serial = false;

    for (int i = 0; i < 2 && fine; i++) {
        ptac_reason why;
        ptac_status status;

        t->n_threads = n_threads[i];
        fine = run_row(t, &why, &status);
        if (!fine)
            break;
        if (why) {
            record->n_refused++;
            break;
        }
        if (status != outcome && !(status == PTAC_UNSUPPORTED && c.may_be_given_back)) {
            fine = fail("%s", status ? "PTAC_UNSUPPORTED where \"scalar\" does the call"
                                     : "PTAC_OK where \"scalar\" gives the call back");
            break;
        }
        if (status) {
            record->n_given_back++;
            continue;
        }
        record->n_compared++;
        fine = agrees(expected, g->nan_bits, roundings, "\"scalar\"");
        if (fine && has_serial && !g->threads_change_bits)
            fine = agrees(&serially, g->nan_bits, 0, "the same row without threads");
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
    const ptac_kernel *const *rows = ptac_registry_rows(t->gen->op, &n);

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
    ptac_shape shape = {-1, -1};

    if (!shapes)
        return fail("no PTAC_REGISTER_SHAPES");
    if (shapes->classify(&c.call, &shape))
        return true;
    if (shape.kind < 0 || shape.kind >= PTAC_MAX_KINDS || !shapes->kinds[shape.kind])
        return fail("classify() gave a kind that has no name");
    return shape.work >= 0 || fail("classify() gave negative work");
}

static bool check_case(const options *asked, const generator *g, int64_t number,
                       tally *records)
{
    const ptac_kernel *scalar = ptac_registry_find(g->op, "scalar");
    trial t = {.asked = asked, .gen = g, .row = scalar, .number = number};
    rng r = rng_for(asked, g->op, number);
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
    if (fine && c.must_be_given_back && outcome != PTAC_UNSUPPORTED)
        fine = fail("PTAC_OK for a call that no row may do");
    results_keep(&expected);
    for (int i = 0; i < n && fine; i++) {
        t.limit = limit[i];
        fine = check_limit(&t, &r, &expected, outcome, records);
    }
    results_drop(&expected);
    return fine;
}

/* The rows of the operator that this CPU runs and that were compared too rarely. */
static int n_neglected(ptac_op op, const tally *records, const char **name)
{
    int n, neglected = 0;
    const ptac_kernel *const *rows = ptac_registry_rows(op, &n);

    ptac_cpu_limit(PTAC_ISA_AVX512);
    for (int i = 0; i < n; i++) {
        if ((rows[i]->needs & ~ptac_cpu_features()) == 0 &&
            records[i].n_compared < LEAST_COMPARED) {
            *name = rows[i]->name;
            neglected++;
        }
    }
    return neglected;
}

static void print_record(ptac_op op, int64_t n_cases, const tally *records)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(op, &n);

    printf("%s: %lld cases\n", ptac_op_name(op), (long long)n_cases);
    for (int i = 0; i < n; i++) {
        if (rows[i]->needs & ~ptac_cpu_features())
            printf("  %-8s not checked: this CPU cannot run it\n", rows[i]->name);
        else
            printf("  %-8s %s: %lld runs compared, %lld refused, %lld given back\n",
                   rows[i]->name, ptac_level_name(rows[i]->level),
                   (long long)records[i].n_compared, (long long)records[i].n_refused,
                   (long long)records[i].n_given_back);
    }
}

static bool check_op(const options *asked, const generator *g, double seconds)
{
    const int64_t t_end_ns = ptac_clock_ns() + (int64_t)(seconds * 1e9);
    tally records[PTAC_MAX_ROWS] = {{0, 0, 0}};
    const char *name = "";
    int64_t k = 0;

    if (asked->only_case >= 0)
        return check_case(asked, g, asked->only_case, records);
    for (;; k++) {
        if (asked->n_cases ? k >= asked->n_cases : ptac_clock_ns() > t_end_ns)
            if (n_neglected(g->op, records, &name) == 0 || k >= MOST_CASES)
                break;
        if (!check_case(asked, g, k, records))
            return false;
    }
    print_record(g->op, k, records);
    if (n_neglected(g->op, records, &name) == 0)
        return true;
    printf("FAIL %s row %s: its generator made hardly any call that it takes\n",
           ptac_op_name(g->op), name);
    return false;
}

static const char *excuse(ptac_op op)
{
    for (size_t i = 0; i < sizeof excused / sizeof *excused; i++)
        if (excused[i].op == op)
            return excused[i].why;
    return NULL;
}

/* Whether an operator's rows can be checked at all; false is a failure. */
static bool is_checkable(ptac_op op, int *n_rows)
{
    const ptac_kernel *scalar = ptac_registry_find(op, "scalar");
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(op, &n);

    *n_rows = n;
    if (n == 0)
        return true;
    if (excuse(op)) {
        printf("%s: not checked: %s\n", ptac_op_name(op), excuse(op));
        *n_rows = 0;
        return true;
    }
    if (!scalar || scalar->needs) {
        printf("FAIL %s has no row \"scalar\" that runs on any CPU\n", ptac_op_name(op));
        return false;
    }
    if (!generators[op]) {
        printf("FAIL %s has rows and no generator: add tests/core/gen_<family>.c\n",
               ptac_op_name(op));
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (rows[i]->level != PTAC_EXACT && generators[op]->roundings == 0 &&
            rows[i] != scalar) {
            printf("FAIL %s row %s is %s and its generator states no tolerance\n",
                   ptac_op_name(op), rows[i]->name, ptac_level_name(rows[i]->level));
            return false;
        }
    }
    return true;
}

static bool read_options(int argc, char **argv, options *asked)
{
    *asked = (options){.seed = 1, .seconds = 4, .only_case = -1, .only_op = PTAC_N_OPS};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            asked->seed = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--seconds") == 0)
            asked->seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--cases") == 0)
            asked->n_cases = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--case") == 0)
            asked->only_case = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--op") == 0)
            asked->only_op = ptac_op_find(argv[i + 1]);
        else
            return false;
        if (strcmp(argv[i], "--op") == 0 && asked->only_op == PTAC_N_OPS)
            return false;
    }
    return argc % 2 == 1;
}

int main(int argc, char **argv)
{
    options asked;
    bool fine = true, todo[PTAC_N_OPS] = {false};
    int n_ops = 0, n_rows;

    if (!read_options(argc, argv, &asked)) {
        fprintf(stderr, "usage: checkrows [--seed N] [--seconds S | --cases N] "
                        "[--op NAME [--case K]]\n");
        return 2;
    }
    arena_prepare();
    faults_watch(name_of_buffer);
    printf("checkrows --seed %llu on %s, %s\n", (unsigned long long)asked.seed,
           ptac_cpu_model(), ptac_isa_name(ptac_cpu_isa()));
    for (int op = 0; op < PTAC_N_OPS; op++) {
        if (asked.only_op != PTAC_N_OPS && op != (int)asked.only_op)
            continue;
        if (!is_checkable((ptac_op)op, &n_rows))
            fine = false;
        else if (n_rows > 0)
            todo[op] = ++n_ops;
    }
    for (int op = 0; op < PTAC_N_OPS; op++)
        if (todo[op])
            fine &= check_op(&asked, generators[op], asked.seconds / n_ops);
    test_call_clear(&c);
    printf("%s: %d operators\n", fine ? "passed" : "FAILED", n_ops);
    return fine ? 0 : 1;
}
