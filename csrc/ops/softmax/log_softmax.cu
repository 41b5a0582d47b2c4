/*
 * log_softmax.cu - log-softmax over the last dimension and its gradient, on CUDA.
 *
 * Short rows: a warp has a row, whose elements stay in registers, so that memory is
 * read once. Long rows: a block has a row, reads it for its maximum and sum at once
 * (after Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018),
 * and again for the result, from the cache where the row is not enormous.
 */
#include "device/cuda/kernel.h"
#include "ops/softmax/softmax_cuda.h"

enum {
    WARPS = PTAC_SOFTMAX_THREADS / PTAC_WARP,
    EACH = PTAC_SOFTMAX_SHORT / PTAC_WARP, /* elements of a short row in a lane */
};

/* A maximum, and the sum of exp(x - maximum). */
struct normalizer {
    float maximum, sum;
};

PTAC_DEVICE float larger(float a, float b)
{
    return a > b || a != a ? a : b; /* NaN is larger than all */
}

/* The sum beside another maximum, which is not less. */
PTAC_DEVICE float sum_beside(normalizer n, float maximum)
{
    if (n.maximum == -PTAC_INFINITY) /* less itself it is no number */
        return maximum == -PTAC_INFINITY ? n.sum : 0.0f;
    return n.sum * expf(n.maximum - maximum);
}

PTAC_DEVICE normalizer joined(normalizer a, normalizer b)
{
    const float maximum = larger(a.maximum, b.maximum);

    return {maximum, sum_beside(a, maximum) + sum_beside(b, maximum)};
}

PTAC_DEVICE normalizer joined_in_warp(normalizer n)
{
    for (int step = PTAC_WARP / 2; step > 0; step /= 2)
        n = joined(n, {__shfl_xor_sync(0xffffffffu, n.maximum, step),
                       __shfl_xor_sync(0xffffffffu, n.sum, step)});
    return n;
}

/* The row of this warp, or -1; rows are dealt to warps one after another. */
PTAC_DEVICE ptac_i64 row_of_warp(ptac_i64 n_rows)
{
    const ptac_i64 row = (ptac_i64)blockIdx.x * WARPS + threadIdx.x / PTAC_WARP;

    return row < n_rows ? row : -1;
}

/* --- rows in registers --- */

template <class T>
PTAC_DEVICE void forward_short(ptac_input<T> x, ptac_output<T> y, ptac_i64 n_rows,
                               int n)
{
    const ptac_i64 row = row_of_warp(n_rows);
    const int lane = (int)threadIdx.x % PTAC_WARP;
    float values[EACH], maximum = -PTAC_INFINITY, sum = 0.0f;

    if (row < 0)
        return;
    for (int k = 0; k < EACH; k++) {
        const int i = k * PTAC_WARP + lane;

        values[k] = i < n ? ptac_real(x[row * n + i]) : -PTAC_INFINITY;
        maximum = larger(values[k], maximum);
    }
    maximum = ptac_warp_max(maximum);
    for (int k = 0; k < EACH; k++)
        if (k * PTAC_WARP + lane < n)
            sum += expf(values[k] - maximum);

    const float log_of_sum = logf(ptac_warp_sum(sum));

    for (int k = 0; k < EACH; k++) {
        const int i = k * PTAC_WARP + lane;

        if (i < n)
            y.put(row * n + i, ptac_from<T>(values[k] - maximum - log_of_sum));
    }
}

template <class T>
PTAC_DEVICE void backward_short(ptac_input<T> grad, ptac_input<T> y, ptac_output<T> out,
                                ptac_i64 n_rows, int n)
{
    const ptac_i64 row = row_of_warp(n_rows);
    const int lane = (int)threadIdx.x % PTAC_WARP;
    float grads[EACH], sum = 0.0f;

    if (row < 0)
        return;
    for (int k = 0; k < EACH; k++) {
        const int i = k * PTAC_WARP + lane;

        grads[k] = i < n ? ptac_real(grad[row * n + i]) : 0.0f;
        sum += grads[k];
    }
    sum = ptac_warp_sum(sum);
    for (int k = 0; k < EACH; k++) {
        const int i = k * PTAC_WARP + lane;

        if (i < n)
            out.put(row * n + i,
                    ptac_from<T>(grads[k] - expf(ptac_real(y[row * n + i])) * sum));
    }
}

