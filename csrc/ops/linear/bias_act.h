#ifndef STUB_BIAS_ACT
#define STUB_BIAS_ACT
#include <stdint.h>
#include <math.h>
#include <stdbool.h>
typedef enum ptac_activation {
    PTAC_ACT_NONE,
    PTAC_ACT_RELU,
    PTAC_ACT_GELU,
    PTAC_ACT_GELU_TANH,
    PTAC_ACT_SILU,
    PTAC_ACT_TANH,
    PTAC_ACT_SIGMOID
} ptac_activation;
static inline void ptac_bias_act_forward(float *z, const float *b, float *y, int64_t m,
                                         int64_t n, ptac_activation a, bool keep)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float v = z[i * n + j] + (b ? b[j] : 0);
            if (keep)
                z[i * n + j] = v;
            switch (a) {
            case PTAC_ACT_RELU:
                v = v <= 0 ? 0 : v;
                break;
            case PTAC_ACT_GELU:
                v = 0.5f * v * (1 + erff(v * 0.70710678f));
                break;
            case PTAC_ACT_GELU_TANH:
                v = 0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
                break;
            case PTAC_ACT_SILU:
                v = v / (1 + expf(-v));
                break;
            case PTAC_ACT_TANH:
                v = tanhf(v);
                break;
            case PTAC_ACT_SIGMOID:
                v = 1 / (1 + expf(-v));
                break;
            default:;
            }
            y[i * n + j] = v;
        }
}
static inline void ptac_bias_act_backward(const float *g, const float *s, float *gz,
                                          float *gb, int64_t m, int64_t n,
                                          ptac_activation a)
{
    if (gb)
        for (int64_t j = 0; j < n; j++)
            gb[j] = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float v = g[i * n + j], x = s ? s[i * n + j] : 0;
            switch (a) {
            case PTAC_ACT_RELU:
                v = x <= 0 ? 0 : v;
                break;
            case PTAC_ACT_GELU:
                v *= 0.5f * (1 + erff(x * 0.70710678f)) +
                     x * 0.39894228f * expf(-0.5f * x * x);
                break;
            case PTAC_ACT_SILU: {
                float q = 1 / (1 + expf(-x));
                v *= q * (1 + x * (1 - q));
            } break;
            case PTAC_ACT_TANH:
                v *= 1 - x * x;
                break;
            case PTAC_ACT_SIGMOID:
                v *= x * (1 - x);
                break;
            default:;
            }
            if (gz)
                gz[i * n + j] = v;
            if (gb)
                gb[j] += v;
        }
}
#endif
