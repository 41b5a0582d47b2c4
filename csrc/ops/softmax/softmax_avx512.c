/*
 * softmax_avx512.c - log-softmax, cross-entropy and their gradients, sixteen float
 * lanes at a time.
 *
 * The algorithms are in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/softmax/cross_entropy_tpl.h"
#include "ops/softmax/log_softmax_tpl.h"

PTAC_SOFTMAX_ROWS("avx512", PTAC_CPU_AVX512, ptac_cross_entropy_saves_p)
#endif
