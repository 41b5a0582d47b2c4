/*
 * max_pool2d_ref.c - max pooling by its definition, and its shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/pool/max/max_pool2d.h"

#include "ops/bf16/bf16.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_max_pool2d *p = call->params;

    if (p->image.channels_last)
        shape->kind = PTAC_MAX_POOL2D_CHANNELS_LAST;
    else if (p->window.w.stride <= 2)
        shape->kind = PTAC_MAX_POOL2D_STRIDED;
    else
        shape->kind = PTAC_MAX_POOL2D_FAR;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(MAX_POOL2D, classify, "nchw", "nchw_far", "nhwc")

ptac_reason ptac_max_pool2d_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype <= PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

#define AS_IS(x) (x)

/* Outputs [begin, end), each of all channels next to each other: one in NCHW. */
#define DEFINE_OUTPUTS(type, name, to_real)                                            \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const ptac_max_pool2d *p = call->params;                                       \
        const ptac_image *image = &p->image;                                           \
        const ptac_window *h = &p->window.h, *w = &p->window.w;                        \
        const int64_t n_out = image->out_h * image->out_w;                             \
        const int64_t channels = image->channels_last ? image->channels : 1;           \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const int64_t oh = i % n_out / image->out_w, ow = i % image->out_w;        \
            const int64_t ih = oh * h->stride - h->padding;                            \
            const int64_t iw = ow * w->stride - w->padding;                            \
            const type *x = (const type *)call->inputs[0].data +                       \
                            i / n_out * image->h * image->w * channels;                \
            type *y = (type *)call->outputs[0].data + i * channels;                    \
            int64_t *indices = (int64_t *)call->outputs[1].data + i * channels;        \
            int64_t h0, h1, w0, w1;                                                    \
                                                                                       \
            ptac_window_clip(h, ih, image->h, &h0, &h1);                               \
            ptac_window_clip(w, iw, image->w, &w0, &w1);                               \
            for (int64_t c = 0; c < channels; c++) {                                   \
                int64_t best =                                                         \
                    (ih + h0 * h->dilation) * image->w + iw + w0 * w->dilation;        \
                                                                                       \
                for (int64_t kh = h0; kh < h1; kh++) {                                 \
                    for (int64_t kw = w0; kw < w1; kw++) {                             \
                        const int64_t at = (ih + kh * h->dilation) * image->w + iw +   \
                                           kw * w->dilation;                           \
                        const type tap = x[at * channels + c];                         \
                                                                                       \
                        if (to_real(tap) > to_real(x[best * channels + c]) ||          \
                            to_real(tap) != to_real(tap))                              \
                            best = at;                                                 \
                    }                                                                  \
                }                                                                      \
                y[c] = x[best * channels + c];                                         \
                indices[c] = best;                                                     \
            }                                                                          \
        }                                                                              \
    }

DEFINE_OUTPUTS(float, outputs_f32, AS_IS)
DEFINE_OUTPUTS(double, outputs_f64, AS_IS)
DEFINE_OUTPUTS(uint16_t, outputs_bf16, bf16_to_f32)

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn outputs[] = PTAC_OF_TYPES(outputs);
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t n = image->n * image->out_h * image->out_w;
    const bool is_nhwc = image->channels_last;

    ptac_parallel_for(0, is_nhwc ? n : n * image->channels,
                      is_nhwc ? 4096 / image->channels + 1 : 4096,
                      outputs[call->inputs[0].dtype], (void *)call);
    return PTAC_OK;
}

PTAC_ROW(MAX_POOL2D, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts, run)
