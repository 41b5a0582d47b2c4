/*
 * softmax_rows.h - rows of logits read once, by a warp or a block each, on CUDA.
 *
 * Sums of exponentials are kept relative to the largest element so far (after Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018). A NaN makes the
 * sum one; the maximum takes no notice of it.
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_ROWS_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_ROWS_H

#include "device/cuda/kernel.h"
#include "ops/softmax/softmax_cuda.h"

enum {
    PTAC_SOFTMAX_WARPS = PTAC_SOFTMAX_THREADS / PTAC_WARP,
};

/*
 * exp(x - y). The product is rounded by what counts as little as a rounding of x - y
 * itself does; exp2f() is one instruction beside expf()'s eight.
 */
PTAC_DEVICE float exp_less(float x, float y)
{
    return exp2f((x - y) * 1.4426950408889634f);
}

/* What a sum is relative to: a maximum, or 0 while there are only infinities. */
PTAC_DEVICE float reference(float maximum)
{
    return maximum == -PTAC_INFINITY ? 0.0f : maximum;
}

/* The maximum of a row's elements, and the sum of exp(x - reference). */
struct normalizer {
    float maximum, sum;
};

PTAC_DEVICE normalizer joined(normalizer a, normalizer b)
{
    const float maximum = fmaxf(a.maximum, b.maximum), r = reference(maximum);

    return {maximum, a.sum * exp_less(a.maximum, r) + b.sum * exp_less(b.maximum, r)};
}

template <class T, int n>
PTAC_DEVICE normalizer joined(normalizer a, const ptac_pack<T, n> &x)
{
    float maximum = a.maximum, r;

    for (int k = 0; k < n; k++)
        maximum = fmaxf(maximum, ptac_real(x.at[k]));
    r = reference(maximum);
    a.sum *= exp_less(a.maximum, r);
    for (int k = 0; k < n; k++)
        a.sum += exp_less(ptac_real(x.at[k]), r);
    return {maximum, a.sum};
}

PTAC_DEVICE float shuffled(float x, int step)
{
    return __shfl_xor_sync(0xffffffffu, x, step);
}

PTAC_DEVICE normalizer shuffled(normalizer x, int step)
{
    return {shuffled(x.maximum, step), shuffled(x.sum, step)};
}

/* What all threads of a row have, joined in an order that n_threads decides. */
template <int n_threads, class S> PTAC_DEVICE S joined_in_row(S s)
{
    for (int step = PTAC_WARP / 2; step > 0; step /= 2)
        s = joined(s, shuffled(s, step));
    if constexpr (n_threads > PTAC_WARP) {
        PTAC_SHARED(S, of_warp, PTAC_SOFTMAX_WARPS);

        if (threadIdx.x % PTAC_WARP == 0)
            of_warp[threadIdx.x / PTAC_WARP] = s;
        __syncthreads();
        s = of_warp[0];
        for (int i = 1; i < PTAC_SOFTMAX_WARPS; i++)
            s = joined(s, of_warp[i]);
    }
    return s;
}

/* The row that n_threads of a block, a warp or all, work on; this thread among them. */
template <int n_threads> PTAC_DEVICE ptac_i64 row_of_threads()
{
    return (ptac_i64)blockIdx.x * (PTAC_SOFTMAX_THREADS / n_threads) +
           threadIdx.x / n_threads;
}

template <int n_threads> PTAC_DEVICE int thread_of_row()
{
    return (int)threadIdx.x % n_threads;
}

/* What the first lane of the warp has read, in all of them. */
template <class V> PTAC_DEVICE V of_first_lane(V value)
{
    return __shfl_sync(0xffffffffu, value, 0);
}

/*
 * Call body(j, elements from j on) for this thread's share of n elements from begin on:
 * packs of 16 bytes, and one by one what lies before and behind those, or all.
 */
template <int n_threads, class T, class Body>
PTAC_DEVICE void for_row(ptac_input<T> x, ptac_i64 begin, int n, bool has_packs,
                         Body body)
{
    constexpr int size = PTAC_PACK_BYTES / sizeof(T);
    const int t = thread_of_row<n_threads>();
    const int before = (int)(((ptac_u64)(x.data + begin) / sizeof(T)) % size);
    const int head = !has_packs || before == 0 ? 0 : size - before;
    const int end = !has_packs || n < head ? 0 : head + (n - head) / size * size;

    for (int j = head + t * size; j < end; j += n_threads * size)
        body(j, x.template pack<size>(begin + j));
    if (t < head && t < n)
        body(t, x.template pack<1>(begin + t));
    for (int j = (end > head ? end : head) + t; j < n; j += n_threads)
        body(j, x.template pack<1>(begin + j));
}

#endif
