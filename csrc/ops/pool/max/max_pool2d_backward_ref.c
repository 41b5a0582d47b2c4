/*
 * max_pool2d_backward_ref.c - the gradient of max pooling by its definition.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/pool/max/max_pool2d_backward.h"

#include "ops/bf16/bf16.h"

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

PTAC_SHAPES(MAX_POOL2D_BACKWARD, classify, "nchw_tiled", "nchw", "nhwc")

#define PLAIN_ADD(a, b) ((a) + (b))

#define DEFINE_PLANE(type, suffix, add)                                                \
    bool ptac_scatter_plane_##suffix(const type *grad, const int64_t *index,           \
                                     type *out, int64_t n_out, int64_t n_in)           \
    {                                                                                  \
        bool in_range = true;                                                          \
                                                                                       \
        memset(out, 0, (size_t)n_in * sizeof *out);                                    \
        for (int64_t i = 0; i < n_out; i++) {                                          \
            if ((uint64_t)index[i] < (uint64_t)n_in)                                   \
                out[index[i]] = add(out[index[i]], grad[i]);                           \
            else if (index[i] != -1)                                                   \
                in_range = false;                                                      \
        }                                                                              \
        return in_range;                                                               \
    }

DEFINE_PLANE(float, f32, PLAIN_ADD)
DEFINE_PLANE(double, f64, PLAIN_ADD)
DEFINE_PLANE(uint16_t, bf16, bf16_add)

/* NHWC: one image, all channels of one output after the other. */
#define DEFINE_IMAGE(type, suffix, add)                                                \
    static bool scatter_image_##suffix(const type *grad, const int64_t *index,         \
                                       type *out, const ptac_image *image)             \
    {                                                                                  \
        const int64_t channels = image->channels, n_in = image->h * image->w;          \
        bool in_range = true;                                                          \
                                                                                       \
        memset(out, 0, (size_t)(n_in * channels) * sizeof *out);                       \
        for (int64_t i = 0; i < image->out_h * image->out_w; i++) {                    \
            for (int64_t c = 0; c < channels; c++, grad++, index++) {                  \
                if ((uint64_t)*index < (uint64_t)n_in) {                               \
                    type *home = out + *index * channels + c;                          \
                                                                                       \
                    *home = add(*home, *grad);                                         \
                } else if (*index != -1) {                                             \
                    in_range = false;                                                  \
                }                                                                      \
            }                                                                          \
        }                                                                              \
        return in_range;                                                               \
    }

DEFINE_IMAGE(float, f32, PLAIN_ADD)
DEFINE_IMAGE(double, f64, PLAIN_ADD)
DEFINE_IMAGE(uint16_t, bf16, bf16_add)

/* Planes or images [begin, end), each with n_out outputs and n_in positions. */
#define DEFINE_RANGE(type, name, n_of, scatter, ...)                                   \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        ptac_scatter *job = context;                                                   \
        const ptac_call *call = job->call;                                             \
        const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;     \
        const int64_t n_out = image->out_h * image->out_w, n_in = image->h * image->w; \
                                                                                       \
        for (int64_t i = begin; i < end; i++)                                          \
            if (!scatter((const type *)call->inputs[0].data + i * n_of(n_out),         \
                         (const int64_t *)call->inputs[1].data + i * n_of(n_out),      \
                         (type *)call->outputs[0].data + i * n_of(n_in), __VA_ARGS__)) \
                __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);          \
    }

#define OF_PLANE(n) (n)
#define OF_IMAGE(n) ((n)*image->channels)

DEFINE_RANGE(float, planes_f32, OF_PLANE, ptac_scatter_plane_f32, n_out, n_in)
DEFINE_RANGE(double, planes_f64, OF_PLANE, ptac_scatter_plane_f64, n_out, n_in)
DEFINE_RANGE(uint16_t, planes_bf16, OF_PLANE, ptac_scatter_plane_bf16, n_out, n_in)
DEFINE_RANGE(float, images_f32, OF_IMAGE, scatter_image_f32, image)
DEFINE_RANGE(double, images_f64, OF_IMAGE, scatter_image_f64, image)
DEFINE_RANGE(uint16_t, images_bf16, OF_IMAGE, scatter_image_bf16, image)

void ptac_scatter_all(ptac_scatter *job)
{
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn images[] = {images_f32, images_bf16, images_f64};
    const ptac_image *image = &((const ptac_max_pool2d *)job->call->params)->image;
    const ptac_dtype dtype = job->call->inputs[0].dtype;

    if (image->channels_last)
        ptac_parallel_for(0, image->n, 1, images[dtype], job);
    else
        ptac_parallel_for(0, image->n * image->channels,
                          16384 / (image->h * image->w) + 1, planes[dtype], job);
}

static ptac_status run(const ptac_call *call)
{
    ptac_scatter job = {.call = call};

    ptac_scatter_all(&job);
    return job.out_of_range ? PTAC_UNSUPPORTED : PTAC_OK;
}

PTAC_ROW(MAX_POOL2D_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts, run)
