/*
 * pool_launch.c - geometry and grids of pooling on CUDA.
 */
#include "ops/pool/pool_launch.h"

enum {
    MOST_BLOCKS = 1 << 18, /* of more, each thread takes several elements */
};

static int64_t n_inputs(const ptac_image *image)
{
    return image->n * image->channels * image->h * image->w;
}

static int64_t n_outputs(const ptac_image *image)
{
    return image->n * image->channels * image->out_h * image->out_w;
}

bool ptac_pool_has_kernels(ptac_dtype dtype)
{
    return dtype <= PTAC_F64 || dtype == PTAC_F16;
}

bool ptac_pool_is_counted(const ptac_image *image)
{
    return n_inputs(image) <= INT32_MAX && n_outputs(image) <= INT32_MAX;
}

static ptac_cuda_window window_of(const ptac_window *axis)
{
    return (ptac_cuda_window){(int)axis->kernel, (int)axis->padding,
                              (int)axis->dilation,
                              ptac_divisor_of((unsigned int)axis->stride)};
}

ptac_cuda_pool ptac_pool_of(const ptac_image *image, const ptac_window2d *window)
{
    return (ptac_cuda_pool){
        .n_inputs = (int)n_inputs(image),
        .n_outputs = (int)n_outputs(image),
        .channels_last = image->channels_last,
        .channels = ptac_divisor_of((unsigned int)image->channels),
        .height = ptac_divisor_of((unsigned int)image->h),
        .width = ptac_divisor_of((unsigned int)image->w),
        .out_height = ptac_divisor_of((unsigned int)image->out_h),
        .out_width = ptac_divisor_of((unsigned int)image->out_w),
        .h = window_of(&window->h),
        .w = window_of(&window->w),
    };
}

/* Channels that a thread takes at once. */
static int pack_of(const ptac_call *call, const ptac_image *image)
{
    const ptac_dtype dtype = call->inputs[0].dtype;
    const int size = dtype == PTAC_F64 ? 2 : dtype == PTAC_F32 ? 4 : 8;
    bool is_aligned = image->channels_last && image->channels % size == 0;

    for (int i = 0; i < call->n_inputs; i++)
        is_aligned &= ptac_view_is_aligned(&call->inputs[i], 16);
    for (int i = 0; i < call->n_outputs; i++)
        is_aligned &= ptac_view_is_aligned(&call->outputs[i], 16);
    return is_aligned ? size : 1;
}

ptac_status ptac_pool_launch(ptac_pool_kernels kernels, const ptac_call *call,
                             const ptac_image *image, int64_t n_elements,
                             void **parameters)
{
    const int pack = pack_of(call, image);
    const int64_t n_blocks = ptac_parts(n_elements / pack, PTAC_POOL_THREADS);

    return ptac_cuda_launch(&kernels[pack > 1][call->inputs[0].dtype], call,
                            ptac_least(n_blocks, MOST_BLOCKS), PTAC_POOL_THREADS,
                            parameters);
}
