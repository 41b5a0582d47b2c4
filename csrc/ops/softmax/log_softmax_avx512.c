/*
 * log_softmax_avx512.c - log-softmax and its gradient, sixteen float lanes at a time.
 *
 * The algorithm is in log_softmax_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/softmax/log_softmax_tpl.h"

PTAC_ROW(LOG_SOFTMAX, "avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_accept_all, forward)
PTAC_ROW(LOG_SOFTMAX_BACKWARD, "avx512", PTAC_CLOSE, PTAC_CPU_AVX512, ptac_accept_all,
         backward)
#endif
