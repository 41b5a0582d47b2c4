/*
 * linear_act.c - the rows of linear_act: a library's product, our epilogue.
 */
#include "bind/torch/rows/linear_act.h"

#include "bind/torch/dispatch.h"
#include "bind/torch/rows/bf16.h"
#include "ops/product/product.h"

#include <string.h>

/*
 * With and without gradients, and an activation. On CUDA, where all have one, it may be
 * a kernel behind the product, and float32 be TF32.
 */
enum {
    INFER,
    INFER_ACT,
    TRAIN,
    TRAIN_ACT,
    TRAIN_KERNEL,
    INFER_ACT_TF32,
    TRAIN_ACT_TF32,
    TRAIN_KERNEL_TF32,
    INFER_SMALL, /* on the CPU */
    INFER_SMALL_ACT,
    INFER_THIN,
    INFER_THIN_ACT,
};

enum {
    LEAST_SIDE = 16, /* of others: thinner products are not worth a look */
};

#define KINDS                                                                          \
    "infer", "infer_act", "train", "train_act", "train_kernel", "infer_act_tf32",      \
        "train_act_tf32", "train_kernel_tf32", "infer_small", "infer_small_act",       \
        "infer_thin", "infer_thin_act"

static int kind_on_cuda(const ptac_linear_act *p, ptac_dtype dtype)
{
    const bool is_tf32 = ptac_products_are_tf32(&p->products, dtype);

    if (!p->is_training)
        return is_tf32 ? INFER_ACT_TF32 : INFER_ACT;
    if (ptac_act_has_epilogue(p->activation))
        return is_tf32 ? TRAIN_ACT_TF32 : TRAIN_ACT;
    return is_tf32 ? TRAIN_KERNEL_TF32 : TRAIN_KERNEL;
}

/* Whether a table has it by its work alone. */
static bool kind_on_cpu(const ptac_linear_act *p, int *kind)
{
    const bool is_small = ptac_product_is_small(p->m, p->n, p->k);
    const bool is_thin = ptac_product_is_thin(p->m, p->n, p->k);
    const int has_act = p->activation != PTAC_ACT_NONE;

    if (p->is_training || !(is_small || is_thin))
        *kind = (p->is_training ? TRAIN : INFER) + has_act;
    else
        *kind = (is_small ? INFER_SMALL : INFER_THIN) + has_act;
    return *kind >= INFER_SMALL;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    static const double PRICE = 0.25; /* of a weight that is laid out; Zen 4 */
    const ptac_linear_act *p = call->params;

    if (p->m == 0 || p->n == 0 || p->k == 0)
        return PTAC_EMPTY;
    shape->work = p->m * p->n * p->k;
    shape->kept_ns = call->kept ? PRICE * (double)(p->n * p->k) : 0;
    if (call->on == PTAC_ON_CUDA)
        shape->kind = kind_on_cuda(p, call->inputs[0].dtype);
    else if (kind_on_cpu(p, &shape->kind))
        return PTAC_TAKE;
    else if (p->n < LEAST_SIDE || p->k < LEAST_SIDE)
        return PTAC_SHAPE;
    shape->sizes[0] = p->m;
    shape->sizes[1] = p->k;
    shape->sizes[2] = p->n;
    shape->uses = shape->work / (p->m * p->n + p->m * p->k + p->n * p->k);
    return PTAC_TAKE;
}

PTAC_SHAPES(LINEAR_ACT, classify, KINDS)
PTAC_SHAPES(LINEAR_ACT_BACKWARD, classify, KINDS)

bool ptac_linear_fold(at_tensor tensor, const ptac_view *view, ptac_matrix *matrix)
{
    const int last = view->n_dims - 1;
    int64_t rows = 1, stride;

    if (view->n_dims < 2 || view->n_dims > PTAC_MAX_DIMS)
        return false;
    stride = view->n_dims == 2 ? view->strides[0] : view->sizes[last];
    for (int i = last - 1; i >= 0; i--) {
        if (view->sizes[i] == 1)
            continue;
        if (rows == 1)
            stride = view->strides[i];
        else if (view->strides[i] != rows * stride)
            return false;
        rows *= view->sizes[i];
    }
    *matrix = (ptac_matrix){
        tensor, 0, {rows, view->sizes[last]}, {stride, view->strides[last]}};
    return true;
}

