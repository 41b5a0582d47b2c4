/*
 * norm_backward.cu - gradients of LayerNorm and RMSNorm on CUDA.
 *
 * The group of lanes that has a row adds up, in registers, what its rows give for the
 * weights' gradients, so that gradient and input are read once. Each block leaves its
 * sums in memory, and a second launch adds those in a fixed order: no atomic operation,
 * the same bits every time. Rows that do not fit in registers are read twice, and once
 * more for the weights.
 */
#include "device/cuda/kernel.h"
#include "ops/norm/norm_cuda.h"
#include "ops/norm/norm_lanes.h"

/* The parameters of a kernel. parts: sums for the weight, then for the bias. */
template <class T> struct tensors {
    ptac_input<T> grad, x;
    ptac_input<float> rstd, mean;
    ptac_input<T> weight, grad_sum;
    ptac_output<T> out;
    ptac_output<float> parts;
};

struct row_statistics {
    float rstd, mean;
};

/* Read by one lane for its warp, all of whose lanes come here. */
template <class T>
PTAC_DEVICE row_statistics statistics(const tensors<T> &t, ptac_i64 row)
{
    row_statistics s = {0.0f, 0.0f};

    if (threadIdx.x % PTAC_WARP == 0) {
        s.rstd = t.rstd[row];
        s.mean = t.mean.data ? t.mean[row] : 0.0f;
    }
    return {__shfl_sync(0xffffffffu, s.rstd, 0), __shfl_sync(0xffffffffu, s.mean, 0)};
}

/* Of a row's sums of g and of g * x^, their means; RMSNorm has but the second. */
PTAC_DEVICE void to_means(float (&sums)[2], const ptac_cuda_norm &p)
{
    sums[0] = p.is_rms ? 0.0f : sums[0] / (float)p.width;
    sums[1] /= (float)p.width;
}

/* The gradient of x, of an element, with those means. */
PTAC_DEVICE float grad_of_x(float grad, float normal, const float (&means)[2],
                            float rstd)
{
    return (grad - __fmaf_rn(normal, means[1], means[0])) * rstd;
}

/* Write the gradient of x for a lane's part of a row. */
template <int V, class T>
PTAC_DEVICE void put_grad(const tensors<T> &t, const float (&grads)[NORM_EACH(V)],
                          ptac_i64 begin, int n, const group &mine)
{
    for (int k = 0; k < NORM_EACH(V) / V; k++) {
        const int at = place_of<V>(mine, k);
        ptac_pack<T, V> pack;

        if (at >= n)
            continue;

        const ptac_pack<T, V> other = pack_or<V>(t.grad_sum, begin + at, -0.0f);

        for (int i = 0; i < V; i++)
            pack.at[i] = ptac_from<T>(grads[k * V + i] + ptac_real(other.at[i]));
        t.out.template put<V>(begin + at, pack);
    }
}

/* Write the sums of a block's groups, one after another, as its part. */
template <int V>
PTAC_DEVICE void put_part(ptac_output<float> parts, ptac_i64 part,
                          float (&sums)[NORM_EACH(V)], int n, const group &mine)
{
    constexpr int W = V > 4 ? 4 : V; /* floats of a pack */
    PTAC_SHARED(float, shared, PTAC_NORM_SHARING *NORM_EACH(V));

    for (int index = 0; index < mine.n_groups; index++) {
        for (int i = 0; i < NORM_EACH(V); i++) {
            const int at = place_of<V>(mine, i / V) + i % V;

            if (mine.index != index || at >= n)
                continue;
            if (index > 0)
                sums[i] += shared[at];
            if (index < mine.n_groups - 1)
                shared[at] = sums[i];
        }
        __syncthreads();
    }
    if (mine.index != mine.n_groups - 1)
        return;
    for (int i = 0; i < NORM_EACH(V); i += W) {
        const int at = place_of<V>(mine, i / V) + i % V;
        ptac_pack<float, W> pack;

        for (int k = 0; k < W; k++)
            pack.at[k] = sums[i + k];
        if (at < n)
            parts.template put<W>(part * n + at, pack);
    }
}

