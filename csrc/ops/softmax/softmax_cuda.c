/*
 * softmax_cuda.c - launches of softmax.cu and log_softmax.cu.
 */
#include "ops/softmax/softmax_cuda.h"

#include "device/cuda/launch.h"
#include "ops/softmax/softmax.h"

PTAC_CUDA_UNIT(softmax)
PTAC_CUDA_UNIT(log_softmax)

/* Kernels by how many threads a row has, and whether those keep it in registers. */
enum {
    KEPT_32,
    KEPT_256,
    KEPT_1024,
    AGAIN_32,
    AGAIN_1024,
    N_WAYS,
};

static const int threads_of_row[N_WAYS] = {32, 256, 1024, 32, 1024};

#define WAYS(file, prefix)                                                             \
    {                                                                                  \
        PTAC_CUDA_KERNELS(file, prefix "_kept_32"),                                    \
            PTAC_CUDA_KERNELS(file, prefix "_kept_256"),                               \
            PTAC_CUDA_KERNELS(file, prefix "_kept_1024"),                              \
            PTAC_CUDA_KERNELS(file, prefix "_again_32"),                               \
            PTAC_CUDA_KERNELS(file, prefix "_again_1024"),                             \
    }

typedef struct operator_kernels {
    ptac_cuda_kernel forward[N_WAYS][PTAC_N_DTYPES], backward[N_WAYS][PTAC_N_DTYPES];
    int kept_by_backward; /* packs of each row in a thread's registers */
} operator_kernels;

static operator_kernels softmax = {
    .forward = WAYS(softmax, "softmax"),
    .backward = WAYS(softmax, "softmax_backward"),
    .kept_by_backward = PTAC_SOFTMAX_PACKS / 2,
};
static operator_kernels log_softmax = {
    .forward = WAYS(log_softmax, "log_softmax"),
    .backward = WAYS(log_softmax, "log_softmax_backward"),
    .kept_by_backward = PTAC_SOFTMAX_PACKS,
};

static ptac_reason accepts(const ptac_call *call, ptac_cuda_unit *unit)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int64_t n = ptac_softmax_width(call);

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (((const ptac_softmax *)call->params)->inner != 1)
        return PTAC_ARGUMENT;
    if (n > INT32_MAX / 2 || call->inputs[0].n_elements / n > INT32_MAX)
        return PTAC_SHAPE; /* more rows than blocks */
    return ptac_cuda_ask(unit);
}

/* The way for rows of n elements; registers keep so many packs of a thread. */
static int way_for(int64_t n, ptac_dtype dtype, int n_packs, bool has_packs)
{
    const int64_t each = n_packs * (dtype == PTAC_F32 ? 4 : 8);

    for (int way = KEPT_32; way <= KEPT_1024 && has_packs; way++)
        if (n <= threads_of_row[way] * each)
            return way;
    return n <= 32 * each ? AGAIN_32 : AGAIN_1024;
}

static int64_t blocks_for(int64_t n_rows, int way)
{
    return threads_of_row[way] > 32 ? n_rows
                                    : ptac_parts(n_rows, PTAC_SOFTMAX_THREADS / 32);
}

static int threads_for(int way)
{
    return threads_of_row[way] > 32 ? threads_of_row[way] : PTAC_SOFTMAX_THREADS;
}

static bool lie_alike(const void *a, const void *b)
{
    return (((uintptr_t)a ^ (uintptr_t)b) & 15) == 0;
}

static ptac_status run(const ptac_call *call, operator_kernels *of)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const void *x = call->inputs[0].data;
    void *y = call->outputs[0].data;
    const int64_t width = ptac_softmax_width(call);
    int64_t n_rows = call->inputs[0].n_elements / width;
    int n = (int)width, has_packs = lie_alike(x, y);
    const int way = way_for(width, dtype, PTAC_SOFTMAX_PACKS, has_packs);

    return ptac_cuda_launch(&of->forward[way][dtype], call, blocks_for(n_rows, way),
                            threads_for(way),
                            PTAC_PARAMETERS(&x, &y, &n_rows, &n, &has_packs));
}

static ptac_status run_backward(const ptac_call *call, operator_kernels *of)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const void *grad = call->inputs[0].data, *y = call->inputs[1].data;
    void *out = call->outputs[0].data;
    const int64_t width = ptac_softmax_width(call);
    int64_t n_rows = call->inputs[0].n_elements / width;
    int n = (int)width, has_packs = lie_alike(grad, y) && lie_alike(grad, out);
    const int way = way_for(width, dtype, of->kept_by_backward, has_packs);

    return ptac_cuda_launch(&of->backward[way][dtype], call, blocks_for(n_rows, way),
                            threads_for(way),
                            PTAC_PARAMETERS(&grad, &y, &out, &n_rows, &n, &has_packs));
}

#define ROWS(id, name)                                                                 \
    static ptac_reason accepts_##name(const ptac_call *call)                           \
    {                                                                                  \
        return accepts(call, &unit_##name);                                            \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return run(call, &name);                                                       \
    }                                                                                  \
    static ptac_status run_##name##_backward(const ptac_call *call)                    \
    {                                                                                  \
        return run_backward(call, &name);                                              \
    }                                                                                  \
    PTAC_ROW(id, "cuda", PTAC_CLOSE, 0, accepts_##name, run_##name,                    \
             .device = PTAC_ON_CUDA)                                                   \
    PTAC_ROW(id##_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts_##name,                     \
             run_##name##_backward, .device = PTAC_ON_CUDA)

ROWS(SOFTMAX, softmax)
ROWS(LOG_SOFTMAX, log_softmax)
