/*
 * turn_avx512.h - larger blocks than turn_avx2.h has: a cache line a row and a column.
 *
 * Strides of planes are often powers of two, whose lines share a few places in a cache:
 * here each line is read and written once and may then go. The includer defines TARGET,
 * attributes that permit AVX-512's instructions.
 */
#ifndef PTAC_OPS_COPY_TURN_AVX512_H
#define PTAC_OPS_COPY_TURN_AVX512_H

#include "ops/copy/turn_avx2.h"

/* Quarters of four registers turned as if each were an element. */
INLINE void turn_quarters(const __m512i *a, const __m512i *b, const __m512i *c,
                          const __m512i *d, __m512i out[4])
{
    const __m512i ab_even = _mm512_shuffle_i32x4(*a, *b, 0x88);
    const __m512i ab_odd = _mm512_shuffle_i32x4(*a, *b, 0xdd);
    const __m512i cd_even = _mm512_shuffle_i32x4(*c, *d, 0x88);
    const __m512i cd_odd = _mm512_shuffle_i32x4(*c, *d, 0xdd);

    out[0] = _mm512_shuffle_i32x4(ab_even, cd_even, 0x88);
    out[1] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0x88);
    out[2] = _mm512_shuffle_i32x4(ab_even, cd_even, 0xdd);
    out[3] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0xdd);
}

/* 16 x 16 of 4 bytes, all of them. */
INLINE void turn_4_by_16(const char *from, int64_t from_stride, char *to,
                         int64_t to_stride)
{
    __m512i v[16], w[16];

#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        v[i] = _mm512_loadu_si512(from + i * from_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i out[4];

        turn_quarters(&v[i], &v[i + 4], &v[i + 8], &v[i + 12], out);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(to + (4 * j + i) * to_stride, out[j]);
    }
}

/* 8 x 8 of 8 bytes, all of them. */
INLINE void turn_8_by_8(const char *from, int64_t from_stride, char *to,
                        int64_t to_stride)
{
    __m512i v[8], w[8];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = _mm512_loadu_si512(from + i * from_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        w[i] = _mm512_unpacklo_epi64(v[i], v[i + 1]);
        w[i + 1] = _mm512_unpackhi_epi64(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512i out[4];

        turn_quarters(&w[i], &w[i + 2], &w[i + 4], &w[i + 6], out);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(to + (2 * j + i) * to_stride, out[j]);
    }
}

#endif