template <int V, class T>
PTAC_DEVICE void backward(const tensors<T> &t, const ptac_cuda_norm &p)
{
    constexpr int each = NORM_EACH(V);
    NORM_SUMS(sums);
    const group mine = group_of(p.lanes);
    const int n = p.width;
    float of_weight[each] = {}, of_bias[each] = {};
    lane_packs<T, V> weight;

    load_weights<V>(weight, t.weight, 1.0f, n, mine);
    for (ptac_i64 first = (ptac_i64)blockIdx.x * mine.n_groups; first < p.n_rows;
         first += (ptac_i64)gridDim.x * mine.n_groups) {
        const ptac_i64 row = first + mine.index;
        const int there = row < p.n_rows ? n : 0; /* elements of this group's row */
        row_statistics s = {0.0f, 0.0f};
        float grad[each], normal[each], of_row[2] = {0.0f, 0.0f};
        lane_packs<T, V> grads, xs;

        grads.load(t.grad, row * n, there, mine);
        xs.load(t.x, row * n, there, mine);
        if (there)
            s = statistics(t, row);
        for (int i = 0; i < each; i++) {
            /* Beyond the row's end grad is 0, and x^ need not be a number. */
            const bool is_there = place_of<V>(mine, i / V) < there;

            grad[i] = grads[i];
            normal[i] = is_there ? (xs[i] - s.mean) * s.rstd : 0.0f;
            of_weight[i] = __fmaf_rn(grad[i], normal[i], of_weight[i]);
            of_bias[i] += grad[i];
            grad[i] *= weight[i];
            of_row[0] += grad[i];
            of_row[1] = __fmaf_rn(grad[i], normal[i], of_row[1]);
        }
        sums.add(mine, of_row);
        to_means(of_row, p);
        if (!t.out.data)
            continue;
        for (int i = 0; i < each; i++)
            grad[i] = grad_of_x(grad[i], normal[i], of_row, s.rstd);
        put_grad<V>(t, grad, row * n, there, mine);
    }
    if (!t.parts.data)
        return;
    put_part<V>(t.parts, blockIdx.x, of_weight, n, mine);
    __syncthreads();
    put_part<V>(t.parts, gridDim.x + blockIdx.x, of_bias, n, mine);
}

/* --- rows that are read again --- */

/* g and x^ of elements from i on, of a row that begins at `begin`. */
template <int V, class T>
PTAC_DEVICE void read_at(const tensors<T> &t, ptac_i64 begin, ptac_i64 i,
                         const row_statistics &s, float (&grad)[V], float (&normal)[V])
{
    const ptac_pack<T, V> grads = t.grad.template pack<V>(begin + i);
    const ptac_pack<T, V> xs = t.x.template pack<V>(begin + i);
    const ptac_pack<T, V> weights = pack_or<V>(t.weight, i, 1.0f);

    for (int k = 0; k < V; k++) {
        grad[k] = ptac_real(grads.at[k]) * ptac_real(weights.at[k]);
        normal[k] = (ptac_real(xs.at[k]) - s.mean) * s.rstd;
    }
}

template <int V, class T>
PTAC_DEVICE void backward_long(const tensors<T> &t, const ptac_cuda_norm &p)
{
    NORM_SUMS(sums);
    const group mine = group_of(PTAC_NORM_MOST_LANES);
    const int n = p.width;
    const ptac_i64 begin = (ptac_i64)mine.lane * V, step = (ptac_i64)blockDim.x * V;

    for (ptac_i64 row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        const row_statistics s = statistics(t, row);
        float grad[V], normal[V], of_row[2] = {0.0f, 0.0f};

        for (ptac_i64 i = begin; i < n; i += step) {
            read_at<V>(t, row * n, i, s, grad, normal);
            for (int k = 0; k < V; k++) {
                of_row[0] += grad[k];
                of_row[1] = __fmaf_rn(grad[k], normal[k], of_row[1]);
            }
        }
        sums.add(mine, of_row);
        to_means(of_row, p);
        for (ptac_i64 i = begin; i < n; i += step) {
            const ptac_pack<T, V> other = pack_or<V>(t.grad_sum, row * n + i, -0.0f);
            ptac_pack<T, V> pack;

            read_at<V>(t, row * n, i, s, grad, normal);
            for (int k = 0; k < V; k++)
                pack.at[k] =
                    ptac_from<T>(grad_of_x(grad[k], normal[k], of_row, s.rstd) +
                                 ptac_real(other.at[k]));
            t.out.template put<V>(row * n + i, pack);
        }
    }
}

