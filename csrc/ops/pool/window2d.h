/*
 * window2d.h - the geometry that all 2-d pooling shares.
 *
 * Planes are images of one channel. Sizes follow torch's pooling_output_shape().
 */
#ifndef PTAC_OPS_POOL_WINDOW2D_H
#define PTAC_OPS_POOL_WINDOW2D_H

#include "core/host.h"
#include "core/kernel.h"

/* A function of each type, by ptac_dtype. */
#define PTAC_OF_TYPES(name)                                                            \
    {                                                                                  \
        name##_f32, name##_bf16, name##_f64                                            \
    }

/* One axis of a pooling window, in elements of the input. */
typedef struct ptac_window {
    int64_t kernel, stride, padding, dilation;
} ptac_window;

typedef struct ptac_window2d {
    ptac_window h, w;
    bool ceil_mode;
} ptac_window2d;

/* An image batch and its pooled size. Made by ptac_image_of(). */
typedef struct ptac_image {
    int64_t n, channels;
    int64_t h, w, out_h, out_w;
    bool channels_last;
} ptac_image;

/* Taps k of one axis with 0 <= start + k * dilation < size are [*first, *last). */
static inline void ptac_window_clip(const ptac_window *axis, int64_t start,
                                    int64_t size, int64_t *first, int64_t *last)
{
    const int64_t d = axis->dilation;

    *first = start >= 0 ? 0 : -start;
    *last = start >= size ? 0 : size - start;
    if (d > 1) { /* divisions are slow */
        *first = (*first + d - 1) / d;
        *last = (*last + d - 1) / d;
    }
    if (*last > axis->kernel)
        *last = axis->kernel;
}

/* Of n outputs from first on, lanes [*lo, *hi) have this tap inside the image. */
static inline void ptac_window_lanes(const ptac_window *axis, int64_t size,
                                     int64_t first, int n, int64_t tap, int *lo,
                                     int *hi)
{
    int64_t at = first * axis->stride - axis->padding + tap * axis->dilation;

    *lo = 0;
    for (; *lo < n && at < 0; at += axis->stride)
        ++*lo;
    *hi = *lo;
    for (; *hi < n && at < size; at += axis->stride)
        ++*hi;
}

/* Positions from a window's first tap to its last. */
static inline int64_t ptac_window_reach(const ptac_window *axis)
{
    return axis->dilation * (axis->kernel - 1) + 1;
}

/* The most windows that cover one position, dilated ones as if they had no holes. */
static inline int64_t ptac_window_layers(const ptac_window *axis)
{
    return (ptac_window_reach(axis) + axis->stride - 1) / axis->stride;
}

/* The outputs [first, last) of one axis whose windows reach over a position. */
typedef struct ptac_cover {
    int64_t first, last;
} ptac_cover;

/* From the cover of an earlier position, or from {0, 0}, to that of position i. */
static inline void ptac_cover_advance(ptac_cover *cover, const ptac_window *axis,
                                      int64_t i, int64_t n_outputs)
{
    const int64_t at = i + axis->padding, reach = ptac_window_reach(axis);

    while (cover->last < n_outputs && cover->last * axis->stride <= at)
        cover->last++;
    while (cover->first < cover->last && cover->first * axis->stride + reach <= at)
        cover->first++;
}

/* Outputs along one axis; 0 or less when the window does not fit. */
static inline int64_t ptac_window_outputs(const ptac_window *axis, int64_t size,
                                          bool ceil_mode)
{
    const int64_t room = size + 2 * axis->padding - ptac_window_reach(axis) +
                         (ceil_mode ? axis->stride - 1 : 0);
    int64_t n;

    if (room < 0)
        return 0;
    n = room / axis->stride + 1;
    if (ceil_mode && (n - 1) * axis->stride >= size + axis->padding)
        n--; /* the last window must start inside the image or its left padding */
    return n;
}

/* Arguments that torch itself would refuse; let it say so in its own words. */
static inline bool ptac_window_is_valid(const ptac_window *axis)
{
    return axis->kernel > 0 && axis->stride > 0 && axis->dilation > 0 &&
           axis->padding >= 0 && axis->padding <= axis->kernel / 2 &&
           axis->kernel < 1 << 16 && axis->stride < 1 << 16 && axis->dilation < 1 << 16;
}

/*
 * Every window has a tap inside the image. Undilated windows always have, by the
 * rules above; a dilated one may step over a small image.
 */
static inline bool ptac_window_always_hits(const ptac_window *axis, int64_t size,
                                           int64_t n_outputs)
{
    if (axis->dilation == 1)
        return true;
    for (int64_t i = 0; i < n_outputs; i++) {
        int64_t first, last;

        ptac_window_clip(axis, i * axis->stride - axis->padding, size, &first, &last);
        if (first >= last)
            return false;
    }
    return true;
}

/*
 * Fill in what the window makes of an image that ptac_image_of() has read, or say why
 * torch has to look at the call. Every window has a tap inside the image then.
 */
static inline ptac_reason ptac_window2d_fit(const ptac_window2d *window,
                                            ptac_image *image)
{
    const ptac_window *h = &window->h, *w = &window->w;

    if (!ptac_window_is_valid(h) || !ptac_window_is_valid(w))
        return PTAC_ARGUMENT;
    image->out_h = ptac_window_outputs(h, image->h, window->ceil_mode);
    image->out_w = ptac_window_outputs(w, image->w, window->ceil_mode);
    if (image->out_h < 1 || image->out_w < 1)
        return PTAC_ARGUMENT;
    if (!ptac_window_always_hits(h, image->h, image->out_h) ||
        !ptac_window_always_hits(w, image->w, image->out_w))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

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

/* Threads share n units of work, each of so many elements. */
static inline void ptac_share_out(int64_t n, int64_t elements, ptac_range_fn body,
                                  void *context)
{
    ptac_parallel_for(0, n, 16384 / elements + 1, body, context);
}

/* The same for the planes of a batch. */
static inline void ptac_share_planes(const ptac_image *image, ptac_range_fn body,
                                     void *context)
{
    ptac_share_out(image->n * image->channels, image->h * image->w, body, context);
}

/*
 * Read CHW or NCHW sizes, and the layout that torch would give a result, out of a view;
 * or say why this is no image batch for us. Gaps in memory do not matter here.
 */
static inline ptac_reason ptac_image_of(const ptac_view *input, ptac_image *image)
{
    const int64_t *sizes = input->sizes;

    if (input->n_dims != 3 && input->n_dims != 4)
        return PTAC_SHAPE;
    if (input->n_elements == 0)
        return PTAC_EMPTY;

    const bool batched = input->n_dims == 4;

    image->n = batched ? sizes[0] : 1;
    image->channels = sizes[batched];
    image->h = sizes[batched + 1];
    image->w = sizes[batched + 2];
    image->channels_last = ptac_view_suggests_channels_last(input);
    /* Kernels count positions inside one image in 32 bits. */
    if (image->h >= INT32_MAX / image->w)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

#endif
