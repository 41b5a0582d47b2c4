/*
 * max_pool2d_cuda.c - launches of max_pool2d.cu.
 */
#include "ops/pool/max/max_pool2d_cuda.h"

#include "device/cuda/launch.h"
#include "ops/pool/max/max_pool2d.h"

enum {
    MOST_BLOCKS = 1 << 18, /* each thread takes several elements beyond */
};

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

static int64_t n_inputs(const ptac_image *image)
{
    return image->n * image->channels * image->h * image->w;
}

static int64_t n_outputs(const ptac_image *image)
{
    return image->n * image->channels * image->out_h * image->out_w;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype > PTAC_F64 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (n_inputs(&p->image) > INT32_MAX || n_outputs(&p->image) > INT32_MAX)
        return PTAC_SHAPE;
    return ptac_cuda_ask(&unit_max_pool2d);
}

static ptac_cuda_window window_of(const ptac_window *axis)
{
    return (ptac_cuda_window){(int)axis->kernel, (int)axis->padding,
                              (int)axis->dilation,
                              ptac_divisor_of((unsigned int)axis->stride)};
}

static ptac_cuda_pool pool_of(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;

    return (ptac_cuda_pool){
        .n_inputs = (int)n_inputs(image),
        .n_outputs = (int)n_outputs(image),
        .channels_last = image->channels_last,
        .channels = ptac_divisor_of((unsigned int)image->channels),
        .height = ptac_divisor_of((unsigned int)image->h),
        .width = ptac_divisor_of((unsigned int)image->w),
        .out_height = ptac_divisor_of((unsigned int)image->out_h),
        .out_width = ptac_divisor_of((unsigned int)image->out_w),
        .h = window_of(&p->window.h),
        .w = window_of(&p->window.w),
    };
}

/* Channels that a thread takes at once: those of 16 bytes, or one. */
static int pack_of(const ptac_call *call)
{
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int size = dtype == PTAC_F64 ? 2 : dtype == PTAC_F32 ? 4 : 8;
    bool is_aligned = image->channels_last && image->channels % size == 0;

    for (int i = 0; i < call->n_inputs; i++)
        is_aligned &= ptac_view_is_aligned(&call->inputs[i], 16);
    for (int i = 0; i < call->n_outputs; i++)
        is_aligned &= ptac_view_is_aligned(&call->outputs[i], 16);
    return is_aligned ? size : 1;
}

static int64_t blocks_for(int64_t n_threads)
{
    return ptac_least(ptac_parts(n_threads, PTAC_POOL_THREADS), MOST_BLOCKS);
}

static ptac_status run_forward(const ptac_call *call)
{
    const void *x = call->inputs[0].data;
    void *y = call->outputs[0].data, *indices = call->outputs[1].data;
    const int pack = pack_of(call);
    ptac_cuda_pool p = pool_of(call);

    return ptac_cuda_launch(&forward[pack > 1][call->inputs[0].dtype], call,
                            blocks_for(p.n_outputs / pack), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&x, &y, &indices, &p));
}

static ptac_status run_backward(const ptac_call *call)
{
    const void *grad_y = call->inputs[0].data, *indices = call->inputs[1].data;
    void *grad_x = call->outputs[0].data;
    const int pack = pack_of(call);
    ptac_cuda_pool p = pool_of(call);

    return ptac_cuda_launch(&backward[pack > 1][call->inputs[0].dtype], call,
                            blocks_for(p.n_inputs / pack), PTAC_POOL_THREADS,
                            PTAC_PARAMETERS(&grad_y, &indices, &grad_x, &p));
}

PTAC_ROW(MAX_POOL2D, "cuda", PTAC_EXACT, 0, accepts, run_forward,
         .device = PTAC_ON_CUDA)
PTAC_ROW(MAX_POOL2D_BACKWARD, "cuda", PTAC_EXACT, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
