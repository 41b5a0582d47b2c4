/*
 * dropout.cu - dropout and its gradient on CUDA; bits are stock's.
 *
 * A thread draws what torch's thread of that number draws, for the same elements; how
 * those lie in memory decides only how they are read.
 */
#include "device/cuda/kernel.h"
#include "ops/random/dropout_cuda.h"
#include "ops/random/philox.h"

typedef unsigned char boolean;
typedef unsigned long long word;

/* The parameters of a kernel; residual may be without data. */
template <class T> struct tensors {
    ptac_input<T> x, residual;
    ptac_output<T> y;
    ptac_output<boolean> mask;
};

struct generator {
    word seed, offset, thread;

    PTAC_METHOD ptac_random4 draw(word call) const
    {
        return ptac_curand4(seed, offset, thread, call);
    }
};

PTAC_DEVICE generator generator_of(const ptac_philox_state &state)
{
    const word thread = (word)ptac_thread();

    if (!state.is_captured)
        return {state.seed.value, state.offset.value, thread};
    return {ptac_input<word>{state.seed.address}[0],
            ptac_input<word>{state.offset.address}[0] + state.offset_in_graph, thread};
}

/* Stock's order of operations: not a number stays so where it is dropped. */
PTAC_DEVICE float dropped(float x, bool is_kept, float scale)
{
    return x * (is_kept ? 1.0f : 0.0f) * scale;
}

/* V elements at once, four or eight. */
template <int V, class T>
PTAC_DEVICE void packed(const tensors<T> &t, const ptac_cuda_dropout &p)
{
    const generator random = generator_of(p.random);
    word call = 0;

    for (ptac_i64 i = ptac_thread() * V; i < p.n; i += ptac_n_threads() * V) {
        const ptac_pack<T, V> x = t.x.template pack<V>(i);
        ptac_pack<T, V> residual = {}, y;
        ptac_pack<boolean, V> mask;

        if (t.residual.data)
            residual = t.residual.template pack<V>(i);
        for (int k = 0; k < V; k += 4) {
            const ptac_random4 words = random.draw(call++);

            for (int j = 0; j < 4; j++) {
                const bool is_kept = ptac_curand_uniform(words.at[j]) < p.keep;
                float value = dropped(ptac_real(x.at[k + j]), is_kept, p.scale);

                if (t.residual.data)
                    value += ptac_real(residual.at[k + j]);
                y.at[k + j] = ptac_from<T>(value);
                mask.at[k + j] = is_kept;
            }
        }
        t.y.template put<V>(i, y);
        t.mask.template put<V>(i, mask);
    }
}

/* Elements that a call of curand4() decides: count of them, step apart. */
struct reach {
    ptac_i64 first, step;
    int count;
};

PTAC_DEVICE reach reach_of(ptac_i64 call, int vector)
{
    const ptac_i64 thread = ptac_thread(), n_threads = ptac_n_threads();
    const int calls = vector > 4 ? vector / 4 : 1; /* for the elements of one time */

    if (vector == 1)
        return {thread + n_threads * 4 * call, n_threads, 4};
    return {(thread + call / calls * n_threads) * vector + call % calls * 4, 1,
            vector < 4 ? vector : 4};
}

template <class T>
PTAC_DEVICE void single(const tensors<T> &t, const ptac_cuda_dropout &p)
{
    const generator random = generator_of(p.random);

    for (ptac_i64 call = 0;; call++) {
        const reach those = reach_of(call, p.vector);

        if (those.first >= p.n)
            break;

        const ptac_random4 words = random.draw((word)call);

        for (int j = 0; j < 4; j++) {
            const ptac_i64 i = those.first + j * those.step;
            const bool is_kept = ptac_curand_uniform(words.at[j]) < p.keep;

            if (j >= those.count || i >= p.n)
                continue;

            float value = dropped(ptac_real(t.x[i]), is_kept, p.scale);

            if (t.residual.data)
                value += ptac_real(t.residual[i]);
            t.y.put(i, ptac_from<T>(value));
            t.mask.put(i, is_kept);
        }
    }
}

template <int V, class T>
PTAC_DEVICE void backward(ptac_input<T> grad, ptac_input<boolean> mask,
                          ptac_output<T> out, ptac_i64 n, float scale)
{
    for (ptac_i64 i = ptac_thread() * V; i < n; i += ptac_n_threads() * V) {
        const ptac_pack<T, V> grads = grad.template pack<V>(i);
        const ptac_pack<boolean, V> kept = mask.template pack<V>(i);
        ptac_pack<T, V> result;

        for (int k = 0; k < V; k++)
            result.at[k] =
                ptac_from<T>(dropped(ptac_real(grads.at[k]), kept.at[k], scale));
        out.template put<V>(i, result);
    }
}

#define FORWARD(name, body, T)                                                         \
    PTAC_KERNEL(name, PTAC_DROPOUT_THREADS, ptac_input<T> x, ptac_input<T> residual,   \
                ptac_output<T> y, ptac_output<boolean> mask, ptac_cuda_dropout p)      \
    {                                                                                  \
        body(tensors<T>{x, residual, y, mask}, p);                                     \
    }
#define BACKWARD(name, T, V)                                                           \
    PTAC_KERNEL(name, PTAC_DROPOUT_THREADS, ptac_input<T> grad,                        \
                ptac_input<boolean> mask, ptac_output<T> out, ptac_i64 n, float scale) \
    {                                                                                  \
        backward<V>(grad, mask, out, n, scale);                                        \
    }

#define KERNELS(suffix, T, V)                                                          \
    FORWARD(dropout_single_##suffix, single, T)                                        \
    FORWARD(dropout_packed_4_##suffix, packed<4>, T)                                   \
    FORWARD(dropout_packed_##suffix, packed<V>, T)                                     \
    BACKWARD(dropout_backward_single_##suffix, T, 1)                                   \
    BACKWARD(dropout_backward_packed_##suffix, T, V)

KERNELS(f32, float, 4)
KERNELS(f16, ptac_half, 8)
KERNELS(bf16, ptac_bfloat16, 8)
