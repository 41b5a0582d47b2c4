/*
 * avg_pool2d_backward_avx2.c - average pooling's gradient, eight float or four double
 * lanes at a time.
 *
 * The algorithm is in avg_pool2d_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/avg/avg_pool2d_backward_vec.h"

PTAC_ROW(AVG_POOL2D_BACKWARD, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, accepts, run)

PTAC_ROW(ADAPTIVE_AVG_POOL2D_BACKWARD, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, accepts, run)
#endif
