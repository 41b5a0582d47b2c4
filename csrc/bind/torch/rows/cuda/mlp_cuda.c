/*
 * mlp_cuda.c - what rows of mlp on CUDA are given.
 */
#include "bind/torch/rows/cuda/mlp_cuda.h"

#include "bind/torch/dispatch.h"
#include "bind/torch/rows/cuda/made.h"

/*
 * A step takes the host about as long by our node as by stock's seven, in one rough run
 * on a busy CPU, without what products and other kernels take. Of these stock has ten
 * and we have six to nine. So the host should gain, and the device by what is launched
 * and moved less. That is a model: blocks of which the products, forward and twice
 * backward, keep a GPU of 600 TFLOP/s for less than 22 us, and so gain by nothing but
 * the host, are left to stock until it has been measured. float32 on its own units runs
 * at an eighth of that or less.
 */
static int64_t least_work = (int64_t)1 << 31;

enum {
    FLOAT32_IS_SLOWER = 8,
};

void ptac_mlp_cuda_set_least(int64_t work)
{
    __atomic_store_n(&least_work, work, __ATOMIC_RELAXED);
}

/* Sizes of the weights, and of x as a matrix, make a block of two layers. */
static ptac_reason read_sizes(ptac_mlp_cuda *m, ptac_act activation)
{
    ptac_view *in = m->call.inputs;
    ptac_view *x = &in[PTAC_MLP_X], *w1 = &in[PTAC_MLP_W1], *w2 = &in[PTAC_MLP_W2];

    if (w1->n_dims != 2 || w2->n_dims != 2 || x->n_dims < 2)
        return PTAC_SHAPE;
    if (x->sizes[x->n_dims - 1] != w1->sizes[1] || w1->sizes[0] != w2->sizes[1])
        return PTAC_ARGUMENT;
    if (x->n_elements == 0 || w1->n_elements == 0 || w2->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_linear_fold(m->in[PTAC_MLP_X], x, &m->rows))
        return PTAC_LAYOUT;
    ptac_see_as(x, &m->rows);
    m->params = (ptac_mlp_params){
        .m = m->rows.sizes[0],
        .k = w1->sizes[1],
        .hidden = w1->sizes[0],
        .n = w2->sizes[0],
        .activation = activation,
    };
    return PTAC_TAKE;
}

ptac_reason ptac_mlp_cuda_read(ptac_mlp_cuda *m, ptac_act activation)
{
    ptac_reason why;

    m->call = (ptac_call){.op = PTAC_OP_MLP,
                          .on = PTAC_ON_CUDA,
                          .n_inputs = PTAC_MLP_INPUTS,
                          .params = &m->params};
    for (int i = 0; i < PTAC_MLP_INPUTS; i++)
        if (m->in[i])
            ptac_cuda_view_of(m->in[i], &m->call.inputs[i]);
    why = read_sizes(m, activation);
    if (!why)
        why = ptac_call_place(&m->call);
    m->params.products.device = m->call.device;
    return why;
}

/* By the model. */
static bool keeps_busy(const ptac_mlp_params *p, ptac_dtype dtype)
{
    int64_t least = __atomic_load_n(&least_work, __ATOMIC_RELAXED);

    if (dtype == PTAC_F32 && !p->products.allows_tf32)
        least /= FLOAT32_IS_SLOWER;
    return p->m * p->hidden * (p->k + p->n) >= least;
}

ptac_reason ptac_mlp_cuda_worth(const ptac_mlp_cuda *m)
{
    const ptac_mlp_params *p = &m->params;

    if (!ptac_act_has_epilogue(p->activation) && !m->in[PTAC_MLP_B1] &&
        !m->in[PTAC_MLP_B2])
        return PTAC_NOT_FASTER;
    return ptac_products_worth(&m->call, keeps_busy(p, m->call.inputs[0].dtype));
}

const ptac_kernel *ptac_mlp_cuda_choose(ptac_mlp_cuda *m, ptac_reason *why)
{
    return ptac_products_choose(&m->call, why);
}

