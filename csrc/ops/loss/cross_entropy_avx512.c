/*
 * cross_entropy_avx512.c - cross-entropy and its gradient, sixteen float lanes at a
 * time.
 *
 * The algorithm is in cross_entropy_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/loss/cross_entropy_tpl.h"

PTAC_ROW(CROSS_ENTROPY, "avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_accept_all, forward)
PTAC_ROW(CROSS_ENTROPY_BACKWARD, "avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_accept_all,
         backward)
#endif
