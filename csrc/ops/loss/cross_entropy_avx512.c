/*
 * cross_entropy_avx512.c - cross-entropy and its gradient, sixteen lanes at a time.
 *
 * The algorithm is in cross_entropy_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/loss/cross_entropy_tpl.h"

PTAC_CROSS_ENTROPY_ROWS("avx512", PTAC_CPU_AVX512, ptac_cross_entropy_saves_p)
#endif
