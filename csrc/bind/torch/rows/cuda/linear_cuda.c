/*
 * linear_cuda.c - what rows of linear_act on CUDA are given.
 */
#include "bind/torch/rows/cuda/linear_cuda.h"

#include "bind/torch/dispatch.h"
#include "bind/torch/rows/cuda/made.h"

/*
 * A step of a layer takes the host a quarter more by our node than by stock's two: 200
 * us in place of 160 on the CPU, where that can be measured. So many multiply-adds,
 * forward and twice backward, keep a GPU of 600 TFLOP/s for 170 us, and the host is
 * ahead of it. float32 on its own units runs at an eighth of that or less.
 */
static int64_t least_work = (int64_t)1 << 34;

enum {
    FLOAT32_IS_SLOWER = 8,
};

void ptac_linear_cuda_set_least(int64_t work)
{
    __atomic_store_n(&least_work, work, __ATOMIC_RELAXED);
}

ptac_reason ptac_linear_cuda_read(ptac_linear_cuda *l, ptac_act activation,
                                  bool is_training)
{
    ptac_linear_tensors *t = &l->t;
    ptac_view *x = &l->call.inputs[0], *w = &l->call.inputs[1];
    ptac_reason why;

    l->call = (ptac_call){.op = PTAC_OP_LINEAR_ACT,
                          .on = PTAC_ON_CUDA,
                          .n_inputs = t->bias ? 3 : 2,
                          .params = &l->params};
    ptac_cuda_view_of(t->x, x);
    ptac_cuda_view_of(t->w, w);
    if (t->bias)
        ptac_cuda_view_of(t->bias, &l->call.inputs[2]);
    if (w->n_dims != 2 || x->n_dims < 2)
        return PTAC_SHAPE;
    if (x->sizes[x->n_dims - 1] != w->sizes[1])
        return PTAC_ARGUMENT;
    if (x->n_elements == 0 || w->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_linear_fold(t->x, x, &t->rows))
        return PTAC_LAYOUT;
    ptac_see_as(x, &t->rows);
    l->params = (ptac_linear_act){
        .m = t->rows.sizes[0],
        .n = w->sizes[0],
        .k = w->sizes[1],
        .activation = activation,
        .is_training = is_training,
        .only_fused = !is_training,
    };
    why = ptac_call_place(&l->call);
    l->params.products.device = l->call.device;
    return why;
}

/* By the model. */
static bool keeps_busy(const ptac_linear_act *p, ptac_dtype dtype)
{
    int64_t least = __atomic_load_n(&least_work, __ATOMIC_RELAXED);

    if (dtype == PTAC_F32 && !p->products.allows_tf32)
        least /= FLOAT32_IS_SLOWER;
    return p->m * p->n * p->k >= least;
}

ptac_reason ptac_linear_cuda_worth(const ptac_linear_cuda *l)
{
    const ptac_linear_act *p = &l->params;
    const ptac_dtype dtype = l->call.inputs[0].dtype;

    if (p->activation == PTAC_ACT_NONE)
        return PTAC_NOT_FASTER;
    /* Of others all that is saved is the sum of the bias's gradient. */
    if (!ptac_act_has_epilogue(p->activation) && !(p->is_training && l->t.bias))
        return PTAC_NOT_FASTER;
    return ptac_products_worth(&l->call, !p->is_training || keeps_busy(p, dtype));
}

const ptac_kernel *ptac_linear_cuda_choose(ptac_linear_cuda *l, ptac_reason *why)
{
    return ptac_products_choose(&l->call, why);
}

static at_error make_outputs(ptac_made *m, void *context)
{
    ptac_linear_cuda *l = context;
    ptac_linear_act *p = &l->params;
    const size_t bytes = ptac_linear_act_workspace(p, m->dtype);
    ptac_linear_shape shape;
    ptac_view x;

    ptac_cuda_view_of(l->t.x, &x);
    shape = ptac_linear_shape_like(&x, p->n);
    return ptac_make_output(m, &l->call, 0, shape, p->n, &l->t.y) ||
           (p->is_training && ptac_act_saves_z(p->activation) &&
            ptac_make_output(m, &l->call, 1, shape, ptac_linear_act_ldz(p->n),
                             &l->t.z)) ||
           ptac_make_workspace(m, bytes, &p->products);
}

