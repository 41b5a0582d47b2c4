/*
 * max_pool2d_backward.h - what the rows of max pooling's gradient share.
 *
 * Indices come from the caller, who may have made them up: a row checks each before
 * it writes, leaves out -1 as stock does, and gives the call back when one lies
 * outside its plane.
 */
#ifndef PTAC_OPS_POOL_MAX_POOL2D_BACKWARD_H
#define PTAC_OPS_POOL_MAX_POOL2D_BACKWARD_H

#include "core/host.h"
#include "ops/pool/bf16.h"
#include "ops/pool/max_pool2d.h"

#include <string.h>

/* A run over planes or images, and what one of its threads may have found. */
typedef struct ptac_scatter {
    const ptac_call *call;
    bool out_of_range;
} ptac_scatter;

#define PTAC_PLAIN_ADD(a, b) ((a) + (b))

/* Clear one plane of grad_x, then add each gradient where its index says. */
#define PTAC_SCATTER_PLANE(type, name, add)                                            \
    static inline bool name(const type *grad, const int64_t *index, type *out,         \
                            int64_t n_out, int64_t n_in)                               \
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

/* Planes [begin, end) of an NCHW call. */
#define PTAC_SCATTER_PLANES(type, name, scatter)                                       \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        ptac_scatter *job = context;                                                   \
        const ptac_call *call = job->call;                                             \
        const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;     \
        const int64_t n_out = image->out_h * image->out_w, n_in = image->h * image->w; \
                                                                                       \
        for (int64_t i = begin; i < end; i++)                                          \
            if (!scatter((const type *)call->inputs[0].data + i * n_out,               \
                         (const int64_t *)call->inputs[1].data + i * n_out,            \
                         (type *)call->outputs[0].data + i * n_in, n_out, n_in))       \
                __atomic_store_n(&job->out_of_range, true, __ATOMIC_RELAXED);          \
    }

#endif
