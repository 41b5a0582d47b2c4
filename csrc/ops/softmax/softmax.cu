/*
 * softmax.cu - softmax over the last dimension and its gradient, on CUDA.
 *
 * Rows are read once as far as registers hold them, see softmax_rows.h.
 */
#include "ops/softmax/softmax_rows.h"

template <int n_threads, int n_packs, class T>
PTAC_DEVICE void forward(ptac_input<T> x, ptac_output<T> y, ptac_i64 n_rows, int n,
                         bool has_packs)
{
    const ptac_i64 row = row_of_threads<n_threads>(), begin = row * n;
    ptac_kept_row<T, n_threads, n_packs> kept;
    normalizer whole = {-PTAC_INFINITY, 0.0f};

    if (row >= n_rows)
        return;
    kept.read(x, begin, n, has_packs);
    kept.each([&](int, auto pack) { whole = joined(whole, pack); });
    whole = joined_in_row<n_threads>(whole);

    const float r = reference(whole.maximum), share = 1.0f / whole.sum;

    kept.each([&](int j, auto pack) {
        for (int k = 0; k < n_of(pack); k++)
            pack.at[k] = ptac_from<T>(exp_less(ptac_real(pack.at[k]), r) * share);
        y.put(begin + j, pack);
    });
}

/* Both rows are kept, and so half as much of each. */
template <int n_threads, int n_packs, class T>
PTAC_DEVICE void backward(ptac_input<T> grad, ptac_input<T> y, ptac_output<T> out,
                          ptac_i64 n_rows, int n, bool has_packs)
{
    const ptac_i64 row = row_of_threads<n_threads>(), begin = row * n;
    ptac_kept_row<T, n_threads, n_packs> grads, kept;
    plain_sum whole = {0.0f};

    if (row >= n_rows)
        return;
    grads.read(grad, begin, n, has_packs);
    kept.read(y, begin, n, has_packs);
    kept.each_beside(grads, [&](int, auto of_y, auto pack) {
        for (int k = 0; k < n_of(pack); k++)
            whole.sum += ptac_real(of_y.at[k]) * ptac_real(pack.at[k]);
    });
    whole = joined_in_row<n_threads>(whole);
    kept.each_beside(grads, [&](int j, auto of_y, auto pack) {
        for (int k = 0; k < n_of(pack); k++)
            pack.at[k] = ptac_from<T>(ptac_real(of_y.at[k]) *
                                      (ptac_real(pack.at[k]) - whole.sum));
        out.put(begin + j, pack);
    });
}

#define FORWARD(name, suffix, T, n_threads, n_packs)                                   \
    PTAC_KERNEL(softmax_##name##_##suffix, PTAC_SOFTMAX_BLOCK(n_threads),              \
                ptac_input<T> x, ptac_output<T> y, ptac_i64 n_rows, int n,             \
                int has_packs)                                                         \
    {                                                                                  \
        forward<n_threads, n_packs>(x, y, n_rows, n, has_packs);                       \
    }

#define BACKWARD(name, suffix, T, n_threads, n_packs)                                  \
    PTAC_KERNEL_BESIDE(softmax_backward_##name##_##suffix,                             \
                       PTAC_SOFTMAX_BLOCK(n_threads), 1, ptac_input<T> grad,           \
                       ptac_input<T> y, ptac_output<T> out, ptac_i64 n_rows, int n,    \
                       int has_packs)                                                  \
    {                                                                                  \
        backward<n_threads, n_packs>(grad, y, out, n_rows, n, has_packs);              \
    }

#define KERNELS(suffix, T)                                                             \
    PTAC_SOFTMAX_KERNELS(FORWARD, suffix, T, PTAC_SOFTMAX_PACKS)                       \
    PTAC_SOFTMAX_KERNELS(BACKWARD, suffix, T, PTAC_SOFTMAX_PACKS / 2)

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
