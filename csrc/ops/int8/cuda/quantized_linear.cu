/*
 * quantized_linear.cu - rows of activations as int8 or fp8, and int32 sums as floats.
 *
 * int8 is that of int8_ref.c, operation by operation: the same bits. fp8 is e4m3 with
 * the row's largest magnitude at 448, the largest number that e4m3 has.
 */
#include "device/cuda/kernel.h"
#include "ops/int8/cuda/quantized_kernel.h"
#include "ops/linear/cuda/act_kernel.h"

enum {
    THREADS = PTAC_QUANTIZED_THREADS,
    WARPS = THREADS / PTAC_WARP,
    UNIT = PTAC_QUANTIZED_UNIT,
    WIDTH = PTAC_DEQUANTIZE_UNIT,
};

/* Below it 1 / scale is infinite or nearly so, and what it stands for nothing. */
#define LEAST_SCALE 0x1p-120f

struct unit {
    float at[UNIT];
};

typedef ptac_pack<unsigned char, UNIT> bytes;

/* Elements from i on, 0 behind n. Wide: addresses are those of packs. */
template <bool is_wide, class T>
PTAC_DEVICE unit load(ptac_input<T> x, ptac_i64 row, ptac_i64 i, ptac_i64 n)
{
    constexpr int pack = PTAC_PACK_BYTES / sizeof(T);
    unit u;

    if (is_wide && i + UNIT <= n) {
        for (int p = 0; p < UNIT / pack; p++) {
            const ptac_pack<T, pack> values = x.template pack<pack>(row + i + p * pack);

            for (int e = 0; e < pack; e++)
                u.at[p * pack + e] = ptac_real(values.at[e]);
        }
    } else {
        for (int e = 0; e < UNIT; e++)
            u.at[e] = i + e < n ? ptac_real(x[row + i + e]) : 0.0f;
    }
    return u;
}

/* A block's threads take a row's units in turn: this is one's first, and the next. */
enum {
    STEP = THREADS * UNIT,
};

PTAC_DEVICE ptac_i64 first_of_thread()
{
    return (ptac_i64)threadIdx.x * UNIT;
}

/* --- what a row lies between --- */

struct range {
    float lo, hi; /* zero is among them */
    int is_finite;
};

PTAC_DEVICE range joined(range a, range b)
{
    return {b.lo < a.lo ? b.lo : a.lo, b.hi > a.hi ? b.hi : a.hi,
            a.is_finite && b.is_finite};
}

PTAC_DEVICE range joined_in_block(range r)
{
    PTAC_SHARED(range, of_warp, WARPS);

    for (int step = PTAC_WARP / 2; step > 0; step /= 2)
        r = joined(r, {__shfl_xor_sync(0xffffffffu, r.lo, step),
                       __shfl_xor_sync(0xffffffffu, r.hi, step),
                       __shfl_xor_sync(0xffffffffu, r.is_finite, step)});
    if (threadIdx.x % PTAC_WARP == 0)
        of_warp[threadIdx.x / PTAC_WARP] = r;
    __syncthreads();
    r = of_warp[0];
    for (int i = 1; i < WARPS; i++)
        r = joined(r, of_warp[i]);
    return r;
}

PTAC_DEVICE range widened(range r, const unit &u)
{
    for (int e = 0; e < UNIT; e++)
        r = joined(r, {u.at[e], u.at[e], u.at[e] * 0.0f == 0.0f});
    return r;
}

/* Of the row whose unit `mine` is this thread's first; rows of more units are read. */
template <bool is_wide, class T>
PTAC_DEVICE range measured(ptac_input<T> x, ptac_i64 row, ptac_i64 n, const unit &mine)
{
    range r = widened({0.0f, 0.0f, 1}, mine);

    for (ptac_i64 i = first_of_thread() + STEP; i < n; i += STEP)
        r = widened(r, load<is_wide>(x, row, i, n));
    return joined_in_block(r);
}

/* --- int8 --- */

struct int8_scale {
    float scale, inverse, zero;
};

