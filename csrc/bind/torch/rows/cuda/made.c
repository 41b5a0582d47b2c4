/*
 * made.c - outputs and workspace of calls on CUDA, and running them.
 */
#include "bind/torch/rows/cuda/made.h"

#include "bind/torch/cublaslt.h"
#include "bind/torch/dispatch.h"

ptac_made ptac_made_for(const ptac_call *call)
{
    return (ptac_made){.on = {AT_DEVICE_CUDA, call->device},
                       .dtype = call->inputs[0].dtype};
}

void ptac_see_as(ptac_view *view, const ptac_matrix *matrix)
{
    view->n_dims = 2;
    view->sizes = matrix->sizes;
    view->strides = matrix->strides;
}

at_error ptac_make_output(ptac_made *m, ptac_call *call, int i, ptac_linear_shape shape,
                          int64_t ld, at_tensor *tensor)
{
    const int last = shape.n_dims - 1;
    ptac_view *view = &call->outputs[i];

    for (int d = 0; d < last; d++)
        shape.strides[d] = shape.strides[d] / shape.sizes[last] * ld;
    if (ptac_new_on(m->on, m->dtype, shape.n_dims, shape.sizes, shape.strides, tensor,
                    view))
        return 1;
    if (last > 0) {
        m->of[i] =
            (ptac_matrix){*tensor,
                          0,
                          {view->n_elements / shape.sizes[last], shape.sizes[last]},
                          {ld, 1}};
        ptac_see_as(view, &m->of[i]);
    }
    call->n_outputs = i + 1 > call->n_outputs ? i + 1 : call->n_outputs;
    return 0;
}

at_error ptac_make_workspace(ptac_made *m, size_t bytes, ptac_products *products)
{
    const int64_t size = (int64_t)bytes;

    if (at_new_on(m->on, AT_DTYPE_I8, 1, &size, NULL, &m->workspace))
        return 1;
    products->workspace = at_data(m->workspace);
    products->workspace_bytes = bytes;
    return 0;
}

ptac_reason ptac_products_worth(const ptac_call *call, bool gains_by_model)
{
    const ptac_kernel *row;
    const ptac_measured measured = ptac_chooser_measured(call, &row);

    if (measured == PTAC_NOT_MEASURED)
        return gains_by_model ? PTAC_TAKE : PTAC_NOT_FASTER;
    return measured == PTAC_MEASURED_SLOWER ? PTAC_NOT_FASTER : PTAC_TAKE;
}

const ptac_kernel *ptac_products_choose(ptac_call *call, ptac_reason *why)
{
    PTAC_CUDA_SCOPE scope = {false};

    *why = PTAC_DEVICE;
    if (!ptac_cuda_begin(call, &scope))
        return NULL;
    *why = ptac_lt_begin(call);
    return *why ? NULL : ptac_probe(call, why);
}

/* The device's context is current. */
static bool run(ptac_call *call, const ptac_kernel *row, ptac_maker make, void *context)
{
    ptac_made m = ptac_made_for(call);
    bool is_done = false;

    if (make(&m, context))
        ptac_refuse(call->op, PTAC_MEMORY);
    else
        is_done = ptac_run(row, call);
    at_drop_tensor(&m.workspace);
    return is_done;
}

/* Into the device's context; false, counted, where the driver does not let us. */
static bool begin(ptac_call *call, ptac_products *products, ptac_cuda_scope *scope)
{
    products->device = call->device;
    if (!ptac_cuda_begin(call, scope)) {
        ptac_refuse(call->op, PTAC_DEVICE);
        return false;
    }
    products->only_known = ptac_cuda_is_capturing(call);
    return true;
}

bool ptac_products_run(ptac_call *call, ptac_products *products, const ptac_kernel *row,
                       ptac_maker make, void *context)
{
    PTAC_CUDA_SCOPE scope = {false};

    return begin(call, products, &scope) && run(call, row, make, context);
}

bool ptac_products_go_back(ptac_call *call, ptac_products *products,
                           const char *row_name, ptac_maker make, void *context)
{
    PTAC_CUDA_SCOPE scope = {false};
    const ptac_kernel *row = NULL;

    if (begin(call, products, &scope))
        row = ptac_admit_row(call, row_name);
    return row && run(call, row, make, context);
}
