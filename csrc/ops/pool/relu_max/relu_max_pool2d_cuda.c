/*
 * relu_max_pool2d_cuda.c - launches of relu_max_pool2d.cu.
 */
#include "device/cuda/launch.h"
#include "ops/pool/pool_launch.h"
#include "ops/pool/relu_max/relu_max_pool2d.h"

PTAC_CUDA_UNIT(relu_max_pool2d)

/* By whether a thread has a pack of channels. */
static ptac_cuda_kernel forward[][PTAC_N_DTYPES] = {
    PTAC_CUDA_KERNELS(relu_max_pool2d, "relu_max_pool2d"),
    PTAC_CUDA_KERNELS(relu_max_pool2d, "relu_max_pool2d_packs"),
};
static ptac_cuda_kernel backward[][PTAC_N_DTYPES] = {
    PTAC_CUDA_KERNELS(relu_max_pool2d, "relu_max_pool2d_backward"),
    PTAC_CUDA_KERNELS(relu_max_pool2d, "relu_max_pool2d_backward_packs"),
};

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_relu_max_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype > PTAC_F64 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (!ptac_pool_is_counted(&p->image) || !ptac_relu_pool_has_codes(&p->window))
        return PTAC_SHAPE;
    return ptac_cuda_ask(&unit_relu_max_pool2d);
}

static ptac_cuda_relu_pool geometry_of(const ptac_call *call)
{
    const ptac_relu_max_pool2d *p = call->params;

    return (ptac_cuda_relu_pool){
        .pool = ptac_pool_of(&p->image, &p->window),
        .dilation_h = ptac_divisor_of((unsigned int)p->window.h.dilation),
        .dilation_w = ptac_divisor_of((unsigned int)p->window.w.dilation),
    };
}

static ptac_status launch(ptac_cuda_kernel kernels[][PTAC_N_DTYPES],
                          const ptac_call *call, int pack, int64_t n, void **parameters)
{
    return ptac_cuda_launch(&kernels[pack > 1][call->inputs[0].dtype], call,
                            ptac_pool_blocks(n / pack), PTAC_POOL_THREADS, parameters);
}

static int pack_of(const ptac_call *call)
{
    return ptac_pool_pack(call, &((const ptac_relu_max_pool2d *)call->params)->image);
}

static ptac_status run_forward(const ptac_call *call)
{
    const void *x = call->inputs[0].data;
    void *y = call->outputs[PTAC_RELU_POOL_Y].data;
    void *taps = call->outputs[PTAC_RELU_POOL_TAPS].data;
    ptac_cuda_relu_pool p = geometry_of(call);

    return launch(forward, call, pack_of(call), p.pool.n_outputs,
                  PTAC_PARAMETERS(&x, &y, &taps, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const void *grad_y = call->inputs[PTAC_RELU_POOL_GRAD].data;
    const void *taps = call->inputs[PTAC_RELU_POOL_TAPS].data;
    void *grad_x = call->outputs[0].data;
    ptac_cuda_relu_pool p = geometry_of(call);

    return launch(backward, call, pack_of(call), p.pool.n_inputs,
                  PTAC_PARAMETERS(&grad_y, &taps, &grad_x, &p));
}

PTAC_ROW(RELU_MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(RELU_MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
