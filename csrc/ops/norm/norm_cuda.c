/*
 * norm_cuda.c - launches of norm.cu and norm_backward.cu.
 */
#include "ops/norm/norm_cuda.h"

#include "device/cuda/launch.h"
#include "ops/norm/norm.h"

PTAC_CUDA_UNIT(norm)
PTAC_CUDA_UNIT(norm_backward)

/* Kernels by whether rows are read again, and whether they lie as packs. */
#define KERNELS(file, prefix)                                                          \
    {                                                                                  \
        {PTAC_CUDA_KERNELS(file, prefix "_single"),                                    \
         PTAC_CUDA_KERNELS(file, prefix "_packed")},                                   \
            {PTAC_CUDA_KERNELS(file, prefix "_long_single"),                           \
             PTAC_CUDA_KERNELS(file, prefix "_long_packed")},                          \
    }

static ptac_cuda_kernel forward[2][2][PTAC_N_DTYPES] = KERNELS(norm, "norm");
static ptac_cuda_kernel backward[2][2][PTAC_N_DTYPES] =
    KERNELS(norm_backward, "norm_backward");
static ptac_cuda_kernel columns[] =
    PTAC_CUDA_KERNELS(norm_backward, "norm_backward_columns");
static ptac_cuda_kernel sum_parts[] =
    PTAC_CUDA_KERNELS(norm_backward, "norm_sum_parts");

/* How a call's rows are dealt out. */
typedef struct grid {
    bool is_packed, is_long;
    int lanes, n_threads;
    int64_t n_blocks;
} grid;

static bool are_aligned(const ptac_view *views, int n)
{
    for (int i = 0; i < n; i++)
        if (!ptac_view_is_aligned(&views[i], 16))
            return false;
    return true;
}

/* Blocks of so many threads that a device of the call's has room for. */
static int64_t room(const ptac_norm *params, int n_threads)
{
    return (int64_t)params->n_processors * PTAC_NORM_BLOCKS * PTAC_NORM_THREADS /
           n_threads;
}

static grid grid_of(const ptac_call *call)
{
    const ptac_norm *params = call->params;
    const int pack = call->inputs[0].dtype == PTAC_F32 ? 4 : 8;
    grid g = {.lanes = 32};

    g.is_packed = params->width % pack == 0 &&
                  are_aligned(call->inputs, call->n_inputs) &&
                  are_aligned(call->outputs, call->n_outputs);

    const int each = g.is_packed ? PTAC_NORM_EACH : PTAC_NORM_SINGLE_EACH;

    g.is_long = params->width > each * PTAC_NORM_MOST_LANES;
    while (g.lanes < PTAC_NORM_MOST_LANES && params->width > each * g.lanes)
        g.lanes *= 2;
    g.n_threads = g.lanes > PTAC_NORM_THREADS ? g.lanes : PTAC_NORM_THREADS;
    g.n_blocks = ptac_least(ptac_parts(params->n_rows, g.n_threads / g.lanes),
                            room(params, g.n_threads));
    return g;
}

static ptac_cuda_norm geometry(const ptac_norm *params, const grid *g)
{
    return (ptac_cuda_norm){
        .n_rows = params->n_rows,
        .width = (int)params->width,
        .lanes = g->lanes,
        .eps = (float)params->eps,
        .is_rms = params->is_rms,
    };
}

/*
 * Most parts that the gradients of weights come in. Rows that do not lie as packs are
 * long from half this width on, which nobody knows before the outputs are there.
 */
static int64_t most_parts(const ptac_norm *params)
{
    const bool is_long = params->width > PTAC_NORM_EACH * PTAC_NORM_MOST_LANES;
    const int64_t most = is_long ? 0 : room(params, PTAC_NORM_THREADS);

    return ptac_least(params->n_rows,
                      most > PTAC_NORM_LONG_PARTS ? most : PTAC_NORM_LONG_PARTS);
}

int64_t ptac_norm_parts(const ptac_norm *params, bool has_weight_gradients)
{
    return has_weight_gradients ? 2 * most_parts(params) * params->width : 0;
}

