/*
 * cross_entropy_avx2.c - cross-entropy and its gradient, eight lanes at a time.
 *
 * The algorithm is in cross_entropy_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/loss/cross_entropy_tpl.h"

PTAC_CROSS_ENTROPY_ROWS("avx2", PTAC_CPU_AVX2, ptac_cross_entropy_saves_p)
#endif
