/*
 * mean_avx2.c - means, eight floats at a time.
 *
 * The algorithm is in the template; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ISA   "avx2"
#define NEEDS PTAC_CPU_AVX2
#include "ops/mean/mean_tpl.h"
#endif
