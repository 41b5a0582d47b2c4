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
        constexpr int n_warps = n_threads / PTAC_WARP;
        PTAC_SHARED(S, of_warp, n_warps);

        if (threadIdx.x % PTAC_WARP == 0)
            of_warp[threadIdx.x / PTAC_WARP] = s;
        __syncthreads();
        s = of_warp[threadIdx.x % n_warps];
        for (int step = n_warps / 2; step > 0; step /= 2)
            s = joined(s, shuffled(s, step));
    }
    return s;
}

/* The row of n_threads: of a warp, of which a block has several, or of a block. */
template <int n_threads> PTAC_DEVICE ptac_i64 row_of_threads()
{
    if (n_threads > PTAC_WARP)
        return blockIdx.x;
    return (ptac_i64)blockIdx.x * PTAC_SOFTMAX_WARPS + threadIdx.x / PTAC_WARP;
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

/* A row's elements [head, end) are packs of 16 bytes. */
struct ptac_span {
    int head, end;
};

template <class T>
PTAC_DEVICE ptac_span span_of(ptac_input<T> x, ptac_i64 begin, int n, bool has_packs)
{
    constexpr int size = PTAC_PACK_BYTES / sizeof(T);
    const int before = (int)(((ptac_u64)(x.data + begin) / sizeof(T)) % size);
    const int head = !has_packs || before == 0 ? 0 : size - before;

    return {head, !has_packs || n < head ? head : head + (n - head) / size * size};
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
    const ptac_span span = span_of(x, begin, n, has_packs);

    for (int j = span.head + t * size; j < span.end; j += n_threads * size)
        body(j, x.template pack<size>(begin + j));
    if (t < span.head && t < n)
        body(t, x.template pack<1>(begin + t));
    for (int j = span.end + t; j < n; j += n_threads)
        body(j, x.template pack<1>(begin + j));
}

/* A row that is read once, its packs kept in registers, or each time from memory. */
template <class T, int n_threads, int n_packs> struct ptac_kept_row {
    static constexpr int size = PTAC_PACK_BYTES / sizeof(T);
    ptac_pack<T, size> packs[n_packs];
    ptac_pack<T, 1> before = {}, behind = {};
    ptac_span span;
    int n;

    PTAC_METHOD void read(ptac_input<T> x, ptac_i64 begin, int width, bool)
    {
        const int t = thread_of_row<n_threads>();

        n = width;
        span = span_of(x, begin, n, true);
        for (int k = 0; k < n_packs; k++) {
            const int j = span.head + (k * n_threads + t) * size;

            if (j < span.end)
                packs[k] = x.template pack<size>(begin + j);
        }
        if (t < span.head && t < n)
            before = x.template pack<1>(begin + t);
        if (span.end + t < n)
            behind = x.template pack<1>(begin + span.end + t);
    }

    template <class Body> PTAC_METHOD void each(Body body) const
    {
        each_beside(*this, [&](int j, auto pack, auto) { body(j, pack); });
    }

    /* body(j, elements of this row, those of another that lies alike) */
    template <class Body>
    PTAC_METHOD void each_beside(const ptac_kept_row &other, Body body) const
    {
        const int t = thread_of_row<n_threads>();

        for (int k = 0; k < n_packs; k++) {
            const int j = span.head + (k * n_threads + t) * size;

            if (j < span.end)
                body(j, packs[k], other.packs[k]);
        }
        if (t < span.head && t < n)
            body(t, before, other.before);
        if (span.end + t < n)
            body(span.end + t, behind, other.behind);
    }
};

template <class T, int n_threads> struct ptac_kept_row<T, n_threads, 0> {
    ptac_input<T> x;
    ptac_i64 begin;
    int n;
    bool has_packs;

    PTAC_METHOD void read(ptac_input<T> from, ptac_i64 at, int width, bool are_packs)
    {
        x = from;
        begin = at;
        n = width;
        has_packs = are_packs;
    }

    template <class Body> PTAC_METHOD void each(Body body) const
    {
        for_row<n_threads>(x, begin, n, has_packs, body);
    }

    template <class Body>
    PTAC_METHOD void each_beside(const ptac_kept_row &other, Body body) const
    {
        each([&](int j, auto pack) {
            constexpr int n_here = sizeof pack.at / sizeof *pack.at;

            body(j, pack, other.x.template pack<n_here>(begin + j));
        });
    }
};

/* Elements of a pack. */
template <class T, int n> PTAC_DEVICE constexpr int n_of(const ptac_pack<T, n> &)
{
    return n;
}

/* A sum alone. */
struct plain_sum {
    float sum;
};

PTAC_DEVICE plain_sum joined(plain_sum a, plain_sum b)
{
    return {a.sum + b.sum};
}

PTAC_DEVICE plain_sum shuffled(plain_sum x, int step)
{
    return {shuffled(x.sum, step)};
}

/*
 * The kernels of an operator, n_packs packs of a thread at most in registers: rows kept
 * by a warp or a block, and rows that are read again.
 */
#define PTAC_SOFTMAX_KERNELS(K, suffix, T, n_packs)                                    \
    K(kept_32, suffix, T, PTAC_WARP, n_packs)                                          \
    K(kept_256, suffix, T, 256, n_packs)                                               \
    K(kept_1024, suffix, T, 1024, n_packs)                                             \
    K(again_32, suffix, T, PTAC_WARP, 0)                                               \
    K(again_1024, suffix, T, 1024, 0)

#define PTAC_SOFTMAX_BLOCK(n_threads)                                                  \
    ((n_threads) > PTAC_WARP ? (int)(n_threads) : (int)PTAC_SOFTMAX_THREADS)

#endif
