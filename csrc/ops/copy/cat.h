/*
 * cat.h - tensors put beside each other. Level exact.
 *
 * A call has an input for each tensor and one output, whose rows each have a run of
 * every input, one run behind the other. Elements are of float32. An input's runs are
 * its own rows, which may lie apart: parts of the rows of another tensor do.
 */
#ifndef PTAC_OPS_COPY_CAT_H
#define PTAC_OPS_COPY_CAT_H

#include "core/host.h"
#include "core/kernel.h"

typedef struct ptac_cat {
    int64_t rows, width;                                       /* of the output */
    int64_t widths[PTAC_MAX_INPUTS], strides[PTAC_MAX_INPUTS]; /* elements */
} ptac_cat;

/* Runs that are single elements, one behind the other: a tensor's are woven in. */
static inline bool ptac_cat_is_woven(const ptac_call *call)
{
    const ptac_cat *p = call->params;

    for (int i = 0; i < call->n_inputs; i++)
        if (p->widths[i] != 1 || p->strides[i] != 1)
            return false;
    return true;
}

ptac_reason ptac_cat_accepts(const ptac_call *call);

static inline ptac_status ptac_cat_share_rows(const ptac_call *call, ptac_range_fn body)
{
    const ptac_cat *p = call->params;

    ptac_parallel_for(0, p->rows, 16384 / p->width + 1, body, (void *)call);
    return PTAC_OK;
}

#endif
