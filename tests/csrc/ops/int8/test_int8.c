/*
 * test_int8.c - int8 products against plain integers, packing, scales, weights.
 *
 * What checkrows compares rows with, the row "scalar", is compared here with loops that
 * know no panels. Each row that this CPU runs goes through the extremes.
 */
#include "ops/int8/int8_linear.h"
#include "ops/int8/weight.h"
#include "random.h"
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 130,
};

/* A layer and its input. All of it is owned. */
typedef struct layer {
    ptac_int8_linear params;
    float *x, *scale, *bias, *y;
    int8_t *w, *packed;
} layer;

static void *some(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);

    if (!memory)
        abort();
    return memory;
}

static layer layer_new(int64_t m, int64_t n, int64_t k)
{
    const ptac_packed_shape shape = {.n = n, .c = k, .taps = 1, .groups = 1};

    return (layer){
        .params = {.m = m, .n = n, .k = k, .x_stride = k},
        .x = some((size_t)(m * k) * sizeof(float)),
        .scale = some((size_t)n * sizeof(float)),
        .bias = some((size_t)n * sizeof(float)),
        .y = some((size_t)(m * n) * sizeof(float)),
        .w = some((size_t)(n * k)),
        .packed = some((size_t)ptac_packed_bytes(&shape)),
    };
}

static void layer_free(layer *l)
{
    free(l->x);
    free(l->scale);
    free(l->bias);
    free(l->y);
    free(l->w);
    free(l->packed);
}

static void layer_run(layer *l, const ptac_kernel *row)
{
    const ptac_int8_linear *p = &l->params;
    const ptac_packed_shape shape = {.n = p->n, .c = p->k, .taps = 1, .groups = 1};
    const ptac_call call = {
        .op = PTAC_OP_INT8_LINEAR,
        .n_inputs = 4,
        .n_outputs = 1,
        .n_threads = 1,
        .inputs = {{.data = l->x},
                   {.data = l->packed},
                   {.data = l->scale},
                   {.data = l->bias}},
        .outputs = {{.data = l->y}},
        .params = p,
    };

    ptac_pack(&shape, l->w, l->packed);
    EXPECT(row->accepts(&call) == PTAC_TAKE);
    EXPECT(row->run(&call) == PTAC_OK);
}

/* sum of (q - zero) * w, which has to fit in 32 bits. */
static int32_t plain_sum(const int64_t *q, int64_t zero, const int8_t *w, int64_t k)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < k; i++)
        sum += (q[i] - zero) * w[i];
    EXPECT(sum >= INT32_MIN && sum <= INT32_MAX);
    return (int32_t)sum;
}

/* The sum as a float: of 16 bits from two halves, each of which is exact. */
static float plain_float(const int64_t *q, int64_t zero, int64_t most, const int8_t *w,
                         int64_t k)
{
    int64_t half[PTAC_INT8_MOST_TERMS];
    int32_t high;

    if (most == 255)
        return (float)plain_sum(q, zero, w, k);
    for (int64_t i = 0; i < k; i++)
        half[i] = q[i] / 256;
    high = plain_sum(half, zero / 256, w, k);
    for (int64_t i = 0; i < k; i++)
        half[i] = q[i] % 256;
    return fmaf(256, (float)high, (float)plain_sum(half, zero % 256, w, k));
}

static ptac_range plain_range(const float *x, int64_t k)
{
    ptac_range range = {0};

    for (int64_t i = 0; i < k; i++) {
        range.lo = fminf(range.lo, x[i]);
        range.hi = fmaxf(range.hi, x[i]);
        if (!isfinite(x[i]))
            range.poison = NAN;
    }
    return range;
}

/* Whether a row of y is what plain arithmetic makes of a row of x, to the bit. */
static void expect_row(const layer *l, int64_t row)
{
    static int64_t q[PTAC_INT8_MOST_TERMS];
    const ptac_int8_linear *p = &l->params;
    const float *x = l->x + row * p->k, *y = l->y + row * p->n;
    const int64_t most = p->m == 1 ? 65535 : 255;
    const ptac_range range = plain_range(x, p->k);
    const ptac_row_scale s = ptac_scale_of(&range, (float)most);

    for (int64_t i = 0; i < p->k; i++) {
        const float place = fmaf(x[i], s.inverse, (float)s.zero);

        q[i] = isnan(place) ? 0 : llrintf(fminf(fmaxf(place, 0), (float)most));
    }
    for (int64_t j = 0; j < p->n; j++) {
        const int8_t *w = l->w + j * p->k;
        const float sum = plain_float(q, s.zero, most, w, p->k);
        float expected = fmaf(sum, s.scale * l->scale[j], l->bias[j]);

        if (p->relu && expected < 0)
            expected = 0;
        EXPECT(isnan(expected) ? isnan(y[j]) : y[j] == expected);
        EXPECT(!range.poison || isnan(y[j]));
    }
}

