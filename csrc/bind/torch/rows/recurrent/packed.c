/*
 * packed.c - where the rows of each step of a packed sequence lie.
 */
#include "bind/torch/rows/recurrent/layers.h"

#include <stdlib.h>
#include <string.h>

ptac_reason ptac_packed_read(at_tensor batch_sizes, ptac_packed *packed)
{
    const int64_t *sizes;
    ptac_view view;

    *packed = (ptac_packed){0};
    if (!batch_sizes)
        return PTAC_TAKE;
    ptac_view_of(batch_sizes, &view);
    if (view.dtype != PTAC_I64 || view.n_dims != 1 || view.n_elements == 0 ||
        !ptac_view_is_contiguous(&view))
        return PTAC_ARGUMENT;
    packed->starts = malloc((size_t)(view.n_elements + 1) * sizeof(int64_t));
    if (!packed->starts)
        return PTAC_MEMORY;
    packed->n_steps = view.n_elements;
    packed->starts[0] = 0;
    sizes = view.data;
    for (int64_t t = 0; t < packed->n_steps; t++) {
        if (sizes[t] < 1 || sizes[t] > sizes[t ? t - 1 : 0] ||
            sizes[t] > INT64_MAX / packed->n_steps)
            return PTAC_ARGUMENT;
        packed->starts[t + 1] = packed->starts[t] + sizes[t];
    }
    return PTAC_TAKE;
}

void ptac_packed_drop(ptac_packed *packed)
{
    free(packed->starts);
}

at_error ptac_packed_states_before(const ptac_call *call, const ptac_view *y,
                                   at_tensor h0, at_tensor *made)
{
    const ptac_recurrent_steps steps = ptac_recurrent_steps_of(call, y);
    const int64_t n = y->sizes[2];
    const float *first = at_data(h0), *states = y->data;
    ptac_view view;

    if (ptac_new_matrix(steps.n_all, n, made, &view))
        return 1;
    for (int64_t t = 0; t < steps.n_steps; t++) {
        for (int64_t row = 0; row < ptac_recurrent_rows(&steps, t); row++) {
            const int64_t before = ptac_recurrent_beside(&steps, t, row, false);

            memcpy((float *)view.data + ptac_recurrent_at(&steps, t, row) * n,
                   before >= 0 ? states + before * n : first + row * n,
                   (size_t)n * sizeof(float));
        }
    }
    return 0;
}
