/*
 * avg_pool2d_cuda.c - launches of avg_pool2d.cu.
 */
#include "ops/pool/avg/avg_pool2d_cuda.h"

#include "ops/pool/avg/avg_pool2d.h"
#include "ops/pool/pool_launch.h"

PTAC_CUDA_UNIT(avg_pool2d)

static ptac_pool_kernels forward = PTAC_POOL_KERNELS(avg_pool2d, "avg_pool2d");
static ptac_pool_kernels backward =
    PTAC_POOL_KERNELS(avg_pool2d, "avg_pool2d_backward");

/* Kernels, and ATen's, have numbers of positions in an int. */
static bool is_counted(const ptac_avg_pool2d *p)
{
    const ptac_image *image = &p->image;
    const int64_t kernel = p->window.h.kernel * p->window.w.kernel;

    return ptac_pool_is_counted(image) && kernel <= INT32_MAX &&
           image->h * image->out_h <= INT32_MAX && image->w * image->out_w <= INT32_MAX;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;

    if (!ptac_pool_has_kernels(call->inputs[0].dtype))
        return PTAC_DTYPE;
    if (!is_counted(p))
        return PTAC_SHAPE;
    if (p->divisor > INT32_MAX || p->divisor < -INT32_MAX) /* stock cuts them off */
        return PTAC_ARGUMENT;
    return ptac_cuda_ask(&unit_avg_pool2d);
}

/* Stock's gradients with padding in NHWC are wrong before its pull request 188345. */
static ptac_reason accepts_gradient(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const bool is_padded = p->window.h.padding > 0 || p->window.w.padding > 0;

    return p->image.channels_last && is_padded ? PTAC_LAYOUT : accepts(call);
}

static ptac_reason accepts_apart(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;

    return p->is_regular ? accepts(call) : PTAC_SHAPE;
}

static ptac_cuda_avg_pool parameters_of(const ptac_avg_pool2d *p)
{
    static const ptac_window2d none = {{1, 1, 0, 1}, {1, 1, 0, 1}, false};

    return (ptac_cuda_avg_pool){
        .pool = ptac_pool_of(&p->image, p->is_regular ? &p->window : &none),
        .divisor = (int)p->divisor,
        .count_include_pad = p->count_include_pad,
        .is_adaptive = p->is_adaptive,
        .is_regular = p->is_regular,
    };
}

static ptac_status launch(ptac_pool_kernels kernels, const ptac_call *call,
                          bool is_backward)
{
    const ptac_avg_pool2d *params = call->params;
    const void *in = call->inputs[0].data;
    void *out = call->outputs[0].data;
    ptac_cuda_avg_pool p = parameters_of(params);

    return ptac_pool_launch(kernels, call, &params->image,
                            is_backward ? p.pool.n_inputs : p.pool.n_outputs,
                            PTAC_PARAMETERS(&in, &out, &p));
}

static ptac_status run_forward(const ptac_call *call)
{
    return launch(forward, call, false);
}

static ptac_status run_backward(const ptac_call *call)
{
    return launch(backward, call, true);
}

PTAC_ROW(AVG_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(AVG_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts_gradient, run_backward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(ADAPTIVE_AVG_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)

/*
 * Of windows that overlap, ATen adds the gradients up in any order, and of 16 bits
 * rounds each sum; a row that has but one order is near.
 */
PTAC_ROW(ADAPTIVE_AVG_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts_apart,
         run_backward, .device = PTAC_ON_CUDA, .rank = 1)
PTAC_ROW(ADAPTIVE_AVG_POOL2D_BACKWARD, "cuda_overlapping", PTAC_CLOSE, 0, accepts,
         run_backward, .device = PTAC_ON_CUDA)
