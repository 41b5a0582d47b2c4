/*
 * cross_entropy.cu - cross-entropy of logits, on CUDA.
 *
 * The logits are read once, each row by a warp or a block, and three numbers of each
 * row are kept for the gradient. Losses are added up in double, in an order that their
 * number alone decides.
 */
#include "ops/loss/cross_entropy_rows.h"

enum {
    PARTS = 128, /* PTAC_CROSS_ENTROPY_PARTS */
};

/* Of a row: sums of exp(x - reference), of u * (x - reference), and of u. */
struct soft_sums {
    normalizer exponentials;
    float weighted, factors;
};

/* The weighted sum beside another maximum. */
PTAC_DEVICE float weighted_beside(const soft_sums &s, float maximum)
{
    return s.weighted +
           s.factors * (reference(s.exponentials.maximum) - reference(maximum));
}

PTAC_DEVICE soft_sums joined(const soft_sums &a, const soft_sums &b)
{
    const normalizer both = joined(a.exponentials, b.exponentials);

    return {both, weighted_beside(a, both.maximum) + weighted_beside(b, both.maximum),
            a.factors + b.factors};
}

PTAC_DEVICE soft_sums shuffled(const soft_sums &s, int step)
{
    return {shuffled(s.exponentials, step), shuffled(s.weighted, step),
            shuffled(s.factors, step)};
}

template <int n_threads, class T>
PTAC_DEVICE soft_sums sum_plain(ptac_input<T> x, const ptac_cuda_cross_entropy &p,
                                ptac_i64 begin)
{
    normalizer sums = {-PTAC_INFINITY, 0.0f};

    for_row<n_threads>(x, begin, p.n_classes, true,
                       [&](int, auto pack) { sums = joined(sums, pack); });
    return {joined_in_row<n_threads>(sums), 0.0f, 0.0f};
}

template <int n_threads, class T>
PTAC_DEVICE soft_sums sum_soft(ptac_input<T> x, const operands<T> &o,
                               const ptac_cuda_cross_entropy &p, ptac_i64 begin)
{
    soft_sums sums = {{-PTAC_INFINITY, 0.0f}, 0.0f, 0.0f};

    for_row<n_threads>(x, begin, p.n_classes, true, [&](int j, auto pack) {
        const normalizer both = joined(sums.exponentials, pack);
        const float r = reference(both.maximum);

        sums.weighted = weighted_beside(sums, both.maximum);
        sums.exponentials = both;
        for (int k = 0; k < (int)(sizeof pack.at / sizeof *pack.at); k++) {
            const float u = factor(o, p, begin + j + k, j + k);

            sums.weighted += u * (ptac_real(pack.at[k]) - r);
            sums.factors += u;
        }
    });
    return joined_in_row<n_threads>(sums);
}

/* The row's loss, and what is saved of it, by one thread. */
template <class T>
PTAC_DEVICE void finish_row(ptac_input<T> x, const operands<T> &o, ptac_output<T> loss,
                            ptac_output<float> saved, ptac_output<float> work,
                            const ptac_cuda_cross_entropy &p, ptac_i64 row,
                            const soft_sums &sums, bool is_soft)
{
    const class_of_row c = read_class(o, p, row);
    const float maximum = sums.exponentials.maximum, r = reference(maximum);
    const float log_of_sum = logf(sums.exponentials.sum);
    const bool has_sum = maximum > -PTAC_INFINITY && log_of_sum == log_of_sum;
    float lost = 0.0f;

    if (c.index >= 0)
        lost -=
            c.at_index * (ptac_real(x[row * p.n_classes + c.index]) - r - log_of_sum);
    if (is_soft && !c.is_ignored)
        lost -= sums.weighted - sums.factors * log_of_sum;
    saved.put(row, has_sum ? maximum : ptac_nan());
    saved.put(p.n_rows + row, has_sum ? log_of_sum : ptac_nan());
    saved.put(2 * p.n_rows + row, sums.factors + c.at_index);
    if (p.is_reduced) {
        work.put(4 * PARTS + row, lost);
        work.put(4 * PARTS + p.n_rows + row, c.weight);
        return;
    }
    put_operand(loss, p.loss, row, lost);
    if (row == 0)
        saved.put(3 * p.n_rows, 1.0f);
}

