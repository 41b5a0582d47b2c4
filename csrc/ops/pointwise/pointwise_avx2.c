/*
 * pointwise_avx2.c - gated_act, add_act, bias_act and their gradients, eight float
 * lanes at a time.
 *
 * The algorithms are in pointwise_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/pointwise/pointwise_tpl.h"
#endif
