/*
 * stock.c - a row's call beside stock's: shadow checks.
 */
#include "bind/torch/stock.h"

#include "core/clock.h"

#include <math.h>

/* Compare, release the loser and leave the winner in ours. */
static void settle(const ptac_kernel *row, int n_outputs, at_tensor *ours,
                   at_tensor *stock, int64_t t_ours_ns, int64_t t_stock_ns)
{
    ptac_view our_views[PTAC_MAX_OUTPUTS] = {{0}},
              stock_views[PTAC_MAX_OUTPUTS] = {{0}};

    for (int i = 0; i < n_outputs; i++) {
        ptac_view_of(ours[i], &our_views[i]);
        ptac_view_of(stock[i], &stock_views[i]);
    }

    const bool agree = ptac_shadow_agrees(row, our_views, stock_views, n_outputs,
                                          t_ours_ns, t_stock_ns);

    for (int i = 0; i < n_outputs; i++) {
        at_tensor *loser = agree ? &stock[i] : &ours[i];

        T.aoti_torch_delete_tensor_object(*loser);
        *loser = NULL;
        if (!agree)
            ours[i] = at_give(&stock[i]);
    }
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

bool ptac_run_checked(const ptac_kernel *row, const ptac_call *call, at_tensor *made,
                      ptac_stock_fn stock, const void *context)
{
    at_tensor expected[PTAC_MAX_OUTPUTS];
    int64_t t_start, t_middle;

    if (!ptac_shadow_due(call->op) || (row->spreads && !inputs_are_finite(call)))
        return ptac_run(row, call);
    t_start = ptac_clock_ns();
    if (!ptac_run(row, call))
        return false;
    t_middle = ptac_clock_ns();
    stock(context, expected);
    settle(row, call->n_outputs, made, expected, t_middle - t_start,
           ptac_clock_ns() - t_middle);
    return true;
}