/* ptac_scale_of() with 255 steps. */
PTAC_DEVICE int8_scale int8_scale_of(range r)
{
    const float scale = r.hi / 255.0f - r.lo / 255.0f;

    if (!r.is_finite)
        return {__uint_as_float(0x7fc00000u), 0.0f, 0.0f};
    if (scale < LEAST_SCALE)
        return {0.0f, 0.0f, 0.0f};

    const float inverse = 1.0f / scale;
    const float zero = rintf(-r.lo * inverse);

    return {scale, inverse, zero < 255.0f ? zero : 255.0f};
}

/* 0..255, less 128. */
PTAC_DEVICE unsigned char int8_of(float x, int8_scale s)
{
    const float q = rintf(__fmaf_rn(x, s.inverse, s.zero));

    return (unsigned char)((q > 0.0f ? (int)(q < 255.0f ? q : 255.0f) : 0) - 128);
}

/* A block a row. Rows of q are filled up with zeros of the scale, to whole units. */
template <bool is_wide, class T>
PTAC_DEVICE void quantize_int8(ptac_input<T> x, ptac_output<unsigned char> q,
                               ptac_output<ptac_cuda_row_scale> scales, ptac_i64 n,
                               ptac_i64 ld, ptac_i64 ld_q)
{
    const ptac_i64 row = (ptac_i64)blockIdx.x;
    unit u = load<is_wide>(x, row * ld, first_of_thread(), n);
    const int8_scale s = int8_scale_of(measured<is_wide>(x, row * ld, n, u));

    if (threadIdx.x == 0)
        scales.put(row, {s.scale, (int)s.zero});
    for (ptac_i64 i = first_of_thread(); i < ld_q; i += STEP) {
        bytes packed;

        if (i >= STEP)
            u = load<is_wide>(x, row * ld, i, n);
        for (int e = 0; e < UNIT; e++)
            packed.at[e] = int8_of(u.at[e], s);
        q.put<UNIT>(row * ld_q + i, packed);
    }
}

/* --- fp8 --- */

/*
 * To the nearest e4m3, ties to even; what lies beyond 448 becomes 448. A sign, four
 * bits of exponent with a bias of 7, three of mantissa; 0x7f is NaN.
 */
PTAC_DEVICE unsigned char e4m3_of(float x)
{
    const ptac_u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
    const ptac_u32 magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (unsigned char)(sign | 0x7fu);
    if (magnitude < 0x3c800000u) /* 2^-6: multiples of 2^-9 */
        return (unsigned char)(sign |
                               (ptac_u32)rintf(__uint_as_float(magnitude) * 512.0f));

    const ptac_u32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    const ptac_u32 code = (rounded >> 20) - (120u << 3);

    return (unsigned char)(sign | (code < 0x7eu ? code : 0x7eu));
}

template <bool is_wide, class T>
PTAC_DEVICE void quantize_fp8(ptac_input<T> x, ptac_output<unsigned char> q,
                              ptac_output<float> scales, ptac_i64 n, ptac_i64 ld,
                              ptac_i64 ld_q)
{
    const ptac_i64 row = (ptac_i64)blockIdx.x;
    unit u = load<is_wide>(x, row * ld, first_of_thread(), n);
    const range r = measured<is_wide>(x, row * ld, n, u);
    const float most = r.hi > -r.lo ? r.hi : -r.lo;
    const float scale = r.is_finite ? most / 448.0f : __uint_as_float(0x7fc00000u);
    const float inverse = scale >= LEAST_SCALE ? 1.0f / scale : 0.0f;

    if (threadIdx.x == 0)
        scales.put(row, inverse == 0.0f && r.is_finite ? 0.0f : scale);
    for (ptac_i64 i = first_of_thread(); i < ld_q; i += STEP) {
        bytes packed;

        if (i >= STEP)
            u = load<is_wide>(x, row * ld, i, n);
        for (int e = 0; e < UNIT; e++)
            packed.at[e] = r.is_finite ? e4m3_of(u.at[e] * inverse) : 0;
        q.put<UNIT>(row * ld_q + i, packed);
    }
}

/* --- sums as floats --- */

struct columns {
    float at[WIDTH];
};

template <int act> PTAC_DEVICE void all_acts_of(columns *y)
{
    for (int e = 0; e < WIDTH; e++)
        y->at[e] = ptac_act_of<act>(y->at[e]);
}

