/*
 * avx512_f32_tpl.h - sixteen floats. What the optimizer templates ask for:
 *
 *   SUFFIX(name), TARGET, TYPE, VEC, LANES
 *   SET(double)                the scalar, rounded to TYPE, in all lanes
 *   LOAD(p, m), STORE(p, v, m) the first m lanes; other memory is not touched
 *   ADD SUB MUL DIV            rounded once each
 *   FMA(a, b, c)               a * b + c, rounded once
 *   XOR(a, b)                  bitwise
 *   MAXIMUM(a, b)              NaN if either is
 *   CAN_ROOT, ROOT(v)          square roots as the host rounds them, if we know how
 *   HOST_ROOT(in, out, n)      by the host itself
 *   SUM, TOTAL(sum)            a vector of doubles, and their sum
 *   DOT(sum, a, b)             sum + the products of all lanes, in double
 */
#include <immintrin.h>

#define SUFFIX(name) name##_f32
#define TARGET       __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))
#define TYPE         float
#define VEC          __m512
#define LANES        16
#define SET(x)       _mm512_set1_ps((float)(x))
#define LOAD         load_f32
#define STORE        store_f32
#define ADD          _mm512_add_ps
#define SUB          _mm512_sub_ps
#define MUL          _mm512_mul_ps
#define DIV          _mm512_div_ps
#define FMA          _mm512_fmadd_ps
#define XOR          _mm512_xor_ps
#define MAXIMUM      maximum_f32
#define CAN_ROOT     (ptac_the_host.sqrt_rule != PTAC_SQRT_CALL)
#define ROOT         root_f32
#define HOST_ROOT    ptac_the_host.sqrt_f32
#define SUM          __m512d
#define DOT          dot_f32
#define TOTAL        _mm512_reduce_add_pd

/* The two halves join before the sum, which then waits for one addition alone. */
TARGET static inline __m512d dot_f32(__m512d sum, __m512 a, __m512 b)
{
    const __m512d high = _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
                                       _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)));
    const __m512d both =
        _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                        _mm512_cvtps_pd(_mm512_castps512_ps256(b)), high);

    return _mm512_add_pd(sum, both);
}

TARGET static inline __m512 load_f32(const float *p, int m)
{
    if (m == LANES)
        return _mm512_loadu_ps(p);
    return _mm512_maskz_loadu_ps((__mmask16)((1u << m) - 1), p);
}

TARGET static inline void store_f32(float *p, __m512 v, int m)
{
    if (m == LANES)
        _mm512_storeu_ps(p, v);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << m) - 1), v);
}
