/*
 * max_pool2d_backward_ref.c - the gradient of max pooling by its definition.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/pool/max/max_pool2d.h"

#include "ops/bf16/bf16.h"

#include <string.h>

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

/*
 * n_channels next to each other: clear n_in positions of each, then add gradients of
 * one output after the other. Planes are the usual case and have code of their own.
 *
 * units_<type> works on planes, or on the images of an NHWC call.
 */
#define DEFINE_SCATTER(type, suffix, add)                                              \
    static inline __attribute__((always_inline)) bool scatter_##suffix(                \
        const type *grad, const int64_t *index, type *out, int64_t n_out,              \
        int64_t n_in, int64_t n_channels)                                              \
    {                                                                                  \
        bool in_range = true;                                                          \
                                                                                       \
        memset(out, 0, (size_t)(n_in * n_channels) * sizeof *out);                     \
        for (int64_t i = 0; i < n_out; i++) {                                          \
            for (int64_t c = 0; c < n_channels; c++, grad++, index++) {                \
                if ((uint64_t)*index < (uint64_t)n_in) {                               \
                    type *home = out + *index * n_channels + c;                        \
                                                                                       \
                    *home = add(*home, *grad);                                         \
                } else if (*index != -1) {                                             \
                    in_range = false;                                                  \
                }                                                                      \
            }                                                                          \
        }                                                                              \
        return in_range;                                                               \
    }                                                                                  \
                                                                                       \
    static void units_##suffix(int64_t begin, int64_t end, void *context)              \
    {                                                                                  \
        ptac_scatter *job = context;                                                   \
        const ptac_call *call = job->call;                                             \
        const int64_t n_out = job->n_out, n_in = job->n_in, n = job->n_channels;       \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const type *grad = (const type *)call->inputs[0].data + i * n_out * n;     \
            const int64_t *index =                                                     \
                (const int64_t *)call->inputs[1].data + i * n_out * n;                 \
            type *out = (type *)call->outputs[0].data + i * n_in * n;                  \
                                                                                       \
            if (n == 1 ? !scatter_##suffix(grad, index, out, n_out, n_in, 1)           \
                       : !scatter_##suffix(grad, index, out, n_out, n_in, n))          \
                __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);          \
        }                                                                              \
    }

DEFINE_SCATTER(float, f32, PLAIN_ADD)
DEFINE_SCATTER(double, f64, PLAIN_ADD)
DEFINE_SCATTER(uint16_t, bf16, bf16_add)

ptac_status ptac_scatter_all(ptac_scatter *job)
{
    static const ptac_range_fn units[] = PTAC_OF_TYPES(units);

    ptac_parallel_for(0, job->n_units, job->n_channels > 1 ? 1 : 16384 / job->n_in + 1,
                      units[job->call->inputs[0].dtype], job);
    return job->out_of_range ? PTAC_UNSUPPORTED : PTAC_OK;
}

static ptac_status run(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;
    ptac_scatter job = ptac_scatter_of(call, &p->image, 1, 1);

    return ptac_scatter_all(&job);
}

PTAC_ROW(MAX_POOL2D_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts, run)
