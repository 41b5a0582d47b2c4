/*
 * linear_act_cuda.c - the rows of linear_act on CUDA.
 */
#include "ops/linear/linear_act.h"
#include "ops/linear/cuda/lt_views.h"

enum {
    GRAD,
    X = 0,
    W = 1,
    BIAS = 2,
    GRAD_X = 1, /* backward's inputs, behind the gradient */
    GRAD_W = 2,
    SAVED = 3,
};

/* Room for the gradient before the activation, in front of what the steps share. */
static size_t grad_bytes(const ptac_linear_act *p, ptac_dtype dtype)
{
    if (p->activation == PTAC_ACT_NONE)
        return 0;
    return ptac_lt_bytes(p->m, p->n, dtype);
}

size_t ptac_linear_act_workspace(const ptac_linear_act *params, ptac_dtype dtype)
{
    (void)params, (void)dtype;
    return PTAC_LT_WORKSPACE_BYTES;
}

size_t ptac_linear_act_backward_workspace(const ptac_linear_act *params,
                                          ptac_dtype dtype)
{
    const size_t sums = ptac_bias_grad_bytes(params->m, params->n);
    const size_t shared =
        sums > PTAC_LT_WORKSPACE_BYTES ? sums : PTAC_LT_WORKSPACE_BYTES;

    return grad_bytes(params, dtype) + shared;
}

int64_t ptac_linear_act_ldz(int64_t n)
{
    return ptac_parts(n, PTAC_LT_AUX_UNIT) * PTAC_LT_AUX_UNIT;
}

static ptac_reason accepts_place(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    if (ptac_lt_same_dtype(call, call->n_inputs))
        return PTAC_DTYPE;
    if (p->m <= 0 || p->n <= 0 || p->k <= 0)
        return PTAC_EMPTY;
    if (p->m > INT32_MAX || p->n > INT32_MAX || p->k > INT32_MAX)
        return PTAC_SHAPE;
    if (!ptac_lt_can(&p->products))
        return PTAC_DEVICE;
    return p->only_fused ? PTAC_TAKE : ptac_bias_act_ask();
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    if (!ptac_lt_is_matrix(&call->inputs[X], p->m, p->k) ||
        !ptac_lt_is_matrix(&call->inputs[W], p->n, p->k) ||
        (call->n_inputs > BIAS && !ptac_lt_may_be_bias(&call->inputs[BIAS], p->n)))
        return PTAC_LAYOUT;
    return accepts_place(call);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;
    const ptac_lt_place place = ptac_lt_place_of(call, &p->products, 0);
    const bool saves = p->is_training && ptac_act_saves_z(p->activation);
    const ptac_lt_forward layer = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .x = ptac_lt_matrix_of(&call->inputs[X]),
        .w = ptac_lt_matrix_of(&call->inputs[W]),
        .bias = call->n_inputs > BIAS ? call->inputs[BIAS].data : NULL,
        .y = ptac_lt_matrix_of(&call->outputs[0]),
        .saved = {saves ? call->outputs[1].data : NULL, ptac_linear_act_ldz(p->n)},
        .act = p->activation,
    };
    ptac_lt_step step;

    if (!ptac_lt_plan_forward(&place, &layer, &step) ||
        (p->only_fused && step.then != PTAC_LT_FUSED))
        return ptac_lt_refused(&p->products);
    return ptac_lt_step_run(&place, &step);
}

/* What a backward call computes, planned before anything is written. */
typedef struct gradients {
    ptac_lt_through own; /* the layer's activation, and sums for its bias */
    bool has_kernel, has_x, has_w;
    ptac_lt_step x, w;
} gradients;

static bool plan_products(const ptac_call *call, const ptac_lt_place *place,
                          gradients *g)
{
    const ptac_linear_act *p = call->params;
    void *gb = call->outputs[2].data;
    const ptac_lt_through of_x = {
        .m = p->m,
        .n = p->k,
        .k = p->n,
        .g = g->own.gz,
        .w = ptac_lt_matrix_of(&call->inputs[GRAD_W]),
        .gz = ptac_lt_matrix_of(&call->outputs[0]),
    };
    const ptac_lt_weight_grad of_w = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .gz = g->own.gz,
        .x = ptac_lt_matrix_of(&call->inputs[GRAD_X]),
        .gw = ptac_lt_matrix_of(&call->outputs[1]),
        .gb = gb,
    };

    g->has_x = of_x.gz.data != NULL;
    g->has_w = of_w.gw.data != NULL;
    return (!g->has_x || ptac_lt_plan_through(place, &of_x, &g->x)) &&
           (!g->has_w || ptac_lt_plan_weight_grad(place, &of_w, &g->w));
}

static bool plan_backward(const ptac_call *call, const ptac_lt_place *place,
                          gradients *g)
{
    const ptac_linear_act *p = call->params;
    const bool none = p->activation == PTAC_ACT_NONE;
    const ptac_lt_matrix grad = ptac_lt_matrix_of(&call->inputs[GRAD]);
    const ptac_lt_matrix made = {p->products.workspace, p->n};

    /* The weight's product sums for the bias, where there is one. */
    const bool sums = call->outputs[2].data && !call->outputs[1].data;

    g->own = (ptac_lt_through){
        .m = p->m,
        .n = p->n,
        .g = grad,
        .gz = none ? grad : made,
        .gb = sums ? call->outputs[2].data : NULL,
        .saved =
            none ? (ptac_lt_matrix){NULL, 0} : ptac_lt_matrix_of(&call->inputs[SAVED]),
        .act = p->activation,
        .has_y = true,
    };
    g->has_kernel = !none || sums;
    if (sums && ptac_bias_grad_bytes(p->m, p->n) > place->workspace.bytes)
        return false;
    return plan_products(call, place, g);
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;
    const size_t kept = grad_bytes(p, call->inputs[0].dtype);
    ptac_status status = PTAC_OK;
    ptac_lt_place place;
    gradients g;

    if (p->products.workspace_bytes < kept)
        return PTAC_NO_MEMORY;
    place = ptac_lt_place_of(call, &p->products, kept);
    if (!plan_backward(call, &place, &g))
        return ptac_lt_refused(&p->products);
    if (g.has_kernel) {
        ptac_act_backward_cuda job = ptac_lt_act_grad(&place, &g.own);

        if (p->activation == PTAC_ACT_NONE)
            job.gz = NULL; /* only sums: the gradient stays what it is */
        status = ptac_bias_act_backward_on(&job, call);
    }
    if (status == PTAC_OK && g.has_x)
        status = ptac_lt_step_run(&place, &g.x);
    if (status == PTAC_OK && g.has_w)
        status = ptac_lt_step_run(&place, &g.w);
    return status;
}

static ptac_reason accepts_backward(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;
    const ptac_view *x = &call->inputs[GRAD_X], *w = &call->inputs[GRAD_W];

    if (!ptac_lt_is_matrix(&call->inputs[GRAD], p->m, p->n) ||
        (x->data && !ptac_lt_is_matrix(x, p->m, p->k)) ||
        (w->data && !ptac_lt_is_matrix(w, p->n, p->k)))
        return PTAC_LAYOUT;
    if (p->activation != PTAC_ACT_NONE &&
        !ptac_lt_is_matrix(&call->inputs[SAVED], p->m, p->n))
        return PTAC_LAYOUT;
    return accepts_place(call);
}

PTAC_ROW(LINEAR_ACT, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(LINEAR_ACT_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts_backward, run_backward,
         .device = PTAC_ON_CUDA)
