/*
 * planes_avx512.c - sixteen pixels by sixteen fours of channels at a time.
 */
#if defined(__x86_64__)
#include "ops/int8/planes.h"

#include "ops/int8/panel.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

enum {
    SIDE = 16,   /* of a square of 32-bit numbers: a register wide, 16 registers deep */
    AHEAD = 128, /* bytes of each plane that are asked for before they are needed */
};

/*
 * Rows become columns: pairs of rows by 32 bits, then by 64, then by the four lanes of
 * 128 bits, twice.
 */
TARGET static inline void transpose(__m512i r[SIDE])
{
    __m512i t[SIDE];

#define PAIR(a, b, to)                                                                 \
    t[to] = _mm512_unpacklo_epi32(r[a], r[b]);                                         \
    t[to + 1] = _mm512_unpackhi_epi32(r[a], r[b]);
    PAIR(0, 1, 0)
    PAIR(2, 3, 2)
    PAIR(4, 5, 4)
    PAIR(6, 7, 6)
    PAIR(8, 9, 8)
    PAIR(10, 11, 10)
    PAIR(12, 13, 12)
    PAIR(14, 15, 14)
#undef PAIR
#define FOUR(a)                                                                        \
    r[a] = _mm512_unpacklo_epi64(t[a], t[a + 2]);                                      \
    r[a + 1] = _mm512_unpackhi_epi64(t[a], t[a + 2]);                                  \
    r[a + 2] = _mm512_unpacklo_epi64(t[a + 1], t[a + 3]);                              \
    r[a + 3] = _mm512_unpackhi_epi64(t[a + 1], t[a + 3]);
    FOUR(0)
    FOUR(4)
    FOUR(8)
    FOUR(12)
#undef FOUR
    /* r[4i + j] holds, in its lane l, column 4l + j of rows 4i to 4i + 3. */
#define LANES(j)                                                                       \
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);                                 \
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);                             \
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);                        \
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    LANES(0)
    LANES(1)
    LANES(2)
    LANES(3)
#undef LANES
#define WHOLE(j)                                                                       \
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);                                 \
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);                             \
    r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);                        \
    r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
    WHOLE(0) WHOLE(1) WHOLE(2) WHOLE(3)
#undef WHOLE
}

TARGET static inline __mmask16 first_lanes(int64_t n)
{
    return n >= SIDE ? 0xffff : (__mmask16)((1u << n) - 1);
}

typedef struct rounding {
    __m512 inverse, zero;
} rounding;

TARGET static inline __m512i round_plane(const float *x, __mmask16 lanes, rounding by)
{
    return _mm512_cvtps_epi32(
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, x), by.inverse, by.zero));
}

/*
 * Sixteen pixels of up to four planes: in each 32 bits the four channels of a pixel.
 * Packing saturates; what is in the measured range needs no more than that.
 */
TARGET static inline __m512i round_quad(const float *x, int64_t plane_stride,
                                        int64_t n_planes, __mmask16 lanes, rounding by)
{
    const __m512i none = _mm512_setzero_si512();
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i a = round_plane(x, lanes, by), b = none, c = none, d = none;

    if (n_planes > 1)
        b = round_plane(x + plane_stride, lanes, by);
    if (n_planes > 2)
        c = round_plane(x + 2 * plane_stride, lanes, by);
    if (n_planes > 3)
        d = round_plane(x + 3 * plane_stride, lanes, by);
    return _mm512_shuffle_epi8(
        _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)),
        order);
}

/* Where sixteen pixels go, of which n are there. */
TARGET static void find_pixels(const ptac_pixels *image, int64_t first, int n,
                               uint8_t *q, uint8_t *pixels[SIDE])
{
    int64_t x = first % image->width;
    uint8_t *line = q + first / image->width * image->line_bytes;

    for (int i = 0; i < n; i++) {
        pixels[i] = line + x * image->pixel_bytes;
        if (++x == image->width) {
            x = 0;
            line += image->line_bytes;
        }
    }
}