/* And near to what floats make of it: half a step for each activation. */
static void expect_near(const layer *l, int64_t row)
{
    const ptac_int8_linear *p = &l->params;
    const float *x = l->x + row * p->k;
    const ptac_range range = plain_range(x, p->k);
    const double step = ((double)range.hi - range.lo) / (p->m == 1 ? 65535 : 255);

    for (int64_t j = 0; j < p->n; j++) {
        double sum = 0, size = 0, rounded = 0;

        for (int64_t i = 0; i < p->k; i++) {
            const double w = (double)l->scale[j] * l->w[j * p->k + i];

            sum += x[i] * w;
            size += fabs(w);
            rounded += fabs(x[i] * w);
        }
        sum += l->bias[j];
        rounded += fabs(l->bias[j]);
        if (p->relu && sum < 0)
            sum = 0;
        EXPECT(fabs(l->y[row * p->n + j] - sum) <=
               0.5001 * step * size + 1e-6 * rounded);
    }
}

static void fill(rng *r, layer *l)
{
    const ptac_int8_linear *p = &l->params;

    fill_smooth(r, PTAC_F32, l->x, p->m * p->k, 3);
    fill_smooth(r, PTAC_F32, l->scale, p->n, 0.01);
    fill_smooth(r, PTAC_F32, l->bias, p->n, 1);
    for (int64_t i = 0; i < p->n * p->k; i++)
        l->w[i] = (int8_t)rng_between(r, -127, 127);
}

static void one_size(rng *r, int64_t m, int64_t n, int64_t k)
{
    layer l = layer_new(m, n, k);

    fill(r, &l);
    l.params.relu = rng_chance(r, 50);
    layer_run(&l, ptac_registry_find(PTAC_OP_INT8_LINEAR, "scalar"));
    for (int64_t i = 0; i < m; i++) {
        expect_row(&l, i);
        expect_near(&l, i);
    }
    layer_free(&l);
}

UNIT(int8_products_are_plain_integers)
{
    rng r = {1};

    for (int64_t size = 1; size <= MOST; size++) {
        one_size(&r, size, rng_between(&r, 1, 40), rng_between(&r, 1, 40));
        one_size(&r, rng_between(&r, 1, 40), size, rng_between(&r, 1, 40));
        one_size(&r, rng_between(&r, 1, 40), rng_between(&r, 1, 40), size);
        one_size(&r, 1, rng_between(&r, 1, MOST), size);
    }
}

UNIT(int8_rows_that_are_not_finite)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    layer l = layer_new(5, 33, 70);
    rng r = {2};

    for (int i = 0; i < 3; i++) {
        fill(&r, &l);
        l.x[70 * 1 + 69 * (i % 2)] = odd[i];
        memset(l.x + 70 * 3, 0, 70 * sizeof *l.x);
        layer_run(&l, ptac_registry_find(PTAC_OP_INT8_LINEAR, "scalar"));
        for (int64_t row = 0; row < 5; row++)
            expect_row(&l, row);
        for (int64_t j = 0; j < 33; j++) {
            EXPECT(isnan(l.y[33 + j]) && !isnan(l.y[j]) && !isnan(l.y[66 + j]));
            EXPECT(l.y[99 + j] == l.bias[j]); /* a row of zeros gives the bias */
        }
    }
    layer_free(&l);
}

/* As many products as may be, all as large as can be, of either sign. */
static void extremes(const ptac_kernel *row, int64_t m, float x, int w)
{
    layer l = layer_new(m, 2, PTAC_INT8_MOST_TERMS);

    for (int64_t i = 0; i < m * PTAC_INT8_MOST_TERMS; i++)
        l.x[i] = x;
    memset(l.w, w, 2 * PTAC_INT8_MOST_TERMS);
    for (int j = 0; j < 2; j++) {
        l.scale[j] = 1;
        l.bias[j] = 0;
    }
    layer_run(&l, row);
    for (int64_t i = 0; i < m; i++) {
        expect_row(&l, i);
        EXPECT(fabs(l.y[2 * i] / ((double)x * w * PTAC_INT8_MOST_TERMS) - 1) < 1e-6);
    }
    layer_free(&l);
}

UNIT(int8_sums_do_not_overflow)
{
    int n;
    const ptac_kernel *const *rows = ptac_registry_rows(PTAC_OP_INT8_LINEAR, &n);

    EXPECT(n > 0);
    for (int i = 0; i < n; i++)
        for (int m = 1; m <= 2 && !(rows[i]->needs & ~ptac_cpu_features()); m++)
            for (int x = -1; x <= 1; x += 2)
                for (int w = -127; w <= 127; w += 254)
                    extremes(rows[i], m, (float)x, w);
}

