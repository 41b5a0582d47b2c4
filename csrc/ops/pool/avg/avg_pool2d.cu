/*
 * avg_pool2d.cu - average pooling, with given windows or adaptive, and its gradient, on
 * CUDA. avg_pool2d.h has the arithmetic, which is that of ATen's kernels there.
 *
 * A thread has one output, or one input of the gradient, at a time, or in NHWC those of
 * as many channels as 16 bytes hold; neighbours in memory are neighbours in a warp.
 */
#include "device/cuda/kernel.h"
#include "ops/pool/avg/avg_pool2d_cuda.h"
#include "ops/pool/pool_kernel.h"

enum {
    BLOCKS = 4, /* on a multiprocessor */
};

/* Positions, or outputs, [begin, end) of one axis. */
struct range {
    int begin, end;
};

/* A window, and how many positions it has with its padding. */
struct extent {
    range in_image;
    int n_padded;
};

/* The part i of n that a size is divided into, where they may overlap. */
PTAC_DEVICE range part_of(int i, int size, const ptac_divisor &n)
{
    const ptac_u32 begin = (ptac_u32)i * (ptac_u32)size;

    return {(int)ptac_quotient(begin, n),
            (int)ptac_quotient(begin + (ptac_u32)size - 1, n) + 1};
}

PTAC_DEVICE extent window_of(const ptac_cuda_avg_pool &p, const ptac_cuda_window &axis,
                             int output, int size, const ptac_divisor &n_outputs)
{
    if (!p.is_regular) {
        const range part = part_of(output, size, n_outputs);

        return {part, part.end - part.begin};
    }

    const int begin = output * (int)axis.stride.by - axis.padding;
    const int padded = size + axis.padding, full = begin + axis.kernel;
    const int end = full < padded ? full : padded;

    return {{begin > 0 ? begin : 0, end < size ? end : size}, end - begin};
}

PTAC_DEVICE extent rows_of(const ptac_cuda_avg_pool &p, int output)
{
    return window_of(p, p.pool.h, output, (int)p.pool.height.by, p.pool.out_height);
}

PTAC_DEVICE extent columns_of(const ptac_cuda_avg_pool &p, int output)
{
    return window_of(p, p.pool.w, output, (int)p.pool.width.by, p.pool.out_width);
}

/* The outputs of one axis whose windows have a position. */
PTAC_DEVICE range outputs_over(const ptac_cuda_avg_pool &p,
                               const ptac_cuda_window &axis, int position,
                               const ptac_divisor &size, int n_outputs)
{
    return p.is_regular ? range{ptac_first_output(axis, position),
                                ptac_last_output(axis, position, n_outputs)}
                        : part_of(position, n_outputs, size);
}

/* How many positions of an axis a divisor counts. */
PTAC_DEVICE int counted(const ptac_cuda_avg_pool &p, const extent &axis)
{
    return p.count_include_pad ? axis.n_padded
                               : axis.in_image.end - axis.in_image.begin;
}

/* What the type makes of a number in arithmetic of its own. */
template <class T, class R> PTAC_DEVICE R rounded(R x)
{
    return ptac_real(ptac_from<T>(x));
}

PTAC_DEVICE bool multiplies(const ptac_cuda_avg_pool &p)
{
    return p.is_adaptive && p.pool.channels_last;
}

template <int n, class T>
PTAC_DEVICE void forward(ptac_input<T> x, ptac_output<T> y, const ptac_cuda_avg_pool &p)
{
    using real = decltype(ptac_real(T()));
    const int step = ptac_pool_step(p.pool), width = (int)p.pool.width.by;
    const ptac_u32 n_pixels = p.pool.height.by * p.pool.width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.pool.n_outputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at =
            ptac_pool_place(p.pool, i, p.pool.out_height, p.pool.out_width, n_pixels);
        const extent rows = rows_of(p, at.row), columns = columns_of(p, at.column);
        const int n_rows = counted(p, rows), n_columns = counted(p, columns);
        real sum[n] = {};
        ptac_pack<T, n> means;

        for (int row = rows.in_image.begin; row < rows.in_image.end; row++) {
            for (int column = columns.in_image.begin; column < columns.in_image.end;
                 column++) {
                const ptac_pack<T, n> taps =
                    x.template pack<n>(at.plane + (row * width + column) * step);

                for (int k = 0; k < n; k++)
                    sum[k] += ptac_real(taps.at[k]);
            }
        }
        if (multiplies(p)) {
            const real factor = rounded<T>(1 / rounded<T>((real)(n_rows * n_columns)));

            for (int k = 0; k < n; k++)
                means.at[k] = ptac_from<T>(sum[k] * factor);
        } else if (p.is_adaptive) {
            for (int k = 0; k < n; k++)
                means.at[k] = ptac_from<T>(sum[k] / (real)n_rows / (real)n_columns);
        } else {
            const real by = (real)(p.divisor ? p.divisor : n_rows * n_columns);

            for (int k = 0; k < n; k++)
                means.at[k] = ptac_from<T>(sum[k] / by);
        }
        y.template put<n>(i, means);
    }
}