/* Pixels of a single quad lie side by side where a line goes on. */
TARGET static void store_quads(__m512i quads, uint8_t *const pixels[SIDE], int n)
{
    _Alignas(64) uint32_t words[SIDE];

    if (pixels[n - 1] == pixels[0] + PTAC_QUAD * (n - 1)) {
        _mm512_mask_storeu_epi32(pixels[0], first_lanes(n), quads);
        return;
    }
    _mm512_store_si512(words, quads);
    for (int i = 0; i < n; i++)
        __builtin_memcpy(pixels[i], &words[i], PTAC_QUAD);
}

/* A square of up to 16 fours of planes, of the pixels that lanes tell. */
TARGET static inline void round_square(__m512i square[SIDE], const float *x,
                                       int64_t plane_stride, int64_t n_planes,
                                       __mmask16 lanes, rounding by)
{
    for (int j = 0; j < SIDE; j++) {
        const int64_t c = j * PTAC_QUAD;

        if (c >= n_planes) {
            square[j] = _mm512_setzero_si512();
            continue;
        }

        const float *quad = x + c * plane_stride;

        for (int64_t k = 0; k < PTAC_QUAD; k++)
            _mm_prefetch((const char *)(quad + k * plane_stride) + AHEAD, _MM_HINT_T0);
        square[j] = round_quad(quad, plane_stride, n_planes - c, lanes, by);
    }
}

/* Sixteen fours of planes after the others: as many pages as stay known. */
TARGET void ptac_quantize_planes_avx512(const ptac_pixels *image, const float *planes,
                                        int64_t plane_stride, int64_t begin,
                                        int64_t end, float inverse, float zero,
                                        uint8_t *q)
{
    const rounding by = {_mm512_set1_ps(inverse), _mm512_set1_ps(zero)};
    __m512i square[SIDE];
    uint8_t *pixels[SIDE];

    for (int64_t c = 0; c < image->n_channels; c += SIDE * PTAC_QUAD)
        for (int64_t i = begin; i < end; i += SIDE) {
            const int n = end - i < SIDE ? (int)(end - i) : SIDE;
            const __mmask16 filled = first_lanes(ptac_quads(image->n_channels - c));
            const float *x = planes + c * plane_stride + i;

            find_pixels(image, i, n, q, pixels);
            if (image->n_channels <= PTAC_QUAD) {
                store_quads(
                    round_quad(x, plane_stride, image->n_channels, first_lanes(n), by),
                    pixels, n);
                continue;
            }
            round_square(square, x, plane_stride, image->n_channels - c, first_lanes(n),
                         by);
            transpose(square);
            for (int p = 0; p < n; p++)
                _mm512_mask_storeu_epi32(pixels[p] + c, filled, square[p]);
        }
}

TARGET void ptac_store_planes_avx512(const float *rows, int n_pixels, int n_columns,
                                     float *planes, int64_t plane_stride)
{
    for (int i = 0; i < n_pixels; i += SIDE) {
        const __mmask16 lanes = first_lanes(n_pixels - i);

        for (int n = 0; n < n_columns; n += SIDE) {
            __m512i square[SIDE];

            for (int p = 0; p < SIDE; p++)
                square[p] = _mm512_loadu_si512(rows + (i + p) * PTAC_PANEL + n);
            transpose(square);
            for (int c = 0; c < SIDE && n + c < n_columns; c++)
                _mm512_mask_storeu_epi32(planes + (n + c) * plane_stride + i, lanes,
                                         square[c]);
        }
    }
}

TARGET void ptac_pick_avx512(const float *x, int64_t step, int64_t n, float *out)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    int64_t i = 0;

    /* The last number of the second vector is not picked and may not be there. */
    for (; step == 2 && i + SIDE < n; i += SIDE)
        _mm512_storeu_ps(out + i,
                         _mm512_permutex2var_ps(_mm512_loadu_ps(x + 2 * i), even,
                                                _mm512_loadu_ps(x + 2 * i + SIDE)));
    ptac_pick_scalar(x + i * step, step, n - i, out + i);
}
#endif
