/*
 * test_math.c - the vector functions against libm's in double, all over the floats.
 *
 * Bounds are those that math_tpl.h states, in units in the last place of the result or
 * absolute.
 */
#include "math_lanes.h"
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BLOCK = 4096,
    N_LANES = 2,
};

/* The rows that this CPU can run; NULL for the others. */
static const math_lanes *lanes_at(int i)
{
#if defined(__x86_64__)
    static const math_lanes *const all[N_LANES] = {&math_avx2, &math_avx512};

    if ((all[i]->needs & ~ptac_cpu_features()) == 0)
        return all[i];
#endif
    (void)i;
    return NULL;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double sigmoid_slope(double x)
{
    const double e = exp(-fabs(x));

    return e / ((1 + e) * (1 + e));
}

static double normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double gelu_slope(double x)
{
    return normal(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

typedef struct subject {
    const char *name;
    double (*expected)(double x);
    double ulp, absolute; /* bounds, one of them 0 */
    float lo, hi;         /* where they hold, besides NaN */
} subject;

static const subject subjects[N_MATH_FUNCTIONS] = {
    [MATH_EXP] = {"exp", exp, 1.1, 0, -INFINITY, INFINITY},
    [MATH_EXP_BOUNDED] = {"exp, bounded", exp, 1.1, 0, -INFINITY, 88},
    [MATH_LOG] = {"log", log, 0.9, 0, FLT_MIN, INFINITY},
    [MATH_SIGMOID] = {"sigmoid", sigmoid, 2.5, 0, -INFINITY, INFINITY},
    [MATH_SIGMOID_OF_SLOPE] = {"sigmoid with slope", sigmoid, 2.9, 0, -INFINITY,
                               INFINITY},
    [MATH_SIGMOID_SLOPE] = {"slope of sigmoid", sigmoid_slope, 5.1, 0, -INFINITY,
                            INFINITY},
    [MATH_TANH] = {"tanh", tanh, 1.6, 0, -INFINITY, INFINITY},
    [MATH_NORMAL] = {"normal", normal, 0, 1.2 * 0x1p-24, -INFINITY, INFINITY},
    [MATH_GELU_SLOPE] = {"slope of gelu", gelu_slope, 0, 0x1p-23, -FLT_MAX, FLT_MAX},
};

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Distance between neighbouring floats at y. */
static double unit_at(double y)
{
    int exponent;

    frexp(y, &exponent);
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

/*
 * How far got is from expected, as a share of what is allowed; infinity counts 2^128.
 */
static double share(const subject *s, double expected, float got)
{
    const double top = 0x1p128;
    const double y = fmax(-top, fmin(top, expected)), z = fmax(-top, fmin(top, got));

    if (isnan(expected) || isnan(got))
        return isnan(expected) && isnan(got) ? 0 : INFINITY;
    return fabs(z - y) / (s->ulp > 0 ? s->ulp * unit_at(y) : s->absolute);
}

typedef struct worst {
    double share;
    float x, y;
} worst;

static void check_block(math_function function, const float *x, worst worsts[N_LANES])
{
    static float y[N_LANES][BLOCK];
    const subject *s = &subjects[function];

    for (int k = 0; k < N_LANES; k++)
        if (lanes_at(k))
            lanes_at(k)->maps[function](x, y[k], BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        const double expected = s->expected(x[i]);

        for (int k = 0; k < N_LANES; k++) {
            const double of_y = lanes_at(k) ? share(s, expected, y[k][i]) : 0;

            if (of_y > worsts[k].share)
                worsts[k] = (worst){of_y, x[i], y[k][i]};
        }
    }
}

/* Every step-th float from bits first to bits last, where the function is defined. */
static void sweep(math_function function, uint32_t first, uint32_t last, uint32_t step,
                  worst worsts[N_LANES])
{
    static float x[BLOCK];
    const subject *s = &subjects[function];
    int n = 0;

    for (uint64_t bits = first; bits <= last; bits += step) {
        const float value = float_of((uint32_t)bits);

        if (value < s->lo || value > s->hi)
            continue;
        x[n++] = value;
        if (n == BLOCK) {
            check_block(function, x, worsts);
            n = 0;
        }
    }
    for (; n > 0 && n < BLOCK; n++)
        x[n] = x[0];
    if (n == BLOCK)
        check_block(function, x, worsts);
}

static void check(math_function function)
{
    const subject *s = &subjects[function];
    worst worsts[N_LANES] = {{0, 0, 0}};

    sweep(function, 0, UINT32_MAX, 997, worsts);
    /* What arguments usually are: 2^-4 to 2^7, of both signs. */
    sweep(function, 0x3d800000, 0x43000000, 61, worsts);
    sweep(function, 0xbd800000, 0xc3000000, 61, worsts);
    for (int k = 0; k < N_LANES; k++) {
        if (!lanes_at(k))
            continue;
        if (worsts[k].share > 1)
            printf("  %s of %.9g is %.9g by %s, %g times the bound off\n", s->name,
                   (double)worsts[k].x, (double)worsts[k].y, lanes_at(k)->name,
                   worsts[k].share);
        EXPECT(worsts[k].share <= 1);
    }
}

#define CHECK(name, function)                                                          \
    UNIT(name)                                                                         \
    {                                                                                  \
        check(function);                                                               \
    }

CHECK(vector_exp, MATH_EXP)
CHECK(vector_exp_bounded, MATH_EXP_BOUNDED)
CHECK(vector_log, MATH_LOG)
CHECK(vector_sigmoid, MATH_SIGMOID)
CHECK(vector_sigmoid_with_slope, MATH_SIGMOID_OF_SLOPE)
CHECK(vector_sigmoid_slope, MATH_SIGMOID_SLOPE)
CHECK(vector_tanh, MATH_TANH)
CHECK(vector_normal, MATH_NORMAL)
CHECK(vector_gelu_slope, MATH_GELU_SLOPE)

static void expect_value(const math_lanes *lanes, math_function function, float x,
                         float expected)
{
    float in[MATH_STEP], out[MATH_STEP];

    for (int i = 0; i < MATH_STEP; i++)
        in[i] = x;
    lanes->maps[function](in, out, MATH_STEP);
    for (int i = 0; i < MATH_STEP; i++)
        if (memcmp(&out[i], &expected, sizeof expected) != 0 &&
            !(isnan(out[i]) && isnan(expected))) {
            printf("  %s of %g is %g by %s, not %g\n", subjects[function].name,
                   (double)x, (double)out[i], lanes->name, (double)expected);
            unit_fail(__FILE__, __LINE__, subjects[function].name);
            return;
        }
}

/* To the bit: softmax of one class is 1, tanh keeps the sign of zero, and so on. */
UNIT(vector_functions_at_special_arguments)
{
    static const struct {
        math_function function;
        float x, expected;
    } rows[] = {
        {MATH_EXP, 0, 1},
        {MATH_EXP, -0.0f, 1},
        {MATH_EXP, INFINITY, INFINITY},
        {MATH_EXP, -INFINITY, 0},
        {MATH_EXP, FLT_MAX, INFINITY},
        {MATH_EXP, -FLT_MAX, 0},
        {MATH_EXP, -104, 0},
        {MATH_EXP, NAN, NAN},
        {MATH_EXP_BOUNDED, 0, 1},
        {MATH_EXP_BOUNDED, -INFINITY, 0},
        {MATH_EXP_BOUNDED, NAN, NAN},
        {MATH_LOG, 1, 0},
        {MATH_LOG, INFINITY, INFINITY},
        {MATH_LOG, NAN, NAN},
        {MATH_SIGMOID, 0, 0.5f},
        {MATH_SIGMOID, INFINITY, 1},
        {MATH_SIGMOID, -INFINITY, 0},
        {MATH_SIGMOID, NAN, NAN},
        {MATH_SIGMOID_SLOPE, 0, 0.25f},
        {MATH_SIGMOID_SLOPE, INFINITY, 0},
        {MATH_SIGMOID_SLOPE, -INFINITY, 0},
        {MATH_SIGMOID_SLOPE, NAN, NAN},
        {MATH_TANH, 0, 0},
        {MATH_TANH, -0.0f, -0.0f},
        {MATH_TANH, INFINITY, 1},
        {MATH_TANH, -INFINITY, -1},
        {MATH_TANH, FLT_TRUE_MIN, FLT_TRUE_MIN},
        {MATH_TANH, NAN, NAN},
        {MATH_NORMAL, 0, 0.5f},
        {MATH_NORMAL, INFINITY, 1},
        {MATH_NORMAL, -INFINITY, 0},
        {MATH_NORMAL, NAN, NAN},
        {MATH_GELU_SLOPE, 0, 0.5f},
        {MATH_GELU_SLOPE, FLT_MAX, 1},
        {MATH_GELU_SLOPE, -FLT_MAX, 0},
        {MATH_GELU_SLOPE, INFINITY, NAN},
        {MATH_GELU_SLOPE, -INFINITY, NAN},
        {MATH_GELU_SLOPE, NAN, NAN},
    };

    for (int k = 0; k < N_LANES; k++)
        for (size_t i = 0; lanes_at(k) && i < sizeof rows / sizeof *rows; i++)
            expect_value(lanes_at(k), rows[i].function, rows[i].x, rows[i].expected);
}
