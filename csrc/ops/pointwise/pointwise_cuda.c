/*
 * pointwise_cuda.c - launches of pointwise.cu.
 */
#include "ops/pointwise/pointwise_cuda.h"

#include "device/cuda/launch.h"
#include "ops/pointwise/pointwise.h"

enum {
    PACK_BYTES = 16,
    MOST_BLOCKS = 1 << 20, /* each thread takes several packs beyond */
};

PTAC_CUDA_UNIT(pointwise)

/* By whether tensors lie as packs. */
#define KERNELS(prefix)                                                                \
    {                                                                                  \
        PTAC_CUDA_KERNELS(pointwise, prefix "_single"),                                \
            PTAC_CUDA_KERNELS(pointwise, prefix "_packed"),                            \
    }

static ptac_cuda_kernel gated[2][PTAC_N_DTYPES] = KERNELS("gated_act");
static ptac_cuda_kernel gated_back[2][PTAC_N_DTYPES] = KERNELS("gated_act_backward");
static ptac_cuda_kernel added[2][PTAC_N_DTYPES] = KERNELS("add_act");
static ptac_cuda_kernel added_back[2][PTAC_N_DTYPES] = KERNELS("add_act_backward");

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const ptac_act act = ((const ptac_pointwise *)call->params)->activation;

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (act <= PTAC_ACT_NONE || act >= PTAC_N_ACTS)
        return PTAC_ARGUMENT;
    return ptac_cuda_ask(&unit_pointwise);
}

/* All tensors begin where a pack may, and end with one. */
static bool lies_packed(const ptac_call *call, int pack)
{
    if (call->inputs[0].n_elements % pack != 0)
        return false;
    for (int i = 0; i < call->n_inputs; i++)
        if (!ptac_view_is_aligned(&call->inputs[i], PACK_BYTES))
            return false;
    for (int i = 0; i < call->n_outputs; i++)
        if (!ptac_view_is_aligned(&call->outputs[i], PACK_BYTES))
            return false;
    return true;
}

/* The kernel's parameters are those of the tensors, how many elements, and act. */
static ptac_status launch(ptac_cuda_kernel kernels[2][PTAC_N_DTYPES],
                          const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int pack = PACK_BYTES / (dtype == PTAC_F32 ? 4 : 2);
    const bool is_packed = lies_packed(call, pack);
    int64_t n = call->inputs[0].n_elements;
    int act = (int)((const ptac_pointwise *)call->params)->activation;
    void *data[PTAC_MAX_INPUTS + PTAC_MAX_OUTPUTS], *parameters[2 + sizeof data / 8];
    int n_tensors = 0;

    for (int i = 0; i < call->n_inputs; i++)
        data[n_tensors++] = call->inputs[i].data;
    for (int i = 0; i < call->n_outputs; i++)
        data[n_tensors++] = call->outputs[i].data;
    for (int i = 0; i < n_tensors; i++)
        parameters[i] = &data[i];
    parameters[n_tensors] = &n;
    parameters[n_tensors + 1] = &act;
    return ptac_cuda_launch(&kernels[is_packed][dtype], call,
                            ptac_least(ptac_parts(n, (int64_t)PTAC_POINTWISE_THREADS *
                                                         (is_packed ? pack : 1)),
                                       MOST_BLOCKS),
                            PTAC_POINTWISE_THREADS, parameters);
}

#define ROW(op, kernels)                                                               \
    static ptac_status run_##kernels(const ptac_call *call)                            \
    {                                                                                  \
        return launch(kernels, call);                                                  \
    }                                                                                  \
    PTAC_ROW(op, "cuda", PTAC_CLOSE, 0, accepts, run_##kernels, .device = PTAC_ON_CUDA)
ROW(GATED_ACT, gated)
ROW(GATED_ACT_BACKWARD, gated_back)
ROW(ADD_ACT, added)
ROW(ADD_ACT_BACKWARD, added_back)