PTAC_DEVICE float fused(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

PTAC_DEVICE double fused(double a, double b, double c)
{
    return fma(a, b, c);
}

/* Add what one output's gradients give to each position of its window. */
template <int n, class T, class R>
PTAC_DEVICE void add_shares(const ptac_cuda_avg_pool &p, int n_rows, int n_columns,
                            const ptac_pack<T, n> &grads, R *sum)
{
    if (multiplies(p)) {
        const R factor = rounded<T>(rounded<T>(1 / rounded<T>((R)n_columns)) *
                                    rounded<T>(1 / rounded<T>((R)n_rows)));

        for (int k = 0; k < n; k++)
            sum[k] = fused(ptac_real(grads.at[k]), factor, sum[k]);
    } else if (p.is_adaptive) {
        const R first = rounded<T>((R)n_columns), second = rounded<T>((R)n_rows);

        for (int k = 0; k < n; k++)
            sum[k] += rounded<T>(rounded<T>(ptac_real(grads.at[k]) / first) / second);
    } else {
        const R by = rounded<T>((R)(p.divisor ? p.divisor : n_rows * n_columns));

        for (int k = 0; k < n; k++)
            sum[k] += rounded<T>(ptac_real(grads.at[k]) / by);
    }
}

template <int n, class T>
PTAC_DEVICE void backward(ptac_input<T> grad_y, ptac_output<T> grad_x,
                          const ptac_cuda_avg_pool &p)
{
    using real = decltype(ptac_real(T()));
    const int step = ptac_pool_step(p.pool);
    const int out_height = (int)p.pool.out_height.by,
              out_width = (int)p.pool.out_width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.pool.n_inputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at = ptac_pool_place(
            p.pool, i, p.pool.height, p.pool.width, (ptac_u32)(out_height * out_width));
        const range rows = outputs_over(p, p.pool.h, at.row, p.pool.height, out_height);
        const range columns =
            outputs_over(p, p.pool.w, at.column, p.pool.width, out_width);
        real sum[n] = {};
        ptac_pack<T, n> result;

        for (int row = rows.begin; row < rows.end; row++) {
            const int n_rows = counted(p, rows_of(p, row));

            for (int column = columns.begin; column < columns.end; column++)
                add_shares<n>(p, n_rows, counted(p, columns_of(p, column)),
                              grad_y.template pack<n>(
                                  at.plane + (row * out_width + column) * step),
                              sum);
        }
        for (int k = 0; k < n; k++)
            result.at[k] = ptac_from<T>(sum[k]);
        grad_x.template put<n>(i, result);
    }
}

#define WAYS(name, suffix, T, n)                                                       \
    PTAC_KERNEL_BESIDE(avg_pool2d##name##_##suffix, PTAC_POOL_THREADS, BLOCKS,         \
                       ptac_input<T> x, ptac_output<T> y, ptac_cuda_avg_pool p)        \
    {                                                                                  \
        forward<n>(x, y, p);                                                           \
    }                                                                                  \
    PTAC_KERNEL_BESIDE(avg_pool2d_backward##name##_##suffix, PTAC_POOL_THREADS,        \
                       BLOCKS, ptac_input<T> grad_y, ptac_output<T> grad_x,            \
                       ptac_cuda_avg_pool p)                                           \
    {                                                                                  \
        backward<n>(grad_y, grad_x, p);                                                \
    }

#define KERNELS(suffix, T)                                                             \
    WAYS(, suffix, T, 1)                                                               \
    WAYS(_packs, suffix, T, PTAC_PACK_BYTES / sizeof(T))

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