/* oneDNN and BLAS read rows or columns without gaps; stock copies anything else. */
static bool is_dense_one_way(const ptac_matrix *matrix)
{
    return (matrix->strides[1] == 1 && matrix->strides[0] >= matrix->sizes[1]) ||
           (matrix->strides[0] == 1 && matrix->strides[1] >= matrix->sizes[0]);
}

bool ptac_linear_can_read(const ptac_view *matrix)
{
    ptac_matrix folded;

    return matrix->dtype == PTAC_F32 && ptac_linear_fold(NULL, matrix, &folded) &&
           is_dense_one_way(&folded);
}

/* A float tensor as the libraries can read it. */
static bool read_matrix(at_tensor tensor, ptac_matrix *matrix)
{
    ptac_view view;

    ptac_view_of(tensor, &view);
    return view.dtype == PTAC_F32 && ptac_linear_fold(tensor, &view, matrix) &&
           is_dense_one_way(matrix);
}

ptac_reason ptac_linear_size(ptac_linear_tensors *tensors, ptac_act activation,
                             bool is_training, ptac_linear_act *params, ptac_call *call)
{
    ptac_view *x = &call->inputs[0];
    int64_t n_dims = 0, *sizes = NULL;

    *call = (ptac_call){.op = PTAC_OP_LINEAR_ACT, .n_inputs = 2, .params = params};
    ptac_view_of(tensors->x, x);
    T.aoti_torch_get_dim(tensors->w, &n_dims);
    T.aoti_torch_get_sizes(tensors->w, &sizes);
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (n_dims != 2 || x->n_dims < 2)
        return PTAC_SHAPE;
    if (x->sizes[x->n_dims - 1] != sizes[1])
        return PTAC_ARGUMENT;
    *params = (ptac_linear_act){
        .m = sizes[1] ? x->n_elements / sizes[1] : 0,
        .n = sizes[0],
        .k = sizes[1],
        .activation = activation,
        .is_training = is_training,
        .host = tensors,
    };
    return PTAC_TAKE;
}

ptac_reason ptac_linear_read(ptac_linear_tensors *tensors, ptac_call *call)
{
    const ptac_linear_act *params = call->params;
    const ptac_view *x = &call->inputs[0];
    ptac_view *w = &call->inputs[1], *bias = &call->inputs[2];
    ptac_matrix *rows = &tensors->rows, *weight = &tensors->weight;

    ptac_view_of(tensors->w, w);
    if (w->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!ptac_linear_fold(tensors->x, x, rows) ||
        !ptac_linear_fold(tensors->w, w, weight) || !is_dense_one_way(rows) ||
        !is_dense_one_way(weight))
        return PTAC_LAYOUT;
    /* Stock's gradients have the order of what they belong to, ours are row by row. */
    if (params->is_training && (rows->strides[1] != 1 || weight->strides[1] != 1))
        return PTAC_LAYOUT;
    if (!tensors->bias)
        return PTAC_TAKE;
    ptac_view_of(tensors->bias, bias);
    call->n_inputs = 3;
    return ptac_vector_reason(bias, weight->sizes[0]);
}

/* Stock gives y such sizes; x may change while the product runs. */
ptac_linear_shape ptac_linear_shape_like(const ptac_view *x, int64_t last_size)
{
    ptac_linear_shape shape = {.n_dims = x->n_dims};
    int64_t stride = 1;

    for (int i = x->n_dims - 1; i >= 0; i--) {
        shape.sizes[i] = i == x->n_dims - 1 ? last_size : x->sizes[i];
        shape.strides[i] = stride;
        stride *= shape.sizes[i];
    }
    return shape;
}

/* The result of a product, if there is one, under these sizes. */
static at_error unfold(at_tensor *matrix, const ptac_linear_shape *shape)
{
    at_tensor named = NULL;

    if (!*matrix || shape->n_dims == 2)
        return 0;
    if (T.aoti_torch__reinterpret_tensor(*matrix, shape->n_dims, shape->sizes,
                                         shape->strides, 0, &named))
        return 1;
    at_drop_tensor(matrix);
    *matrix = named;
    return 0;
}