/* A thread has a column, of the rows of one part; parts lie behind each other. */
template <class T>
PTAC_DEVICE void backward_columns(const tensors<T> &t, const ptac_cuda_norm &p,
                                  int n_parts)
{
    const int n_blocks =
        (int)gridDim.x / n_parts; /* that share the columns of a part */
    const int part = (int)blockIdx.x / n_blocks, n = p.width;
    const int at = (int)(blockIdx.x % n_blocks * blockDim.x + threadIdx.x);
    float of_weight = 0.0f, of_bias = 0.0f;

    for (ptac_i64 row = part; row < p.n_rows; row += n_parts) {
        const row_statistics s = statistics(t, row);

        if (at < n) {
            const float grad = ptac_real(t.grad[row * n + at]);
            const float normal = (ptac_real(t.x[row * n + at]) - s.mean) * s.rstd;

            of_weight = __fmaf_rn(grad, normal, of_weight);
            of_bias += grad;
        }
    }
    if (at >= n)
        return;
    t.parts.put((ptac_i64)part * n + at, of_weight);
    t.parts.put((ptac_i64)(n_parts + part) * n + at, of_bias);
}

/*
 * The weights' gradients from their parts: a warp adds every eighth part of 32 columns,
 * then the warps' sums follow one another. Even blocks have weight, odd ones bias.
 */
template <class T>
PTAC_DEVICE void sum_parts(ptac_input<float> parts, ptac_output<T> of_weight,
                           ptac_output<T> of_bias, int n_parts, int n)
{
    constexpr int slices = PTAC_NORM_THREADS / PTAC_NORM_COLUMNS;
    PTAC_SHARED(float, of_slice, PTAC_NORM_THREADS);
    const bool is_bias = blockIdx.x % 2;
    const ptac_output<T> out = is_bias ? of_bias : of_weight;
    const int slice = (int)threadIdx.x / PTAC_NORM_COLUMNS;
    const int column = (int)threadIdx.x % PTAC_NORM_COLUMNS;
    const int at = (int)(blockIdx.x / 2) * PTAC_NORM_COLUMNS + column;
    float sum = 0.0f;

    if (!out.data)
        return;
    for (int part = slice; part < n_parts && at < n; part += slices)
        sum += parts[(ptac_i64)(is_bias * n_parts + part) * n + at];
    of_slice[threadIdx.x] = sum;
    __syncthreads();
    if (slice > 0 || at >= n)
        return;
    for (int i = 1; i < slices; i++)
        sum += of_slice[i * PTAC_NORM_COLUMNS + column];
    out.put(at, ptac_from<T>(sum));
}

#define PARAMETERS(T)                                                                  \
    ptac_input<T> grad, ptac_input<T> x, ptac_input<float> rstd,                       \
        ptac_input<float> mean, ptac_input<T> weight, ptac_input<T> grad_sum,          \
        ptac_output<T> out, ptac_output<float> parts, ptac_cuda_norm p
#define TENSORS(T) (tensors<T>{grad, x, rstd, mean, weight, grad_sum, out, parts})
#define KERNEL(name, body, T, V)                                                       \
    PTAC_KERNEL(name, PTAC_NORM_MOST_LANES, PARAMETERS(T))                             \
    {                                                                                  \
        body<V>(TENSORS(T), p);                                                        \
    }

#define KERNELS(suffix, T)                                                             \
    KERNEL(norm_backward_packed_##suffix, backward, T, PTAC_PACK_BYTES / sizeof(T))    \
    KERNEL(norm_backward_single_##suffix, backward, T, 1)                              \
    KERNEL(norm_backward_long_packed_##suffix, backward_long, T,                       \
           PTAC_PACK_BYTES / sizeof(T))                                                \
    KERNEL(norm_backward_long_single_##suffix, backward_long, T, 1)                    \
    PTAC_KERNEL(norm_backward_columns_##suffix, PTAC_NORM_THREADS, PARAMETERS(T),      \
                int n_parts)                                                           \
    {                                                                                  \
        backward_columns(TENSORS(T), p, n_parts);                                      \
    }                                                                                  \
    PTAC_KERNEL(norm_sum_parts_##suffix, PTAC_NORM_THREADS, ptac_input<float> parts,   \
                ptac_output<T> of_weight, ptac_output<T> of_bias, int n_parts, int n)  \
    {                                                                                  \
        sum_parts(parts, of_weight, of_bias, n_parts, n);                              \
    }

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
