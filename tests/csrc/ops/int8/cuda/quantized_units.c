/*
 * quantized_units.c - int8 and fp8 layers on an emulated device: int8 has the bits of
 * int8_linear's row "scalar", fp8 what the nearest e4m3 numbers give.
 */
#include "matrices.h"
#include "ops/int8/cuda/quantized_linear.h"
#include "ops/int8/int8_linear.h"
#include "unit.h"

#include "emulated_lt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer {
    int64_t m, n, k;
    matrix x, y, bias;
    matrix weight; /* bytes, [n', k'] */
    float *scales;
    int32_t *column_sums;
    ptac_call call;
    ptac_lt_place place;
    ptac_quantized_linear job;
} layer;

/* Rows of every kind: usual ones, zeros, one sign, and, where asked for, no numbers. */
static void fill_rows(rng *r, matrix *x, bool has_specials)
{
    for (int64_t i = 0; i < x->n_rows; i++) {
        const int64_t kind = rng_below(r, 6);
        const double scale =
            x->dtype == PTAC_F16 ? 4 : ldexp(1, (int)RNG_PICK(r, -30, 0, 9));

        for (int64_t j = 0; j < x->n_cols; j++) {
            const double u = (double)rng_between(r, -4096, 4096) / 4096;

            matrix_put(x, i, j,
                       kind == 0   ? 0
                       : kind == 1 ? fabs(u) * scale
                                   : u * scale);
        }
        if (has_specials && kind == 2)
            matrix_put(x, i, rng_below(r, x->n_cols),
                       rng_chance(r, 50) ? NAN : -INFINITY);
    }
}

static void fill_weight(rng *r, layer *l, bool is_fp8)
{
    uint8_t *w = l->weight.data;
    const int64_t ld = l->weight.ld;

    memset(w, 0, (size_t)(l->weight.n_rows * ld));
    for (int64_t i = 0; i < l->n; i++) {
        l->column_sums[i] = 0;
        l->scales[i] = ldexpf((float)rng_between(r, 1, 1000), -12);
        for (int64_t j = 0; j < l->k; j++) {
            const int64_t q = rng_between(r, -127, 127);

            /* 126 magnitudes of e4m3, and signs: no NaN. */
            w[i * ld + j] = is_fp8 ? (uint8_t)(llabs(q) % 127 | (q < 0 ? 128 : 0))
                                   : (uint8_t)(int8_t)q;
            l->column_sums[i] += (int32_t)q;
        }
    }
}

static void layer_make(layer *l, rng *r, ptac_dtype dtype, bool is_fp8)
{
    const int64_t gap = rng_chance(r, 50) ? 0 : rng_between(r, 1, 9);

    l->m = rng_between(r, 1, 40);
    l->n = is_fp8 ? 16 * rng_between(r, 1, 4) : rng_between(r, 1, 70);
    l->k = rng_chance(r, 50) ? 16 * rng_between(r, 1, 6) : rng_between(r, 1, 100);
    l->x = matrix_new(dtype, l->m, l->k, l->k + gap, rng_between(r, 0, 1));
    l->y = matrix_new(dtype, l->m, l->n, l->n + gap, 0);
    l->bias = matrix_new(dtype, 1, l->n, l->n, 0);
    l->weight = matrix_new(PTAC_OTHER_DTYPE, ptac_quantized_padded(l->n), l->k,
                           ptac_quantized_padded(l->k), 0);
    l->scales = calloc((size_t)l->n, sizeof(float));
    l->column_sums = calloc((size_t)l->n, sizeof(int32_t));
    if (!l->scales || !l->column_sums)
        abort();
    fill_rows(r, &l->x, !is_fp8);
    matrix_fill(r, &l->bias, 0.37);
    fill_weight(r, l, is_fp8);
    l->call = (ptac_call){.stream = the_device.stream};
    l->place =
        (ptac_lt_place){.call = &l->call, .dtype = dtype, .workspace = the_workspace};
    l->job = (ptac_quantized_linear){
        .m = l->m,
        .n = l->n,
        .k = l->k,
        .act = PTAC_ACT_RELU,
        .x = lt_of(&l->x),
        .y = lt_of(&l->y),
        .weight = l->weight.data,
        .bias = rng_chance(r, 70) ? l->bias.data : NULL,
        .scales = l->scales,
        .column_sums = l->column_sums,
    };
}

static void layer_drop(layer *l)
{
    matrix_drop(&l->x);
    matrix_drop(&l->y);
    matrix_drop(&l->bias);
    matrix_drop(&l->weight);
    free(l->scales);
    free(l->column_sums);
}

/* --- int8 --- */