/*
 * Bias and activation over what the product left in y. Where the gradient is computed
 * from the values before the activation, these stay in z and y is new.
 */
static at_error finish(ptac_linear_tensors *t, const ptac_linear_act *p, bool has_bias)
{
    if (p->is_training && ptac_act_saves_z(p->activation)) {
        t->z = at_give(&t->y);
        if (ptac_new_matrix(p->m, p->n, &t->y, NULL))
            return 1;
    }

    const ptac_act_forward job = {
        .z = at_data(t->z ? t->z : t->y),
        .ldz = p->n,
        .bias = has_bias ? NULL : at_data(t->bias),
        .y = at_data(t->y),
        .ldy = p->n,
        .n_rows = p->m,
        .n_cols = p->n,
        .act = p->activation,
        .keep_z = t->z != NULL,
    };

    ptac_bias_act_forward(ptac_bias_act_best(), &job);
    return 0;
}

static ptac_status forward(const ptac_call *call, ptac_gemm provider)
{
    const ptac_linear_act *p = call->params;
    ptac_linear_tensors *t = p->host;
    const ptac_linear_shape shape = ptac_linear_shape_like(&call->inputs[0], p->n);
    const bool none = p->activation == PTAC_ACT_NONE;
    bool has_bias = false;

    if (!ptac_gemm_rows_into(provider, &t->rows, &t->weight, t->bias, t->into,
                             call->kept, &t->y, &has_bias) &&
        ((none && (has_bias || !t->bias)) || !finish(t, p, has_bias)) &&
        !unfold(&t->y, &shape) && !unfold(&t->z, &shape))
        return PTAC_OK;
    at_drop_tensor(&t->y);
    at_drop_tensor(&t->z);
    ptac_error_set("a product of %lld x %lld x %lld failed", (long long)p->m,
                   (long long)p->n, (long long)p->k);
    return PTAC_FAILED;
}

static at_error matrix_gradients(ptac_gemm provider, ptac_linear_gradients *g,
                                 const ptac_linear_act *p, at_tensor grad_z)
{
    ptac_matrix z = {grad_z, 0, {p->m, p->n}, {p->n, 1}};
    const ptac_matrix w = ptac_transposed(g->weight), right = ptac_transposed(g->rows);
    AT_OWNED at_tensor narrow = NULL; /* rounded once for both */
    bool unused;

    if (provider == PTAC_GEMM_BF16 && ptac_gemm_narrow(&z, &narrow, &z))
        return 1;

    const ptac_matrix left = ptac_transposed(z);

    return (g->wants_x &&
            ptac_gemm_rows(provider, &z, &w, NULL, &g->grad_x, &unused)) ||
           (g->wants_w && ptac_gemm_sum(provider, &left, &right, &g->grad_w));
}

/* The gradients of the activation and the bias, then those of the product. */
static at_error all_gradients(ptac_gemm provider, ptac_linear_gradients *g,
                              const ptac_linear_act *p)
{
    const bool none = p->activation == PTAC_ACT_NONE;
    AT_OWNED at_tensor grad_z = NULL;

    if ((!none && ptac_new_matrix(p->m, p->n, &grad_z, NULL)) ||
        (g->wants_bias && ptac_new(PTAC_F32, 1, &p->n, NULL, &g->grad_bias, NULL)))
        return 1;
    if (!none || g->wants_bias) {
        const ptac_act_backward job = {
            .g = at_data(g->grad),
            .saved = at_data(g->saved),
            .gz = at_data(grad_z),
            .gb = at_data(g->grad_bias),
            .n_rows = p->m,
            .n_cols = p->n,
            .act = p->activation,
        };

        ptac_bias_act_backward(ptac_bias_act_best(), &job);
    }
    return matrix_gradients(provider, g, p, none ? g->grad : grad_z);
}

static ptac_status backward(const ptac_call *call, ptac_gemm provider)
{
    const ptac_linear_act *p = call->params;
    ptac_linear_gradients *g = p->host;
    const ptac_linear_shape shape = ptac_linear_shape_like(&call->inputs[0], p->k);

    if (!all_gradients(provider, g, p) && !unfold(&g->grad_x, &shape))
        return PTAC_OK;
    at_drop_tensor(&g->grad_x);
    at_drop_tensor(&g->grad_w);
    at_drop_tensor(&g->grad_bias);
    ptac_error_set("the gradient of a product failed");
    return PTAC_FAILED;
}

