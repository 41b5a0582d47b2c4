/*
 * max_pool3d_ref.c - 3-d max pooling and its gradient by their definition, and their
 * shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/pool/volume/max_pool3d.h"

#include "ops/bf16/bf16.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_max_pool3d *p = call->params;

    if (p->slab.image.channels_last)
        shape->kind = PTAC_MAX_POOL3D_CHANNELS_LAST;
    else if (p->slab.window.w.stride <= 2)
        shape->kind = PTAC_MAX_POOL3D_STRIDED;
    else
        shape->kind = PTAC_MAX_POOL3D_FAR;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

static ptac_reason classify_backward(const ptac_call *call, ptac_shape *shape)
{
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;

    shape->kind = slab->channels_last ? PTAC_MAX_POOL3D_BACKWARD_CHANNELS_LAST
                                      : PTAC_MAX_POOL3D_BACKWARD_ANY;
    shape->work = slab->n * slab->channels * ptac_volume_positions(slab, &p->depth);
    return PTAC_TAKE;
}

PTAC_SHAPES(MAX_POOL3D, classify, "ncdhw", "ncdhw_far", "ndhwc")
PTAC_SHAPES(MAX_POOL3D_BACKWARD, classify_backward, "ncdhw", "ndhwc")

/* Taps of one output that lie in the volume: [first, last) of each axis, from start. */
typedef struct taps {
    int64_t start[3], first[3], last[3];
} taps;

/* Output i of a plane. */
static taps taps_of(const ptac_max_pool3d *p, int64_t i)
{
    const ptac_image *slab = &p->slab.image;
    const int64_t n_out = slab->out_h * slab->out_w;
    const int64_t outputs[] = {i / n_out, i % n_out / slab->out_w, i % slab->out_w};
    const int64_t sizes[] = {p->depth.size, slab->h, slab->w};
    const ptac_window *axes[] = {&p->depth.window, &p->slab.window.h,
                                 &p->slab.window.w};
    taps t;

    for (int k = 0; k < 3; k++) {
        t.start[k] = outputs[k] * axes[k]->stride - axes[k]->padding;
        ptac_window_clip(axes[k], t.start[k], sizes[k], &t.first[k], &t.last[k]);
    }
    return t;
}

static int64_t position_of(const ptac_max_pool3d *p, const taps *t, int64_t kd,
                           int64_t kh, int64_t kw)
{
    const ptac_image *slab = &p->slab.image;
    const int64_t d = t->start[0] + kd * p->depth.window.dilation;
    const int64_t h = t->start[1] + kh * p->slab.window.h.dilation;

    return (d * slab->h + h) * slab->w + t->start[2] + kw * p->slab.window.w.dilation;
}

#define AS_IS(x) (x)

/* Outputs [begin, end), each of all channels next to each other: one in NCDHW. */
#define DEFINE_OUTPUTS(type, name, to_real)                                            \
    static int64_t best_##name(const ptac_max_pool3d *p, const taps *t, const type *x, \
                               int64_t step)                                           \
    {                                                                                  \
        int64_t best = position_of(p, t, t->first[0], t->first[1], t->first[2]);       \
                                                                                       \
        for (int64_t kd = t->first[0]; kd < t->last[0]; kd++) {                        \
            for (int64_t kh = t->first[1]; kh < t->last[1]; kh++) {                    \
                for (int64_t kw = t->first[2]; kw < t->last[2]; kw++) {                \
                    const int64_t at = position_of(p, t, kd, kh, kw);                  \
                    const type tap = x[at * step];                                     \
                                                                                       \
                    if (to_real(tap) > to_real(x[best * step]) ||                      \
                        to_real(tap) != to_real(tap))                                  \
                        best = at;                                                     \
                }                                                                      \
            }                                                                          \
        }                                                                              \
        return best;                                                                   \
    }                                                                                  \
                                                                                       \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const ptac_max_pool3d *p = call->params;                                       \
        const ptac_image *slab = &p->slab.image;                                       \
        const int64_t n_out = ptac_volume_outputs(slab, &p->depth);                    \
        const int64_t step = slab->channels_last ? slab->channels : 1;                 \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const taps t = taps_of(p, i % n_out);                                      \
            const type *x = (const type *)call->inputs[0].data +                       \
                            i / n_out * ptac_volume_positions(slab, &p->depth) * step; \
                                                                                       \
            for (int64_t c = 0; c < step; c++) {                                       \
                const int64_t best = best_##name(p, &t, x + c, step);                  \
                                                                                       \
                ((type *)call->outputs[0].data)[i * step + c] = x[best * step + c];    \
                ((int64_t *)call->outputs[1].data)[i * step + c] = best;               \
            }                                                                          \
        }                                                                              \
    }

DEFINE_OUTPUTS(float, outputs_f32, AS_IS)
DEFINE_OUTPUTS(double, outputs_f64, AS_IS)
DEFINE_OUTPUTS(uint16_t, outputs_bf16, bf16_to_f32)

ptac_status ptac_max_pool3d_by_definition(const ptac_call *call)
{
    static const ptac_range_fn outputs[] = PTAC_OF_TYPES(outputs);
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const int64_t n = slab->n * ptac_volume_outputs(slab, &p->depth);
    const bool is_nhwc = slab->channels_last;

    ptac_parallel_for(0, is_nhwc ? n : n * slab->channels,
                      is_nhwc ? 4096 / slab->channels + 1 : 4096,
                      outputs[call->inputs[0].dtype], (void *)call);
    return PTAC_OK;
}

static ptac_status scatter(const ptac_call *call)
{
    const ptac_max_pool3d *p = call->params;
    ptac_scatter job =
        ptac_scatter_of(call, &p->slab.image, p->depth.size, p->depth.outputs);

    return ptac_scatter_all(&job);
}

PTAC_ROW(MAX_POOL3D, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts,
         ptac_max_pool3d_by_definition)
PTAC_ROW(MAX_POOL3D_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts, scatter)
