/*
 * relu_max_pool2d.cu - max pooling of ReLU(x) and its gradient, on CUDA. Bits are those
 * of stock's two kernels.
 *
 * A thread has one output, or one input of the gradient, at a time, or in NHWC those of
 * as many channels as 16 bytes hold; neighbours in memory are neighbours in a warp.
 */
#include "device/cuda/kernel.h"
#include "ops/pool/pool_kernel.h"
#include "ops/pool/relu_max/relu_max_pool2d_cuda.h"

enum {
    BLOCKS = 4, /* on a multiprocessor */
};

typedef unsigned char byte;

/* taps may be without data. */
template <int n, class T>
PTAC_DEVICE void forward(ptac_input<T> x, ptac_output<T> y, ptac_output<byte> taps,
                         const ptac_cuda_pool &p)
{
    const int step = ptac_pool_step(p);
    const int height = (int)p.height.by, width = (int)p.width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.n_outputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at = ptac_pool_place(p, i, p.out_height, p.out_width,
                                                     (ptac_u32)(height * width));
        const int row = at.row * (int)p.h.stride.by - p.h.padding;
        const int column = at.column * (int)p.w.stride.by - p.w.padding;
        ptac_pack<byte, n> chosen;
        ptac_pack<T, n> most = {}; /* what ReLU leaves at least */

        for (int k = 0; k < n; k++)
            chosen.at[k] = PTAC_POOL_NO_TAP;
        for (int h = 0; h < p.h.kernel; h++) {
            const int from = row + h * p.h.dilation;

            if (from < 0 || from >= height)
                continue;
            for (int w = 0; w < p.w.kernel; w++) {
                const int to = column + w * p.w.dilation;

                if (to < 0 || to >= width)
                    continue;

                const ptac_pack<T, n> values =
                    x.template pack<n>(at.plane + (from * width + to) * step);

                for (int k = 0; k < n; k++) {
                    const auto value = ptac_real(values.at[k]);

                    if (value > ptac_real(most.at[k]) || value != value) {
                        chosen.at[k] = (byte)(h * p.w.kernel + w);
                        most.at[k] = values.at[k];
                    }
                }
            }
        }
        y.template put<n>(i, most);
        if (taps.data)
            taps.template put<n>(i, chosen);
    }
}

/* The tap of an axis that lies so far behind its window's begin; -1: between two. */
PTAC_DEVICE int tap_at(int distance, const ptac_divisor &dilation)
{
    const int tap = (int)ptac_quotient((ptac_u32)distance, dilation);

    return tap * (int)dilation.by == distance ? tap : -1;
}

template <int n, class T>
PTAC_DEVICE void backward(ptac_input<T> grad_y, ptac_input<byte> taps,
                          ptac_output<T> grad_x, const ptac_cuda_relu_pool &of)
{
    using real = decltype(ptac_real(T()));
    const ptac_cuda_pool &p = of.pool;
    const int step = ptac_pool_step(p);
    const int out_height = (int)p.out_height.by, out_width = (int)p.out_width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.n_inputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at = ptac_pool_place(
            p, i, p.height, p.width, (ptac_u32)(out_height * out_width));
        const int rows = ptac_last_output(p.h, at.row, out_height);
        const int first = ptac_first_output(p.w, at.column);
        const int columns = ptac_last_output(p.w, at.column, out_width);
        real sum[n] = {}; /* as stock, also of 16 bits */
        ptac_pack<T, n> result;

        for (int row = ptac_first_output(p.h, at.row); row < rows; row++) {
            const int h =
                tap_at(at.row + p.h.padding - row * (int)p.h.stride.by, of.dilation_h);

            if (h < 0)
                continue;
            for (int column = first; column < columns; column++) {
                const int w =
                    tap_at(at.column + p.w.padding - column * (int)p.w.stride.by,
                           of.dilation_w);
                const int from = at.plane + (row * out_width + column) * step;

                if (w < 0)
                    continue;

                const ptac_pack<byte, n> chosen = taps.template pack<n>(from);
                ptac_u32 is_here = 0;

                for (int k = 0; k < n; k++)
                    is_here |= (ptac_u32)(chosen.at[k] == h * p.w.kernel + w) << k;
                if (!is_here)
                    continue;

                const ptac_pack<T, n> grads = grad_y.template pack<n>(from);

                for (int k = 0; k < n; k++)
                    if (is_here >> k & 1)
                        sum[k] += ptac_real(grads.at[k]);
            }
        }
        for (int k = 0; k < n; k++)
            result.at[k] = ptac_from<T>(sum[k]);
        grad_x.template put<n>(i, result);
    }
}

#define WAYS(name, suffix, T, n)                                                       \
    PTAC_KERNEL_BESIDE(relu_max_pool2d##name##_##suffix, PTAC_POOL_THREADS, BLOCKS,    \
                       ptac_input<T> x, ptac_output<T> y, ptac_output<byte> taps,      \
                       ptac_cuda_relu_pool p)                                          \
    {                                                                                  \
        forward<n>(x, y, taps, p.pool);                                                \
    }                                                                                  \
    PTAC_KERNEL_BESIDE(relu_max_pool2d_backward##name##_##suffix, PTAC_POOL_THREADS,   \
                       BLOCKS, ptac_input<T> grad_y, ptac_input<byte> taps,            \
                       ptac_output<T> grad_x, ptac_cuda_relu_pool p)                   \
    {                                                                                  \
        backward<n>(grad_y, taps, grad_x, p);                                          \
    }

#define KERNELS(suffix, T)                                                             \
    WAYS(, suffix, T, 1)                                                               \
    WAYS(_packs, suffix, T, PTAC_PACK_BYTES / sizeof(T))

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