/*
 * Fill in the sizes. What forward has kept may have other data by now, of any kind,
 * since a program can set a tensor's .data.
 */
static bool read_gradients(ptac_linear_gradients *g, const ptac_view *grad,
                           ptac_linear_act *p)
{
    ptac_matrix rows;
    ptac_view saved;

    if (grad->dtype != PTAC_F32 || !ptac_view_is_contiguous(grad) ||
        !ptac_linear_fold(g->grad, grad, &rows))
        return false;
    p->m = rows.sizes[0];
    p->n = rows.sizes[1];
    if (g->wants_x &&
        (!g->w || !read_matrix(g->w, &g->weight) || g->weight.sizes[0] != p->n))
        return false;
    if (g->wants_w &&
        (!g->x || !read_matrix(g->x, &g->rows) || g->rows.sizes[0] != p->m))
        return false;
    if (g->wants_x && g->wants_w && g->rows.sizes[1] != g->weight.sizes[1])
        return false;
    p->k = g->wants_x ? g->weight.sizes[1] : g->wants_w ? g->rows.sizes[1] : 0;
    if (p->activation == PTAC_ACT_NONE)
        return true;
    if (!g->saved)
        return false;
    ptac_view_of(g->saved, &saved);
    return saved.dtype == PTAC_F32 && saved.n_elements == p->m * p->n &&
           ptac_view_is_contiguous(&saved);
}

/* By a row that has been chosen, or by the one of that name, if that is admitted. */
static bool run_backward(const ptac_kernel *row, const char *row_name,
                         ptac_act activation, ptac_linear_gradients *gradients)
{
    ptac_linear_act params = {.activation = activation, .host = gradients};
    ptac_call call = {
        .op = PTAC_OP_LINEAR_ACT_BACKWARD, .n_inputs = 1, .params = &params};
    ptac_view *grad = &call.inputs[0];

    ptac_view_of(gradients->grad, grad);
    if (!read_gradients(gradients, grad, &params)) {
        ptac_refuse(call.op, PTAC_ARGUMENT);
        return false;
    }
    if (row)
        call.n_threads = ptac_the_host.n_threads();
    else
        row = ptac_admit_row(&call, row_name);
    return row && ptac_run(row, &call);
}

bool ptac_linear_backward(const char *row_name, ptac_act activation,
                          ptac_linear_gradients *gradients)
{
    return run_backward(NULL, row_name, activation, gradients);
}

bool ptac_linear_backward_by(const ptac_kernel *row, ptac_act activation,
                             ptac_linear_gradients *gradients)
{
    return run_backward(row, NULL, activation, gradients);
}

static ptac_reason accepts_onednn(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    if (!ptac_gemm_can(PTAC_GEMM_ONEDNN))
        return PTAC_NOT_FASTER;
    return p->m < PTAC_GEMM_PIECE ? PTAC_SHAPE : PTAC_TAKE;
}

#if defined(__x86_64__)
/* Of weights that lie as Linear has them; where that is not known yet, as they do. */
static ptac_reason accepts_rows(const ptac_call *call)
{
    const ptac_view *w = &call->inputs[1];

    return call->n_inputs > 1 && w->n_dims == 2 && w->strides[1] != 1 ? PTAC_LAYOUT
                                                                      : PTAC_TAKE;
}

static bool fills_8(const ptac_call *call)
{
    return ptac_product_turned_pays(((const ptac_linear_act *)call->params)->m, 8);
}

static bool fills_16(const ptac_call *call)
{
    return ptac_product_turned_pays(((const ptac_linear_act *)call->params)->m, 16);
}

/* An activation in the same pass is a gain of its own. */
static bool packed_pays(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    return p->activation != PTAC_ACT_NONE ||
           ptac_product_packed_pays(p->n, p->k, call->n_threads);
}

static bool small_pays(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;
    const ptac_product as = {.m = p->m, .n = p->n, .k = p->k, .a_term = 1, .b_term = 1};

    return ptac_product_small_pays(&as);
}

