/*
 * cross_entropy_avx2.c - cross-entropy and its gradient, eight float lanes at a time.
 *
 * The algorithm is in cross_entropy_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/loss/cross_entropy_tpl.h"

PTAC_ROW(CROSS_ENTROPY, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all, forward)
PTAC_ROW(CROSS_ENTROPY_BACKWARD, "avx2", PTAC_CLOSE, PTAC_CPU_AVX2, ptac_accept_all,
         backward)
#endif
