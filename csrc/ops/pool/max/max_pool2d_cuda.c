/*
 * max_pool2d_cuda.c - launches of max_pool2d.cu.
 */
#include "device/cuda/launch.h"
#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/pool_launch.h"

PTAC_CUDA_UNIT(max_pool2d)

/* By whether a thread has a pack of channels. */
static ptac_cuda_kernel forward[][PTAC_N_DTYPES] = {
    PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d"),
    PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d_packs"),
};
static ptac_cuda_kernel backward[][PTAC_N_DTYPES] = {
    PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d_backward"),
    PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d_backward_packs"),
};

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype > PTAC_F64 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (!ptac_pool_is_counted(&p->image))
        return PTAC_SHAPE;
    return ptac_cuda_ask(&unit_max_pool2d);
}

static ptac_status run_forward(const ptac_call *call)
{
    const void *x = call->inputs[0].data;
    void *y = call->outputs[0].data, *indices = call->outputs[1].data;
    const ptac_max_pool2d *params = call->params;
    const int pack = ptac_pool_pack(call, &params->image);
    ptac_cuda_pool p = ptac_pool_of(&params->image, &params->window);

    return ptac_cuda_launch(&forward[pack > 1][call->inputs[0].dtype], call,
                            ptac_pool_blocks(p.n_outputs / pack), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&x, &y, &indices, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const void *grad_y = call->inputs[0].data, *indices = call->inputs[1].data;
    void *grad_x = call->outputs[0].data;
    const ptac_max_pool2d *params = call->params;
    const int pack = ptac_pool_pack(call, &params->image);
    ptac_cuda_pool p = ptac_pool_of(&params->image, &params->window);

    return ptac_cuda_launch(&backward[pack > 1][call->inputs[0].dtype], call,
                            ptac_pool_blocks(p.n_inputs / pack), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&grad_y, &indices, &grad_x, &p));
}

PTAC_ROW(MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
