/*
 * avx512_f64_tpl.h - eight doubles; the names are explained in avx512_f32_tpl.h.
 */
#include <immintrin.h>

#define SUFFIX(name) name##_f64
#define TARGET       __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))
#define TYPE         double
#define VEC          __m512d
#define LANES        8
#define SET(x)       _mm512_set1_pd(x)
#define LOAD         load_f64
#define STORE        store_f64
#define ADD          _mm512_add_pd
#define SUB          _mm512_sub_pd
#define MUL          _mm512_mul_pd
#define DIV          _mm512_div_pd
#define FMA          _mm512_fmadd_pd
#define XOR          _mm512_xor_pd
#define MAXIMUM      maximum_f64
#define CAN_ROOT     (ptac_the_host.sqrt_rule_f64 == PTAC_SQRT_IEEE)
#define ROOT         _mm512_sqrt_pd
#define HOST_ROOT    ptac_the_host.sqrt_f64
#define SUM          __m512d
#define DOT(s, a, b) _mm512_fmadd_pd(a, b, s)
#define TOTAL        _mm512_reduce_add_pd

TARGET static inline __m512d load_f64(const double *p, int m)
{
    if (m == LANES)
        return _mm512_loadu_pd(p);
    return _mm512_maskz_loadu_pd((__mmask8)((1u << m) - 1), p);
}

TARGET static inline void store_f64(double *p, __m512d v, int m)
{
    if (m == LANES)
        _mm512_storeu_pd(p, v);
    else
        _mm512_mask_storeu_pd(p, (__mmask8)((1u << m) - 1), v);
}