template <class T>
PTAC_DEVICE void put_columns(ptac_output<T> y, ptac_i64 i, int n, bool is_wide,
                             const columns &values)
{
    ptac_pack<T, WIDTH> packed;

    for (int e = 0; e < WIDTH; e++)
        packed.at[e] = ptac_from<T>(values.at[e]);
    if (is_wide) {
        y.template put<WIDTH>(i, packed);
        return;
    }
    for (int e = 0; e < WIDTH; e++)
        if (e < n)
            y.put(i + e, packed.at[e]);
}

/*
 * y = act(fma(float(sum - (zero - 128) * column sum), row scale * column scale, bias)),
 * where sum is of q - 128: finish() of int8_ref.c.
 */
template <class T>
PTAC_DEVICE void dequantize(ptac_input<int> sums,
                            ptac_input<ptac_cuda_row_scale> row_scales,
                            ptac_input<int> column_sums, ptac_input<float> scales,
                            ptac_input<T> bias, ptac_output<T> y,
                            const ptac_dequantize &p, int is_wide)
{
    const ptac_i64 across = (ptac_i64)blockIdx.x % p.n_across;
    const ptac_i64 column = (across * THREADS + threadIdx.x) * WIDTH;
    const ptac_i64 first = (ptac_i64)blockIdx.x / p.n_across * PTAC_DEQUANTIZE_ROWS;
    const ptac_i64 last = first + PTAC_DEQUANTIZE_ROWS;
    const ptac_i64 left = p.n_cols - column;
    const int n = left < WIDTH ? (int)left : (int)WIDTH;
    columns scale = {}, shift = {};
    int of_column[WIDTH] = {};

    if (n <= 0)
        return;
    for (int e = 0; e < WIDTH; e++)
        if (e < n) {
            scale.at[e] = scales[column + e];
            of_column[e] = column_sums[column + e];
            shift.at[e] = bias.data ? ptac_real(bias[column + e]) : 0.0f;
        }
    for (ptac_i64 row = first; row < last && row < p.n_rows; row++) {
        const ptac_cuda_row_scale r = row_scales[row];
        const ptac_pack<int, WIDTH> sum = sums.pack<WIDTH>(row * p.ld_sums + column);
        columns values;

        for (int e = 0; e < WIDTH; e++)
            values.at[e] = __fmaf_rn((float)(sum.at[e] - (r.zero - 128) * of_column[e]),
                                     r.scale * scale.at[e], shift.at[e]);
        PTAC_EACH_ACT(p.act, all_acts_of, &values)
        put_columns(y, row * p.ld_y + column, n, is_wide && n == WIDTH, values);
    }
}

#define QUANTIZE(name, function, is_wide, T, scale)                                    \
    PTAC_KERNEL(name, PTAC_QUANTIZED_THREADS, ptac_input<T> x,                         \
                ptac_output<unsigned char> q, ptac_output<scale> scales, ptac_i64 n,   \
                ptac_i64 ld, ptac_i64 ld_q)                                            \
    {                                                                                  \
        function<is_wide>(x, q, scales, n, ld, ld_q);                                  \
    }
#define KERNELS(suffix, T)                                                             \
    QUANTIZE(quantize_int8_##suffix, quantize_int8, false, T, ptac_cuda_row_scale)     \
    QUANTIZE(quantize_int8_wide_##suffix, quantize_int8, true, T, ptac_cuda_row_scale) \
    QUANTIZE(quantize_fp8_##suffix, quantize_fp8, false, T, float)                     \
    QUANTIZE(quantize_fp8_wide_##suffix, quantize_fp8, true, T, float)                 \
    PTAC_KERNEL(dequantize_##suffix, PTAC_QUANTIZED_THREADS, ptac_input<int> sums,     \
                ptac_input<ptac_cuda_row_scale> row_scales,                            \
                ptac_input<int> column_sums, ptac_input<float> scales,                 \
                ptac_input<T> bias, ptac_output<T> y, ptac_dequantize p, int is_wide)  \
    {                                                                                  \
        dequantize(sums, row_scales, column_sums, scales, bias, y, p, is_wide);        \
    }

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
