/*
 * max_pool2d_cuda.c - launches of max_pool2d.cu.
 */
#include "ops/pool/max/max_pool2d_cuda.h"

#include "device/cuda/launch.h"
#include "ops/pool/max/max_pool2d.h"

enum {
    MOST_BLOCKS = 1 << 20, /* each thread takes several elements beyond */
};

PTAC_CUDA_UNIT(max_pool2d)

static ptac_cuda_kernel forward[] = PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d");
static ptac_cuda_kernel backward[] =
    PTAC_CUDA_KERNELS(max_pool2d, "max_pool2d_backward");

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype > PTAC_F64 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    return ptac_cuda_ask(&unit_max_pool2d);
}

static ptac_cuda_window window_of(const ptac_window *axis)
{
    return (ptac_cuda_window){(int)axis->kernel, (int)axis->stride, (int)axis->padding,
                              (int)axis->dilation};
}

static ptac_cuda_pool pool_of(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const int64_t planes = image->n * image->channels;

    return (ptac_cuda_pool){
        .n_inputs = planes * image->h * image->w,
        .n_outputs = planes * image->out_h * image->out_w,
        .channels = (int)image->channels,
        .height = (int)image->h,
        .width = (int)image->w,
        .out_height = (int)image->out_h,
        .out_width = (int)image->out_w,
        .channels_last = image->channels_last,
        .h = window_of(&p->window.h),
        .w = window_of(&p->window.w),
    };
}

static int64_t blocks_for(int64_t n_elements)
{
    return ptac_least(ptac_parts(n_elements, PTAC_POOL_THREADS), MOST_BLOCKS);
}

static ptac_status run_forward(const ptac_call *call)
{
    const void *x = call->inputs[0].data;
    void *y = call->outputs[0].data, *indices = call->outputs[1].data;
    ptac_cuda_pool p = pool_of(call);

    return ptac_cuda_launch(&forward[call->inputs[0].dtype], call,
                            blocks_for(p.n_outputs), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&x, &y, &indices, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const void *grad_y = call->inputs[0].data, *indices = call->inputs[1].data;
    void *grad_x = call->outputs[0].data;
    ptac_cuda_pool p = pool_of(call);

    return ptac_cuda_launch(&backward[call->inputs[0].dtype], call,
                            blocks_for(p.n_inputs), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&grad_y, &indices, &grad_x, &p));
}

PTAC_ROW(MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
