/*
 * mlp_rows_cuda.c - the rows of mlp and mlp_backward on CUDA.
 */
#include "ops/linear/mlp.h"

#include "ops/linear/cuda/lt_views.h"
#include "ops/linear/cuda/mlp_cuda.h"

int64_t ptac_mlp_saved_ld(ptac_act activation, int64_t hidden)
{
    return ptac_lt_saves(activation) ? ptac_lt_saved_ld(activation, hidden) : 0;
}

/* Of the gradient before the activation, in front of what the steps share. */
static size_t grad_bytes(const ptac_mlp_params *p, ptac_dtype dtype)
{
    return ptac_lt_bytes(p->m, p->hidden, dtype);
}

size_t ptac_mlp_forward_workspace(const ptac_mlp_params *params)
{
    (void)params;
    return PTAC_LT_WORKSPACE_BYTES;
}

size_t ptac_mlp_backward_workspace(const ptac_mlp_params *params, ptac_dtype dtype)
{
    const ptac_mlp mlp = {.m = params->m, .hidden = params->hidden, .n = params->n};

    return grad_bytes(params, dtype) + ptac_mlp_workspace(&mlp);
}

/* What the activation is, an epilogue or a kernel; and whether float32 is TF32. */
enum { ACT, KERNEL, ACT_TF32, KERNEL_TF32 };

/* The sizes are as a product's whose terms are those of both, one behind the other. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_mlp_params *p = call->params;
    const bool is_tf32 = ptac_products_are_tf32(&p->products, call->inputs[0].dtype);

    if (ptac_act_has_epilogue(p->activation))
        shape->kind = is_tf32 ? ACT_TF32 : ACT;
    else
        shape->kind = is_tf32 ? KERNEL_TF32 : KERNEL;
    shape->work = p->m * p->hidden * (p->k + p->n);
    shape->sizes[0] = p->m;
    shape->sizes[1] = p->k + p->n;
    shape->sizes[2] = p->hidden;
    return PTAC_TAKE;
}

PTAC_SHAPES(MLP, classify, "act", "kernel", "act_tf32", "kernel_tf32")

static ptac_reason accepts_place(const ptac_mlp_params *p)
{
    if (p->m <= 0 || p->k <= 0 || p->hidden <= 0 || p->n <= 0)
        return PTAC_EMPTY;
    if (p->m > INT32_MAX || p->k > INT32_MAX || p->hidden > INT32_MAX ||
        p->n > INT32_MAX)
        return PTAC_SHAPE;
    if (!ptac_lt_can(&p->products))
        return PTAC_DEVICE;
    return ptac_bias_act_ask();
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_mlp_params *p = call->params;
    const ptac_view *in = call->inputs;

    if (!ptac_lt_is_matrix(&in[PTAC_MLP_X], p->m, p->k) ||
        !ptac_lt_is_matrix(&in[PTAC_MLP_W1], p->hidden, p->k) ||
        !ptac_lt_is_matrix(&in[PTAC_MLP_W2], p->n, p->hidden) ||
        !ptac_lt_may_be_bias(&in[PTAC_MLP_B1], p->hidden) ||
        !ptac_lt_may_be_bias(&in[PTAC_MLP_B2], p->n))
        return PTAC_LAYOUT;
    if (ptac_lt_same_dtype(call, PTAC_MLP_INPUTS))
        return PTAC_DTYPE;
    return accepts_place(p);
}

static ptac_status told(const ptac_mlp_params *p, ptac_status status)
{
    return status == PTAC_UNSUPPORTED ? ptac_lt_refused(&p->products) : status;
}

static ptac_status run(const ptac_call *call)
{
    const ptac_mlp_params *p = call->params;
    const ptac_view *in = call->inputs, *out = call->outputs;
    const ptac_lt_place place = ptac_lt_place_of(call, &p->products, 0);
    const ptac_mlp mlp = {
        .m = p->m,
        .k = p->k,
        .hidden = p->hidden,
        .n = p->n,
        .act = p->activation,
        .x = ptac_lt_matrix_of(&in[PTAC_MLP_X]),
        .w1 = ptac_lt_matrix_of(&in[PTAC_MLP_W1]),
        .w2 = ptac_lt_matrix_of(&in[PTAC_MLP_W2]),
        .b1 = in[PTAC_MLP_B1].data,
        .b2 = in[PTAC_MLP_B2].data,
        .h = ptac_lt_matrix_of(&out[PTAC_MLP_H]),
        .saved = {out[PTAC_MLP_SAVED].data,
                  ptac_mlp_saved_ld(p->activation, p->hidden)},
        .y = ptac_lt_matrix_of(&out[PTAC_MLP_Y]),
    };

    return told(p, ptac_mlp_forward(&place, &mlp));
}

/* What is saved beside h: a mask of bytes, z, or nothing. */
static bool may_be_saved(const ptac_view *saved, const ptac_mlp_params *p)
{
    const int64_t bytes = ptac_mlp_saved_ld(p->activation, p->hidden) / 8;

    if (!saved->data)
        return !ptac_act_saves_z(p->activation);
    if (p->activation == PTAC_ACT_RELU)
        return ptac_lt_is_matrix(saved, p->m, bytes) && ptac_view_is_contiguous(saved);
    return ptac_lt_is_matrix(saved, p->m, p->hidden);
}

