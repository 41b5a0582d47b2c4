/*
 * avx2_sum.h - sums of products in double, by AVX2: for the lanes of optimizer steps,
 * and for sums over gradients that others step by.
 */
#ifndef PTAC_OPS_OPTIM_AVX2_SUM_H
#define PTAC_OPS_OPTIM_AVX2_SUM_H

#include <immintrin.h>

/*
 * Products of floats, exact in double, join the four sums. The two halves join before
 * these do, which then wait for one addition alone.
 */
__attribute__((target("avx2,fma"))) static inline __m256d ptac_avx2_dot(__m256d sum,
                                                                        __m256 a,
                                                                        __m256 b)
{
    const __m256d high = _mm256_mul_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1)));
    const __m256d both =
        _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                        _mm256_cvtps_pd(_mm256_castps256_ps128(b)), high);

    return _mm256_add_pd(sum, both);
}

__attribute__((target("avx2,fma"))) static inline double ptac_avx2_total(__m256d sum)
{
    double parts[4];

    _mm256_storeu_pd(parts, sum);
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

#endif