template <int n_threads, bool is_soft, class T>
PTAC_DEVICE void forward(ptac_input<T> x, const operands<T> &o, ptac_output<T> loss,
                         ptac_output<float> saved, ptac_output<float> work,
                         const ptac_cuda_cross_entropy &p)
{
    const ptac_i64 row = row_of_threads<n_threads>(), begin = row * p.n_classes;

    if (row >= p.n_rows)
        return;

    const soft_sums sums = is_soft ? sum_soft<n_threads>(x, o, p, begin)
                                   : sum_plain<n_threads>(x, p, begin);

    if (thread_of_row<n_threads>() == 0)
        finish_row(x, o, loss, saved, work, p, row, sums, is_soft);
}

/* --- putting the losses together --- */

struct reduced {
    double loss, weight;
};

/* The sums over a block's threads, in its first thread. */
PTAC_DEVICE reduced sum_in_block(reduced s)
{
    PTAC_SHARED(reduced, of_warp, PTAC_SOFTMAX_WARPS);

    for (int step = PTAC_WARP / 2; step > 0; step /= 2) {
        s.loss += __shfl_xor_sync(0xffffffffu, s.loss, step);
        s.weight += __shfl_xor_sync(0xffffffffu, s.weight, step);
    }
    if (threadIdx.x % PTAC_WARP == 0)
        of_warp[threadIdx.x / PTAC_WARP] = s;
    __syncthreads();
    s = of_warp[0];
    for (int i = 1; i < PTAC_SOFTMAX_WARPS; i++) {
        s.loss += of_warp[i].loss;
        s.weight += of_warp[i].weight;
    }
    return s;
}

/* Of rows [begin, end), as finish_row() left them. */
PTAC_DEVICE reduced sum_rows(ptac_input<float> work, ptac_i64 n_rows, ptac_i64 begin,
                             ptac_i64 end)
{
    reduced s = {0.0, 0.0};

    for (ptac_i64 i = begin + threadIdx.x; i < end; i += PTAC_SOFTMAX_THREADS) {
        s.loss += work[4 * PARTS + i];
        s.weight += work[4 * PARTS + n_rows + i];
    }
    return sum_in_block(s);
}

/* Many rows are first summed up in PARTS parts. */
PTAC_KERNEL(cross_entropy_parts, PTAC_SOFTMAX_THREADS, ptac_input<float> work,
            ptac_output<double> parts, ptac_i64 n_rows)
{
    const ptac_i64 each = (n_rows + PARTS - 1) / PARTS, begin = blockIdx.x * each;
    const reduced s =
        sum_rows(work, n_rows, begin, begin + each < n_rows ? begin + each : n_rows);

    if (threadIdx.x == 0) {
        parts.put(2 * blockIdx.x, s.loss);
        parts.put(2 * blockIdx.x + 1, s.weight);
    }
}

template <class T>
PTAC_DEVICE void reduce(ptac_input<float> work, ptac_output<T> loss,
                        ptac_output<float> saved, const ptac_cuda_cross_entropy &p,
                        bool has_parts)
{
    const ptac_input<double> parts = {(const double *)work.data};
    reduced s = {0.0, 0.0};

    if (has_parts && threadIdx.x < PARTS)
        s = {parts[2 * threadIdx.x], parts[2 * threadIdx.x + 1]};
    s = has_parts ? sum_in_block(s) : sum_rows(work, p.n_rows, 0, p.n_rows);
    if (threadIdx.x == 0) {
        const double divisor = p.is_mean ? s.weight : 1.0;

        put_operand(loss, p.loss, 0, (float)(s.loss / divisor));
        saved.put(3 * p.n_rows, (float)divisor);
    }
}

#define ROWS(name, suffix, T, n_threads, is_soft)                                      \
    PTAC_KERNEL(cross_entropy_##name##_##suffix, PTAC_SOFTMAX_THREADS,                 \
                ptac_input<T> x, ptac_input<T> target, ptac_input<T> weight,           \
                ptac_output<T> loss, ptac_output<float> saved,                         \
                ptac_output<float> work, ptac_cuda_cross_entropy p)                    \
    {                                                                                  \
        forward<n_threads, is_soft, T>(x, {target, weight}, loss, saved, work, p);     \
    }

#define KERNELS(suffix, T)                                                             \
    PTAC_CROSS_ENTROPY_KERNELS(ROWS, suffix, T)                                        \
    PTAC_KERNEL(cross_entropy_reduce_##suffix, PTAC_SOFTMAX_THREADS,                   \
                ptac_input<float> work, ptac_output<T> loss, ptac_output<float> saved, \
                ptac_cuda_cross_entropy p, int has_parts)                              \
    {                                                                                  \
        reduce(work, loss, saved, p, has_parts);                                       \
    }

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
