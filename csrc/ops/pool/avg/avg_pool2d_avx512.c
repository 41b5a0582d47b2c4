/*
 * avg_pool2d_avx512.c - average pooling, sixteen float or eight double lanes at a time.
 *
 * The algorithm is in avg_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#include "ops/pool/avg/avg_pool2d_vec.h"

PTAC_ROW(AVG_POOL2D, "avx512", PTAC_EXACT, PTAC_CPU_AVX512, ptac_avg_pool2d_accepts,
         run)

PTAC_ROW(ADAPTIVE_AVG_POOL2D, "avx512", PTAC_EXACT, PTAC_CPU_AVX512,
         ptac_avg_pool2d_accepts, run)
#endif