static ptac_linear_shape matrix_shape(int64_t n_rows, int64_t n_cols)
{
    return (ptac_linear_shape){2, {n_rows, n_cols}, {n_cols, 1}};
}

/* z, or a mask of bytes. */
static at_error make_saved(ptac_made *m, ptac_mlp_cuda *mlp)
{
    const ptac_mlp_params *p = &mlp->params;
    const int64_t ld = ptac_mlp_saved_ld(p->activation, p->hidden);
    const int64_t bytes[] = {p->m, ld / 8};
    at_tensor *saved = &mlp->out[PTAC_MLP_SAVED];

    if (!ld || !mlp->keeps_saved)
        return 0;
    if (p->activation != PTAC_ACT_RELU)
        return ptac_make_output(m, &mlp->call, PTAC_MLP_SAVED,
                                matrix_shape(p->m, p->hidden), ld, saved);
    if (at_new_on(m->on, AT_DTYPE_I8, 2, bytes, NULL, saved))
        return 1;
    ptac_cuda_view_of(*saved, &mlp->call.outputs[PTAC_MLP_SAVED]);
    mlp->call.n_outputs = PTAC_MLP_OUTPUTS;
    return 0;
}

static at_error make_outputs(ptac_made *m, void *context)
{
    ptac_mlp_cuda *mlp = context;
    ptac_mlp_params *p = &mlp->params;
    const size_t bytes = ptac_mlp_forward_workspace(p);
    ptac_linear_shape like_x;
    ptac_view x;

    ptac_cuda_view_of(mlp->in[PTAC_MLP_X], &x);
    like_x = ptac_linear_shape_like(&x, p->n);
    return ptac_make_output(m, &mlp->call, PTAC_MLP_Y, like_x, p->n,
                            &mlp->out[PTAC_MLP_Y]) ||
           ptac_make_output(m, &mlp->call, PTAC_MLP_H, matrix_shape(p->m, p->hidden),
                            p->hidden, &mlp->out[PTAC_MLP_H]) ||
           make_saved(m, mlp) || ptac_make_workspace(m, bytes, &p->products);
}

static void drop_all(at_tensor *tensors, int n)
{
    for (int i = 0; i < n; i++)
        at_drop_tensor(&tensors[i]);
}

bool ptac_mlp_cuda_run(const ptac_kernel *row, ptac_mlp_cuda *mlp)
{
    if (ptac_products_run(&mlp->call, &mlp->params.products, row, make_outputs, mlp))
        return true;
    drop_all(mlp->out, PTAC_MLP_OUTPUTS);
    return false;
}

/* What backward takes, folded, and which matrices these are. */
typedef struct backward {
    ptac_mlp_params params;
    ptac_call call;
    ptac_matrix grad, x;
    ptac_linear_shape shape; /* of the gradient of x */
    ptac_mlp_gradients *of_call;
} backward;

static bool fold(at_tensor tensor, ptac_view *view, ptac_matrix *matrix)
{
    if (view->n_elements == 0 || !ptac_linear_fold(tensor, view, matrix))
        return false;
    ptac_see_as(view, matrix);
    return true;
}

/* The size that a matrix has there; 1, which fits no other, of one that is none. */
static int64_t columns_of(const ptac_view *view)
{
    return view->data && view->n_dims == 2 ? view->sizes[1] : 1;
}

/*
 * What forward has kept may have other data by now, of any kind, since a program can
 * set a tensor's .data: the row looks at all sizes.
 */
