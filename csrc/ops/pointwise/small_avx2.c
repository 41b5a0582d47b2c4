/*
 * small_avx2.c - small_pointwise, eight float lanes at a time.
 *
 * The algorithm is in small_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/pointwise/small_tpl.h"
#endif
