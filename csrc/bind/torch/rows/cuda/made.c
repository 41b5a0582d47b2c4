/*
 * made.c - outputs and workspace of calls on CUDA.
 */
#include "bind/torch/rows/cuda/made.h"

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

at_error ptac_make_workspace(ptac_made *m, size_t bytes, void **data, size_t *made)
{
    const int64_t size = (int64_t)bytes;

    if (at_new_on(m->on, AT_DTYPE_I8, 1, &size, NULL, &m->workspace))
        return 1;
    *data = at_data(m->workspace);
    *made = bytes;
    return 0;
}