static ptac_reason read_backward(const ptac_mlp_gradients *g, backward *b)
{
    ptac_view *in = b->call.inputs;
    ptac_mlp_params *p = &b->params;
    ptac_view grad;

    for (int i = 0; i < PTAC_MLP_GRAD_INPUTS; i++)
        if (g->in[i])
            ptac_cuda_view_of(g->in[i], &in[i]);
    grad = in[PTAC_MLP_GRAD];
    if (!fold(g->in[PTAC_MLP_GRAD], &in[PTAC_MLP_GRAD], &b->grad) ||
        (g->in[PTAC_MLP_GRAD_X] &&
         !fold(g->in[PTAC_MLP_GRAD_X], &in[PTAC_MLP_GRAD_X], &b->x)))
        return PTAC_LAYOUT;
    p->m = b->grad.sizes[0];
    p->n = b->grad.sizes[1];
    p->k = columns_of(&in[g->wants[PTAC_MLP_X] ? PTAC_MLP_GRAD_W1 : PTAC_MLP_GRAD_X]);
    p->hidden =
        columns_of(&in[g->in[PTAC_MLP_GRAD_W2] ? PTAC_MLP_GRAD_W2 : PTAC_MLP_GRAD_H]);
    b->shape = ptac_linear_shape_like(&grad, p->k);
    return ptac_call_place(&b->call);
}

/* Each gradient that is wanted has what it is computed from. */
static bool has_all(const ptac_mlp_gradients *g)
{
    const bool *wants = g->wants;
    const bool goes_through =
        wants[PTAC_MLP_X] || wants[PTAC_MLP_W1] || wants[PTAC_MLP_B1];

    return (!wants[PTAC_MLP_X] || g->in[PTAC_MLP_GRAD_W1]) &&
           (!wants[PTAC_MLP_W1] || g->in[PTAC_MLP_GRAD_X]) &&
           (!wants[PTAC_MLP_W2] || g->in[PTAC_MLP_GRAD_H]) &&
           (!wants[PTAC_MLP_B2] || wants[PTAC_MLP_W2]) &&
           goes_through == (g->in[PTAC_MLP_GRAD_W2] != NULL) &&
           (g->in[PTAC_MLP_GRAD_SAVED] || g->in[PTAC_MLP_GRAD_H]);
}

static at_error make_gradients(ptac_made *m, void *context)
{
    backward *b = context;
    ptac_mlp_gradients *g = b->of_call;
    ptac_mlp_params *p = &b->params;
    const ptac_linear_shape shapes[PTAC_MLP_INPUTS] = {
        [PTAC_MLP_X] = b->shape,
        [PTAC_MLP_W1] = matrix_shape(p->hidden, p->k),
        [PTAC_MLP_B1] = {1, {p->hidden}, {1}},
        [PTAC_MLP_W2] = matrix_shape(p->n, p->hidden),
        [PTAC_MLP_B2] = {1, {p->n}, {1}},
    };
    const size_t bytes = ptac_mlp_backward_workspace(p, m->dtype);

    for (int i = 0; i < PTAC_MLP_INPUTS; i++)
        if (g->wants[i] &&
            ptac_make_output(m, &b->call, i, shapes[i],
                             shapes[i].sizes[shapes[i].n_dims - 1], &g->out[i]))
            return 1;
    return ptac_make_workspace(m, bytes, &p->products);
}

bool ptac_mlp_cuda_backward(const char *row_name, ptac_act activation, bool allows_tf32,
                            ptac_mlp_gradients *gradients)
{
    backward b = {
        .params = {.activation = activation, .products = {.allows_tf32 = allows_tf32}},
        .call = {.op = PTAC_OP_MLP_BACKWARD,
                 .on = PTAC_ON_CUDA,
                 .n_inputs = PTAC_MLP_GRAD_INPUTS},
        .of_call = gradients,
    };
    ptac_reason why = has_all(gradients) ? PTAC_TAKE : PTAC_ARGUMENT;

    b.call.params = &b.params;
    if (!why)
        why = read_backward(gradients, &b);
    if (why)
        ptac_refuse(b.call.op, why);
    if (!why && ptac_products_go_back(&b.call, &b.params.products, row_name,
                                      make_gradients, &b))
        return true;
    drop_all(gradients->out, PTAC_MLP_INPUTS);
    return false;
}
