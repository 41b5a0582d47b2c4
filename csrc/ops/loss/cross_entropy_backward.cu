/*
 * cross_entropy_backward.cu - the gradient of cross-entropy, on CUDA: logits are read
 * and their gradients written once, over the logits where the caller wants that.
 */
#include "ops/loss/cross_entropy_rows.h"

template <int n_threads, bool is_soft, class T>
PTAC_DEVICE void backward(ptac_input<T> x, const operands<T> &o, ptac_input<T> grad,
                          ptac_input<float> saved, ptac_output<T> grad_x,
                          const ptac_cuda_cross_entropy &p)
{
    const ptac_i64 row = row_of_threads<n_threads>(), begin = row * p.n_classes;
    float g = 0.0f, maximum = 0.0f, log_sum = 0.0f, total = 0.0f, at_index = 0.0f;
    int index = -1;

    if (row >= p.n_rows)
        return;
    if (threadIdx.x % PTAC_WARP == 0) {
        const class_of_row c = read_class(o, p, row);

        index = (int)c.index;
        at_index = c.at_index;
        maximum = saved[row];
        log_sum = saved[p.n_rows + row];
        total = saved[2 * p.n_rows + row];
        if (!c.is_ignored)
            g = operand_at(grad, p.loss, p.is_reduced ? 0 : row) / saved[3 * p.n_rows];
    }
    index = of_first_lane(index);
    maximum = of_first_lane(maximum);
    log_sum = of_first_lane(log_sum);
    g = of_first_lane(g);
    total = g * of_first_lane(total);
    at_index = g * of_first_lane(at_index);
    for_row<n_threads>(x, begin, p.n_classes, p.has_packs, [&](int j, auto pack) {
        constexpr int n = sizeof pack.at / sizeof *pack.at;

        for (int k = 0; k < n; k++) {
            float of_class = exp_less(ptac_real(pack.at[k]) - maximum, log_sum) * total;

            if (is_soft)
                of_class -= g * factor(o, p, begin + j + k, j + k);
            if (j + k == index)
                of_class -= at_index;
            pack.at[k] = ptac_from<T>(of_class);
        }
        grad_x.template put<n>(begin + j, pack);
    });
}

#define ROWS(name, suffix, T, n_threads, is_soft)                                      \
    PTAC_KERNEL(cross_entropy_backward_##name##_##suffix, PTAC_SOFTMAX_THREADS,        \
                ptac_input<T> x, ptac_input<T> target, ptac_input<T> weight,           \
                ptac_input<T> grad, ptac_input<float> saved, ptac_output<T> grad_x,    \
                ptac_cuda_cross_entropy p)                                             \
    {                                                                                  \
        backward<n_threads, is_soft, T>(x, {target, weight}, grad, saved, grad_x, p);  \
    }

PTAC_CROSS_ENTROPY_KERNELS(ROWS, f32, float)
PTAC_CROSS_ENTROPY_KERNELS(ROWS, f16, ptac_half)
PTAC_CROSS_ENTROPY_KERNELS(ROWS, bf16, ptac_bfloat16)
