/*
 * softmax_avx2.c - log-softmax and its gradient, eight float lanes at a time.
 *
 * The algorithm is in log_softmax_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/softmax/log_softmax_tpl.h"

PTAC_LOG_SOFTMAX_ROWS("avx2", PTAC_CPU_AVX2)
#endif
