/*
 * max_pool2d_avx512.c - max pooling, sixteen float or eight double lanes at a time.
 *
 * The algorithm is in max_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#include "ops/pool/max/max_pool2d_vec.h"

PTAC_ROW(MAX_POOL2D, "avx512", PTAC_EXACT, PTAC_CPU_AVX512, accepts, run)
#endif
