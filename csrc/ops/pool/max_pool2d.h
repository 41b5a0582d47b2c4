/*
 * max_pool2d.h - 2-d max pooling with indices, forward and backward. Level exact.
 *
 * Forward: inputs x; outputs y of x's dtype and layout, and int64 indices into the
 * h*w positions of each plane. A later tap wins when it is greater or NaN, so ties go
 * to the first tap and NaN to the last, as in ATen's max_pool2d_with_indices.
 *
 * Backward: inputs grad_y, indices, x's layout; output grad_x. A position's gradients
 * add up in the order of the outputs that chose it, starting from +0.
 */
#ifndef PTAC_OPS_POOL_MAX_POOL2D_H
#define PTAC_OPS_POOL_MAX_POOL2D_H

#include "ops/pool/window2d.h"

typedef struct ptac_max_pool2d {
    ptac_window2d window;
    ptac_image image; /* out_h and out_w filled in */
} ptac_max_pool2d;

/* Wider kernels are left to the row "scalar". */
enum {
    PTAC_MAX_TAPS = 64,
};

/*
 * Ask for the memory that the next plane's row of windows will need. Planes of common
 * sizes end near a page, where the hardware's own prefetching starts anew. The memory
 * may lie anywhere: nothing is read. always_inline, because gcc 12 drops calls to a
 * function that only prefetches.
 */
static inline __attribute__((always_inline)) void ptac_prefetch(const void *memory,
                                                                int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)memory + (uintptr_t)at));
}

/* Shape kinds, for calibration. */
enum {
    PTAC_MAX_POOL2D_STRIDED,       /* NCHW, stride 1 or 2 along the rows */
    PTAC_MAX_POOL2D_FAR,           /* NCHW, larger strides */
    PTAC_MAX_POOL2D_CHANNELS_LAST, /* NHWC */
};

/* Backward kinds: windows of 2x2 side by side, others, and NHWC. */
enum {
    PTAC_MAX_POOL2D_BACKWARD_TILED,
    PTAC_MAX_POOL2D_BACKWARD_ANY,
    PTAC_MAX_POOL2D_BACKWARD_CHANNELS_LAST,
};

/* Windows of 2x2 side by side, none of which hangs over the image's edge. */
static inline bool ptac_max_pool2d_is_tiled(const ptac_max_pool2d *p)
{
    const ptac_window *h = &p->window.h, *w = &p->window.w;

    return h->kernel == 2 && w->kernel == 2 && h->stride == 2 && w->stride == 2 &&
           h->padding == 0 && w->padding == 0 && h->dilation == 1 && w->dilation == 1 &&
           2 * p->image.out_h <= p->image.h && 2 * p->image.out_w <= p->image.w;
}

/*
 * One plane by the definition, any element type: the vector rows use it for the
 * columns whose window is cut off by the image's edge.
 */
#define PTAC_MAX_POOL2D_POINT(type, name, to_real)                                     \
    static inline void name(const type *plane, const ptac_max_pool2d *p, int64_t oh,   \
                            int64_t ow, type *y, int64_t *index)                       \
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

#endif
