/*
 * relu_max_pool2d_cuda.c - launches of relu_max_pool2d.cu.
 */
#include "ops/pool/pool_launch.h"
#include "ops/pool/relu_max/relu_max_pool2d.h"

PTAC_CUDA_UNIT(relu_max_pool2d)

static ptac_pool_kernels forward =
    PTAC_POOL_KERNELS(relu_max_pool2d, "relu_max_pool2d");
static ptac_pool_kernels backward =
    PTAC_POOL_KERNELS(relu_max_pool2d, "relu_max_pool2d_backward");

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_relu_max_pool2d *p = call->params;

    if (!ptac_pool_has_kernels(call->inputs[0].dtype))
        return PTAC_DTYPE;
    if (!ptac_pool_is_counted(&p->image) || !ptac_relu_pool_has_codes(&p->window))
        return PTAC_SHAPE;
    return ptac_cuda_ask(&unit_relu_max_pool2d);
}

static ptac_cuda_relu_pool geometry_of(const ptac_relu_max_pool2d *p)
{
    return (ptac_cuda_relu_pool){
        .pool = ptac_pool_of(&p->image, &p->window),
        .dilation_h = ptac_divisor_of((unsigned int)p->window.h.dilation),
        .dilation_w = ptac_divisor_of((unsigned int)p->window.w.dilation),
    };
}

static ptac_status run_forward(const ptac_call *call)
{
    const ptac_relu_max_pool2d *params = call->params;
    const void *x = call->inputs[0].data;
    void *y = call->outputs[PTAC_RELU_POOL_Y].data;
    void *taps = call->outputs[PTAC_RELU_POOL_TAPS].data;
    ptac_cuda_relu_pool p = geometry_of(params);

    return ptac_pool_launch(forward, call, &params->image, p.pool.n_outputs,
                            PTAC_PARAMETERS(&x, &y, &taps, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_relu_max_pool2d *params = call->params;
    const void *grad_y = call->inputs[PTAC_RELU_POOL_GRAD].data;
    const void *taps = call->inputs[PTAC_RELU_POOL_TAPS].data;
    void *grad_x = call->outputs[0].data;
    ptac_cuda_relu_pool p = geometry_of(params);

    return ptac_pool_launch(backward, call, &params->image, p.pool.n_inputs,
                            PTAC_PARAMETERS(&grad_y, &taps, &grad_x, &p));
}

PTAC_ROW(RELU_MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(RELU_MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
