/*
 * log_softmax_cuda.c - launches of log_softmax.cu.
 */
#include "device/cuda/launch.h"
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_cuda.h"

enum {
    ROWS_A_BLOCK = PTAC_SOFTMAX_THREADS / 32, /* of short rows: one a warp */
};

PTAC_CUDA_UNIT(log_softmax)

#define KERNELS(prefix) PTAC_CUDA_KERNELS(log_softmax, prefix)

static ptac_cuda_kernel forward_short[] = KERNELS("log_softmax_short");
static ptac_cuda_kernel forward_long[] = KERNELS("log_softmax_long");
static ptac_cuda_kernel backward_short[] = KERNELS("log_softmax_backward_short");
static ptac_cuda_kernel backward_long[] = KERNELS("log_softmax_backward_long");

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (call->inputs[0].n_elements / ptac_log_softmax_width(call) > INT32_MAX)
        return PTAC_SHAPE; /* more rows than blocks */
    return ptac_cuda_ask(&unit_log_softmax);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const void *x = call->inputs[0].data;
    void *y = call->outputs[0].data;
    int64_t n = ptac_log_softmax_width(call), n_rows = call->inputs[0].n_elements / n;

    if (n > PTAC_SOFTMAX_SHORT)
        return ptac_cuda_launch(&forward_long[dtype], call, n_rows,
                                PTAC_SOFTMAX_THREADS, PTAC_PARAMETERS(&x, &y, &n));

    int width = (int)n;

    return ptac_cuda_launch(&forward_short[dtype], call,
                            ptac_parts(n_rows, ROWS_A_BLOCK), PTAC_SOFTMAX_THREADS,
                            PTAC_PARAMETERS(&x, &y, &n_rows, &width));
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const void *grad = call->inputs[0].data, *y = call->inputs[1].data;
    void *out = call->outputs[0].data;
    int64_t n = ptac_log_softmax_width(call), n_rows = call->inputs[0].n_elements / n;

    if (n > PTAC_SOFTMAX_SHORT)
        return ptac_cuda_launch(&backward_long[dtype], call, n_rows,
                                PTAC_SOFTMAX_THREADS,
                                PTAC_PARAMETERS(&grad, &y, &out, &n));

    int width = (int)n;

    return ptac_cuda_launch(&backward_short[dtype], call,
                            ptac_parts(n_rows, ROWS_A_BLOCK), PTAC_SOFTMAX_THREADS,
                            PTAC_PARAMETERS(&grad, &y, &out, &n_rows, &width));
}

PTAC_ROW(LOG_SOFTMAX, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(LOG_SOFTMAX_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
