/*
 * norm.cu - LayerNorm and RMSNorm on CUDA, alone or behind a sum.
 *
 * Rows that fit in the registers of a group of lanes are read once: the mean is that of
 * what lies there, and so is the sum of squares about it. Of longer rows, pieces that
 * fit are joined (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm
 * for Computing Sample Variances", 1979), and the row is read again for its result.
 */
#include "device/cuda/kernel.h"
#include "ops/norm/norm_cuda.h"
#include "ops/norm/norm_lanes.h"

/* The parameters of a kernel. */
template <class T> struct tensors {
    ptac_input<T> x, weight, bias, residual;
    ptac_output<T> y;
    ptac_output<float> rstd, mean;
    ptac_output<T> sum;
};

/* What a lane has of a row: x, or its sum with residual, which is written. */
template <int V, class T>
PTAC_DEVICE void take(float (&values)[NORM_EACH(V)], const lane_packs<T, V> &x,
                      const tensors<T> &t, ptac_i64 begin, int n, const group &mine)
{
    lane_packs<T, V> residual;

    for (int i = 0; i < NORM_EACH(V); i++)
        values[i] = x[i];
    if (!t.residual.data)
        return;
    residual.load(t.residual, begin, n, mine);
    for (int i = 0; i < NORM_EACH(V); i++)
        values[i] += residual[i];
    store<V>(values, t.sum, begin, n, mine);
}

/* Of a lane's elements of a row of n, less a mean: the sum, and that of the squares. */
template <int V>
PTAC_DEVICE void sum_about(const float (&values)[NORM_EACH(V)], float mean, int n,
                           const group &mine, float (&sums)[2])
{
    sums[0] = sums[1] = 0.0f;
    for (int k = 0; k < NORM_EACH(V) / V; k++)
        if (place_of<V>(mine, k) < n)
            for (int i = 0; i < V; i++) {
                const float apart = values[k * V + i] - mean;

                sums[0] += apart;
                sums[1] = __fmaf_rn(apart, apart, sums[1]);
            }
}

/*
 * Make a mean that was rounded better by those sums, and the squares' sum that about it
 * (the corrected two-pass algorithm of the paper above). RMSNorm's mean stays 0.
 */
PTAC_DEVICE float squares_about(float *mean, const float (&sums)[2], float one_by_n,
                                bool is_rms)
{
    const float shift = is_rms ? 0.0f : sums[0] * one_by_n;

    *mean += shift;
    return is_rms ? sums[1] : __fmaf_rn(-sums[0], shift, sums[1]);
}

PTAC_DEVICE float rstd_of(float squares, const ptac_cuda_norm &p)
{
    return 1.0f / __fsqrt_rn(squares / (float)p.width + p.eps);
}

template <class T>
PTAC_DEVICE void keep(const tensors<T> &t, ptac_i64 row, float rstd, float mean)
{
    if (t.rstd.data)
        t.rstd.put(row, rstd);
    if (t.mean.data)
        t.mean.put(row, mean);
}

template <int V, class T>
PTAC_DEVICE void forward(const tensors<T> &t, const ptac_cuda_norm &p)
{
    NORM_SUMS(sums);
    const group mine = group_of(p.lanes);
    const ptac_i64 step = (ptac_i64)gridDim.x * mine.n_groups;
    const int n = p.width;
    ptac_i64 row = (ptac_i64)blockIdx.x * mine.n_groups + mine.index;
    lane_packs<T, V> weight, bias, x;

    load_weights<V>(weight, t.weight, 1.0f, n, mine);
    load_weights<V>(bias, t.bias, -0.0f, n, mine); /* adds nothing to any zero */
    x.load(t.x, row * n, row < p.n_rows ? n : 0, mine);
    for (; row - mine.index < p.n_rows; row += step) {
        const int there = row < p.n_rows ? n : 0; /* elements of this group's row */
        float values[NORM_EACH(V)], mean = 0.0f, sum = 0.0f, about[2];

        take<V>(values, x, t, row * n, there, mine);
        /* The next row is on its way while this one is worked on. */
        x.load(t.x, (row + step) * n, row + step < p.n_rows ? n : 0, mine);
        for (int i = 0; i < NORM_EACH(V) && !p.is_rms; i++)
            sum += values[i];
        if (!p.is_rms)
            mean = sums.sum(mine, sum) / (float)n;

        sum_about<V>(values, mean, there, mine, about);
        sums.add(mine, about);

        const float rstd =
            rstd_of(squares_about(&mean, about, 1.0f / (float)n, p.is_rms), p);

        for (int i = 0; i < NORM_EACH(V); i++)
            values[i] = __fmaf_rn((values[i] - mean) * rstd, weight[i], bias[i]);
        store<V>(values, t.y, row * n, there, mine);
        if (there && mine.lane == 0)
            keep(t, row, rstd, mean);
    }
}

/* --- rows that are read again --- */

struct moments {
    float count, mean, squares; /* about the mean */
};

