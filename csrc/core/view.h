/*
 * view.h - a borrowed look at a tensor: where it lies, not who owns it.
 *
 * sizes and strides point into the owner; strides count elements. A view is
 * valid as long as its owner lives and is not resized.
 */
#ifndef PTAC_CORE_VIEW_H
#define PTAC_CORE_VIEW_H

#include "core/base.h"

typedef struct ptac_view {
    void *data;
    const int64_t *sizes;
    const int64_t *strides;
    int64_t n_elements;
    int32_t n_dims;
    ptac_dtype dtype;
    int32_t device; /* of a call on CUDA: the device's number, or -1 for the CPU */
} ptac_view;

/* The data is aligned as C wants its type; no data is. alignment is a power of two. */
static inline bool ptac_view_is_aligned(const ptac_view *view, size_t alignment)
{
    return ((uintptr_t)view->data & (alignment - 1)) == 0;
}

/* Elements lie one behind the other; order: dimensions from the fastest, or NULL. */
static inline bool ptac_view_lies_in(const ptac_view *view, const int *order)
{
    int64_t expected = 1;

    for (int i = 0; i < view->n_dims; i++) {
        const int d = order ? order[i] : view->n_dims - 1 - i;

        if (view->sizes[d] != 1 && view->strides[d] != expected)
            return false;
        expected *= view->sizes[d];
    }
    return true;
}

/*
 * Rows lie one behind the other, last dimension fastest (torch.contiguous_format).
 * Without elements whatever the strides say, as in torch.
 */
static inline bool ptac_view_is_contiguous(const ptac_view *view)
{
    return view->n_elements == 0 || ptac_view_lies_in(view, NULL);
}

/* NHWC's dimensions from the fastest, or NDHWC's; false of other numbers of them. */
static inline bool ptac_channels_last_order(int n_dims, int order[5])
{
    if (n_dims != 4 && n_dims != 5)
        return false;
    order[0] = 1;
    for (int i = 1; i < n_dims - 1; i++)
        order[i] = n_dims - i;
    order[n_dims - 1] = 0;
    return true;
}

/*
 * The 4-d strides say NHWC, or the 5-d ones NDHWC, by the rule that torch's
 * suggest_memory_format() uses; ambiguous shapes (one channel, 1x1 images) count as
 * NCHW there and here.
 */
static inline bool ptac_view_suggests_channels_last(const ptac_view *view)
{
    int order[5];
    int64_t smallest = 0;

    if (!ptac_channels_last_order(view->n_dims, order) || view->strides[1] == 0)
        return false;
    for (int i = 0; i < view->n_dims; i++) {
        const int d = order[i];

        if (view->sizes[d] == 0 || view->strides[d] < smallest)
            return false;
        if (d == 0 && smallest == view->strides[1])
            return false;
        smallest = view->strides[d] * (view->sizes[d] > 1 ? view->sizes[d] : 1);
    }
    return true;
}

/* NHWC or NDHWC without gaps. */
static inline bool ptac_view_is_channels_last(const ptac_view *view)
{
    int order[5];

    return ptac_channels_last_order(view->n_dims, order) &&
           ptac_view_lies_in(view, order);
}

/* Some order of the dimensions lays the elements one behind the other, each once. */
static inline bool ptac_view_is_dense(const ptac_view *view)
{
    enum { MAX_DIMS = 8 };
    bool done[MAX_DIMS] = {false};
    int64_t expected = 1;

    if (ptac_view_is_contiguous(view))
        return true;
    if (view->n_dims > MAX_DIMS)
        return false;
    for (int placed = 0; placed < view->n_dims; placed++) {
        int d = 0;

        while (d < view->n_dims &&
               (done[d] || (view->sizes[d] != 1 && view->strides[d] != expected)))
            d++;
        if (d == view->n_dims)
            return false;
        done[d] = true;
        expected *= view->sizes[d];
    }
    return true;
}

static inline bool ptac_view_has_sizes(const ptac_view *view, int n_dims,
                                       const int64_t *sizes)
{
    if (view->n_dims != n_dims)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (view->sizes[i] != sizes[i])
            return false;
    return true;
}

/* Where a view's memory ends, as far as its elements lie there; it has some. */
static inline const char *ptac_view_end(const ptac_view *view, int64_t bytes)
{
    int64_t last = 0;

    for (int i = 0; i < view->n_dims; i++)
        last += (view->sizes[i] - 1) * view->strides[i];
    return (const char *)view->data + (last + 1) * bytes;
}

/* Whether no byte is between both the ends of one and those of the other. */
static inline bool ptac_views_are_apart(const ptac_view *a, int64_t a_bytes,
                                        const ptac_view *b, int64_t b_bytes)
{
    return ptac_view_end(a, a_bytes) <= (const char *)b->data ||
           ptac_view_end(b, b_bytes) <= (const char *)a->data;
}

/* The same sizes at the same strides, where strides matter. */
static inline bool ptac_view_is_alike(const ptac_view *a, const ptac_view *b)
{
    if (a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->sizes[i] != b->sizes[i] ||
            (a->sizes[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    return true;
}

#endif
