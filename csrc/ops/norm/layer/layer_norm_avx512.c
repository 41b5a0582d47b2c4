/*
 * layer_norm_avx512.c - LayerNorm and its gradient, sixteen float lanes at a time.
 *
 * The algorithms are in layer_norm_tpl.h and sum_norm_tpl.h; this file only names the
 * lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/norm/layer/layer_norm_tpl.h"

#define SUM_NORM_ROWS ptac_sum_norm_avx512
#include "ops/norm/layer/sum_norm_tpl.h"
#endif