bool ptac_linear_cuda_run(const ptac_kernel *row, ptac_linear_cuda *l)
{
    if (ptac_products_run(&l->call, &l->params.products, row, make_outputs, l))
        return true;
    at_drop_tensor(&l->t.y);
    at_drop_tensor(&l->t.z);
    return false;
}

/* What backward takes, folded, and which matrices these are. */
typedef struct backward {
    ptac_linear_act params;
    ptac_call call;
    ptac_matrix of[4];
    ptac_linear_shape shape; /* of the gradient of x */
    ptac_linear_gradients *of_call;
} backward;

enum {
    GRAD,
    X,
    W,
    SAVED,
};

static bool read_input(backward *b, int i, at_tensor tensor)
{
    ptac_view *view = &b->call.inputs[i];

    if (!tensor)
        return true;
    ptac_cuda_view_of(tensor, view);
    if (view->n_elements == 0 || !ptac_linear_fold(tensor, view, &b->of[i]))
        return false;
    ptac_see_as(view, &b->of[i]);
    return true;
}

/*
 * What forward has kept may have other data by now, of any kind, since a program can
 * set a tensor's .data: the row looks at all sizes.
 */
static ptac_reason read_backward(const ptac_linear_gradients *g, backward *b)
{
    ptac_linear_act *p = &b->params;
    ptac_view grad;

    if ((g->wants_x && !g->w) || (g->wants_w && !g->x))
        return PTAC_ARGUMENT;
    ptac_cuda_view_of(g->grad, &grad);
    if (!read_input(b, GRAD, g->grad) || !read_input(b, X, g->wants_w ? g->x : NULL) ||
        !read_input(b, W, g->wants_x ? g->w : NULL) || !read_input(b, SAVED, g->saved))
        return PTAC_LAYOUT;
    p->m = b->of[GRAD].sizes[0];
    p->n = b->of[GRAD].sizes[1];
    /* The bias's gradient alone has no product. */
    p->k = g->wants_x ? b->of[W].sizes[1] : g->wants_w ? b->of[X].sizes[1] : 1;
    b->shape = ptac_linear_shape_like(&grad, p->k);
    return ptac_call_place(&b->call);
}

static at_error make_gradients(ptac_made *m, void *context)
{
    backward *b = context;
    ptac_linear_gradients *g = b->of_call;
    ptac_linear_act *p = &b->params;
    const ptac_linear_shape w = {2, {p->n, p->k}, {p->k, 1}}, bias = {1, {p->n}, {1}};
    const size_t bytes = ptac_linear_act_backward_workspace(p, m->dtype);

    return (g->wants_x &&
            ptac_make_output(m, &b->call, 0, b->shape, p->k, &g->grad_x)) ||
           (g->wants_w && ptac_make_output(m, &b->call, 1, w, p->k, &g->grad_w)) ||
           (g->wants_bias &&
            ptac_make_output(m, &b->call, 2, bias, p->n, &g->grad_bias)) ||
           ptac_make_workspace(m, bytes, &p->products);
}

bool ptac_linear_cuda_backward(const char *row_name, ptac_act activation,
                               bool allows_tf32, ptac_linear_gradients *gradients)
{
    backward b = {
        .params = {.activation = activation, .products = {.allows_tf32 = allows_tf32}},
        .call = {.op = PTAC_OP_LINEAR_ACT_BACKWARD, .on = PTAC_ON_CUDA, .n_inputs = 4},
        .of_call = gradients,
    };
    const ptac_reason why = read_backward(gradients, &b);

    b.call.params = &b.params;
    if (why)
        ptac_refuse(b.call.op, why);
    if (!why && ptac_products_go_back(&b.call, &b.params.products, row_name,
                                      make_gradients, &b))
        return true;
    at_drop_tensor(&gradients->grad_x);
    at_drop_tensor(&gradients->grad_w);
    at_drop_tensor(&gradients->grad_bias);
    return false;
}
