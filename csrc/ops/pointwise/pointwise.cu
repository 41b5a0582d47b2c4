/*
 * pointwise.cu - activations with the product or the sum beside them, and gradients.
 *
 * A thread takes packs of 16 bytes of each tensor, or elements where they do not lie
 * as packs. In float.
 */
#include "ops/linear/cuda/act_kernel.h"
#include "ops/pointwise/pointwise_cuda.h"

/* What the activation's slope is computed from: z, or act(z). */
template <int act> PTAC_DEVICE float slope_source(float z)
{
    return act == PTAC_ACT_TANH || act == PTAC_ACT_SIGMOID ? ptac_act_of<act>(z) : z;
}

/* --- packs --- */

template <int act, class T, int n>
PTAC_DEVICE void gate(const ptac_pack<T, n> &a, const ptac_pack<T, n> &b,
                      ptac_pack<T, n> *y)
{
    for (int k = 0; k < n; k++)
        y->at[k] =
            ptac_from<T>(ptac_act_of<act>(ptac_real(a.at[k])) * ptac_real(b.at[k]));
}

template <int act, class T, int n>
PTAC_DEVICE void add(const ptac_pack<T, n> &x, const ptac_pack<T, n> &residual,
                     ptac_pack<T, n> *y)
{
    for (int k = 0; k < n; k++)
        y->at[k] = ptac_from<T>(
            ptac_act_of<act>(ptac_real(x.at[k]) + ptac_real(residual.at[k])));
}

template <int act, class T, int n>
PTAC_DEVICE void gate_back(const ptac_pack<T, n> &grad, const ptac_pack<T, n> &a,
                           const ptac_pack<T, n> &b, ptac_pack<T, n> *of_a,
                           ptac_pack<T, n> *of_b)
{
    for (int k = 0; k < n; k++) {
        const float g = ptac_real(grad.at[k]), z = ptac_real(a.at[k]);

        of_a->at[k] = ptac_from<T>(
            ptac_grad_of<act>(g * ptac_real(b.at[k]), slope_source<act>(z)));
        of_b->at[k] = ptac_from<T>(g * ptac_act_of<act>(z));
    }
}

template <int act, class T, int n>
PTAC_DEVICE void add_back(const ptac_pack<T, n> &grad, const ptac_pack<T, n> &x,
                          const ptac_pack<T, n> &residual, ptac_pack<T, n> *of_x)
{
    for (int k = 0; k < n; k++)
        of_x->at[k] = ptac_from<T>(ptac_grad_of<act>(
            ptac_real(grad.at[k]),
            slope_source<act>(ptac_real(x.at[k]) + ptac_real(residual.at[k]))));
}

/* --- kernels --- */

/* Of a thread's first element, and how far apart its next ones are. */
#define EACH(i, n)                                                                     \
    for (ptac_i64 i = ptac_thread() * V; i < (n); i += ptac_n_threads() * V)

/* act(a) * b, or act(a + b). */
template <int V, bool is_gated, class T>
PTAC_DEVICE void forward(ptac_input<T> a, ptac_input<T> b, ptac_output<T> y, ptac_i64 n,
                         int act)
{
    EACH(i, n)
    {
        const ptac_pack<T, V> from_a = a.template pack<V>(i);
        const ptac_pack<T, V> from_b = b.template pack<V>(i);
        ptac_pack<T, V> result = {};

        if (is_gated) {
            PTAC_EACH_ACT(act, gate, from_a, from_b, &result)
        } else {
            PTAC_EACH_ACT(act, add, from_a, from_b, &result)
        }
        y.template put<V>(i, result);
    }
}

template <int V, class T>
PTAC_DEVICE void gated_act_backward(ptac_input<T> grad, ptac_input<T> a,
                                    ptac_input<T> b, ptac_output<T> of_a,
                                    ptac_output<T> of_b, ptac_i64 n, int act)
{
    EACH(i, n)
    {
        const ptac_pack<T, V> g = grad.template pack<V>(i);
        const ptac_pack<T, V> from_a = a.template pack<V>(i);
        const ptac_pack<T, V> from_b = b.template pack<V>(i);
        ptac_pack<T, V> first = {}, second = {};

        PTAC_EACH_ACT(act, gate_back, g, from_a, from_b, &first, &second)
        of_a.template put<V>(i, first);
        of_b.template put<V>(i, second);
    }
}

template <int V, class T>
PTAC_DEVICE void add_act_backward(ptac_input<T> grad, ptac_input<T> x,
                                  ptac_input<T> residual, ptac_output<T> of_x,
                                  ptac_i64 n, int act)
{
    EACH(i, n)
    {
        const ptac_pack<T, V> g = grad.template pack<V>(i);
        const ptac_pack<T, V> from_x = x.template pack<V>(i);
        ptac_pack<T, V> from_residual = {}, result = {};

        if (residual.data)
            from_residual = residual.template pack<V>(i);
        PTAC_EACH_ACT(act, add_back, g, from_x, from_residual, &result)
        of_x.template put<V>(i, result);
    }
}

#define KERNELS(suffix, V, T)                                                          \
    PTAC_KERNEL(gated_act_##suffix, PTAC_POINTWISE_THREADS, ptac_input<T> a,           \
                ptac_input<T> b, ptac_output<T> y, ptac_i64 n, int act)                \
    {                                                                                  \
        forward<V, true>(a, b, y, n, act);                                             \
    }                                                                                  \
    PTAC_KERNEL(gated_act_backward_##suffix, PTAC_POINTWISE_THREADS,                   \
                ptac_input<T> grad, ptac_input<T> a, ptac_input<T> b,                  \
                ptac_output<T> of_a, ptac_output<T> of_b, ptac_i64 n, int act)         \
    {                                                                                  \
        gated_act_backward<V>(grad, a, b, of_a, of_b, n, act);                         \
    }                                                                                  \
    PTAC_KERNEL(add_act_##suffix, PTAC_POINTWISE_THREADS, ptac_input<T> x,             \
                ptac_input<T> residual, ptac_output<T> y, ptac_i64 n, int act)         \
    {                                                                                  \
        forward<V, false>(x, residual, y, n, act);                                     \
    }                                                                                  \
    PTAC_KERNEL(add_act_backward_##suffix, PTAC_POINTWISE_THREADS, ptac_input<T> grad, \
                ptac_input<T> x, ptac_input<T> residual, ptac_output<T> of_x,          \
                ptac_i64 n, int act)                                                   \
    {                                                                                  \
        add_act_backward<V>(grad, x, residual, of_x, n, act);                          \
    }

KERNELS(packed_f32, 4, float)
KERNELS(packed_f16, 8, ptac_half)
KERNELS(packed_bf16, 8, ptac_bfloat16)
KERNELS(single_f32, 1, float)
KERNELS(single_f16, 1, ptac_half)
KERNELS(single_bf16, 1, ptac_bfloat16)