/* Where a weight lies, as panel.h tells it. */
static int64_t place_of(const ptac_packed_shape *s, int64_t n, int64_t c, int64_t tap)
{
    const int64_t per_group = s->n / s->groups, quads = (s->c + 3) / 4;
    const int64_t columns = (per_group + 15) / 16 * 16;
    const int64_t panel = n % per_group / 64, column = n % per_group % 64;
    const int64_t width = columns - panel * 64 < 64 ? columns - panel * 64 : 64;
    const int64_t line = tap * quads + c / 4;

    return n / per_group * columns * s->taps * quads * 4 +
           panel * 64 * s->taps * quads * 4 + (line * width + column) * 4 + c % 4;
}

static void there_and_back(rng *r, ptac_packed_shape s)
{
    const int64_t n_weights = s.n * s.c * s.taps, bytes = ptac_packed_bytes(&s);
    const int32_t *sums;
    int8_t *plain = some((size_t)n_weights), *again = some((size_t)n_weights + 1);
    int8_t *packed = some((size_t)bytes + 1), *expected = some((size_t)bytes);

    for (int64_t i = 0; i < n_weights; i++)
        plain[i] = (int8_t)rng_next(r);
    memset(packed, 0x5a, (size_t)bytes + 1);
    memset(expected, 0, (size_t)bytes);
    ptac_pack(&s, plain, packed);
    sums = ptac_packed_sums(&s, packed);
    for (int64_t n = 0; n < s.n; n++) {
        int32_t sum = 0;

        for (int64_t c = 0; c < s.c; c++)
            for (int64_t tap = 0; tap < s.taps; tap++) {
                const int8_t w = plain[(n * s.c + c) * s.taps + tap];

                expected[place_of(&s, n, c, tap)] = w;
                sum += w;
            }
        EXPECT(sums[n] == sum);
    }
    EXPECT(memcmp(packed, expected, (size_t)ptac_panels_bytes(&s)) == 0);
    EXPECT(packed[bytes] == 0x5a);
    memset(again, 0x5a, (size_t)n_weights + 1);
    ptac_unpack(&s, packed, again);
    EXPECT(memcmp(plain, again, (size_t)n_weights) == 0 && again[n_weights] == 0x5a);
    free(plain);
    free(again);
    free(packed);
    free(expected);
}

UNIT(int8_weights_are_packed_and_come_back)
{
    rng r = {3};

    for (int round = 0; round < 300; round++) {
        const int64_t groups = rng_chance(&r, 50) ? 1 : rng_between(&r, 2, 5);

        there_and_back(&r, (ptac_packed_shape){
                               .n = groups * rng_length(&r, groups > 1 ? 40 : 200),
                               .c = rng_length(&r, 70),
                               .taps = RNG_PICK(&r, 1, 1, 3, 9, 10),
                               .groups = groups,
                           });
    }
}

/* One row of five weights. */
static bool quantize5(const float *w, int8_t *q, float *scale, ptac_weight_error *error)
{
    return ptac_quantize_weight(w, 1, 5, q, scale, error);
}

UNIT(int8_weights_are_rounded_half_to_even)
{
    static const float w[] = {127, 0.5f, 1.5f, 2.5f, -3.5f};
    static const float negative[] = {-127, -0.5f, -1.5f, 126.5f, -125.5f};
    ptac_weight_error error;
    float scale;
    int8_t q[5];

    EXPECT(quantize5(w, q, &scale, &error) && scale == 1);
    EXPECT(memcmp(q, (int8_t[]){127, 0, 2, 2, -4}, 5) == 0);
    EXPECT(error.signal == 127 * 127 + 0.25 + 2.25 + 6.25 + 12.25);
    EXPECT(error.noise == 4 * 0.25);
    EXPECT(quantize5(negative, q, &scale, &error) && scale == 1);
    EXPECT(memcmp(q, (int8_t[]){-127, 0, -2, 126, -126}, 5) == 0);
}

UNIT(int8_weights_next_to_nothing)
{
    static const float none[] = {0, -0.0f, 0, 0, 0};
    static const float tiny[] = {FLT_TRUE_MIN, -1e-40f, 0, 3e-39f, 1e-35f};
    static const float huge[] = {FLT_MAX, -FLT_MAX, 1, 0, FLT_MAX / 2};
    float odd[] = {1, 2, 3, 4, 5}, scale = -1;
    ptac_weight_error error;
    int8_t q[5] = {1, 1, 1, 1, 1};

    EXPECT(quantize5(none, q, &scale, &error) && scale == 0);
    EXPECT(memcmp(q, (int8_t[5]){0}, 5) == 0);
    EXPECT(error.signal == 0 && error.noise == 0);
    EXPECT(quantize5(tiny, q, &scale, &error) && scale == 0);
    EXPECT(memcmp(q, (int8_t[5]){0}, 5) == 0);
    EXPECT(error.noise == error.signal);
    EXPECT(quantize5(huge, q, &scale, &error) && scale == FLT_MAX / 127);
    EXPECT(q[0] == 127 && q[1] == -127 && q[2] == 0 && (q[4] == 64 || q[4] == 63));
    EXPECT(isfinite(error.signal) && isfinite(error.noise));
    for (int i = 0; i < 5; i++)
        for (int manner = 0; manner < 3; manner++) {
            odd[i] = (float[]){NAN, INFINITY, -INFINITY}[manner];
            EXPECT(!quantize5(odd, q, &scale, &error));
            odd[i] = (float)(i + 1);
        }
    EXPECT(ptac_quantize_weight(odd, 0, 5, q, &scale, &error));
    EXPECT(ptac_quantize_weight(odd, 1, 0, q, &scale, &error) && scale == 0);
}

