/*
 * foreach.h - one operation over a list of tensors as one call.
 *
 * Level exact: what torch's kernels give tensor after tensor, in place. Operators:
 *
 *   clip_grad_norm  the 2-norm of each tensor, or each tensor times a number
 *   foreach_clamp   what lies below, or above, a number becomes that number
 *   foreach_lerp    self moved towards other by a weight
 *   unscale_grads   each tensor times a number, unless that is 1; was all finite?
 *
 * Sources: ATen's native/cpu/{ReduceOpsKernel,TensorCompareKernel,LerpKernel,
 * AmpGradScalerKernels}.cpp; torch/nn/utils/clip_grad.py. Lerp fuses its multiply-add
 * where ATen's kernels do (ptac_the_host.fma). The norm, of float32 alone, goes over
 * vectors of 32 bytes whatever the CPU has: eight sums, each product and each sum
 * rounded, then added up in order, and behind them what fills no vector. Of those
 * elements four, where there are as many, are squared and added likewise; the others'
 * products and sums are fused, as results show of torch 2.11 to 2.15.
 */
#ifndef PTAC_OPS_FOREACH_FOREACH_H
#define PTAC_OPS_FOREACH_FOREACH_H

#include "core/host.h"
#include "core/kernel.h"

/* One tensor: n elements, dense, in memory order; other, where there is one, alike. */
typedef struct ptac_foreach_item {
    int64_t begin; /* elements of all items before this one */
    int64_t n;
    void *self;
    const void *other; /* lerp; it may be self, else it is apart from all selves */
} ptac_foreach_item;

typedef enum ptac_foreach_way {
    PTAC_FOREACH_MAP = 0,
    PTAC_FOREACH_NORM,
} ptac_foreach_way;

/* params. inputs[0] stands for all tensors: their dtype, and n_elements together. */
typedef struct ptac_foreach {
    const ptac_foreach_item *items; /* ascending begin, no gaps */
    int64_t n_items;
    double number; /* finite but for clip_grad_norm's: factor, limit, weight, 1/scale */
    bool is_lower; /* clamp: the limit */
    ptac_foreach_way way; /* norm: clip_grad_norm alone, which writes */
    float *norms;         /* a number for each item */
    /* unscale: an int that is set to 1 where an element was infinite or not a number */
    int *found;
} ptac_foreach;

enum {
    /* Elements that one thread takes at least: fewer take less time than waking it. */
    PTAC_FOREACH_GRAIN = 131072,
};

/* Part of an item: elements [first, first + n). */
typedef void (*ptac_foreach_part)(const ptac_foreach_item *item, int64_t first,
                                  int64_t n, const ptac_foreach *f);

/* Run the part function of the dtype over all elements in torch's threads. */
ptac_status ptac_foreach_run(const ptac_call *call, ptac_foreach_part f32,
                             ptac_foreach_part f64);

/* A whole array's norm, added up as above; of one element, its magnitude. */
typedef float (*ptac_foreach_norm)(const float *x, int64_t n);

/* Each item's norm, items shared out among torch's threads. */
ptac_status ptac_foreach_run_norms(const ptac_call *call, ptac_foreach_norm norm);

/* The root of a sum and of what fills no vector, n < 8 elements. */
float ptac_foreach_root(float sum, const float *x, int n);

/* As "scalar" has it; for lists of a few numbers. */
float ptac_foreach_norm_of(const float *x, int64_t n);

/* accepts() of rows that fuse multiply and add: both floating types, if ATen does. */
ptac_reason ptac_foreach_accepts(const ptac_call *call);
ptac_reason ptac_foreach_accepts_fused(const ptac_call *call);

/* The rows of an instruction set, from scale_f32 and its like, and norm(). */
#define PTAC_FOREACH_RUN(kind)                                                         \
    static ptac_status run_##kind(const ptac_call *call)                               \
    {                                                                                  \
        return ptac_foreach_run(call, kind##_f32, kind##_f64);                         \
    }
#define PTAC_FOREACH_ROWS(name, features, fuses)                                       \
    static ptac_status run_clip(const ptac_call *call)                                 \
    {                                                                                  \
        const ptac_foreach *f = call->params;                                          \
                                                                                       \
        return f->way == PTAC_FOREACH_NORM                                             \
                   ? ptac_foreach_run_norms(call, norm)                                \
                   : ptac_foreach_run(call, scale_f32, scale_f64);                     \
    }                                                                                  \
    PTAC_FOREACH_RUN(clamp)                                                            \
    PTAC_FOREACH_RUN(lerp)                                                             \
    PTAC_FOREACH_RUN(unscale)                                                          \
    PTAC_ROW(CLIP_GRAD_NORM, name, PTAC_EXACT, features, ptac_foreach_accepts,         \
             run_clip)                                                                 \
    PTAC_ROW(FOREACH_CLAMP, name, PTAC_EXACT, features, ptac_foreach_accepts,          \
             run_clamp)                                                                \
    PTAC_ROW(FOREACH_LERP, name, PTAC_EXACT, features, fuses, run_lerp)                \
    PTAC_ROW(UNSCALE_GRADS, name, PTAC_EXACT, features, ptac_foreach_accepts,          \
             run_unscale)

#endif
