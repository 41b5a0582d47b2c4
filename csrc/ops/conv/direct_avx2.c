/*
 * direct_avx2.c - convolution of few input channels, eight float lanes at a time.
 *
 * The algorithm is in direct_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/conv/direct_tpl.h"
#endif
