/*
 * avx2_f64_tpl.h - four doubles; the names are explained in avx512_f32_tpl.h.
 */
#include "ops/optim/avx2_sum.h"

#define SUFFIX(name) name##_f64
#define TARGET       __attribute__((target("avx2,fma")))
#define TYPE         double
#define VEC          __m256d
#define LANES        4
#define SET(x)       _mm256_set1_pd(x)
#define LOAD         load_f64
#define STORE        store_f64
#define ADD          _mm256_add_pd
#define SUB          _mm256_sub_pd
#define MUL          _mm256_mul_pd
#define DIV          _mm256_div_pd
#define FMA          _mm256_fmadd_pd
#define XOR          _mm256_xor_pd
#define MAXIMUM      maximum_f64
#define CAN_ROOT     (ptac_the_host.sqrt_rule_f64 == PTAC_SQRT_IEEE)
#define ROOT         _mm256_sqrt_pd
#define HOST_ROOT    ptac_the_host.sqrt_f64
#define SUM          __m256d
#define DOT(s, a, b) _mm256_fmadd_pd(a, b, s)
#define TOTAL        ptac_avx2_total

TARGET static inline __m256i first_f64(int m)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(m), _mm256_set_epi64x(3, 2, 1, 0));
}

TARGET static inline __m256d load_f64(const double *p, int m)
{
    return m == LANES ? _mm256_loadu_pd(p) : _mm256_maskload_pd(p, first_f64(m));
}

TARGET static inline void store_f64(double *p, __m256d v, int m)
{
    if (m == LANES)
        _mm256_storeu_pd(p, v);
    else
        _mm256_maskstore_pd(p, first_f64(m), v);
}
