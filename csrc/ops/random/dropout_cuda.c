/*
 * dropout_cuda.c - launches of dropout.cu.
 */
#include "ops/random/dropout_cuda.h"

#include "device/cuda/launch.h"
#include "ops/random/dropout.h"

enum {
    MOST_BLOCKS = 1 << 20, /* each thread takes several packs beyond */
};

PTAC_CUDA_UNIT(dropout)

#define KERNELS(prefix) PTAC_CUDA_KERNELS(dropout, prefix)

static ptac_cuda_kernel single[] = KERNELS("dropout_single");
static ptac_cuda_kernel packed_4[] = KERNELS("dropout_packed_4");
static ptac_cuda_kernel packed[] = KERNELS("dropout_packed");
static ptac_cuda_kernel backward[2][PTAC_N_DTYPES] = {
    KERNELS("dropout_backward_single"),
    KERNELS("dropout_backward_packed"),
};

static ptac_reason accepts_backward(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    return ptac_cuda_ask(&unit_dropout);
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dropout *params = call->params;
    const int vector = params->vector;

    if (!(params->keep > 0) || params->n_processors <= 0 ||
        params->n_threads < PTAC_DROPOUT_THREADS)
        return PTAC_ARGUMENT;
    if ((vector != 1 && vector != 2 && vector != 4 && vector != 8) ||
        call->inputs[0].n_elements % vector != 0)
        return PTAC_ARGUMENT;
    return accepts_backward(call);
}

static int element_bytes(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? 4 : 2;
}

/* So many elements of each tensor can be read or written at once. */
static bool lies_packed(const ptac_call *call, int pack)
{
    const size_t bytes = (size_t)(pack * element_bytes(call));

    for (int i = 0; i < call->n_inputs; i++)
        if (!ptac_view_is_aligned(&call->inputs[i], bytes))
            return false;
    return ptac_view_is_aligned(&call->outputs[PTAC_DROPOUT_Y], bytes) &&
           ptac_view_is_aligned(&call->outputs[PTAC_DROPOUT_MASK], (size_t)pack);
}

static ptac_status run(const ptac_call *call)
{
    const ptac_dropout *params = call->params;
    const void *x = call->inputs[PTAC_DROPOUT_X].data;
    const void *residual = call->inputs[PTAC_DROPOUT_RESIDUAL].data;
    void *y = call->outputs[PTAC_DROPOUT_Y].data;
    void *mask = call->outputs[PTAC_DROPOUT_MASK].data;
    const int pack = 16 / element_bytes(call);
    ptac_cuda_dropout p = {
        .n = call->inputs[PTAC_DROPOUT_X].n_elements,
        .random = params->random,
        .keep = (float)params->keep,
        .scale = (float)(1.0 / (float)params->keep),
        .vector = params->vector,
    };
    ptac_cuda_kernel *kernels = single;

    if ((p.vector == 4 || p.vector == pack) && lies_packed(call, p.vector))
        kernels = p.vector == 4 ? packed_4 : packed;
    return ptac_cuda_launch(&kernels[call->inputs[0].dtype], call,
                            ptac_dropout_blocks(params, p.n), PTAC_DROPOUT_THREADS,
                            PTAC_PARAMETERS(&x, &residual, &y, &mask, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_dropout_backward *params = call->params;
    const void *grad = call->inputs[0].data, *mask = call->inputs[1].data;
    void *out = call->outputs[0].data;
    int64_t n = call->inputs[0].n_elements;
    float scale = (float)params->scale;
    int pack = 16 / element_bytes(call);

    if (n % pack != 0 || !ptac_view_is_aligned(&call->inputs[0], 16) ||
        !ptac_view_is_aligned(&call->outputs[0], 16) ||
        !ptac_view_is_aligned(&call->inputs[1], (size_t)pack))
        pack = 1;
    return ptac_cuda_launch(
        &backward[pack > 1][call->inputs[0].dtype], call,
        ptac_least(ptac_parts(n, (int64_t)PTAC_DROPOUT_THREADS * pack), MOST_BLOCKS),
        PTAC_DROPOUT_THREADS, PTAC_PARAMETERS(&grad, &mask, &out, &n, &scale));
}

PTAC_ROW(DROPOUT, "cuda", PTAC_EXACT, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(DROPOUT_ADD, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(DROPOUT_BACKWARD, "cuda", PTAC_EXACT, 0, accepts_backward, run_backward,
         .device = PTAC_ON_CUDA)
