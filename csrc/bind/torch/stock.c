/*
 * stock.c - the out= route to torch's kernels, and the end of shadow checks.
 */
#include "bind/torch/stock.h"

#include "core/clock.h"

#include <math.h>
#include <string.h>

stable_ivalue at_make_ints(const int64_t *values, int n)
{
    at_list list = NULL;

    at_must(T.torch_new_list_reserve_size((size_t)n, &list), "no memory for a list");
    for (int i = 0; i < n; i++)
        T.torch_list_push_back(list, (stable_ivalue)values[i]);
    return (stable_ivalue)(uintptr_t)list;
}

stable_ivalue at_box_tensor(at_tensor tensor)
{
    return (stable_ivalue)(uintptr_t)at_share(tensor);
}

void at_call_out(const char *operator, stable_ivalue * args, int n_args,
                 const int32_t *dtypes, at_tensor *outputs, int n_outputs)
{
    static const int64_t zero = 0, one = 1;
    const char *overload = strchr(operator, '.') + 1;
    char op[80] = "";

    strncat(op, operator, (size_t)(overload - 1 - operator));

    for (int i = 0; i < n_outputs; i++) {
        at_must(T.aoti_torch_empty_strided(1, &zero, &one, dtypes[i], AT_DEVICE_CPU, 0,
                                           &outputs[i]),
                "could not allocate an output");
        /*
         * The second handle keeps the tensor alive: torch 2.11 returns dangling
         * tensors from boxed calls with several outputs.
         */
        args[n_args + i] = at_box_tensor(outputs[i]);
    }

    const at_error error =
        T.torch_call_dispatcher(op, overload, args, PTAC_TORCH_ABI_VERSION);

    if (error) {
        for (int i = 0; i < n_outputs; i++)
            at_drop_tensor(&outputs[i]);
        at_throw_last("torch's own kernel failed (its message is on stderr)");
    }
    for (int i = 0; i < n_outputs; i++)
        T.aoti_torch_delete_tensor_object(at_take_tensor(args, i));
}

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
