/*
 * avx2_f32_tpl.h - eight floats; the names are explained in avx512_f32_tpl.h.
 */
#include "ops/optim/avx2_sum.h"

#define SUFFIX(name) name##_f32
#define TARGET       __attribute__((target("avx2,fma")))
#define TYPE         float
#define VEC          __m256
#define LANES        8
#define SET(x)       _mm256_set1_ps((float)(x))
#define LOAD         load_f32
#define STORE        store_f32
#define ADD          _mm256_add_ps
#define SUB          _mm256_sub_ps
#define MUL          _mm256_mul_ps
#define DIV          _mm256_div_ps
#define FMA          _mm256_fmadd_ps
#define XOR          _mm256_xor_ps
#define MAXIMUM      maximum_f32
#define CAN_ROOT     (ptac_the_host.sqrt_rule != PTAC_SQRT_CALL)
#define ROOT         root_f32
#define HOST_ROOT    ptac_the_host.sqrt_f32
#define SUM          __m256d
#define DOT          ptac_avx2_dot
#define TOTAL        ptac_avx2_total

TARGET static inline __m256i first_f32(int m)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(m),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

TARGET static inline __m256 load_f32(const float *p, int m)
{
    return m == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_f32(m));
}

TARGET static inline void store_f32(float *p, __m256 v, int m)
{
    if (m == LANES)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, first_f32(m), v);
}
