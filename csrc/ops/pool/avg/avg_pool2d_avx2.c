/*
 * avg_pool2d_avx2.c - average pooling, eight float or four double lanes at a time.
 *
 * The algorithm is in avg_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/avg/avg_pool2d_vec.h"

PTAC_ROW(AVG_POOL2D, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_avg_pool2d_accepts, run)

PTAC_ROW(ADAPTIVE_AVG_POOL2D, "avx2", PTAC_EXACT, PTAC_CPU_AVX2,
         ptac_avg_pool2d_accepts, run)
#endif
