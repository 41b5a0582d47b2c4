/*
 * planes_avx2.c - eight pixels by eight fours of channels at a time.
 *
 * Fewer than eight pixels take the definition's way.
 */
#if defined(__x86_64__)
#include "ops/int8/planes.h"

#include "ops/int8/panel.h"

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma")))

enum {
    SIDE = 8, /* of a square of 32-bit numbers */
};

/* Rows become columns: by 32 bits, by 64, then by halves. */
TARGET static inline void transpose(__m256i r[SIDE])
{
    __m256i t[SIDE];

    for (int i = 0; i < SIDE; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2x128_si256(r[i], r[4 + i], 0x31);
    }
    memcpy(r, t, sizeof t);
}

typedef struct rounding {
    __m256 inverse, zero;
} rounding;

TARGET static inline __m256i round_plane(const float *x, rounding by)
{
    return _mm256_cvtps_epi32(_mm256_fmadd_ps(_mm256_loadu_ps(x), by.inverse, by.zero));
}

/*
 * Eight pixels of up to four planes: in each 32 bits the four channels of a pixel.
 * Packing saturates; what is in the measured range needs no more than that.
 */
TARGET static inline __m256i round_quad(const float *x, int64_t plane_stride,
                                        int64_t n_planes, rounding by)
{
    const __m256i none = _mm256_setzero_si256();
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i a = round_plane(x, by);
    const __m256i b = n_planes > 1 ? round_plane(x + plane_stride, by) : none;
    const __m256i c = n_planes > 2 ? round_plane(x + 2 * plane_stride, by) : none;
    const __m256i d = n_planes > 3 ? round_plane(x + 3 * plane_stride, by) : none;

    return _mm256_shuffle_epi8(
        _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)),
        order);
}

/* Eight pixels, from the one on that is at q, of up to 32 channels. */
TARGET static void quantize_square(const ptac_pixels *image, const float *planes,
                                   int64_t plane_stride, int64_t n_planes,
                                   int64_t first, rounding by, uint8_t *q)
{
    const int64_t filled = n_planes < SIDE * PTAC_QUAD ? ptac_quads(n_planes) : SIDE;
    uint8_t *line = q + first / image->width * image->line_bytes;
    int64_t x = first % image->width;
    __m256i square[SIDE];

    for (int j = 0; j < SIDE; j++)
        square[j] = j < filled
                        ? round_quad(planes + j * PTAC_QUAD * plane_stride + first,
                                     plane_stride, n_planes - j * PTAC_QUAD, by)
                        : _mm256_setzero_si256();
    transpose(square);
    for (int i = 0; i < SIDE; i++) {
        memcpy(line + x * image->pixel_bytes, &square[i], (size_t)filled * PTAC_QUAD);
        if (++x == image->width) {
            x = 0;
            line += image->line_bytes;
        }
    }
}

TARGET void ptac_quantize_planes_avx2(const ptac_pixels *image, const float *planes,
                                      int64_t plane_stride, int64_t begin, int64_t end,
                                      float inverse, float zero, uint8_t *q)
{
    const rounding by = {_mm256_set1_ps(inverse), _mm256_set1_ps(zero)};
    const int64_t whole = begin + (end - begin) / SIDE * SIDE;

    for (int64_t c = 0; c < image->n_channels; c += SIDE * PTAC_QUAD)
        for (int64_t i = begin; i < whole; i += SIDE)
            quantize_square(image, planes + c * plane_stride, plane_stride,
                            image->n_channels - c, i, by, q + c);
    ptac_quantize_planes_scalar(image, planes, plane_stride, whole, end, inverse, zero,
                                q);
}

TARGET void ptac_store_planes_avx2(const float *rows, int n_pixels, int n_columns,
                                   float *planes, int64_t plane_stride)
{
    const int whole = n_pixels / SIDE * SIDE;

    for (int i = 0; i < whole; i += SIDE)
        for (int n = 0; n < n_columns; n += SIDE) {
            __m256i square[SIDE];

            for (int p = 0; p < SIDE; p++)
                square[p] = _mm256_loadu_si256(
                    (const __m256i *)(rows + (i + p) * PTAC_PANEL + n));
            transpose(square);
            for (int c = 0; c < SIDE && n + c < n_columns; c++)
                _mm256_storeu_si256((__m256i *)(planes + (n + c) * plane_stride + i),
                                    square[c]);
        }
    ptac_store_planes_scalar(rows + whole * PTAC_PANEL, n_pixels - whole, n_columns,
                             planes + whole, plane_stride);
}
#endif
