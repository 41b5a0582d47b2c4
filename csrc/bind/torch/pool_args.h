/*
 * pool_args.h - the int[2] arguments of pooling, read as torch reads them.
 */
#ifndef PTAC_BIND_TORCH_POOL_ARGS_H
#define PTAC_BIND_TORCH_POOL_ARGS_H

#include "bind/torch/stock.h"
#include "ops/pool/window2d.h"

/* An int[2] as it was given: two elements, one that stands for both, or none. */
typedef struct at_pair {
    int64_t values[4];
    int n;
} at_pair;

static inline at_pair at_take_pair(stable_ivalue boxed)
{
    at_pair pair;

    pair.n = at_take_ints(boxed, pair.values);
    return pair;
}

static inline bool at_pair_is_given(const at_pair *pair)
{
    return pair->n == 1 || pair->n == 2;
}

/* As many elements as there were: torch complains about wrong numbers itself. */
static inline at_ints at_pair_ints(const at_pair *pair)
{
    return (at_ints){pair->values, (size_t)(pair->n > 4 ? 4 : pair->n)};
}

static inline stable_ivalue at_pair_box(const at_pair *pair)
{
    return at_make_ints(pair->values, pair->n > 4 ? 4 : pair->n);
}

/* Sizes of a pooled batch: those of the input but for the last two. */
static inline void ptac_pooled_sizes(const ptac_view *input, const ptac_image *image,
                                     int64_t sizes[4])
{
    for (int i = 0; i < input->n_dims; i++)
        sizes[i] = input->sizes[i];
    sizes[input->n_dims - 2] = image->out_h;
    sizes[input->n_dims - 1] = image->out_w;
}

/* A new dense batch of these sizes. */
static inline at_tensor ptac_new_image(int n_dims, const int64_t *sizes,
                                       bool channels_last, int32_t dtype)
{
    int64_t strides[4];

    ptac_image_strides(n_dims, sizes, channels_last, strides);
    return at_empty(n_dims, sizes, strides, dtype);
}

#endif