static ptac_reason accepts_by(const ptac_call *call, ptac_cuda_unit *unit)
{
    const ptac_norm *params = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (params->width > INT32_MAX / 2) /* places are ints, also beyond a row's end */
        return PTAC_SHAPE;

    const ptac_reason why = ptac_cuda_ask(unit);

    return !why && params->n_processors <= 0 ? PTAC_DEVICE : why;
}

static ptac_reason accepts(const ptac_call *call)
{
    return accepts_by(call, &unit_norm);
}

static ptac_reason accepts_backward(const ptac_call *call)
{
    return accepts_by(call, &unit_norm_backward);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *in = call->inputs, *out = call->outputs;
    const grid g = grid_of(call);
    ptac_cuda_norm p = geometry(call->params, &g);
    const void *x = in[PTAC_NORM_X].data, *weight = in[PTAC_NORM_WEIGHT].data;
    const void *bias = in[PTAC_NORM_BIAS].data;
    const void *residual = in[PTAC_NORM_RESIDUAL].data;
    void *y = out[PTAC_NORM_Y].data, *rstd = out[PTAC_NORM_RSTD].data;
    void *mean = p.is_rms ? NULL : out[PTAC_NORM_MEAN].data;
    void *sum = out[PTAC_NORM_SUM].data;

    return ptac_cuda_launch(
        &forward[g.is_long][g.is_packed][in[0].dtype], call, g.n_blocks, g.n_threads,
        PTAC_PARAMETERS(&x, &weight, &bias, &residual, &y, &rstd, &mean, &sum, &p));
}

/* The weights' gradients of long rows, which have kernels of their own. */
static ptac_status run_columns(const ptac_call *call, void **parameters, int *n_parts)
{
    const ptac_norm *params = call->params;
    const int64_t n_blocks = ptac_parts(params->width, PTAC_NORM_THREADS);

    *n_parts = (int)ptac_least(params->n_rows, PTAC_NORM_LONG_PARTS);
    return ptac_cuda_launch(&columns[call->inputs[0].dtype], call, n_blocks * *n_parts,
                            PTAC_NORM_THREADS, parameters);
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_view *in = call->inputs, *out = call->outputs;
    const ptac_dtype dtype = in[0].dtype;
    const grid g = grid_of(call);
    ptac_cuda_norm p = geometry(call->params, &g);
    const void *grad = in[PTAC_NORM_GRAD_Y].data, *x = in[PTAC_NORM_GRAD_X_OF].data;
    const void *rstd = in[PTAC_NORM_GRAD_RSTD].data;
    const void *mean = p.is_rms ? NULL : in[PTAC_NORM_GRAD_MEAN].data;
    const void *weight = in[PTAC_NORM_GRAD_WEIGHT_OF].data;
    const void *grad_sum = in[PTAC_NORM_GRAD_SUM].data;
    void *grad_x = out[PTAC_NORM_GRAD_X].data;
    void *of_weight = out[PTAC_NORM_GRAD_WEIGHT].data;
    void *of_bias = out[PTAC_NORM_GRAD_BIAS].data;
    void *parts = of_weight || of_bias ? out[PTAC_NORM_GRAD_PARTS].data : NULL;
    int n_parts = (int)g.n_blocks;
    void **parameters = PTAC_PARAMETERS(&grad, &x, &rstd, &mean, &weight, &grad_sum,
                                        &grad_x, &parts, &p, &n_parts);
    ptac_status status = PTAC_OK;

    if (grad_x || (parts && !g.is_long))
        status = ptac_cuda_launch(&backward[g.is_long][g.is_packed][dtype], call,
                                  g.n_blocks, g.n_threads, parameters);
    if (status || !parts)
        return status;
    if (g.is_long)
        status = run_columns(call, parameters, &n_parts);
    if (status)
        return status;
    return ptac_cuda_launch(
        &sum_parts[dtype], call, 2 * ptac_parts(p.width, PTAC_NORM_COLUMNS),
        PTAC_NORM_THREADS,
        PTAC_PARAMETERS(&parts, &of_weight, &of_bias, &n_parts, &p.width));
}

#define ROWS(op)                                                                       \
    PTAC_ROW(op, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)          \
    PTAC_ROW(op##_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts_backward, run_backward,     \
             .device = PTAC_ON_CUDA)
ROWS(LAYER_NORM)
ROWS(RMS_NORM)
ROWS(ADD_NORM)
