/*
 * soft_target_tpl.h - the factors u[j] of a row's target (ptac_row_target), in lanes.
 */
#ifndef PTAC_OPS_LOSS_SOFT_TARGET_TPL_H
#define PTAC_OPS_LOSS_SOFT_TARGET_TPL_H

#include "ops/loss/cross_entropy.h"
#include "ops/softmax/softmax_tpl.h"

/* Factors i to i + n - 1; zeros follow. */
INLINE vec soft_factors(const ptac_row_target *target, int64_t i, int n)
{
    vec u = v_set(target->shift);

    if (target->t)
        u = v_fma(v_load_first(target->t + i, n), v_set(target->scale), u);
    if (target->w)
        u = v_mul(u, v_load_first(target->w + i, n));
    return v_keep_first(u, v_zero(), n);
}

#endif
