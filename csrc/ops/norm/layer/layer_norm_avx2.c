/*
 * layer_norm_avx2.c - LayerNorm and its gradient, eight float lanes at a time.
 *
 * The algorithms are in layer_norm_tpl.h and sum_norm_tpl.h; this file only names the
 * lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/norm/layer/layer_norm_tpl.h"

#define SUM_NORM_ROWS ptac_sum_norm_avx2
#include "ops/norm/layer/sum_norm_tpl.h"
#endif