static void quantized_rows(rng *r, int64_t n, int64_t k)
{
    float *w = some((size_t)(n * k) * sizeof *w);
    float *scale = some((size_t)n * sizeof *scale);
    ptac_weight_error *errors = some((size_t)n * sizeof *errors);
    int8_t *q = some((size_t)(n * k));

    fill_smooth(r, PTAC_F32, w, n * k, ldexp(1, (int)rng_between(r, -60, 60)));
    EXPECT(ptac_quantize_weight(w, n, k, q, scale, errors));
    for (int64_t i = 0; i < n; i++) {
        double signal = 0, noise = 0;
        int largest = 0;

        for (int64_t j = i * k; j < (i + 1) * k; j++) {
            const double missed = w[j] - (double)scale[i] * q[j];

            EXPECT(fabs(missed) <= 0.50001 * scale[i]);
            largest = abs(q[j]) > largest ? abs(q[j]) : largest;
            signal += (double)w[j] * w[j];
            noise += missed * missed;
        }
        EXPECT(largest == 127);
        /* instruction sets may add them up in float, in units of a step */
        EXPECT(fabs(errors[i].signal - signal) <= 1e-5 * signal);
        EXPECT(fabs(errors[i].noise - noise) <= 3e-4 * noise + 1e-9 * signal);
    }
    free(w);
    free(scale);
    free(errors);
    free(q);
}

UNIT(int8_weights_miss_half_a_step_at_most)
{
    rng r = {4};

    for (int round = 0; round < 200; round++)
        quantized_rows(&r, rng_length(&r, 20), rng_length(&r, 300));
}

UNIT(int8_scales_of_ranges)
{
    static const struct {
        float lo, hi;
    } cases[] = {
        {-1, 1},
        {0, 1},
        {-1, 0},
        {-3e38f, 3e38f},
        {0, FLT_MAX},
        {-FLT_MAX, 0},
        {-1e-30f, 1},
        {-1, 1e-30f},
        {0, 0x1p-100f},
        {-7, 3},
        {-FLT_MAX, FLT_MAX},
        {-0x1p-100f, 0x1p-101f},
    };
    static const float tiny[] = {0, FLT_TRUE_MIN, FLT_MIN, 0x1p-120f};

    for (int bits = 8; bits <= 16; bits += 8) {
        const float most = (float)((1 << bits) - 1);

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const ptac_range range = {.lo = cases[i].lo, .hi = cases[i].hi};
            const ptac_row_scale s = ptac_scale_of(&range, most);
            const double width = (double)range.hi - range.lo;

            EXPECT(fabs(s.scale * (double)most / width - 1) < 1e-6);
            EXPECT(fabs(s.scale * (double)s.inverse - 1) < 1e-6);
            EXPECT(s.zero >= 0 && s.zero <= (int32_t)most);
            EXPECT(fabs(s.zero + range.lo / (double)s.scale) < 0.51);
        }
        for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
            const ptac_range range = {.lo = -tiny[i], .hi = tiny[i]};
            const ptac_row_scale s = ptac_scale_of(&range, most);

            EXPECT(s.scale == 0 && s.zero == 0 && s.inverse == 0);
        }
        EXPECT(isnan(ptac_scale_of(&(ptac_range){-1, 1, NAN}, most).scale));
    }
}

UNIT(int8_ranges_have_zero_in_them)
{
    static const ptac_int8_isa *isa = &ptac_int8_scalar;
    static const float above[] = {3, 2, 5}, below[] = {-3, -2, -5};
    ptac_range range = {0};

    isa->measure(above, 3, &range);
    EXPECT(range.lo == 0 && range.hi == 5 && range.poison == 0);
    isa->measure(below, 3, &range); /* widens what it finds */
    EXPECT(range.lo == -5 && range.hi == 5 && range.poison == 0);
    isa->measure((float[]){1, INFINITY}, 2, &range);
    EXPECT(isnan(range.poison));
}
