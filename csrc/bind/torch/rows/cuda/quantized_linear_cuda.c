/*
 * quantized_linear_cuda.c - what rows of quantized layers on CUDA are given.
 */
#include "bind/torch/rows/cuda/quantized_linear_cuda.h"

#include "bind/torch/cublaslt.h"
#include "bind/torch/dispatch.h"
#include "bind/torch/rows/linear_act.h"

enum {
    X,
    WEIGHT,
    SCALES,
    BIAS,
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static ptac_quantized_linear part_of(const ptac_quantized_on_cuda *c, int64_t first)
{
    const int64_t size = c->place.dtype == PTAC_F32 ? 4 : 2;
    ptac_quantized_linear part = c->job;

    part.m = least(c->format->rows_at_once(&c->job), c->job.m - first);
    part.x.data = (char *)part.x.data + first * part.x.ld * size;
    part.y.data = (char *)part.y.data + first * part.y.ld * size;
    return part;
}

ptac_reason ptac_quantized_accepts(const ptac_call *call)
{
    const ptac_quantized_on_cuda *c = call->params;

    return c->format->accepts(&c->place, &c->job);
}

ptac_status ptac_quantized_run(const ptac_call *call)
{
    const ptac_quantized_on_cuda *c = call->params;
    const int64_t step = c->format->rows_at_once(&c->job);
    ptac_status status = PTAC_OK;

    for (int64_t first = 0; status == PTAC_OK && first < c->job.m; first += step) {
        const ptac_quantized_linear part = part_of(c, first);

        status = c->format->run(&c->place, &part);
    }
    return status;
}

static bool is_vector(const ptac_view *view, ptac_dtype dtype, int64_t n)
{
    return view->dtype == dtype && ptac_view_has_sizes(view, 1, &n) &&
           ptac_view_is_contiguous(view);
}

static ptac_reason read_layer(ptac_quantized_on_cuda *c)
{
    const ptac_view *in = c->call.inputs;
    ptac_quantized_linear *job = &c->job;
    ptac_reason why = PTAC_ARGUMENT;

    if (in[WEIGHT].data) /* its dtype does not tell that memory was given away */
        why = c->format->read_weight(c, &in[WEIGHT]);
    if (why)
        return why;
    if (!is_vector(&in[SCALES], PTAC_F32, job->n))
        return PTAC_ARGUMENT;
    if (c->bias && !is_vector(&in[BIAS], in[X].dtype, job->n))
        return PTAC_DTYPE;
    job->scales = in[SCALES].data;
    job->bias = c->bias ? in[BIAS].data : NULL;
    return PTAC_TAKE;
}

/* Its rows, as one matrix: of x itself where is_dense, else of a copy. */
static ptac_reason read_x(ptac_quantized_on_cuda *c, bool *is_dense)
{
    const ptac_view *x = &c->call.inputs[X];
    const int last = x->n_dims - 1;
    ptac_matrix rows;

    if (x->n_dims < 1 || x->n_dims > PTAC_MAX_DIMS || x->sizes[last] != c->job.k)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (ptac_lt_type(x->dtype) < 0)
        return PTAC_DTYPE;
    rows = (ptac_matrix){c->x, 0, {1, c->job.k}, {c->job.k, x->strides[last]}};
    *is_dense = (last == 0 || ptac_linear_fold(c->x, x, &rows)) &&
                (c->job.k == 1 || rows.strides[1] == 1);
    c->job.m = x->n_elements / c->job.k;
    c->job.x = (ptac_lt_matrix){x->data, *is_dense ? rows.strides[0] : c->job.k};
    c->n_dims = x->n_dims;
    for (int i = 0; i < last; i++)
        c->sizes[i] = x->sizes[i];
    c->sizes[last] = c->job.n;
    return PTAC_TAKE;
}

static ptac_reason copy_x(ptac_quantized_on_cuda *c)
{
    at_tensor handle = NULL;

    if (T.aoti_torch_new_tensor_handle(c->x, &handle) ||
        at_contiguous(handle, false, &c->copy))
        return PTAC_MEMORY;
    c->job.x.data = at_data(c->copy);
    return PTAC_TAKE;
}

ptac_reason ptac_quantized_on_cuda_read(ptac_quantized_on_cuda *c, int64_t n, int64_t k,
                                        ptac_act act)
{
    const at_tensor tensors[] = {c->x, c->weight, c->scales, c->bias};
    bool is_dense = false;
    ptac_reason why;

    c->call = (ptac_call){.op = c->format->op,
                          .on = PTAC_ON_CUDA,
                          .n_inputs = c->bias ? BIAS + 1 : BIAS,
                          .params = c};
    for (int i = 0; i < c->call.n_inputs; i++)
        ptac_cuda_view_of(tensors[i], &c->call.inputs[i]);
    c->job = (ptac_quantized_linear){.n = n, .k = k, .act = act, .y = {NULL, n}};
    why = read_x(c, &is_dense);
    if (!why)
        why = read_layer(c);
    if (!why)
        why = ptac_call_place(&c->call);
    c->place = (ptac_lt_place){
        .call = &c->call, .dtype = c->call.inputs[X].dtype, .device = c->call.device};
    return why || is_dense ? why : copy_x(c);
}

/* The row, or NULL and why; the call's scope on the device has begun. */
static const ptac_kernel *choose(ptac_quantized_on_cuda *c, ptac_reason *why)
{
    *why = ptac_lt_begin(&c->call);
    if (*why)
        return NULL;
    c->place.only_known = ptac_cuda_is_capturing(&c->call);
    return ptac_probe(&c->call, why);
}

static at_error make(ptac_quantized_on_cuda *c, at_tensor *workspace)
{
    const at_device on = {AT_DEVICE_CUDA, c->call.device};
    const int64_t bytes = (int64_t)c->format->bytes(&c->job) + PTAC_LT_WORKSPACE_BYTES;

    if (ptac_new_on(on, c->place.dtype, c->n_dims, c->sizes, NULL, &c->y, NULL) ||
        at_new_on(on, AT_DTYPE_I8, 1, &bytes, NULL, workspace))
        return 1;
    c->job.y.data = at_data(c->y);
    c->place.workspace = (ptac_lt_workspace){at_data(*workspace), (size_t)bytes};
    return 0;
}

/* Whether the library has plans for all parts, which are alike but for the last. */
static ptac_reason plan(const ptac_quantized_on_cuda *c)
{
    const int64_t step = c->format->rows_at_once(&c->job);
    const int64_t firsts[] = {0, (c->job.m - 1) / step * step};

    for (int i = 0; i < 2; i++) {
        const ptac_quantized_linear part = part_of(c, firsts[i]);
        const ptac_status status = c->format->plan(&c->place, &part);

        if (status != PTAC_OK)
            return status == PTAC_NOT_YET ? PTAC_COMPILING : PTAC_ARGUMENT;
    }
    return PTAC_TAKE;
}

static ptac_reason run_row(const ptac_kernel *row, ptac_quantized_on_cuda *c,
                           bool *is_done)
{
    at_tensor workspace = NULL;
    ptac_reason why = make(c, &workspace) ? PTAC_MEMORY : plan(c);

    *is_done = !why && ptac_run(row, &c->call);
    if (!*is_done)
        at_drop_tensor(&c->y);
    at_drop_tensor(&workspace);
    return why;
}

bool ptac_quantized_on_cuda_run(ptac_quantized_on_cuda *c, bool counts)
{
    PTAC_CUDA_SCOPE scope = {false};
    ptac_reason why = ptac_chooser_gate_on(PTAC_ON_CUDA, c->call.op);
    const ptac_kernel *row = NULL;
    bool is_done = false;

    if (!why && !ptac_cuda_begin(&c->call, &scope))
        why = PTAC_DEVICE;
    if (!why)
        row = choose(c, &why);
    if (row)
        why = run_row(row, c, &is_done);
    at_drop_tensor(&c->copy);
    if (why && counts)
        ptac_refuse(c->call.op, why);
    return is_done;
}
