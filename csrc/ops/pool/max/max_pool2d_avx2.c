/*
 * max_pool2d_avx2.c - max pooling, eight float or four double lanes at a time.
 *
 * The algorithm is in max_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/max/max_pool2d_vec.h"

PTAC_ROW(MAX_POOL2D, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, accepts, run)
#endif