static size_t panels_of_8(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    return ptac_product_kept_bytes(p->n, p->k, 8);
}

static size_t panels_of_16(const ptac_call *call)
{
    const ptac_linear_act *p = call->params;

    return ptac_product_kept_bytes(p->n, p->k, 16);
}

/* Gradients have been measured by packed products on AMD's CPUs alone. */
static ptac_status packed_backward(const ptac_call *call, ptac_gemm provider)
{
    return backward(call, ptac_cpu_is_amd() ? provider : PTAC_GEMM_BLAS);
}
#endif

/*
 * The rows of a provider, forward and backward: how PTAC_ROW goes on behind them. Most
 * of our own products are for operands that lie as forward's do: gradients are BLAS's.
 */
#define ROW(id, library, provider, direction, ...)                                     \
    static ptac_status direction##_##provider(const ptac_call *call)                   \
    {                                                                                  \
        return direction(call, PTAC_GEMM_##provider);                                  \
    }                                                                                  \
    PTAC_ROW(id, library, __VA_ARGS__)
#define ROWS(library, provider, level, needs, accepts, ...)                            \
    ROW(LINEAR_ACT, library, provider, forward, level, needs, accepts,                 \
        forward_##provider, ##__VA_ARGS__)                                             \
    ROW(LINEAR_ACT_BACKWARD, library, provider, backward, level, needs, accepts,       \
        backward_##provider, ##__VA_ARGS__)
#define OWN_FORWARD(way, provider, needs, accepts, ...)                                \
    ROW(LINEAR_ACT, way, provider, forward, PTAC_CLOSE, needs, accepts,                \
        forward_##provider, ##__VA_ARGS__)
#define OWN_ROWS(way, provider, needs, accepts, ...)                                   \
    static ptac_status backward_##provider(const ptac_call *call)                      \
    {                                                                                  \
        return backward(call, PTAC_GEMM_BLAS);                                         \
    }                                                                                  \
    OWN_FORWARD(way, provider, needs, accepts, ##__VA_ARGS__)                          \
    PTAC_ROW(LINEAR_ACT_BACKWARD, way, PTAC_CLOSE, needs, ptac_accept_all,             \
             backward_##provider)

bool ptac_linear_writes_into(const ptac_kernel *row)
{
    return strcmp(row->name, "onednn") != 0 && !row->in_bf16;
}

/* BLAS takes any product, oneDNN refuses small ones. */
ROWS("blas", BLAS, PTAC_CLOSE, 0, ptac_accept_all, .rank = 1)
ROWS("onednn", ONEDNN, PTAC_CLOSE, 0, accepts_onednn)
#if defined(__x86_64__)
OWN_ROWS("small_avx2", SMALL_AVX2, PTAC_CPU_AVX2, ptac_accept_all, .pays = small_pays)
OWN_ROWS("small_avx512", SMALL_AVX512, PTAC_CPU_AVX512, ptac_accept_all,
         .pays = small_pays)
OWN_ROWS("dot_avx2", DOT_AVX2, PTAC_CPU_AVX2, accepts_rows)
OWN_ROWS("dot_avx512", DOT_AVX512, PTAC_CPU_AVX512, accepts_rows)
OWN_ROWS("packed_avx2", PACKED_AVX2, PTAC_CPU_AVX2, ptac_accept_all,
         .pays = packed_pays, .kept_bytes = panels_of_8)
OWN_FORWARD("packed_avx512", PACKED_AVX512, PTAC_CPU_AVX512, ptac_accept_all,
            .pays = packed_pays, .kept_bytes = panels_of_16)
ROW(LINEAR_ACT_BACKWARD, "packed_avx512", PACKED_AVX512, packed_backward, PTAC_CLOSE,
    PTAC_CPU_AVX512, ptac_accept_all, packed_backward_PACKED_AVX512)
OWN_ROWS("turned_avx2", TURNED_AVX2, PTAC_CPU_AVX2, accepts_rows, .pays = fills_8)
OWN_ROWS("turned_avx512", TURNED_AVX512, PTAC_CPU_AVX512, accepts_rows,
         .pays = fills_16)
#endif
ROWS("bf16", BF16, PTAC_FAST, PTAC_CPU_AVX512_BF16, ptac_accept_all, .in_bf16 = true)
