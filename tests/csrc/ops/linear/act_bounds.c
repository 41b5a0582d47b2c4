/*
 * act_bounds.c - activations and their slopes in double.
 *
 * Bounds are in u, the unit roundoff of float. A sigmoid errs by 5 u of its size, with
 * its slope by 6 u, that by 11 u, tanh by 3.2 u, which is what test_math.c asks of them
 * in other words; products and sums add a u each.
 */
#include "act_bounds.h"

#include "arena.h"
#include "core/cpu.h"
#include "threads.h"
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum {
    N_CASES = 150,
};

static const double U = 0x1p-24;

const ptac_bias_act *act_table(int i)
{
#if defined(__x86_64__)
    const uint32_t have = ptac_cpu_features();

    if (i == 1 && (have & PTAC_CPU_AVX2))
        return &ptac_bias_act_avx2;
    if (i == 2 && (have & PTAC_CPU_AVX512))
        return &ptac_bias_act_avx512;
#endif
    return i == 0 ? &ptac_bias_act_scalar : NULL;
}

const char *act_name(ptac_act act)
{
    static const char *const names[PTAC_N_ACTS] = {
        "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};

    return names[act];
}

void check_act_tables(uint64_t seed, void *job, void (*make)(rng *r, void *job),
                      void (*check)(rng *r, void *job, const ptac_bias_act *table))
{
    const int64_t n_shared = threads_n_shared();
    rng r = {seed};

    arena_prepare();
    for (int i = 0; i < N_CASES; i++) {
        make(&r, job);
        for (int k = 0; k < N_ACT_TABLES; k++)
            if (act_table(k))
                check(&r, job, act_table(k));
    }
    EXPECT(threads_n_shared() > n_shared);
}

void expect_act(float got, float expected, int table, double argument, ptac_act act)
{
    if (got != expected && !(isnan(got) && isnan(expected)))
        unit_fail(act_table(table)->name, (int)argument, act_name(act));
}

static double sigmoid(double z)
{
    const double e = exp(-fabs(z));

    return (z < 0 ? e : 1) / (1 + e);
}

/* Twice the argument of tanh in ATen's gelu(approximate="tanh"), and its slope. */
static double inner(double z)
{
    return 2 * sqrt(2 / M_PI) * (z + 0.044715 * pow(z, 3));
}

static double inner_slope(double z)
{
    return 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * z * z);
}

static double normal(double z)
{
    return z < 0 ? 0.5 * erfc(-z / sqrt(2)) : 1 - 0.5 * erfc(z / sqrt(2));
}

static double density(double z)
{
    return exp(-z * z / 2) / sqrt(2 * M_PI);
}

act_bound act_value(ptac_act act, double z)
{
    /* What a factor that is all but zero was rounded by. */
    const double vanishing = fabs(z) * (double)FLT_TRUE_MIN;
    const double t = inner(z);
    double y;

    switch (act) {
    case PTAC_ACT_RELU:
        return (act_bound){z > 0 ? z : 0, 0};
    case PTAC_ACT_GELU: /* the factor's error is absolute */
        y = z * normal(z);
        return (act_bound){y, U * (1.2 * fabs(z) + fabs(y))};
    case PTAC_ACT_GELU_TANH: /* the argument errs by 6 u of its size */
        y = z * sigmoid(t);
        return (act_bound){y, U * fabs(y) * (6 + 6 * fabs(t) * sigmoid(-t)) +
                                  2 * vanishing};
    case PTAC_ACT_SILU:
        y = z * sigmoid(z);
        return (act_bound){y, 6 * U * fabs(y) + 2 * vanishing};
    case PTAC_ACT_TANH:
        y = tanh(z);
        return (act_bound){y, 3.2 * U * fabs(y) + (double)FLT_TRUE_MIN};
    case PTAC_ACT_SIGMOID:
        y = sigmoid(z);
        return (act_bound){y, 5 * U * y + 2 * (double)FLT_TRUE_MIN};
    default:
        return (act_bound){z, 0};
    }
}

/* s + x * ds * k, where ds has an argument that errs by arg_error. */
static act_bound gated_slope(double x, double t, double k, double arg_error)
{
    const double s = sigmoid(t), rest = x * s * sigmoid(-t) * k;
    const double of_s = 7 + arg_error * sigmoid(-t), of_rest = 17 + arg_error;
    const double vanishing = (1 + fabs(x * k)) * (double)FLT_TRUE_MIN;

    return (act_bound){s + rest, U * (of_s * s + of_rest * fabs(rest)) + 2 * vanishing};
}

static act_bound slope(ptac_act act, double x)
{
    const double t = inner(x);
    double s;

    switch (act) {
    case PTAC_ACT_RELU:
        return (act_bound){x > 0, 0};
    case PTAC_ACT_GELU:
        return (act_bound){normal(x) + x * density(x), 2 * U};
    case PTAC_ACT_GELU_TANH:
        return gated_slope(x, t, inner_slope(x), 6 * fabs(t));
    case PTAC_ACT_SILU:
        return gated_slope(x, x, 1, 0);
    case PTAC_ACT_TANH: /* a difference that is rounded once */
        s = (1 - x) * (1 + x);
        return (act_bound){s, U * fabs(s)};
    case PTAC_ACT_SIGMOID:
        s = (1 - x) * x;
        return (act_bound){s, 2 * U * fabs(s)};
    default:
        return (act_bound){1, 0};
    }
}

act_bound act_gradient(ptac_act act, double g, double saved)
{
    const act_bound of_one = slope(act, saved);
    const double value = g * of_one.value;

    if (act == PTAC_ACT_NONE || act == PTAC_ACT_RELU)
        return (act_bound){value, 0};
    return (act_bound){value, fabs(g) * of_one.allowed + 1.1 * U * fabs(value) +
                                  2 * (double)FLT_TRUE_MIN};
}

bool act_is_near(float got, act_bound bound, const char *table, ptac_act act,
                 double argument)
{
    if (fabs(got - bound.value) <= bound.allowed)
        return true;
    printf("  %s %s of %.9g: %.9g, but it is %.9g, %.3g of the bound away\n", table,
           act_name(act), argument, (double)got, bound.value,
           fabs(got - bound.value) / bound.allowed);
    return false;
}

void fill_arguments(rng *r, float *z, int64_t n)
{
    fill_smooth(r, PTAC_F32, z, n, 4);
    for (int64_t i = 0; i < n; i++) {
        switch (rng_below(r, 12)) {
        case 0:
            z[i] *= 30;
            break;
        case 1:
            z[i] = ldexpf(z[i], (int)rng_between(r, -60, 100));
            break;
        case 2:
            z[i] = (float)rng_between(r, -1, 1) * 0.0f;
            break;
        default:
            break;
        }
    }
}