/* By the CPU's row, which has two rows at least: a single one is there twice. */
static float *by_the_cpu(const layer *l)
{
    const int64_t m = l->m == 1 ? 2 : l->m;
    const ptac_packed_shape shape = {.n = l->n, .c = l->k, .taps = 1, .groups = 1};
    const ptac_int8_linear params = {m, l->n, l->k, l->k, l->job.act == PTAC_ACT_RELU};
    float *x = calloc((size_t)(m * l->k), sizeof *x);
    float *y = calloc((size_t)(m * l->n), sizeof *y);
    float *bias = calloc((size_t)l->n, sizeof *bias);
    int8_t *plain = calloc((size_t)(l->n * l->k), 1);
    int8_t *packed =
        aligned_alloc(64, (size_t)(ptac_packed_bytes(&shape) + 63) / 64 * 64);
    ptac_call call = {
        .n_inputs = l->job.bias ? 4 : 3, .n_threads = 1, .params = &params};

    if (!x || !y || !bias || !plain || !packed)
        abort();
    for (int64_t i = 0; i < m * l->k; i++)
        x[i] = (float)matrix_at(&l->x, i / l->k % l->m, i % l->k);
    for (int64_t i = 0; i < l->n; i++) {
        bias[i] = (float)matrix_at(&l->bias, 0, i);
        memcpy(plain + i * l->k, (int8_t *)l->weight.data + i * l->weight.ld,
               (size_t)l->k);
    }
    ptac_pack(&shape, plain, packed);
    call.inputs[0].data = x;
    call.inputs[1].data = packed;
    call.inputs[2].data = l->scales;
    call.inputs[3].data = bias;
    call.outputs[0].data = y;
    EXPECT(ptac_int8_linear_run(&call, &ptac_int8_scalar) == PTAC_OK);
    free(x);
    free(bias);
    free(plain);
    free(packed);
    return y;
}

/* The bits of a float that was rounded to the layer's dtype; NaNs are all alike. */
static bool has_bits_of(const layer *l, const float *expected)
{
    matrix rounded = matrix_new(l->y.dtype, 1, 1, 1, 0);
    bool same = true;

    for (int64_t i = 0; i < l->m * l->n; i++) {
        const double got = matrix_at(&l->y, i / l->n, i % l->n);
        double wanted;

        matrix_put(&rounded, 0, 0, expected[i]);
        wanted = matrix_at(&rounded, 0, 0);
        same &= isnan(wanted) ? isnan(got)
                              : got == wanted && !signbit(got) == !signbit(wanted);
    }
    matrix_drop(&rounded);
    return same;
}

static const ptac_dtype dtypes[] = {PTAC_F32, PTAC_F16, PTAC_BF16};

UNIT(int8_on_cuda_has_the_bits_of_the_cpu)
{
    rng r = {21};

    device_begin();
    for (uint64_t i = 0; i < unit_amount(36, 2000); i++) {
        layer l;
        float *expected;

        layer_make(&l, &r, dtypes[i % 3], false);
        if (i % 2)
            l.job.act = PTAC_ACT_NONE;
        the_device.set_order(rng_next(&r));
        forget_work();
        EXPECT(ptac_int8_linear_cuda_accepts(&l.place, &l.job) == PTAC_TAKE);
        EXPECT(ptac_int8_linear_cuda(&l.place, &l.job) == PTAC_OK);
        EXPECT(work_done().n_products == 1 && work_done().n_launches == 2);
        expected = by_the_cpu(&l);
        EXPECT(has_bits_of(&l, expected));
        EXPECT(matrix_has_clean_gaps(&l.y));
        free(expected);
        layer_drop(&l);
    }
    EXPECT(emulated_lt.n_alive == 0);
}

UNIT(int8_on_cuda_takes_activations)
{
    rng r = {22};
    layer l;
    float *expected;

    device_begin();
    layer_make(&l, &r, PTAC_F32, false);
    matrix_fill(&r, &l.x, 0.01);
    l.job.act = PTAC_ACT_NONE;
    expected = by_the_cpu(&l);
    for (int act = 0; act < PTAC_N_ACTS; act++) {
        exact y = exact_new(l.m, l.n);

        l.job.act = (ptac_act)act;
        for (int64_t i = 0; i < l.m * l.n; i++)
            y.at[i] = exact_act(expected[i], l.job.act);
        EXPECT(ptac_int8_linear_cuda(&l.place, &l.job) == PTAC_OK);
        EXPECT(matrix_is_near(&l.y, &y, &y, 16, "y"));
        exact_drop(&y);
    }
    free(expected);
    layer_drop(&l);
}

UNIT(quantized_layers_refuse_before_they_write)
{
    rng r = {23};
    layer l;

    device_begin();
    layer_make(&l, &r, PTAC_BF16, false);
    l.place.workspace.bytes = ptac_int8_linear_cuda_bytes(l.m, l.n, l.k) - 1;
    EXPECT(ptac_int8_linear_cuda(&l.place, &l.job) == PTAC_NO_MEMORY);
    l.place.workspace.bytes++;
    refuse_all(true);
    EXPECT(ptac_int8_linear_cuda(&l.place, &l.job) == PTAC_UNSUPPORTED);
    refuse_all(false);
    EXPECT(matrix_is_noise(&l.y));
    EXPECT(ptac_int8_linear_cuda(&l.place, &l.job) == PTAC_OK);
    l.place.device = 3;
    EXPECT(ptac_int8_linear_cuda_accepts(&l.place, &l.job) == PTAC_DEVICE);
    EXPECT(ptac_fp8_linear_cuda_accepts(&l.place, &l.job) == PTAC_DEVICE);
    layer_drop(&l);
}

