/*
 * layer_norm.h - what a layer norm gave, once more, out of what its node saves.
 *
 * ((x - mean) * rstd) * weight + bias, the last two operations in one rounding: the
 * bits of torch's kernels with FMA. One pass, where torch's own operators take three.
 */
#ifndef PTAC_OPS_PACK_LAYER_NORM_H
#define PTAC_OPS_PACK_LAYER_NORM_H

#include "core/base.h"

typedef struct ptac_layer_norm {
    const float *x;             /* n_rows times n_columns, contiguous */
    const float *mean, *rstd;   /* n_rows */
    const float *weight, *bias; /* n_columns */
    int64_t n_rows, n_columns;
} ptac_layer_norm;

/* Whether this CPU can; the functions below are not to be called where it cannot. */
bool ptac_layer_norm_is_there(void);

/* Compute y, which overlaps none of the inputs. Shared out among the host's threads. */
void ptac_layer_norm_apply(const ptac_layer_norm *norm, float *y);

/* Whether y is what that would give, to the bit; nothing is written. */
bool ptac_layer_norm_matches(const ptac_layer_norm *norm, const float *y);

#endif
