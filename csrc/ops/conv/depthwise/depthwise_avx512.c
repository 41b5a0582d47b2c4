/*
 * depthwise_avx512.c - depthwise convolution, sixteen float lanes at a time.
 *
 * The algorithm is in the templates; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define ISA   "avx512"
#define NEEDS PTAC_CPU_AVX512
#include "ops/conv/depthwise/depthwise_tpl.h"
#endif
