/*
 * counting.c - what rows of a device move, beside what their calls need.
 */
#include "counting.h"

#include "faults.h"
#include "judge.h"
#include "narrow.h"
#include "trial.h"

#include <stdio.h>
#include <string.h>

static const double MOST_TIMES = 1.1; /* what a call needs */

static test_call c;

static device_work less(device_work a, device_work b)
{
    return (device_work){a.n_launches - b.n_launches, a.bytes_read - b.bytes_read,
                         a.bytes_written - b.bytes_written,
                         a.n_accesses - b.n_accesses};
}

/* Whether the row took the call; what that cost in *cost. */
static bool run(const ptac_kernel *row, device_work *cost, ptac_status *status)
{
    ptac_call early = c.call; /* rows are asked before outputs exist */
    bool taken;

    memset(early.outputs, 0, sizeof early.outputs);
    *cost = the_device.work();
    arena_forbid(true);
    taken = row->accepts(&early) == PTAC_TAKE;
    *status = taken ? row->run(&c.call) : PTAC_OK;
    arena_forbid(false);
    *cost = less(the_device.work(), *cost);
    return taken;
}

static bool judge(const generator *g, const device_work *cost)
{
    const int64_t least = g->least_bytes ? g->least_bytes(&c) : test_bytes(&c);
    const int64_t moved = cost->bytes_read + cost->bytes_written;
    const int most_launches = g->most_launches ? g->most_launches : 1;

    printf("  %.2f times %lld bytes, %.1f an access, %lld launches: %s\n",
           (double)moved / (double)least, (long long)least,
           (double)moved / (double)cost->n_accesses, (long long)cost->n_launches,
           faults_noted());
    if ((double)moved > MOST_TIMES * (double)least)
        return fail("read %lld and wrote %lld bytes, where the call needs %lld",
                    (long long)cost->bytes_read, (long long)cost->bytes_written,
                    (long long)least);
    if (cost->n_launches > most_launches)
        return fail("took %lld launches where %d are allowed",
                    (long long)cost->n_launches, most_launches);
    return true;
}

/* Call i in this dtype by each row; *any: there is such a call. */
static bool count_call(const generator *g, int i, ptac_dtype dtype, int64_t *n_taken,
                       bool *any)
{
    rng r = rng_for_case(1, g->op, i);
    int n;
    const ptac_kernel *const *rows =
        ptac_registry_rows_on(the_device.device, g->op, &n);
    bool fine = true, is_marked;

    test_call_clear(&c);
    *any = g->typical(i, &r, &c);
    is_marked = *any && test_widen(&c);
    if (!*any || (dtype != PTAC_F32 && !is_marked))
        return true;
    if (dtype != PTAC_F32) {
        test_round(&c, dtype);
        test_narrow(&c, dtype);
    }
    for (int k = 0; k < n && fine; k++) {
        device_work cost;
        ptac_status status;

        faults_note("%s row %s, typical call %d%s%s: %s", ptac_op_name(g->op),
                    rows[k]->name, i, is_marked ? " of " : "",
                    is_marked ? ptac_dtype_name(dtype) : "", c.note);
        test_call_place(NULL, &c, g);
        c.call.n_threads = 1;
        c.call.stream = the_device.stream;
        if (!run(rows[k], &cost, &status))
            continue;
        n_taken[k]++;
        fine = status == PTAC_OK ? judge(g, &cost)
                                 : fail("status %d: %s", status, ptac_error_get());
    }
    return fine;
}

bool count_op(const generator *g)
{
    static const ptac_dtype dtypes[] = {PTAC_F32, PTAC_F16, PTAC_BF16};
    int64_t n_taken[PTAC_MAX_ROWS] = {0};
    bool fine = true, any = true;
    int n;
    const ptac_kernel *const *rows =
        ptac_registry_rows_on(the_device.device, g->op, &n);

    faults_note("%s", ptac_op_name(g->op));
    if (!g->typical)
        return fail("the generator makes no typical calls");
    printf("%s\n", ptac_op_name(g->op));
    for (int i = 0; any && fine; i++)
        for (int k = 0; k < 3 && any && fine; k++)
            fine = count_call(g, i, dtypes[k], n_taken, &any);
    test_call_clear(&c);
    for (int k = 0; k < n && fine; k++)
        if (n_taken[k] == 0) {
            faults_note("%s row %s", ptac_op_name(g->op), rows[k]->name);
            fine = fail("took no typical call");
        }
    return fine;
}
