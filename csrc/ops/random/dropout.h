/*
 * dropout.h - dropout, alone or before a sum, and its gradient, with the bits of
 * torch's own: on CUDA of native_dropout, on the CPU of a product with what
 * bernoulli_() drew, divided. Level exact, but for dropout_add on CUDA, which is close.
 *
 * On the CPU elements are drawn as in bernoulli.h. Which random number an element gets
 * on CUDA follows ATen's cuda/Dropout.cu: a grid of blocks
 * of 256 threads, of which each takes `vector` elements at a time (get_vector_size()),
 * and calls curand4() for each four of them. With vector 2 half of what a call gives is
 * left, and with 1 its four numbers belong to elements that lie a grid apart.
 */
#ifndef PTAC_OPS_RANDOM_DROPOUT_H
#define PTAC_OPS_RANDOM_DROPOUT_H

#include "core/kernel.h"
#include "ops/random/dropout_cuda.h"
#include "ops/random/engine.h"

/*
 * Inputs x and, of dropout_add, residual; outputs y and a mask of bytes, 0 or 1, which
 * a call on the CPU may do without. There y may be x.
 */
enum {
    PTAC_DROPOUT_X,
    PTAC_DROPOUT_RESIDUAL,
    PTAC_DROPOUT_N_INPUTS,
};

enum {
    PTAC_DROPOUT_Y,
    PTAC_DROPOUT_MASK,
    PTAC_DROPOUT_N_OUTPUTS,
};

/*
 * Tensors are contiguous and of one dtype but for the mask. y = x * mask * scale, where
 * scale is 1 / keep in float32 and mask whether the random number is below keep; of
 * dropout_add y = x * mask * scale + residual, rounded to 16 bits once. Its gradients
 * are dropout's for x, and grad itself for residual.
 */
typedef struct ptac_dropout {
    double keep;         /* more than 0, at most 1; 1 - p, as torch computes it */
    ptac_engine *engine; /* of the CPU, as in bernoulli.h; of CUDA: */
    ptac_philox_state random;
    int vector; /* ptac_dropout_vector() */
    /* Of the device: multiprocessors, 0 of the CPU; and threads that one can hold. */
    int n_processors, n_threads;
} ptac_dropout;

/* Inputs grad and mask; output grad * mask * scale, with scale as float32. */
typedef struct ptac_dropout_backward {
    double scale;
} ptac_dropout_backward;

/* What every row of the CPU accepts: calls of the CPU, and all gradients. */
ptac_reason ptac_dropout_accepts(const ptac_call *call);
ptac_reason ptac_dropout_accepts_gradient(const ptac_call *call);

/* Elements that torch's kernel takes at a time of a dense x; outputs are its own. */
static inline int ptac_dropout_vector(const ptac_view *x, int element_bytes)
{
    int vector = 16 / element_bytes;

    while (vector > 1 && (!ptac_view_is_aligned(x, (size_t)(vector * element_bytes)) ||
                          x->n_elements % vector != 0))
        vector /= 2;
    return vector;
}

/* Blocks of its grid, for n > 0 elements. */
static inline int64_t ptac_dropout_blocks(const ptac_dropout *params, int64_t n)
{
    return ptac_least((int64_t)params->n_processors *
                          (params->n_threads / PTAC_DROPOUT_THREADS),
                      ptac_parts(n, PTAC_DROPOUT_THREADS));
}

/* By how much such a call moves the generator's offset on. */
static inline int64_t ptac_dropout_increment(const ptac_dropout *params, int64_t n)
{
    const int64_t step = PTAC_DROPOUT_THREADS * ptac_dropout_blocks(params, n) * 4;

    return ((n - 1) / step + 1) * 4;
}

#endif