/* --- fp8 --- */

static double of_e4m3(int code)
{
    const int exponent = code >> 3 & 15;
    const double magnitude =
        exponent ? ldexp(8 + (code & 7), exponent - 10) : ldexp(code & 7, -9);

    return code & 128 ? -magnitude : magnitude;
}

/* The nearest of all 127 magnitudes; of two, that with an even code. */
static double nearest_e4m3(float x)
{
    int best = 0;

    for (int code = 1; code < 127; code++) {
        const double d = fabs(fabs((double)x) - of_e4m3(code));
        const double least = fabs(fabs((double)x) - of_e4m3(best));

        if (d < least || (d == least && code % 2 == 0))
            best = code;
    }
    return x < 0 ? -of_e4m3(best) : of_e4m3(best);
}

/* x as its e4m3 numbers stand for it. */
static exact quantized(const matrix *x)
{
    exact e = exact_of(x);

    for (int64_t i = 0; i < x->n_rows; i++) {
        float most = 0, scale, inverse;

        for (int64_t j = 0; j < x->n_cols; j++)
            most = fmaxf(most, (float)fabs(matrix_at(x, i, j)));
        scale = most / 448.0f;
        inverse = scale >= 0x1p-120f ? 1.0f / scale : 0;
        for (int64_t j = 0; j < x->n_cols; j++)
            e.at[i * x->n_cols + j] =
                inverse == 0
                    ? 0
                    : nearest_e4m3((float)matrix_at(x, i, j) * inverse) * (double)scale;
    }
    return e;
}

static exact weight_of(const layer *l)
{
    exact e = exact_new(l->n, l->k);

    for (int64_t i = 0; i < l->n * l->k; i++)
        e.at[i] =
            of_e4m3(((uint8_t *)l->weight.data)[i / l->k * l->weight.ld + i % l->k]) *
            l->scales[i / l->k];
    return e;
}

static bool fp8_is_right(const layer *l)
{
    exact x = quantized(&l->x), w = weight_of(l);
    exact y = exact_product(&x, false, &w, true, false);
    exact size = exact_product(&x, false, &w, true, true);
    bool near;

    for (int64_t i = 0; i < l->m * l->n; i++) {
        const double bias = l->job.bias ? matrix_at(&l->bias, 0, i % l->n) : 0;

        y.at[i] = exact_act(y.at[i] + bias, l->job.act);
        size.at[i] += fabs(bias);
    }
    near = matrix_is_near(&l->y, &y, &size, 4, "y") && matrix_has_clean_gaps(&l->y);
    exact_drop(&x);
    exact_drop(&w);
    exact_drop(&y);
    exact_drop(&size);
    return near;
}

UNIT(fp8_on_cuda_is_the_nearest)
{
    rng r = {24};

    device_begin();
    for (uint64_t i = 0; i < unit_amount(15, 900); i++) {
        layer l;

        layer_make(&l, &r, dtypes[i % 3], true);
        l.job.act = (ptac_act)RNG_PICK(&r, PTAC_ACT_NONE, PTAC_ACT_RELU, PTAC_ACT_SILU);
        /* Large results would meet float16's range. */
        for (int64_t j = 0; j < l.n; j++)
            l.scales[j] = ldexpf(l.scales[j], -12);
        EXPECT(ptac_fp8_linear_cuda_accepts(&l.place, &l.job) == PTAC_TAKE);
        EXPECT(ptac_fp8_linear_cuda(&l.place, &l.job) == PTAC_OK);
        EXPECT(fp8_is_right(&l));
        layer_drop(&l);
    }
    EXPECT(emulated_lt.n_alive == 0);
}

UNIT(fp8_on_cuda_shows_what_is_no_number)
{
    rng r = {25};
    layer l;

    device_begin();
    layer_make(&l, &r, PTAC_F32, true);
    l.job.act = PTAC_ACT_NONE;
    matrix_put(&l.x, 0, l.k - 1, INFINITY);
    EXPECT(ptac_fp8_linear_cuda(&l.place, &l.job) == PTAC_OK);
    for (int64_t j = 0; j < l.n; j++)
        EXPECT(isnan(matrix_at(&l.y, 0, j)));
    EXPECT(l.m == 1 || !isnan(matrix_at(&l.y, l.m - 1, 0)));
    layer_drop(&l);
}

UNIT(fp8_is_for_devices_that_have_it)
{
    rng r = {26};
    layer l;

    device_begin();
    EXPECT(ptac_lt_open(1, 80) == NULL);
    EXPECT(ptac_lt_open(2, 120) == NULL);
    layer_make(&l, &r, PTAC_BF16, true);
    for (int device = 0; device < 3; device++) {
        l.place.device = device;
        EXPECT(ptac_fp8_linear_cuda_accepts(&l.place, &l.job) ==
               (device == 0 ? PTAC_TAKE : PTAC_DEVICE));
    }
    l.place.device = 0;
    l.job.n -= 1;
    EXPECT(ptac_fp8_linear_cuda_accepts(&l.place, &l.job) == PTAC_SHAPE);
    layer_drop(&l);
}
