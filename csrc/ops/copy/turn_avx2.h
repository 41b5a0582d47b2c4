/*
 * turn_avx2.h - blocks of a plane turned in registers: rows become columns.
 *
 * turn_<bytes>(from, from_stride, n_rows, to, to_stride, n_columns): element i of row
 * r, at from + r * from_stride, goes to element r of to + i * to_stride. A block has as
 * many rows as columns. Where n_rows or n_columns is less, fewer rows are read, whole
 * ones, and fewer are written, whole ones: what is in the gaps is no element of the
 * block.
 */
#ifndef PTAC_OPS_COPY_TURN_AVX2_H
#define PTAC_OPS_COPY_TURN_AVX2_H

#include "ops/copy/copy.h"
#include "ops/math/lanes_avx2.h"

INLINE void move_16(char *to, const char *from)
{
    _mm_storeu_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
}

/* 8 x 8 of 4 bytes. */
INLINE void turn_4(const char *from, int64_t from_stride, int n_rows, char *to,
                   int64_t to_stride, int n_columns)
{
    vec rows[LANES];

#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++)
        rows[i] =
            i < n_rows ? v_load((const float *)(from + i * from_stride)) : v_zero();
    v_transpose(rows);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++)
        if (i < n_columns)
            v_store((float *)(to + i * to_stride), rows[i]);
}

/* 4 x 4 of 8 bytes. */
INLINE void turn_8(const char *from, int64_t from_stride, int n_rows, char *to,
                   int64_t to_stride, int n_columns)
{
    __m256d v[4], w[4];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = i < n_rows ? _mm256_loadu_pd((const double *)(from + i * from_stride))
                          : _mm256_setzero_pd();
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        w[i] = _mm256_unpacklo_pd(v[i], v[i + 1]);
        w[i + 1] = _mm256_unpackhi_pd(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        v[i] = _mm256_permute2f128_pd(w[i], w[i + 2], 0x20);
        v[i + 2] = _mm256_permute2f128_pd(w[i], w[i + 2], 0x31);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        if (i < n_columns)
            _mm256_storeu_pd((double *)(to + i * to_stride), v[i]);
}

/* 8 x 8 of 2 bytes. */
INLINE void turn_2(const char *from, int64_t from_stride, int n_rows, char *to,
                   int64_t to_stride, int n_columns)
{
    __m128i v[8], w[8];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = i < n_rows ? _mm_loadu_si128((const __m128i *)(from + i * from_stride))
                          : _mm_setzero_si128();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w[2 * i] = _mm_unpacklo_epi16(v[i], v[i + 4]);
        w[2 * i + 1] = _mm_unpackhi_epi16(v[i], v[i + 4]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[2 * i] = _mm_unpacklo_epi16(w[i], w[i + 4]);
        v[2 * i + 1] = _mm_unpackhi_epi16(w[i], w[i + 4]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w[2 * i] = _mm_unpacklo_epi16(v[i], v[i + 4]);
        w[2 * i + 1] = _mm_unpackhi_epi16(v[i], v[i + 4]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        if (i < n_columns)
            _mm_storeu_si128((__m128i *)(to + i * to_stride), w[i]);
}

/* Blocks of a cache line each way, put together of those of n x n. */
#define TURN_BY_BLOCKS(name, big, n, bytes, block)                                     \
    INLINE void name(const char *from, int64_t from_stride, char *to,                  \
                     int64_t to_stride)                                                \
    {                                                                                  \
        for (int c = 0; c < (big); c += (n))                                           \
            for (int r = 0; r < (big); r += (n))                                       \
                block(from + r * from_stride + c * (bytes), from_stride, n,            \
                      to + c * to_stride + r * (bytes), to_stride, n);                 \
    }

TURN_BY_BLOCKS(turn_2_by_32, 32, 8, 2, turn_2)
TURN_BY_BLOCKS(turn_4_by_16, 16, 8, 4, turn_4)
TURN_BY_BLOCKS(turn_8_by_8, 8, 4, 8, turn_8)

/* 4 x 4 of 16 bytes, which are registers as they are: nothing is in gaps. */
INLINE void turn_16(const char *from, int64_t from_stride, int n_rows, char *to,
                    int64_t to_stride, int n_columns)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            if (i < n_columns && r < n_rows)
                move_16(to + i * to_stride + r * 16, from + r * from_stride + i * 16);
}

INLINE void turn_16_by_4(const char *from, int64_t from_stride, char *to,
                         int64_t to_stride)
{
    turn_16(from, from_stride, 4, to, to_stride, 4);
}

#endif
