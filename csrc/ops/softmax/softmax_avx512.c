/*
 * softmax_avx512.c - softmax, log-softmax and their gradients, sixteen lanes at a time.
 *
 * The algorithms are in the templates below; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#include "ops/softmax/softmax_tpl.h"
#include "ops/softmax/strips_tpl.h"

#include "ops/softmax/log_softmax_tpl.h"
#include "ops/softmax/probabilities_tpl.h"

PTAC_SOFTMAX_ROWS("avx512", PTAC_CPU_AVX512)
#endif
