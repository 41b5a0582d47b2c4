/*
 * int8_ref.c - the definition of int8 arithmetic, one number at a time.
 */
#include "ops/int8/isa.h"

#include "ops/int8/panel.h"
#include "ops/int8/sublayer/rows.h"

#include <math.h>
#include <string.h>

/* Below it 1 / scale is infinite or nearly so, and what it stands for nothing. */
#define LEAST_SCALE 0x1p-120f

ptac_row_scale ptac_scale_of(const ptac_range *range, float most)
{
    const float scale = range->hi / most - range->lo / most;

    if (range->poison != 0.0f)
        return (ptac_row_scale){NAN, 0, 0.0f};
    if (scale < LEAST_SCALE)
        return (ptac_row_scale){0.0f, 0, 0.0f};

    const float inverse = 1.0f / scale;
    const float zero = rintf(-range->lo * inverse);

    return (ptac_row_scale){scale, (int32_t)(zero < most ? zero : most), inverse};
}

bool ptac_int8_is_aligned(const ptac_call *call)
{
    for (int i = 0; i < call->n_inputs; i++)
        if (!ptac_view_is_aligned(&call->inputs[i], sizeof(int32_t)))
            return false;
    return true;
}

static void sum(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums)
{
    const int width = n_vectors * PTAC_LANES;
    const int8_t *w = tile->panel;

    memset(sums, 0, (size_t)n_rows * PTAC_PANEL * sizeof *sums);
    for (int64_t s = 0; s < tile->n_segments; s++)
        for (int64_t k = 0; k < tile->n_quads; k++, w += width * PTAC_QUAD)
            for (int r = 0; r < n_rows; r++) {
                const uint8_t *q = tile->rows[r] + tile->segments[s] + k * PTAC_QUAD;
                int32_t *row = sums + r * PTAC_PANEL;

                for (int n = 0; n < width; n++)
                    for (int i = 0; i < PTAC_QUAD; i++)
                        row[n] += q[i] * w[n * PTAC_QUAD + i];
            }
}

static float finish_one(const ptac_epilogue *e, int n, float exact, float row_scale)
{
    const float bias = e->bias ? e->bias[n] : 0.0f;
    const float y = fmaf(exact, row_scale * e->column_scales[n], bias);

    return e->relu && y < 0.0f ? 0.0f : y;
}

static void finish(const ptac_epilogue *e, const int32_t *sums, int n_rows,
                   const ptac_row_scale *rows, float *y, int64_t y_stride)
{
    for (int r = 0; r < n_rows; r++)
        for (int n = 0; n < e->n_columns; n++) {
            const int32_t exact =
                sums[r * PTAC_PANEL + n] - rows[r].zero * e->column_sums[n];

            y[r * y_stride + n] = finish_one(e, n, (float)exact, rows[r].scale);
        }
}

static void finish16(const ptac_epilogue *e, const int32_t *sums, ptac_row_scale row,
                     float *y)
{
    for (int n = 0; n < e->n_columns; n++) {
        const int32_t column = e->column_sums[n];
        const int32_t high = sums[n] - (row.zero >> 8) * column;
        const int32_t low = sums[PTAC_PANEL + n] - (row.zero & 255) * column;

        y[n] = finish_one(e, n, fmaf(256.0f, (float)high, (float)low), row.scale);
    }
}

static void measure(const float *x, int64_t n, ptac_range *range)
{
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < range->lo)
            range->lo = x[i];
        if (x[i] > range->hi)
            range->hi = x[i];
        range->poison += x[i] * 0.0f;
    }
}

static int32_t round_to(float x, float inverse, float zero, float most)
{
    const float q = rintf(fmaf(x, inverse, zero));

    return q > 0.0f ? (int32_t)(q < most ? q : most) : 0;
}

static void quantize(const float *x, int64_t n, float inverse, float zero, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = (uint8_t)round_to(x[i], inverse, zero, 255.0f);
}

static void quantize16(const float *x, int64_t n, float inverse, float zero,
                       uint8_t *high, uint8_t *low)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t q = round_to(x[i], inverse, zero, 65535.0f);

        high[i] = (uint8_t)(q >> 8);
        low[i] = (uint8_t)(q & 255);
    }
}

static void quantize_planes(const ptac_pixels *image, const float *planes,
                            int64_t plane_stride, int64_t begin, int64_t end,
                            float inverse, float zero, uint8_t *q)
{
    for (int64_t i = begin; i < end; i++) {
        uint8_t *pixel = q + i / image->width * image->line_bytes +
                         i % image->width * image->pixel_bytes;

        for (int64_t c = 0; c < image->n_channels; c++)
            quantize(planes + c * plane_stride + i, 1, inverse, zero, pixel + c);
    }
}

static void store_planes(const float *rows, int n_pixels, int n_columns, float *planes,
                         int64_t plane_stride)
{
    for (int n = 0; n < n_columns; n++)
        for (int i = 0; i < n_pixels; i++)
            planes[n * plane_stride + i] = rows[i * PTAC_PANEL + n];
}

/* See sublayer/rows_tpl.h. */
static float gelu_one(float z)
{
    const float *e = ptac_gelu_exp_terms, *t = ptac_gelu_terms;
    const float size = fminf(fabsf(z), PTAC_GELU_MOST), x = size * size * -0.5f;
    const float n = rintf(x * 0x1.715476p0f);
    const float r = fmaf(-n, 0x1.7f7d1cp-20f, fmaf(-n, 0x1.62e4p-1f, x));
    const float square = r * r;
    const float even = fmaf(fmaf(e[4], square, e[2]), square, e[0]);
    const float rest = fmaf(square, fmaf(fmaf(e[3], square, e[1]), r, even), r);
    const float k = 1.0f / fmaf(size, PTAC_GELU_P, 1.0f);
    float sum = t[4];

    if (z != z)
        return z;
    for (int i = 3; i >= 0; i--)
        sum = fmaf(sum, k, t[i]);
    sum = sum * k * ldexpf(rest + 1.0f, (int)n);
    if (fabsf(z) > PTAC_GELU_MOST)
        sum = 0.0f;
    return z * (z < 0.0f ? sum : 1.0f - sum);
}

static void gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_one(x[i]);
}

static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* Halves are added to halves. */
static float total(float sums[PTAC_NORM_SUMS])
{
    for (int half = PTAC_NORM_SUMS / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

static void norm(const ptac_int8_norm *how, const float *x, int64_t n, float *y)
{
    float sums[PTAC_NORM_SUMS] = {0}, squares[PTAC_NORM_SUMS] = {0};
    float mean, by;

    for (int64_t i = 0; i < n; i++)
        sums[i % PTAC_NORM_SUMS] += x[i];
    mean = total(sums) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        float *sum = &squares[i % PTAC_NORM_SUMS];

        *sum = fmaf(x[i] - mean, x[i] - mean, *sum);
    }
    by = 1.0f / sqrtf(total(squares) / (float)n + how->eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf((x[i] - mean) * by, how->weight ? how->weight[i] : 1.0f,
                    how->bias ? how->bias[i] : 0.0f);
}

void ptac_int8_pick(const float *x, int64_t step, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i * step];
}

const ptac_int8_isa ptac_int8_scalar = {PTAC_INT8_MEMBERS, .pick = ptac_int8_pick};
