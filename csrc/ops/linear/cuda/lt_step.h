/*
 * lt_step.h - a product with what follows it: in one go where cuBLASLt has an epilogue
 * for that, else a plain product and a kernel of bias_act.cu.
 *
 * A step is planned first and run later, so that whoever has several refuses before the
 * first write. Steps of one stream share a workspace, which none needs after its end.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_LT_STEP_H
#define PTAC_OPS_LINEAR_CUDA_LT_STEP_H

#include "ops/linear/cuda/bias_act_launch.h"
#include "ops/linear/cuda/lt_matmul.h"

/* What the steps of a call have in common. */
typedef struct ptac_lt_place {
    const ptac_call *call; /* of which only the stream is read */
    ptac_dtype dtype;      /* of every matrix: float32, float16 or bfloat16 */
    bool allows_tf32;
    bool only_known; /* plan nothing that has not been planned before */
    int device;
    ptac_lt_workspace workspace;
} ptac_lt_place;

/* Whether a layer's activation goes back by something beside y. */
static inline bool ptac_lt_saves(ptac_act act)
{
    return act == PTAC_ACT_RELU || ptac_act_saves_z(act);
}

/* Bits between rows of ReLU's mask; else elements between rows of z. */
int64_t ptac_lt_saved_ld(ptac_act act, int64_t n);

typedef struct ptac_lt_step {
    ptac_matmul matmul;
    ptac_lt_plan plan;
    enum { PTAC_LT_FUSED, PTAC_LT_THEN_FORWARD, PTAC_LT_THEN_BACKWARD } then;
    ptac_act_forward_cuda forward;
    ptac_act_backward_cuda backward;
} ptac_lt_step;

/*
 * y [m, n] = act(x [m, k] w^T + bias); w is [n, k]. With scales x and w are fp8 (e4m3),
 * each row times its scale, and n and k multiples of 16; the rest has the place's
 * dtype.
 */
typedef struct ptac_lt_forward {
    int64_t m, n, k;
    ptac_lt_matrix x, w, y;
    void *bias;           /* NULL: none */
    ptac_lt_matrix saved; /* no data: none is wanted; ld as ptac_lt_saved_ld() */
    ptac_act act;
    const float *x_scales, *w_scales; /* [m], [n], or NULL */
} ptac_lt_forward;

/*
 * gz [m, n] = (g [m, k] w) * act'(saved), where w [k, n] is the weight of the layer
 * that comes behind the activation; gb, unless it is NULL, the sums over its columns.
 * saved as forward left it; of tanh and sigmoid y, and of ReLU where has_y. y and our
 * mask let the gradient of ReLU pass at NaN and hold it at 0, as stock does.
 */
typedef struct ptac_lt_through {
    int64_t m, n, k;
    ptac_lt_matrix g, w, gz;
    void *gb;
    ptac_lt_matrix saved;
    ptac_act act;
    bool has_y;
} ptac_lt_through;

/* gw [n, k] = gz^T x, of gz [m, n] and x [m, k]; gb, unless NULL, gz's column sums. */
typedef struct ptac_lt_weight_grad {
    int64_t m, n, k;
    ptac_lt_matrix gz, x, gw;
    void *gb;
} ptac_lt_weight_grad;

/* False: the library refuses, or there is too little workspace. Nothing is written. */
bool ptac_lt_plan_forward(const ptac_lt_place *place, const ptac_lt_forward *layer,
                          ptac_lt_step *step);
bool ptac_lt_plan_through(const ptac_lt_place *place, const ptac_lt_through *layer,
                          ptac_lt_step *step);
bool ptac_lt_plan_weight_grad(const ptac_lt_place *place,
                              const ptac_lt_weight_grad *layer, ptac_lt_step *step);

ptac_status ptac_lt_step_run(const ptac_lt_place *place, const ptac_lt_step *step);

/*
 * A kernel alone: gz = g * act'(saved) of a layer whose gradient comes from elsewhere.
 * Both [m, n].
 */
ptac_act_backward_cuda ptac_lt_act_grad(const ptac_lt_place *place,
                                        const ptac_lt_through *layer);

#endif
