/*
 * layer_norm_avx512.c - LayerNorm and its gradient, sixteen float lanes at a time.
 *
 * The algorithm is in layer_norm_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/norm/layer/layer_norm_tpl.h"
#endif
