/*
 * mlp_cuda.c - the products of two layers, planned together.
 */
#include "ops/linear/cuda/mlp_cuda.h"

#include "ops/linear/linear_act.h"

enum {
    MOST_STEPS = 4,
};

typedef struct steps {
    ptac_lt_step at[MOST_STEPS];
    int n;
} steps;

size_t ptac_mlp_workspace(const ptac_mlp *mlp)
{
    const int64_t widest = mlp->hidden > mlp->n ? mlp->hidden : mlp->n;
    const size_t sums = ptac_bias_grad_bytes(mlp->m, widest);

    return sums > PTAC_LT_WORKSPACE_BYTES ? sums : PTAC_LT_WORKSPACE_BYTES;
}

static ptac_status run_all(const ptac_lt_place *place, const steps *s)
{
    ptac_status status = PTAC_OK;

    for (int i = 0; i < s->n && status == PTAC_OK; i++)
        status = ptac_lt_step_run(place, &s->at[i]);
    return status;
}

ptac_status ptac_mlp_forward(const ptac_lt_place *place, const ptac_mlp *mlp)
{
    const ptac_lt_forward first = {
        .m = mlp->m,
        .n = mlp->hidden,
        .k = mlp->k,
        .x = mlp->x,
        .w = mlp->w1,
        .y = mlp->h,
        .bias = mlp->b1,
        .saved = mlp->saved,
        .act = mlp->act,
    };
    const ptac_lt_forward second = {
        .m = mlp->m,
        .n = mlp->n,
        .k = mlp->hidden,
        .x = mlp->h,
        .w = mlp->w2,
        .y = mlp->y,
        .bias = mlp->b2,
        .act = PTAC_ACT_NONE,
    };
    steps s = {.n = 2};

    if (!ptac_lt_plan_forward(place, &first, &s.at[0]) ||
        !ptac_lt_plan_forward(place, &second, &s.at[1]))
        return PTAC_UNSUPPORTED;
    return run_all(place, &s);
}

/* gz = (gy w2) * act'(saved), and gb1. */
static bool plan_through(const ptac_lt_place *place, const ptac_mlp *mlp,
                         const ptac_mlp_grads *g, steps *s)
{
    const bool has_saved = ptac_lt_saves(mlp->act) && mlp->saved.data;
    const ptac_lt_through job = {
        .m = mlp->m,
        .n = mlp->hidden,
        .k = mlp->n,
        .g = g->gy,
        .w = mlp->w2,
        .gz = g->gz,
        .gb = g->gb1,
        .saved = has_saved ? mlp->saved : mlp->h,
        .act = mlp->act,
        .has_y = !has_saved,
    };

    return !g->gz.data || ptac_lt_plan_through(place, &job, &s->at[s->n++]);
}

static bool plan_weight(const ptac_lt_place *place, ptac_lt_weight_grad job, steps *s)
{
    return !job.gw.data || ptac_lt_plan_weight_grad(place, &job, &s->at[s->n++]);
}

static bool plan_input(const ptac_lt_place *place, const ptac_mlp *mlp,
                       const ptac_mlp_grads *g, steps *s)
{
    const ptac_lt_through job = {
        .m = mlp->m,
        .n = mlp->k,
        .k = mlp->hidden,
        .g = g->gz,
        .w = mlp->w1,
        .gz = g->gx,
    };

    return !g->gx.data || ptac_lt_plan_through(place, &job, &s->at[s->n++]);
}

ptac_status ptac_mlp_backward(const ptac_lt_place *place, const ptac_mlp *mlp,
                              const ptac_mlp_grads *grads)
{
    const ptac_lt_weight_grad second = {
        .m = mlp->m,
        .n = mlp->n,
        .k = mlp->hidden,
        .gz = grads->gy,
        .x = mlp->h,
        .gw = grads->gw2,
        .gb = grads->gb2,
    };
    const ptac_lt_weight_grad first = {
        .m = mlp->m,
        .n = mlp->hidden,
        .k = mlp->k,
        .gz = grads->gz,
        .x = mlp->x,
        .gw = grads->gw1,
    };
    steps s = {.n = 0};

    /* Whoever wants gb2 alone has no product that could sum it. */
    if ((grads->gb2 && !grads->gw2.data) || !plan_through(place, mlp, grads, &s) ||
        !plan_weight(place, second, &s) || !plan_weight(place, first, &s) ||
        !plan_input(place, mlp, grads, &s))
        return PTAC_UNSUPPORTED;
    return run_all(place, &s);
}
