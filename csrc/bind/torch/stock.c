/*
 * stock.c - a row's call beside stock's: shadow checks.
 */
#include "bind/torch/cuda.h"
#include "bind/torch/dispatch.h"

#include <math.h>
#include <time.h>

int64_t ptac_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Hand out stock's outputs. */
static void yield_to(at_tensor *expected, int n_outputs, at_tensor *made)
{
    for (int i = 0; i < n_outputs; i++) {
        at_drop_tensor(&made[i]);
        made[i] = at_give(&expected[i]);
    }
}

/* Compare, and leave in made what agrees with stock. */
static void settle(const ptac_kernel *row, int n_outputs, at_tensor *made,
                   at_tensor *expected, int64_t t_ours_ns, int64_t t_stock_ns)
{
    ptac_view ours[PTAC_MAX_OUTPUTS] = {{0}}, theirs[PTAC_MAX_OUTPUTS] = {{0}};

    for (int i = 0; i < n_outputs; i++) {
        ptac_view_of(made[i], &ours[i]);
        ptac_view_of(expected[i], &theirs[i]);
    }
    if (!ptac_shadow_agrees(row, ours, theirs, n_outputs, t_ours_ns, t_stock_ns))
        yield_to(expected, n_outputs, made);
}

/*
 * Likewise on a CUDA device, whose memory the host cannot read: by copies that torch
 * makes. Times of launches are none of kernels, and are not counted.
 */
static void settle_on_cuda(const ptac_kernel *row, int n_outputs, at_tensor *made,
                           at_tensor *expected)
{
    for (int i = 0; i < n_outputs; i++) {
        AT_OWNED at_tensor ours = ptac_cuda_copy(made[i]);
        AT_OWNED at_tensor theirs = ptac_cuda_copy(expected[i]);
        ptac_view views[2];

        if (!ours || !theirs)
            continue;
        ptac_cuda_view_of(ours, &views[0]);
        ptac_cuda_view_of(theirs, &views[1]);
        if (!ptac_shadow_agrees(row, &views[0], &views[1], 1, 0, 0)) {
            yield_to(expected, n_outputs, made);
            return;
        }
    }
}

/* What stock's kernel calls by the dispatcher is to be stock's too. */
static void call_stock(ptac_stock_fn stock, const void *context, at_tensor *out)
{
    PTAC_MUTED;

    stock(context, out);
}

static bool run_checked_on_cuda(const ptac_kernel *row, const ptac_call *call,
                                int n_made, at_tensor *made, ptac_stock_fn stock,
                                const void *context)
{
    AT_OWNED_ALL at_tensors expected = {{NULL}};

    if (!ptac_shadow_due(call->op) || row->spreads || ptac_cuda_is_capturing(call))
        return ptac_run(row, call);
    if (!ptac_run(row, call))
        return false;
    call_stock(stock, context, expected.at);
    settle_on_cuda(row, n_made, made, expected.at);
    return true;
}

static bool inputs_are_finite(const ptac_call *call)
{
    for (int i = 0; i < call->n_inputs; i++) {
        const ptac_view *view = &call->inputs[i];
        const float *values = view->data;

        for (int64_t j = 0; view->dtype == PTAC_F32 && j < view->n_elements; j++)
            if (!isfinite(values[j]))
                return false;
    }
    return true;
}

bool ptac_run_checked(const ptac_kernel *row, const ptac_call *call, int n_made,
                      at_tensor *made, ptac_stock_fn stock, const void *context)
{
    AT_OWNED_ALL at_tensors expected = {{NULL}};
    int64_t t_start, t_middle;

    if (row->device == PTAC_ON_CUDA)
        return run_checked_on_cuda(row, call, n_made, made, stock, context);
    if (!ptac_shadow_due(call->op) || (row->spreads && !inputs_are_finite(call)))
        return ptac_run(row, call);
    t_start = ptac_now_ns();
    if (!ptac_run(row, call))
        return false;
    t_middle = ptac_now_ns();
    call_stock(stock, context, expected.at);
    settle(row, n_made, made, expected.at, t_middle - t_start,
           ptac_now_ns() - t_middle);
    return true;
}