PTAC_DEVICE moments joined(moments a, moments b)
{
    const float count = a.count + b.count, apart = b.mean - a.mean;
    const float part = b.count / count;

    if (a.count == 0.0f || b.count == 0.0f)
        return a.count == 0.0f ? b : a;
    return {count, __fmaf_rn(apart, part, a.mean),
            __fmaf_rn(apart * apart, a.count * part, a.squares + b.squares)};
}

/* Of all lanes of a block, the same in each. */
PTAC_DEVICE moments joined_in_block(moments m)
{
    PTAC_SHARED(moments, of_warp, NORM_WARPS);

    for (int step = PTAC_WARP / 2; step > 0; step /= 2)
        m = joined(m, {__shfl_down_sync(0xffffffffu, m.count, step),
                       __shfl_down_sync(0xffffffffu, m.mean, step),
                       __shfl_down_sync(0xffffffffu, m.squares, step)});
    __syncthreads();
    if (threadIdx.x % PTAC_WARP == 0)
        of_warp[threadIdx.x / PTAC_WARP] = m;
    __syncthreads();
    m = of_warp[0];
    for (int i = 1; i < (int)blockDim.x / PTAC_WARP; i++)
        m = joined(m, of_warp[i]);
    return m;
}

/* Of a lane's elements of a piece of n; RMSNorm's mean is 0. */
template <int V>
PTAC_DEVICE moments moments_of(const float (&values)[NORM_EACH(V)], int n, bool is_rms,
                               const group &mine)
{
    moments m = {0.0f, 0.0f, 0.0f};
    float about[2];

    for (int k = 0; k < NORM_EACH(V) / V; k++)
        if (place_of<V>(mine, k) < n)
            m.count += (float)V;
    for (int i = 0; i < NORM_EACH(V) && !is_rms; i++)
        m.mean += values[i];
    if (m.count == 0.0f)
        return m;

    const float one_by_n = 1.0f / m.count;

    m.mean *= one_by_n;
    sum_about<V>(values, m.mean, n, mine, about);
    m.squares = squares_about(&m.mean, about, one_by_n, is_rms);
    return m;
}

/* The result for elements i and on of a row that begins at `begin`. */
template <int V, class T>
PTAC_DEVICE void put_normalized(const tensors<T> &t, ptac_i64 begin, ptac_i64 i,
                                float mean, float rstd)
{
    const ptac_pack<T, V> x = t.x.template pack<V>(begin + i);
    const ptac_pack<T, V> residual = pack_or<V>(t.residual, begin + i, -0.0f);
    const ptac_pack<T, V> weight = pack_or<V>(t.weight, i, 1.0f);
    const ptac_pack<T, V> bias = pack_or<V>(t.bias, i, -0.0f);
    ptac_pack<T, V> y;

    for (int k = 0; k < V; k++) {
        const float value = ptac_real(x.at[k]) + ptac_real(residual.at[k]);

        y.at[k] = ptac_from<T>(__fmaf_rn((value - mean) * rstd, ptac_real(weight.at[k]),
                                         ptac_real(bias.at[k])));
    }
    t.y.template put<V>(begin + i, y);
}

template <int V, class T>
PTAC_DEVICE void forward_long(const tensors<T> &t, const ptac_cuda_norm &p)
{
    const group mine = group_of(PTAC_NORM_MOST_LANES);
    const int n = p.width, piece = PTAC_NORM_MOST_LANES * NORM_EACH(V);

    for (ptac_i64 row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        moments m = {0.0f, 0.0f, 0.0f};
        float values[NORM_EACH(V)];
        lane_packs<T, V> x;

        for (int begin = 0; begin < n; begin += piece) {
            x.load(t.x, row * n + begin, n - begin, mine);
            take<V>(values, x, t, row * n + begin, n - begin, mine);
            m = joined(m, moments_of<V>(values, n - begin, p.is_rms, mine));
        }
        m = joined_in_block(m);

        const float rstd = rstd_of(m.squares, p);

        for (ptac_i64 i = (ptac_i64)threadIdx.x * V; i < n;
             i += (ptac_i64)blockDim.x * V)
            put_normalized<V>(t, row * n, i, m.mean, rstd);
        if (mine.lane == 0)
            keep(t, row, rstd, m.mean);
    }
}

#define KERNEL(name, body, T, V)                                                       \
    PTAC_KERNEL(name, PTAC_NORM_MOST_LANES, ptac_input<T> x, ptac_input<T> weight,     \
                ptac_input<T> bias, ptac_input<T> residual, ptac_output<T> y,          \
                ptac_output<float> rstd, ptac_output<float> mean, ptac_output<T> sum,  \
                ptac_cuda_norm p)                                                      \
    {                                                                                  \
        body<V>(tensors<T>{x, weight, bias, residual, y, rstd, mean, sum}, p);         \
    }

#define KERNELS(suffix, T)                                                             \
    KERNEL(norm_packed_##suffix, forward, T, PTAC_PACK_BYTES / sizeof(T))              \
    KERNEL(norm_single_##suffix, forward, T, 1)                                        \
    KERNEL(norm_long_packed_##suffix, forward_long, T, PTAC_PACK_BYTES / sizeof(T))    \
    KERNEL(norm_long_single_##suffix, forward_long, T, 1)

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