static bool has(const ptac_call *call, int i)
{
    return call->inputs[i].data != NULL;
}

static ptac_reason accepts_backward(const ptac_call *call)
{
    const ptac_mlp_params *p = call->params;
    const ptac_view *in = call->inputs;
    /* Whoever has w2 goes back through the activation. */
    const bool goes_through = has(call, PTAC_MLP_GRAD_W2);

    if (!ptac_lt_is_matrix(&in[PTAC_MLP_GRAD], p->m, p->n) ||
        (has(call, PTAC_MLP_GRAD_X) &&
         !ptac_lt_is_matrix(&in[PTAC_MLP_GRAD_X], p->m, p->k)) ||
        (has(call, PTAC_MLP_GRAD_W1) &&
         !ptac_lt_is_matrix(&in[PTAC_MLP_GRAD_W1], p->hidden, p->k)) ||
        (goes_through && !(ptac_lt_is_matrix(&in[PTAC_MLP_GRAD_W2], p->n, p->hidden) &&
                           may_be_saved(&in[PTAC_MLP_GRAD_SAVED], p))) ||
        (has(call, PTAC_MLP_GRAD_H) &&
         !ptac_lt_is_matrix(&in[PTAC_MLP_GRAD_H], p->m, p->hidden)))
        return PTAC_LAYOUT;
    if (ptac_lt_same_dtype(call, p->activation == PTAC_ACT_RELU ? PTAC_MLP_GRAD_SAVED
                                                                : PTAC_MLP_GRAD_INPUTS))
        return PTAC_DTYPE;
    return accepts_place(p);
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_mlp_params *p = call->params;
    const ptac_view *in = call->inputs, *out = call->outputs;
    const size_t kept = grad_bytes(p, in[0].dtype);
    const ptac_view *saved = &in[PTAC_MLP_GRAD_SAVED];
    const bool is_relu = p->activation == PTAC_ACT_RELU;
    const int64_t ldz = saved->data && !is_relu ? saved->strides[0] : 0;
    const ptac_mlp mlp = {
        .m = p->m,
        .k = p->k,
        .hidden = p->hidden,
        .n = p->n,
        .act = p->activation,
        .x = ptac_lt_matrix_of(&in[PTAC_MLP_GRAD_X]),
        .w1 = ptac_lt_matrix_of(&in[PTAC_MLP_GRAD_W1]),
        .w2 = ptac_lt_matrix_of(&in[PTAC_MLP_GRAD_W2]),
        .h = ptac_lt_matrix_of(&in[PTAC_MLP_GRAD_H]),
        .saved = {saved->data,
                  is_relu ? ptac_mlp_saved_ld(p->activation, p->hidden) : ldz},
    };
    const ptac_mlp_grads grads = {
        .gy = ptac_lt_matrix_of(&in[PTAC_MLP_GRAD]),
        .gz = {has(call, PTAC_MLP_GRAD_W2) ? p->products.workspace : NULL, p->hidden},
        .gx = ptac_lt_matrix_of(&out[PTAC_MLP_X]),
        .gw1 = ptac_lt_matrix_of(&out[PTAC_MLP_W1]),
        .gw2 = ptac_lt_matrix_of(&out[PTAC_MLP_W2]),
        .gb1 = out[PTAC_MLP_B1].data,
        .gb2 = out[PTAC_MLP_B2].data,
    };
    ptac_lt_place place;

    if (p->products.workspace_bytes < kept)
        return PTAC_NO_MEMORY;
    place = ptac_lt_place_of(call, &p->products, kept);
    return told(p, ptac_mlp_backward(&place, &mlp, &grads));
}

PTAC_ROW(MLP, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(MLP_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts_backward, run_backward,
         .device = PTAC_ON_CUDA)