/* --- rows in memory --- */

/* What all warps of a block have, joined in the order of the warps. */
PTAC_DEVICE normalizer joined_in_block(normalizer n)
{
    PTAC_SHARED(normalizer, of_warp, WARPS);
    const int warp = (int)threadIdx.x / PTAC_WARP;

    n = joined_in_warp(n);
    if (threadIdx.x % PTAC_WARP == 0)
        of_warp[warp] = n;
    __syncthreads();
    n = of_warp[0];
    for (int i = 1; i < WARPS; i++)
        n = joined(n, of_warp[i]);
    return n;
}

template <class T>
PTAC_DEVICE void forward_long(ptac_input<T> x, ptac_output<T> y, ptac_i64 n)
{
    const ptac_i64 row = (ptac_i64)blockIdx.x * n;
    normalizer whole = {-PTAC_INFINITY, 0.0f};

    for (ptac_i64 i = threadIdx.x; i < n; i += PTAC_SOFTMAX_THREADS)
        whole = joined(whole, {ptac_real(x[row + i]), 1.0f});
    whole = joined_in_block(whole);

    const float log_of_sum = logf(whole.sum);

    for (ptac_i64 i = threadIdx.x; i < n; i += PTAC_SOFTMAX_THREADS)
        y.put(row + i,
              ptac_from<T>(ptac_real(x[row + i]) - whole.maximum - log_of_sum));
}

template <class T>
PTAC_DEVICE void backward_long(ptac_input<T> grad, ptac_input<T> y, ptac_output<T> out,
                               ptac_i64 n)
{
    PTAC_SHARED(float, of_warp, WARPS);
    const ptac_i64 row = (ptac_i64)blockIdx.x * n;
    float sum = 0.0f;

    for (ptac_i64 i = threadIdx.x; i < n; i += PTAC_SOFTMAX_THREADS)
        sum += ptac_real(grad[row + i]);
    sum = ptac_warp_sum(sum);
    if (threadIdx.x % PTAC_WARP == 0)
        of_warp[threadIdx.x / PTAC_WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        sum += of_warp[i];
    for (ptac_i64 i = threadIdx.x; i < n; i += PTAC_SOFTMAX_THREADS)
        out.put(row + i, ptac_from<T>(ptac_real(grad[row + i]) -
                                      expf(ptac_real(y[row + i])) * sum));
}

#define KERNELS(suffix, T)                                                             \
    PTAC_KERNEL(log_softmax_short_##suffix, PTAC_SOFTMAX_THREADS, ptac_input<T> x,     \
                ptac_output<T> y, ptac_i64 n_rows, int n)                              \
    {                                                                                  \
        forward_short(x, y, n_rows, n);                                                \
    }                                                                                  \
    PTAC_KERNEL(log_softmax_backward_short_##suffix, PTAC_SOFTMAX_THREADS,             \
                ptac_input<T> grad, ptac_input<T> y, ptac_output<T> out,               \
                ptac_i64 n_rows, int n)                                                \
    {                                                                                  \
        backward_short(grad, y, out, n_rows, n);                                       \
    }                                                                                  \
    PTAC_KERNEL(log_softmax_long_##suffix, PTAC_SOFTMAX_THREADS, ptac_input<T> x,      \
                ptac_output<T> y, ptac_i64 n)                                          \
    {                                                                                  \
        forward_long(x, y, n);                                                         \
    }                                                                                  \
    PTAC_KERNEL(log_softmax_backward_long_##suffix, PTAC_SOFTMAX_THREADS,              \
                ptac_input<T> grad, ptac_input<T> y, ptac_output<T> out, ptac_i64 n)   \
    {                                                                                  \
        backward_long(grad, y, out, n);                                                \
    }

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
