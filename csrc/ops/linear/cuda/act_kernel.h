/*
 * act_kernel.h - activations and their slopes in float, for kernels.
 *
 * Formulas as in bias_act_ref.c.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_ACT_KERNEL_H
#define PTAC_OPS_LINEAR_CUDA_ACT_KERNEL_H

#include "device/cuda/kernel.h"
#include "ops/linear/act.h"

PTAC_DEVICE float ptac_sigmoid(float z)
{
    return 1.0f / (1.0f + expf(-z));
}

/* s = sigmoid(z), and s (1 - s) without the difference, which cancels at large z. */
PTAC_DEVICE float ptac_sigmoid_slope(float z, float *s)
{
    const float e = expf(-fabsf(z)), share = 1.0f / (1.0f + e);

    *s = z < 0.0f ? e * share : share;
    return e * share * share;
}

/* Twice u(z) of bias_act_ref.c. */
PTAC_DEVICE float ptac_gelu_tanh_inner(float z)
{
    return 1.5957691216f * (z + 0.044715f * z * z * z);
}

PTAC_DEVICE float ptac_normal_cdf(float z)
{
    return 0.5f * erfcf(z * -0.70710678f);
}

template <int act> PTAC_DEVICE float ptac_act_of(float z)
{
    switch (act) {
    case PTAC_ACT_RELU:
        return z < 0.0f ? 0.0f : z;
    case PTAC_ACT_GELU:
        return z * ptac_normal_cdf(z);
    case PTAC_ACT_GELU_TANH:
        return z * ptac_sigmoid(ptac_gelu_tanh_inner(z));
    case PTAC_ACT_SILU:
        return z * ptac_sigmoid(z);
    case PTAC_ACT_TANH:
        return tanhf(z);
    case PTAC_ACT_SIGMOID:
        return ptac_sigmoid(z);
    default:
        return z;
    }
}

/* x is what ptac_act_saves_z() says; of ReLU's mask, bits as 0 or 1. */
template <int act> PTAC_DEVICE float ptac_grad_of(float g, float x)
{
    float s, slope;

    switch (act) {
    case PTAC_ACT_RELU:
        return x <= 0.0f ? 0.0f : g;
    case PTAC_ACT_GELU:
        return g * (ptac_normal_cdf(x) + x * 0.3989422804f * expf(-0.5f * x * x));
    case PTAC_ACT_GELU_TANH:
        slope = ptac_sigmoid_slope(ptac_gelu_tanh_inner(x), &s);
        return g * (s + x * slope * 1.5957691216f * (1.0f + 0.134145f * x * x));
    case PTAC_ACT_SILU:
        slope = ptac_sigmoid_slope(x, &s);
        return g * (s + x * slope);
    case PTAC_ACT_TANH:
        return g * (1.0f - x * x);
    case PTAC_ACT_SIGMOID:
        return g * (1.0f - x) * x;
    default:
        return g;
    }
}

/* One branch for many elements, the same in all threads: function<act>(...). */
#define PTAC_EACH_ACT(act, function, ...)                                              \
    switch (act) {                                                                     \
    case PTAC_ACT_RELU:                                                                \
        function<PTAC_ACT_RELU>(__VA_ARGS__);                                          \
        break;                                                                         \
    case PTAC_ACT_GELU:                                                                \
        function<PTAC_ACT_GELU>(__VA_ARGS__);                                          \
        break;                                                                         \
    case PTAC_ACT_GELU_TANH:                                                           \
        function<PTAC_ACT_GELU_TANH>(__VA_ARGS__);                                     \
        break;                                                                         \
    case PTAC_ACT_SILU:                                                                \
        function<PTAC_ACT_SILU>(__VA_ARGS__);                                          \
        break;                                                                         \
    case PTAC_ACT_TANH:                                                                \
        function<PTAC_ACT_TANH>(__VA_ARGS__);                                          \
        break;                                                                         \
    case PTAC_ACT_SIGMOID:                                                             \
        function<PTAC_ACT_SIGMOID>(__VA_ARGS__);                                       \
        break;                                                                         \
    default:                                                                           \
        break;                                                                         \
    }

#endif
