/*
 * batch_norm_fold.c - which code folds the normalization of a convolution's outputs.
 */
#include "ops/norm/batch_norm_fold.h"

#include "core/cpu.h"

static void fold_each(const ptac_batch_norm *norm, const float *bias, int64_t n,
                      float *scale, float *shift)
{
    for (int64_t c = 0; c < n; c++) {
        scale[c] = 1;
        shift[c] = bias ? bias[c] : 0;
        ptac_batch_norm_fold(norm, c, &scale[c], &shift[c]);
    }
}

ptac_batch_norm_fold_fn ptac_batch_norm_fold_best(void)
{
#if defined(__x86_64__)
    const uint32_t have = ptac_cpu_features();

    if (have & PTAC_CPU_AVX512)
        return ptac_batch_norm_fold_avx512;
    if (have & PTAC_CPU_AVX2)
        return ptac_batch_norm_fold_avx2;
#endif
    return fold_each;
}
