/*
 * max_pool2d_cuda.c - launches of max_pool2d.cu.
 */
#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/pool_launch.h"

PTAC_CUDA_UNIT(max_pool2d)

static ptac_pool_kernels forward = PTAC_POOL_KERNELS(max_pool2d, "max_pool2d");
static ptac_pool_kernels backward =
    PTAC_POOL_KERNELS(max_pool2d, "max_pool2d_backward");

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;

    if (!ptac_pool_has_kernels(call->inputs[0].dtype))
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
    ptac_cuda_pool p = ptac_pool_of(&params->image, &params->window);

    return ptac_pool_launch(forward, call, &params->image, p.n_outputs,
                            PTAC_PARAMETERS(&x, &y, &indices, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const void *grad_y = call->inputs[0].data, *indices = call->inputs[1].data;
    void *grad_x = call->outputs[0].data;
    const ptac_max_pool2d *params = call->params;
    ptac_cuda_pool p = ptac_pool_of(&params->image, &params->window);

    return ptac_pool_launch(backward, call, &params->image, p.n_inputs,
                            PTAC_PARAMETERS(&grad_y, &indices, &grad_x, &p));
}

PTAC_ROW(MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
