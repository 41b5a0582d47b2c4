/*
 * max_pool2d.cu - max pooling with indices and its gradient, on CUDA. Bits are stock's.
 *
 * A thread has one output, or one input of the gradient, at a time, or in NHWC those of
 * as many channels as 16 bytes hold; neighbours in memory are neighbours in a warp.
 */
#include "device/cuda/kernel.h"
#include "ops/pool/pool_kernel.h"

enum {
    BLOCKS = 4, /* on a multiprocessor: with more, registers are spilled */
};

template <int n>
PTAC_DEVICE void put_all(ptac_output<ptac_i64> y, int i, const int *from)
{
    constexpr int size = n > 1 ? PTAC_PACK_BYTES / sizeof(ptac_i64) : 1;

    for (int k = 0; k < n; k += size) {
        ptac_pack<ptac_i64, size> pack;

        for (int j = 0; j < size; j++)
            pack.at[j] = from[k + j];
        y.template put<size>(i + k, pack);
    }
}

template <int n, class T>
PTAC_DEVICE void forward(ptac_input<T> x, ptac_output<T> y,
                         ptac_output<ptac_i64> indices, const ptac_cuda_pool &p)
{
    const int step = ptac_pool_step(p);
    const int height = (int)p.height.by, width = (int)p.width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.n_outputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at = ptac_pool_place(p, i, p.out_height, p.out_width,
                                                     (ptac_u32)(height * width));
        const int row = at.row * (int)p.h.stride.by - p.h.padding;
        const int column = at.column * (int)p.w.stride.by - p.w.padding;
        int best[n];
        ptac_pack<T, n> most = {};

        for (int k = 0; k < n; k++)
            best[k] = -1;
        for (int h = 0; h < p.h.kernel; h++) {
            const int from = row + h * p.h.dilation;

            if (from < 0 || from >= height)
                continue;
            for (int w = 0; w < p.w.kernel; w++) {
                const int to = column + w * p.w.dilation, place = from * width + to;

                if (to < 0 || to >= width)
                    continue;

                const ptac_pack<T, n> taps =
                    x.template pack<n>(at.plane + place * step);

                for (int k = 0; k < n; k++) {
                    const auto tap = ptac_real(taps.at[k]);

                    if (best[k] < 0 || tap > ptac_real(most.at[k]) || tap != tap) {
                        best[k] = place;
                        most.at[k] = taps.at[k];
                    }
                }
            }
        }
        y.template put<n>(i, most);
        put_all<n>(indices, (int)i, best);
    }
}

/* Which of n outputs from i on chose a place, a bit each. */
template <int n>
PTAC_DEVICE ptac_u32 chosen_by(ptac_input<ptac_i64> indices, int i, int place)
{
    constexpr int size = n > 1 ? PTAC_PACK_BYTES / sizeof(ptac_i64) : 1;
    ptac_u32 chosen = 0;

    for (int k = 0; k < n; k += size) {
        const ptac_pack<ptac_i64, size> pack = indices.template pack<size>(i + k);

        for (int j = 0; j < size; j++)
            chosen |= (ptac_u32)(pack.at[j] == place) << (k + j);
    }
    return chosen;
}

template <int n, class T>
PTAC_DEVICE void backward(ptac_input<T> grad_y, ptac_input<ptac_i64> indices,
                          ptac_output<T> grad_x, const ptac_cuda_pool &p)
{
    using real = decltype(ptac_real(T()));
    const int step = ptac_pool_step(p);
    const int out_height = (int)p.out_height.by, out_width = (int)p.out_width.by;

    for (ptac_u32 i = n * (ptac_u32)ptac_thread(); i < (ptac_u32)p.n_inputs;
         i += n * (ptac_u32)ptac_n_threads()) {
        const ptac_pool_element at = ptac_pool_place(
            p, i, p.height, p.width, (ptac_u32)(out_height * out_width));
        const int place = at.row * (int)p.width.by + at.column;
        const int rows = ptac_last_output(p.h, at.row, out_height);
        const int first = ptac_first_output(p.w, at.column);
        const int columns = ptac_last_output(p.w, at.column, out_width);
        real sum[n] = {}; /* as stock, also of 16 bits */
        ptac_pack<T, n> result;

        for (int row = ptac_first_output(p.h, at.row); row < rows; row++) {
            for (int column = first; column < columns; column++) {
                const int from = at.plane + (row * out_width + column) * step;
                const ptac_u32 chosen = chosen_by<n>(indices, from, place);

                if (!chosen)
                    continue;

                const ptac_pack<T, n> grads = grad_y.template pack<n>(from);

                for (int k = 0; k < n; k++)
                    if (chosen >> k & 1)
                        sum[k] += ptac_real(grads.at[k]);
            }
        }
        for (int k = 0; k < n; k++)
            result.at[k] = ptac_from<T>(sum[k]);
        grad_x.template put<n>(i, result);
    }
}

#define WAYS(name, suffix, T, n)                                                       \
    PTAC_KERNEL_BESIDE(max_pool2d##name##_##suffix, PTAC_POOL_THREADS, BLOCKS,         \
                       ptac_input<T> x, ptac_output<T> y,                              \
                       ptac_output<ptac_i64> indices, ptac_cuda_pool p)                \
    {                                                                                  \
        forward<n>(x, y, indices, p);                                                  \
    }                                                                                  \
    PTAC_KERNEL_BESIDE(max_pool2d_backward##name##_##suffix, PTAC_POOL_THREADS,        \
                       BLOCKS, ptac_input<T> grad_y, ptac_input<ptac_i64> indices,     \
                       ptac_output<T> grad_x, ptac_cuda_pool p)                        \
    {                                                                                  \
        backward<n>(grad_y, indices, grad_x, p);                                       \
    }

#define KERNELS(suffix, T)                                                             \
    WAYS(, suffix, T, 1)                                                               \
    WAYS(_packs, suffix, T, PTAC_PACK_BYTES / sizeof(T))

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
