/*
 * max_pool2d_backward_avx2.c - max pooling's gradient, eight floats at a time.
 *
 * The algorithm is in max_pool2d_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/max/max_pool2d_backward_vec.h"

PTAC_ROW(MAX_POOL2D_BACKWARD, "avx2", PTAC_EXACT, PTAC_CPU_AVX2,
         ptac_max_pool2d_accepts, run)
#endif
