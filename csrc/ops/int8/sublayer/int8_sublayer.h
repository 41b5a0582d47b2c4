/*
 * int8_sublayer.h - int8 products with what a transformer has around them, of float32:
 *
 *   h = x w^T + bias, or of LayerNorm(x)
 *   h = act(h) w_2^T + bias_2, where there is a second weight
 *   y = h + residual, or LayerNorm(h + residual)
 *
 * Products are those of int8_linear for more than one row, and rows on their way to the
 * second become bytes as those of x do. A few rows at a time go all the way, so that
 * what lies between the products stays in the cache. All rows give the same bits
 * (rows.h), whatever the number of threads.
 */
#ifndef PTAC_OPS_INT8_SUBLAYER_INT8_SUBLAYER_H
#define PTAC_OPS_INT8_SUBLAYER_INT8_SUBLAYER_H

#include "core/kernel.h"
#include "ops/int8/int8_linear.h"
#include "ops/linear/act.h"

/*
 * Inputs: x [m, k] and residual [m, width of y], row by row; vectors; packed weights
 * (panel.h). Those that a call does without have no data. Output: y [m, n_2], or [m, n]
 * without a second weight.
 */
enum {
    PTAC_SUBLAYER_X,
    PTAC_SUBLAYER_RESIDUAL,
    PTAC_SUBLAYER_NORM_WEIGHT,
    PTAC_SUBLAYER_NORM_BIAS,
    PTAC_SUBLAYER_PACKED,
    PTAC_SUBLAYER_SCALES,
    PTAC_SUBLAYER_BIAS,
    PTAC_SUBLAYER_SECOND, /* packed, scales and bias of the second */
    PTAC_SUBLAYER_N_INPUTS = PTAC_SUBLAYER_SECOND + 3,
};

/* Where there is a LayerNorm. */
typedef enum ptac_sublayer_norm {
    PTAC_SUBLAYER_NO_NORM,
    PTAC_SUBLAYER_NORM_FIRST,
    PTAC_SUBLAYER_NORM_LAST,
    PTAC_SUBLAYER_N_NORMS,
} ptac_sublayer_norm;

typedef struct ptac_int8_sublayer {
    int64_t m, n, k;
    int64_t n_2;  /* 0: there is no second weight */
    ptac_act act; /* between them: none, ReLU or GELU */
    ptac_sublayer_norm norm;
    float eps;
} ptac_int8_sublayer;

/* How wide y is. */
static inline int64_t ptac_sublayer_width(const ptac_int8_sublayer *p)
{
    return p->n_2 ? p->n_2 : p->n;
}

ptac_reason ptac_int8_sublayer_accepts(const ptac_call *call);
ptac_status ptac_int8_sublayer_run(const ptac_call *call, const ptac_int8_isa *isa);

#endif
