/*
 * depthwise_avx2.c - depthwise convolution, eight float lanes at a time.
 *
 * The algorithm is in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/conv/depthwise/depthwise_tpl.h"
#endif
