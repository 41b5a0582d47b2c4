/*
 * norm_rows.c - rows of LayerNorm and RMSNorm, and what belongs to them.
 */
#include "bind/torch/rows/norm_rows.h"

#include "device/cuda/context.h"

ptac_reason ptac_norm_read_rows(const ptac_call *call, const ptac_view *x,
                                int64_t n_last, ptac_norm *p)
{
    if (x->dtype != PTAC_F32 && x->dtype != PTAC_BF16 && x->dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (n_last < 1 || n_last > x->n_dims)
        return PTAC_ARGUMENT;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    p->width = 1;
    for (int64_t i = x->n_dims - n_last; i < x->n_dims; i++)
        p->width *= x->sizes[i];
    p->n_rows = x->n_elements / p->width;
    if (call->on == PTAC_ON_CUDA)
        p->n_processors =
            ptac_cuda_attribute(call->device, PTAC_CU_ATTRIBUTE_MULTIPROCESSORS);
    return PTAC_TAKE;
}

ptac_reason ptac_norm_weight_reason(const ptac_view *weight, const ptac_view *x,
                                    int64_t n_last)
{
    if (!weight->data && weight->n_dims == 0) /* there is none */
        return PTAC_TAKE;
    if (weight->dtype != x->dtype)
        return PTAC_DTYPE;
    return ptac_view_has_sizes(weight, (int)n_last, x->sizes + x->n_dims - n_last)
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

ptac_reason ptac_norm_elements_reason(const ptac_view *view, ptac_dtype dtype,
                                      int64_t n)
{
    if (!view->data)
        return PTAC_TAKE;
    if (view->dtype != dtype)
        return PTAC_DTYPE;
    return view->n_elements == n ? PTAC_TAKE : PTAC_ARGUMENT;
}
