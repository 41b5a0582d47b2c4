/*
 * max_pool2d_ref.c - max pooling by its definition, and its shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/pool/max/max_pool2d.h"

#include "core/host.h"
#include "ops/bf16/bf16.h"

#include <string.h>

/* One NCHW output. */
#define DEFINE_POINT(type, name, to_real)                                              \
    static void name(const type *plane, const ptac_max_pool2d *p, int64_t oh,          \
                     int64_t ow, type *y, int64_t *index)                              \
    {                                                                                  \
        const ptac_window *h = &p->window.h, *w = &p->window.w;                        \
        const int64_t ih = oh * h->stride - h->padding;                                \
        const int64_t iw = ow * w->stride - w->padding;                                \
        int64_t h0, h1, w0, w1;                                                        \
                                                                                       \
        ptac_window_clip(h, ih, p->image.h, &h0, &h1);                                 \
        ptac_window_clip(w, iw, p->image.w, &w0, &w1);                                 \
                                                                                       \
        int64_t best = (ih + h0 * h->dilation) * p->image.w + iw + w0 * w->dilation;   \
                                                                                       \
        for (int64_t kh = h0; kh < h1; kh++) {                                         \
            for (int64_t kw = w0; kw < w1; kw++) {                                     \
                const int64_t at =                                                     \
                    (ih + kh * h->dilation) * p->image.w + iw + kw * w->dilation;      \
                                                                                       \
                if (to_real(plane[at]) > to_real(plane[best]) ||                       \
                    to_real(plane[at]) != to_real(plane[at]))                          \
                    best = at;                                                         \
            }                                                                          \
        }                                                                              \
        *y = plane[best];                                                              \
        *index = best;                                                                 \
    }

#define AS_IS(x) (x)
DEFINE_POINT(float, point_f32, AS_IS)
DEFINE_POINT(double, point_f64, AS_IS)
DEFINE_POINT(uint16_t, point_bf16, bf16_to_f32)

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

/* Outputs [begin, end), counted along N, C, H, W whatever the layout. */
#define DEFINE_POINTS(type, name, point)                                               \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const ptac_max_pool2d *p = call->params;                                       \
        const int64_t n_out = p->image.out_h * p->image.out_w;                         \
        const int64_t n_in = p->image.h * p->image.w;                                  \
        const type *x = call->inputs[0].data;                                          \
        type *y = call->outputs[0].data;                                               \
        int64_t *indices = call->outputs[1].data;                                      \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const int64_t at = i % n_out;                                              \
                                                                                       \
            point(x + i / n_out * n_in, p, at / p->image.out_w, at % p->image.out_w,   \
                  &y[i], &indices[i]);                                                 \
        }                                                                              \
    }

DEFINE_POINTS(float, points_f32, point_f32)
DEFINE_POINTS(double, points_f64, point_f64)
DEFINE_POINTS(uint16_t, points_bf16, point_bf16)

/* NHWC: pixels [begin, end) of the output, all channels of each. */
#define DEFINE_PIXELS(type, name, to_real)                                             \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const ptac_max_pool2d *p = call->params;                                       \
        const ptac_image *image = &p->image;                                           \
        const ptac_window *h = &p->window.h, *w = &p->window.w;                        \
        const int64_t n_out = image->out_h * image->out_w, channels = image->channels; \
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

DEFINE_PIXELS(float, pixels_f32, AS_IS)
DEFINE_PIXELS(double, pixels_f64, AS_IS)
DEFINE_PIXELS(uint16_t, pixels_bf16, bf16_to_f32)

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn points[] = {points_f32, points_bf16, points_f64};
    static const ptac_range_fn pixels[] = {pixels_f32, pixels_bf16, pixels_f64};
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const int64_t n = image->n * image->out_h * image->out_w;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_parallel_for(0, n, 4096 / image->channels + 1, pixels[dtype],
                          (void *)call);
    else
        ptac_parallel_for(0, n * image->channels, 4096, points[dtype], (void *)call);
    return PTAC_OK;
}

PTAC_ROW(MAX_POOL2D, "scalar", PTAC_EXACT, 0, ptac_max_pool2d_accepts, run)
