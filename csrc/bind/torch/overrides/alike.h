/*
 * alike.h - operators that go element by element, through tensors that lie alike.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_ALIKE_H
#define PTAC_BIND_TORCH_OVERRIDES_ALIKE_H

#include "bind/torch/overrides/override.h"

/* The strides that a new tensor gets, also along dimensions of one element. */
static inline bool ptac_is_as_new(const ptac_view *x, bool *channels_last)
{
    int64_t strides[PTAC_MAX_DIMS], expected = 1;

    *channels_last = !ptac_view_is_contiguous(x) && ptac_view_is_channels_last(x);
    if (*channels_last)
        ptac_image_strides(x->n_dims, x->sizes, true, strides);
    for (int i = x->n_dims - 1; i >= 0 && !*channels_last; i--) {
        strides[i] = expected;
        expected *= x->sizes[i];
    }
    return memcmp(strides, x->strides, (size_t)x->n_dims * sizeof *strides) == 0;
}

/* Inputs [first, end) have elements, of the last one's dtype, sizes and strides. */
static inline ptac_reason ptac_inputs_alike(const ptac_call *call, int first, int end)
{
    const ptac_view *x = &call->inputs[end - 1];

    if (x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    for (int i = first; i < end - 1; i++) {
        if (call->inputs[i].dtype != x->dtype)
            return PTAC_DTYPE;
        if (!ptac_view_has_sizes(&call->inputs[i], x->n_dims, x->sizes))
            return PTAC_SHAPE;
        if (!ptac_view_is_alike(&call->inputs[i], x))
            return PTAC_LAYOUT;
    }
    return PTAC_TAKE;
}

/* The same, and outputs lie as they do, which is how torch lays out new tensors. */
static inline ptac_reason ptac_outputs_alike(const ptac_call *call, int first, int end,
                                             ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[end - 1];
    const ptac_reason why = ptac_inputs_alike(call, first, end);

    if (why)
        return why;
    if (!ptac_is_as_new(x, &outputs->channels_last))
        return PTAC_LAYOUT;
    ptac_outputs_are(outputs, x->n_dims, x->sizes);
    return PTAC_TAKE;
}

#endif
