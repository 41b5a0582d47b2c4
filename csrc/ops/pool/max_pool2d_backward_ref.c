/*
 * max_pool2d_backward_ref.c - the gradient of max pooling by its definition.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/pool/max_pool2d_backward.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_max_pool2d *p = call->params;

    if (p->image.channels_last)
        shape->kind = PTAC_MAX_POOL2D_BACKWARD_CHANNELS_LAST;
    else if (ptac_max_pool2d_is_tiled(p))
        shape->kind = PTAC_MAX_POOL2D_BACKWARD_TILED;
    else
        shape->kind = PTAC_MAX_POOL2D_BACKWARD_ANY;
    shape->work = p->image.n * p->image.channels * p->image.h * p->image.w;
    return PTAC_TAKE;
}

static const ptac_op_shapes shapes = {
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .kinds = {"nchw_tiled", "nchw", "nhwc"},
    .classify = classify,
};
PTAC_REGISTER_SHAPES(shapes)

PTAC_SCATTER_PLANE(float, plane_f32, PTAC_PLAIN_ADD)
PTAC_SCATTER_PLANE(double, plane_f64, PTAC_PLAIN_ADD)
PTAC_SCATTER_PLANE(uint16_t, plane_bf16, bf16_add)

PTAC_SCATTER_PLANES(float, planes_f32, plane_f32)
PTAC_SCATTER_PLANES(double, planes_f64, plane_f64)
PTAC_SCATTER_PLANES(uint16_t, planes_bf16, plane_bf16)

/* NHWC: one image a step, so that a position's gradients add up in order. */
#define DEFINE_IMAGES(type, name, add)                                                 \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        ptac_scatter *job = context;                                                   \
        const ptac_call *call = job->call;                                             \
        const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;     \
        const int64_t channels = image->channels, n_in = image->h * image->w;          \
        const int64_t n_out = image->out_h * image->out_w * channels;                  \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const type *grad = (const type *)call->inputs[0].data + i * n_out;         \
            const int64_t *index = (const int64_t *)call->inputs[1].data + i * n_out;  \
            type *out = (type *)call->outputs[0].data + i * n_in * channels;           \
                                                                                       \
            memset(out, 0, (size_t)(n_in * channels) * sizeof *out);                   \
            for (int64_t at = 0; at < n_out; at++) {                                   \
                if ((uint64_t)index[at] < (uint64_t)n_in) {                            \
                    type *home = out + index[at] * channels + at % channels;           \
                                                                                       \
                    *home = add(*home, grad[at]);                                      \
                } else if (index[at] != -1) {                                          \
                    __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);      \
                }                                                                      \
            }                                                                          \
        }                                                                              \
    }

DEFINE_IMAGES(float, images_f32, PTAC_PLAIN_ADD)
DEFINE_IMAGES(double, images_f64, PTAC_PLAIN_ADD)
DEFINE_IMAGES(uint16_t, images_bf16, bf16_add)

static ptac_reason accepts(const ptac_call *call)
{
    return call->inputs[0].dtype <= PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn images[] = {images_f32, images_bf16, images_f64};
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    ptac_scatter job = {.call = call};

    if (image->channels_last)
        ptac_parallel_for(0, image->n, 1, images[dtype], &job);
    else
        ptac_parallel_for(0, image->n * image->channels,
                          16384 / (image->h * image->w) + 1, planes[dtype], &job);
    return job.out_of_range ? PTAC_UNSUPPORTED : PTAC_OK;
}

static const ptac_kernel max_pool2d_backward_scalar = {
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .name = "scalar",
    .level = PTAC_EXACT,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_backward_scalar)
